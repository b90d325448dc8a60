"""Requests and WebSockets for the project's own routes."""
