"""What an answer of unknown length is sent as: chunks, of which the maker may know that one is the last."""

from __future__ import annotations


class LastChunk(bytes):
    """Nothing comes after it: what ends the answer is sent with it, not in a packet of its own."""
