"""One run from claim to end event: claimed, executed in a graph host, committed, its end published."""
