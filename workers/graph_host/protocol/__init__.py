"""Events of protocol v2 of one run, derived from the same stream as the classic events if a reader requests them.

`writer` converts the chunks of the stream to events, and `log` writes them. A graph's own stream transformers may
process the events in between (`transforming`).
"""
