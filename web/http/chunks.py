"""Chunks of a response of unknown length."""

from __future__ import annotations


class LastChunk(bytes):
    """The last chunk of a response. The end of the response is sent with it, not in a packet of its own."""
