"""Validation of `langgraph.json`: every key is honoured, rejected with a reason, or reported as without effect."""
