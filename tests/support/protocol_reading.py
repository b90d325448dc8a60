"""A client of protocol v2 that follows a thread and reconnects after the last sequence number it has seen."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from typing import Any

import httpx

SILENCE_SECONDS = 15.0  # longer than several heartbeats; without any for so long, the client reconnects
PAUSE_SECONDS = 0.1


class ProtocolReading(threading.Thread):
    """Thread that reads the events of these channels. `notes` holds comments other than heartbeats."""

    def __init__(self, base: httpx.Client, path: str, channels: Sequence[str]) -> None:
        super().__init__(daemon=True)
        self.events: list[Any] = []
        self.notes: list[str] = []
        self.cuts = 0
        self._base, self._path, self._channels = base, path, list(channels)
        self._closed = threading.Event()
        self.start()

    def close(self) -> None:
        """Stop reading at the next heartbeat."""
        self._closed.set()
        self.join(SILENCE_SECONDS)

    def lifecycle(self) -> list[tuple[str, str]]:
        """Return `(run id, word)` of each lifecycle event of a root run."""
        root = [
            event
            for event in self.events
            if event["method"] == "lifecycle" and not event["params"]["namespace"]
        ]
        return [(event["event_id"].split(":")[1], event["params"]["data"]["event"]) for event in root]

    def written(self) -> list[Any]:
        """Return the payloads that nodes wrote to the custom channel."""
        return [event["params"]["data"]["payload"] for event in self.events if event["method"] == "custom"]

    def run(self) -> None:
        while not self._closed.is_set():
            try:
                self._read()
            except httpx.HTTPError:
                self.cuts += 1
            self._closed.wait(PAUSE_SECONDS)

    def _read(self) -> None:
        asked: dict[str, Any] = {"channels": self._channels}
        if self.events:
            asked["since"] = self.events[-1]["seq"]
        with self._base.stream("POST", self._path, json=asked, timeout=SILENCE_SECONDS) as response:
            response.raise_for_status()
            for line in response.iter_lines():
                if self._closed.is_set():
                    return
                if line.startswith("data: "):
                    self.events.append(json.loads(line.removeprefix("data: ")))
                elif line.startswith(": ") and line != ": heartbeat":
                    self.notes.append(line)
