"""What web and workers both know: state, rules, channels. No HTTP, no user code."""

__version__ = "0.1.0"
