"""Protocol v2's events of one run, made of the same stream as the classic ones, where somebody watches it.

`writer` takes the chunks, `log` writes what comes of them; a graph's own transformers may come between (`transforming`).
"""
