"""Drivers: PostgreSQL, Redis, the broker, outgoing HTTP, logs and encryption.

    postgres            connections, transactions and single statements; the database's time
    arrays              lists as PostgreSQL's binary arrays
    greenlet_wait       waiting for PostgreSQL in gevent's loop
    json_text           JSON documents of callers and graphs in the database
    replica             reads from a read replica
    writes              whether PostgreSQL accepts writes
    database_version    the version of the database's schema
    redis               clients by role
    redis_connections   subscribers, and commands packed by their senders
    broker              notifications of workers
    egress              calls to servers whose URLs users supply
    encryption          stored secrets; key_rotation re-encrypts them with a new key
    logs, outlet        log lines; writing them without blocking
    trace_context       the place of a run in a trace; tracing and otel export spans
    health_socket       liveness and readiness of processes without a port
    loops               the loop of background tasks
    system              a process and its operating system

No other package opens a connection. Exceptions of libraries become those of `shared/errors.py` here.
"""
