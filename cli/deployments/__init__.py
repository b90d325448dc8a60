"""Commands for deployments and their revisions: deploy, configure, inspect, roll back and delete."""
