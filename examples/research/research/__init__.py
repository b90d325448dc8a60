"""The research example."""
