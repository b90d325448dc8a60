"""Python environments: interpreters, the package installer uv, resolved requirements, and shared packages."""
