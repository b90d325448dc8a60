"""Executes builds and runs. The only package that runs user code, and only inside graph hosts."""
