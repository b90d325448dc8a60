"""Deployments and their revisions: from a project on this machine to what serves, and what can be asked of it."""
