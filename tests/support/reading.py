"""A client that reads an event stream and reconnects by itself when the connection is cut."""

from __future__ import annotations

import json
import threading
from typing import Any, NamedTuple

import httpx

SILENCE_SECONDS = 15.0  # longer than several heartbeats; without any for so long, the client reconnects
PAUSE_SECONDS = 0.1


class Part(NamedTuple):
    id: str | None
    event: str
    data: Any


class Reading(threading.Thread):
    """Thread that reads a stream from its beginning to its end or until closed. Resumes after the last id when cut."""

    def __init__(self, base: httpx.Client, path: str) -> None:
        super().__init__(daemon=True)
        self.parts: list[Part] = []
        self.cuts = 0
        self._base, self._path = base, path
        self._last: str = "-"
        self._closed = threading.Event()
        self.start()

    def close(self) -> None:
        """Stop reading at the next heartbeat."""
        self._closed.set()
        self.join(SILENCE_SECONDS)

    def __repr__(self) -> str:
        state = "reading" if self.is_alive() else "ended"
        return f"<Reading of {self._path}: {state}, {self.cuts} cuts, {len(self.parts)} parts, the last {self.parts[-1:]}>"

    def runs_done(self) -> list[str]:
        """Return the ids of the runs that a thread's stream has reported as done."""
        said = [part.data for part in self.parts if part.event == "metadata"]
        return [data["run_id"] for data in said if data.get("status") == "run_done"]

    def is_in_order(self) -> bool:
        """Return whether the ids of a thread's stream strictly increase."""
        ids = [tuple(map(int, part.id.split("-"))) for part in self.parts if part.id]
        return ids == sorted(set(ids))

    def run(self) -> None:
        while not self._closed.is_set():
            try:
                if self._read():
                    return
            except httpx.HTTPError:
                self.cuts += 1
                self._closed.wait(PAUSE_SECONDS)

    def _read(self) -> bool:
        """Read one connection. Returns whether the stream ended."""
        fields: dict[str, str] = {}
        headers = {"Last-Event-ID": self._last}
        with self._base.stream("GET", self._path, headers=headers, timeout=SILENCE_SECONDS) as answer:
            answer.raise_for_status()
            for line in answer.iter_lines():
                if self._closed.is_set():
                    return True
                name, _, value = line.partition(":")
                if name:
                    fields[name] = value.strip()
                elif line == "" and "event" in fields:
                    self._take(fields)
                    fields = {}
        return True

    def _take(self, fields: dict[str, str]) -> None:
        self._last = fields.get("id", self._last)
        self.parts.append(Part(fields.get("id"), fields["event"], json.loads(fields["data"])))
