"""The client of the HTTP API: address and API key, contexts, calls; and the forms of ids, statuses and addresses."""
