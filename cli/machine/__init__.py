"""The service on this machine: its processes and its embedded servers, what starts and probes them, and its own database.

Nothing is imported here: a probe of supervisors asks one question of one module.
"""
