"""What goes when: deleted deployments, old revisions and their logs, threads whose time has come."""
