"""Protocol v2 as clients speak it: commands, and a thread's events for whoever subscribes to them.

What is here is the wire: bodies, channels, frames and the codes of refusals. What a command means for a thread, and
which events a thread has, is in `shared/protocol/`.
"""
