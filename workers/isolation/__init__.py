"""Keeps user code away from the rest of the machine, and within its limits, as well as this machine can."""
