"""Finds rows that were left behind and sets them going again; sends what waits in outboxes; removes what is over."""
