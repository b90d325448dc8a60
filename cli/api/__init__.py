"""The client of the control plane: address and API key, calls, ids and statuses."""
