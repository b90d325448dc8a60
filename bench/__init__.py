"""Benchmark for any server that speaks the deployment API, and for the bare graphs, with the same scenarios."""
