"""Runs: created, eligible, claimed, ended. The life of one:

    pending ──claim──► running ──finish──► success | error | interrupted | timeout
       │                  │ lease expired or host died, attempts left ──► pending
       └─cancel─► interrupted (rollback: deleted)

Every arrow is one conditional UPDATE that names the old state; no row changed means somebody else was first. All times
are the database's. Locks are always taken thread first, then run.
"""
