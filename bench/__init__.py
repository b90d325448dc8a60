"""Measures any server that speaks the deployment API, and the bare graphs, by the same scenarios."""
