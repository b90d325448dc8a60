"""Upkeep: recovers abandoned runs and builds, sends deliveries from the outbox, and removes expired data."""
