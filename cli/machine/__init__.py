"""The service on this machine: its processes, its embedded servers, starting and probing them, direct database access.

This file imports nothing, so that a health probe loads a single module.
"""
