"""Drivers: PostgreSQL, Redis, the broker, outgoing HTTP, logs and encryption.

No other package opens a connection. Exceptions of libraries become those of `shared/errors.py` here.
"""
