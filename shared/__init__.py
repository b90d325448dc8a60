"""State, rules and channels shared by web and workers. No HTTP, no user code."""

__version__ = "0.2.0"
