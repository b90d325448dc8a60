"""The kinds of parts that web and a project's app exchange; `workers/graph_host/frames.py` says what each means."""

from __future__ import annotations

HEAD, BODY, END, TEXT, BYTES, CLOSE, FAILED = b"h", b"b", b"e", b"t", b"y", b"c", b"x"
PART_BYTES = 64 * 1024
