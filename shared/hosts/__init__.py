"""Calls to graph hosts: addressing, waiting for a host, answers, refusals, liveness, and exchanges with a project's app."""
