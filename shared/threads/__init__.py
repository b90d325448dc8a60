"""Threads: records, newest state, and checkpoints.

    idle ──run created──► busy ──last run ends──► idle | interrupted | error

A thread is `busy` while one of its runs is live. Locks are taken thread first, then run.
"""
