"""Threads: their records, their newest state, and the checkpoints behind it.

    idle ──run created──► busy ──last run ends──► idle | interrupted | error

A thread is `busy` while one of its runs is live; locks are taken thread first, then run.
"""
