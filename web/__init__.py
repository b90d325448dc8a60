"""The HTTP interfaces. Never loads user code."""
