"""Answers HTTP; never loads user code."""
