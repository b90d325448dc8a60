"""Runs: creating, claiming, finishing and reading them. The life cycle of a run:

    pending ──claim──► running ──finish──► success | error | interrupted | timeout
       │                  │ lease expired or host died, attempts left ──► pending
       └─cancel─► interrupted (rollback: deleted)

Every arrow is one conditional UPDATE that names the old state. If it changes no row, another process was first. All
times are taken from the database's clock. Locks are always taken thread first, then run.
"""
