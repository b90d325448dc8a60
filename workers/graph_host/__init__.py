"""Runs in the child process: loads a revision's graphs and executes runs on one asyncio loop."""
