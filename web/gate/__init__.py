"""What the service establishes about a request before a view runs: deployment, caller, role, rate limits."""
