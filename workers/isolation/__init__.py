"""Isolation of user code: the sandbox and the resource limits, as far as the machine supports them."""
