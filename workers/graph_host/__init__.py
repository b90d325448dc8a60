"""The graph host: a child process that loads a revision's graphs and executes runs on one asyncio loop."""
