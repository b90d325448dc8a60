"""Replays: a sample of past runs, executed again on another revision and compared.

comparison   one replayed run and its original
rules        the rule that decides whether a replay passes
summary      figures of all cases, and the verdict
"""
