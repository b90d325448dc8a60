"""Calls into user code other than graphs: a deployment's authorization and its own routes."""
