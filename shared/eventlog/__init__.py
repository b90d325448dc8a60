"""Numbered, append-only event logs in Redis, and following them live; knows neither runs nor builds.

One writer a log, fenced by its attempt; any number of readers, who find every event once and in order.
"""
