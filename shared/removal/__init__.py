"""Removal of data: deleted deployments, old revisions, runs and logs, expired threads."""
