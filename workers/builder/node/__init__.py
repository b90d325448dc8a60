"""Environments of JavaScript and TypeScript projects: Node itself, our tools, and the project's packages."""
