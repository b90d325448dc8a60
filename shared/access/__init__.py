"""Access: organizations, API keys, and idempotency keys."""
