"""The graph host: a child process that loads a revision's graphs and executes runs on one asyncio loop.

Modules that work during a run bind functions of the standard library by `from … import`, before user code is loaded. A
graph that replaces `json.dumps`, `time.sleep` or similar functions then harms only itself and no later runs.
"""
