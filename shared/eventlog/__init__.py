"""Numbered, append-only event logs in Redis, and following them live. Independent of runs and builds.

Each log has one writer, fenced by its attempt, and any number of readers, which get every event once and in order.
"""
