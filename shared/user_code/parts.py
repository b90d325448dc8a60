"""Parts of an exchange on the wire. `workers/graph_host/frames.py` defines their kinds."""

from __future__ import annotations

import threading

from shared.user_code import inbox

HEAD, BODY, END, TEXT, BYTES, CLOSE, CREDIT, FAILED = b"h", b"b", b"e", b"t", b"y", b"c", b"k", b"x"
COSTING = frozenset((BODY, TEXT, BYTES))  # these need credit:
WINDOW = 16  # parts that may be sent without credit
CREDIT_AT = WINDOW // 2  # a receiver that has consumed so many sends credit
LAST = frozenset((END, CLOSE, FAILED))  # of the app's parts; of the client's only CLOSE
MOST_BYTES = 1024 * 1024  # of one part: messages of clients and apps are not split


class Sender:
    """Numbers parts and sends them to the other side's inbox."""

    def __init__(self, place: bytes) -> None:
        self._address = inbox.address_of(place)
        self._id = inbox.id_at(place)
        self._number = 0
        self._lock = threading.Lock()  # numbers must be sent in order

    def send(self, *parts: bytes) -> bool:
        """Send parts. Returns False if they reach no subscriber."""
        with self._lock:
            messages = [
                inbox.encode(inbox.PART, self._id, part, number=number)
                for number, part in enumerate(parts, self._number)
            ]
            self._number += len(parts)
            return inbox.send(self._address, *messages)

    def give_up(self, reason: str) -> None:
        """Send LOST: no further parts follow. Raises RedisError."""
        inbox.publish(self._address, inbox.encode(inbox.LOST, self._id, reason.encode()))
