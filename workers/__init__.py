"""Does the work; the only package that meets user code, and that only through graph hosts."""
