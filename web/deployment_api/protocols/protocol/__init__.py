"""Protocol v2 over HTTP and WebSockets: commands, and a thread's events for the clients that subscribe to them.

This package holds the wire format: bodies, channels, frames and error codes. `shared/protocol/` determines what a
command does to a thread, and which events a thread has.
"""
