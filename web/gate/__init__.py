"""The checks of a request before its view runs: address, deployment, route, caller, role, rate limits.

`gate.enter` holds the order of the checks. `context` holds what views read.
"""
