"""Execution of runs, from the claim of a run to its end event, in graph hosts."""
