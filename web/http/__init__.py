"""Server plumbing: gunicorn worker, connections, bodies, headers, CORS, server-sent events, WebSocket, errors. Knows no resource."""
