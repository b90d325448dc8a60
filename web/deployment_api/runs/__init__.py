"""Routes for runs: create, read, join, cancel, retry, webhook deliveries."""
