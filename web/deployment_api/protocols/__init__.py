"""Other protocols at a deployment's address: protocol v2, MCP, A2A, AG-UI."""
