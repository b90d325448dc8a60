"""The control plane as every command meets it: where it is and with which key, its calls, its ids and its statuses."""
