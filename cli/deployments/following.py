"""Following a revision: reports its status changes and build log until it has ended.

The follower reads the service's event stream, and resumes it after the last event if the connection breaks. If the
service has no stream, or the stream keeps breaking, the follower polls the revision and its log, which contain the
same information.
"""

from __future__ import annotations

import json
import re
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import httpx
from httpx_sse import EventSource, SSEError

from cli.client.client import Client
from cli.client.names import REVISION_ENDS
from cli.deployments.report import Report, Stopwatch
from cli.errors import CommandFailed, TimedOut
from cli.output import as_time

WAIT_SECONDS = 900.0
POLL_SECONDS, SLOW_POLL_SECONDS, SLOW_AFTER_SECONDS = 0.3, 2.0, 30.0
SILENCE_SECONDS = 20.0  # four missed heartbeats
STREAM_TRIES = 3  # consecutive attempts without an event
HISTORY_EXPIRED = b": history expired"  # SSE comment of a stream that cannot replay expired events
PAGE = 1000
LAST_LINES = 30
STEP = re.compile(r"([a-z]+): ")  # the failed step, at the start of a failed build's status message


def follow(
    client: Client, deployment_id: str, revision_id: str, report: Report, *, seconds: float = WAIT_SECONDS
) -> dict[str, Any]:
    """Report a revision until it is DEPLOYED. Returns its record.

    Raises CommandFailed if the revision ends with another status, and TimedOut after `seconds`.
    """
    follower = RevisionFollower(client, deployment_id, revision_id, report, Stopwatch(seconds))
    with report.following():
        record = follower.follow()
    if record["status"] != "DEPLOYED":
        details = follower.details(record["status"], record.get("status_message"))
        raise CommandFailed(follower.reason(record), details)
    return record


class RevisionFollower:
    """Follows one revision and reports each status change and log line once."""

    def __init__(
        self, client: Client, deployment_id: str, revision_id: str, report: Report, watch: Stopwatch
    ) -> None:
        self._client, self._report, self._watch = client, report, watch
        self._deployment_id, self._revision_id = deployment_id, revision_id
        self._status = ""
        self._last_event_id = ""
        self._cursor: str | None = None
        self._has_missed = False
        self._shown: set[tuple[str, str]] = set()
        self._last_lines: deque[str] = deque(maxlen=LAST_LINES)

    def follow(self) -> dict[str, Any]:
        """Report until the revision has ended. Returns its record. Raises TimedOut."""
        failures = 0
        while failures < STREAM_TRIES:
            has_reported = self._stream()
            if has_reported is None:
                break
            record = self._record()
            if self._status in REVISION_ENDS and has_reported and not self._has_missed:
                return record
            if record["status"] in REVISION_ENDS:
                break  # the log has the lines that the stream did not deliver
            failures = 0 if has_reported else failures + 1
            if failures:
                self._pause()
        return self._poll()

    def reason(self, record: dict[str, Any]) -> str:
        """Return an error text that says why the revision was not deployed."""
        status = record["status"]
        message = record.get("status_message")
        if status == "SKIPPED" and not message:
            message = "A newer revision took its place."
        if not message:
            lines = "\n".join(self._last_lines)
            message = f"Its last lines:\n{lines}" if lines else "Its log is empty."
        return f"The revision ended as {status}. {message}"

    def details(self, status: str, message: str | None = None) -> dict[str, Any]:
        """Return a failure's fields for `--json`: final status, failed step, reason and the log's last lines."""
        step = STEP.match(message or "")
        return {
            "revision_status": status,
            "step": step[1] if step else None,
            "reason": message,
            "log": list(self._last_lines),
        }

    # By the event stream

    def _stream(self) -> bool | None:
        """Report events until the stream ends.

        Returns True if events were reported or the revision has ended, and False if the attempt failed and can be
        repeated. Returns None if the service does not offer the stream.
        """
        path = f"/v2/deployments/{self._deployment_id}/revisions/{self._revision_id}/stream"
        headers = {"Accept": "text/event-stream", "Cache-Control": "no-store"}
        if self._last_event_id:
            headers["Last-Event-ID"] = self._last_event_id
        count = 0
        try:
            timeout = httpx.Timeout(30, read=max(min(SILENCE_SECONDS, self._watch.seconds_left), 0.1))
            with self._client.stream(path, headers, timeout) as response:
                if not response.is_success:
                    return False if response.status_code >= 500 or response.status_code == 429 else None
                response.stream = TimedStream(response.stream, self)
                for event in EventSource(response).iter_sse():
                    if not event.data:
                        continue  # a heartbeat: the parser yields it as an event with the last id and no data
                    self._last_event_id = event.id or self._last_event_id
                    self._show(event.event, json.loads(event.data))
                    count += 1
        except SSEError:
            return None
        except (httpx.HTTPError, ValueError):
            return False
        return count > 0 or self._status in REVISION_ENDS

    def _show(self, name: str, data: dict[str, Any]) -> None:
        if name == "status":
            self._show_status(data["status"])
        elif name == "log":
            self._show_line(data)

    # By polling

    def _poll(self) -> dict[str, Any]:
        while True:
            record = self._record()
            self._show_status(record["status"])
            is_quiet = not self._catch_up()
            if is_quiet and record["status"] in REVISION_ENDS:
                return record
            if is_quiet:
                self._pause()

    def _record(self) -> dict[str, Any]:
        return self._client.revision(self._deployment_id, self._revision_id)

    def _catch_up(self) -> bool:
        """Report the next page of the log. Returns whether the page had lines."""
        body = {"order": "asc", "limit": PAGE, **({"offset": self._cursor} if self._cursor else {})}
        page = self._client.logs(self._deployment_id, self._revision_id, "build", body)
        self._cursor = page.get("next_offset") or self._cursor
        for line in page["logs"]:
            self._show_line(line)
        return bool(page["logs"])

    def _pause(self) -> None:
        self.check_time()
        seconds = POLL_SECONDS if self._watch.seconds < SLOW_AFTER_SECONDS else SLOW_POLL_SECONDS
        time.sleep(max(min(seconds, self._watch.seconds_left), 0))

    # By both

    def check_time(self) -> None:
        """Raise TimedOut if the time limit has passed."""
        if self._watch.seconds_left <= 0:
            raise TimedOut(
                f"The revision is still {self._status or 'on its way'} after {self._watch.limit_seconds:g} s.",
                self.details(self._status),
            )

    def miss(self) -> None:
        """Note that the stream has lost events."""
        self._has_missed = True

    def _show_status(self, status: str) -> None:
        if status != self._status:
            self._status = status
            self._report.status(status, self._watch.seconds)

    def _show_line(self, line: dict[str, Any]) -> None:
        timed = {**line, "timestamp": as_time(line["timestamp"])}
        mark = (timed["timestamp"], line["message"])
        if mark in self._shown:
            return
        self._shown.add(mark)
        self._last_lines.append(line["message"])
        self._report.log(timed)


class TimedStream(httpx.SyncByteStream):
    """A response stream that raises TimedOut at the follower's time limit.

    Heartbeats keep the stream open, so the read timeout alone would never end it.
    """

    def __init__(self, stream: Any, follower: RevisionFollower) -> None:
        self._stream, self._follower = stream, follower

    def __iter__(self) -> Iterator[bytes]:
        for part in self._stream:
            self._follower.check_time()
            if HISTORY_EXPIRED in part:
                self._follower.miss()
            yield part

    def close(self) -> None:
        self._stream.close()
