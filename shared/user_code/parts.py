"""The parts of an exchange, as they travel; `workers/graph_host/frames.py` says what each kind means."""

from __future__ import annotations

import threading

from shared.user_code import inbox

HEAD, BODY, END, TEXT, BYTES, CLOSE, CREDIT, FAILED = b"h", b"b", b"e", b"t", b"y", b"c", b"k", b"x"
COSTING = frozenset((BODY, TEXT, BYTES))  # so many of these may be on their way:
WINDOW = 16
CREDIT_AT = WINDOW // 2  # who has consumed so many says so
LAST = frozenset((END, CLOSE, FAILED))  # of those from the app; from the client CLOSE alone is
MOST_BYTES = 1024 * 1024  # of one part: a client's message, or an app's, is not cut up


class Sender:
    """Numbers parts and sends them to where the other end gets them."""

    def __init__(self, place: bytes) -> None:
        self._address = inbox.address_of(place)
        self._id = inbox.id_at(place)
        self._number = 0
        self._lock = threading.Lock()  # numbers must travel in their order

    def send(self, *parts: bytes) -> bool:
        """Send parts; False when nobody gets them."""
        with self._lock:
            messages = [
                inbox.encode(inbox.PART, self._id, part, number=number)
                for number, part in enumerate(parts, self._number)
            ]
            self._number += len(parts)
            return inbox.send(self._address, *messages)

    def give_up(self, reason: str) -> None:
        """Send that nothing follows. Raises RedisError."""
        inbox.publish(self._address, inbox.encode(inbox.LOST, self._id, reason.encode()))
