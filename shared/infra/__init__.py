"""A driver's door each: PostgreSQL, Redis, the broker, outgoing HTTP, logs, encryption.

Nothing else opens a connection. Foreign errors become ours here (`shared/errors.py`).
"""
