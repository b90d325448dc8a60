"""The command line's client of the HTTP API. Refused calls become errors with advice."""

from __future__ import annotations

import hashlib
import math
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from operator import itemgetter
from types import TracebackType
from typing import Any, BinaryIO
from uuid import uuid4

import httpx

from cli.client.access import ApiKey
from cli.client.names import PREVIEW_SIGN, is_id, is_part, only_match, with_part
from cli.errors import CommandFailed, Missing

PAGE = 100
TRIES, PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 8, 0.5, 10.0  # 14 s in total: a restart of the service
BUSY = frozenset({429, 503})  # the service did not act on the call, so any call may be repeated
UPLOAD_SECONDS, UPLOAD_TRIES, UPLOAD_BYTES = 300.0, 3, 64 * 1024
UPLOAD_HEADERS = {"Content-Type": "application/gzip"}

# Sent with an API key. A deployment with its own authorization then treats the caller as its manager, not as a user.
AS_STUDIO = {"X-Auth-Scheme": "langsmith"}

UNKNOWN_KEY = "The service at {url} does not accept the API key{source}. {advice}"
CHECK_ORGANIZATION = "Check --org, RUNYARD_ORG and LANGSMITH_TENANT_ID."
OTHER_ROLE = "`runyard keys create --role …` makes a key with another role."
NOT_A_SERVICE = "Give the address of the service, without a path of a deployment or a page."
PRIVATE_AUTHORITY = (
    "If a private authority issued it, set SSL_CERT_FILE to a file with the certificates of that authority and of the"
    " public ones you need."
)
# Advice for a 404, by a part of the request's path: the command that lists existing objects.
LISTS = {
    "/v2/deployments": "`runyard list` shows the deployments there are.",
    "/v2/inbox": "`runyard inbox list` shows the open questions.",
    "/v2/keys": "`runyard keys list` shows the keys there are.",
    "/v2/organizations": "`runyard orgs list` shows those there are.",
    "/runs/": "`runyard runs list` shows the newest.",
    "/threads/": "`runyard threads list` shows the newest.",
}


class Client:
    """The calls of the control plane. Raises CommandFailed for a refused call."""

    def __init__(
        self,
        url: str,
        key: ApiKey | str,
        *,
        tenant: str | None = None,
        more_headers: Mapping[str, str] | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        self._key = ApiKey(key, "") if isinstance(key, str) else key
        identity = {"X-Api-Key": self._key.text} | ({"X-Tenant-Id": tenant} if tenant else {})
        self.headers = {**identity, **(more_headers or {})}
        self._has_answered = False
        try:
            self._http = httpx.Client(
                base_url=self.url, headers={**self.headers, "Accept": "application/json"}, timeout=30
            )
        except (httpx.InvalidURL, UnicodeEncodeError) as error:
            raise CommandFailed(f"{url} is not an address a service can have: {error}") from error

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def at(self, url: str) -> Client:
        """Return a client with the same key and organization for a deployment's address, as `served_at` returns it."""
        tenant = self.headers.get("X-Tenant-Id")
        return Client(url, self._key, tenant=tenant, more_headers=AS_STUDIO)

    # Deployments

    def deployments(self, **filters: str) -> Iterator[dict[str, Any]]:
        """Return all deployments that match the list filters, such as `name` and `name_contains`."""
        return self.every("/v2/deployments", **filters)

    def find(self, name: str) -> dict[str, Any] | None:
        """Return the deployment with this exact name, None if there is none."""
        rows = self.deployments(name=name, name_contains=name)
        return next((row for row in rows if row.get("name") == name), None)

    def require(self, name_or_id: str) -> dict[str, Any]:
        """Return the deployment with this name, this id, or an id with this part.

        Raises CommandFailed if there is none, BadUsage if several match.
        """
        if is_id(name_or_id):
            return self.deployment(name_or_id)
        deployment = self.find(name_or_id)
        if deployment is not None:
            return deployment
        rows = with_part(self.deployments(), name_or_id) if is_part(name_or_id) else []
        missing = f"There is no deployment {name_or_id!r} at {self.url}. {_how_to_list(name_or_id)}"
        return only_match(rows, name_or_id, "deployments", missing, label=itemgetter("name"))

    def deployment(self, deployment_id: str) -> dict[str, Any]:
        return self.get(f"/v2/deployments/{deployment_id}")

    def create(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return self.send("POST", "/v2/deployments", body, repeat=True)

    def change(self, deployment_id: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return self.send("PATCH", f"/v2/deployments/{deployment_id}", body)

    def delete(self, deployment_id: str) -> None:
        self.send("DELETE", f"/v2/deployments/{deployment_id}")

    # Revisions

    def revisions(self, deployment_id: str, *, limit: float, **filters: str) -> Iterator[dict[str, Any]]:
        """Return up to `limit` revisions of a deployment, newest first."""
        return self.every(f"/v2/deployments/{deployment_id}/revisions", limit, **filters)

    def newest_revision(self, deployment_id: str) -> dict[str, Any]:
        for row in self.revisions(deployment_id, limit=1):
            return row
        raise CommandFailed("The deployment has no revision.")

    def revision(self, deployment_id: str, revision_id: str) -> dict[str, Any]:
        return self.get(f"/v2/deployments/{deployment_id}/revisions/{revision_id}")

    def previews(self, deployment_id: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.get(f"/v2/deployments/{deployment_id}/previews")["resources"]
        return rows

    def add_revision(self, deployment_id: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return self.send("POST", f"/v2/deployments/{deployment_id}/revisions", body, repeat=True)

    def redeploy(self, deployment_id: str, revision_id: str) -> dict[str, Any]:
        return self.send(
            "POST", f"/v2/deployments/{deployment_id}/revisions/{revision_id}/redeploy", repeat=True
        )

    def interrupt(self, deployment_id: str, revision_id: str) -> dict[str, Any]:
        return self.send(
            "POST", f"/v2/deployments/{deployment_id}/revisions/{revision_id}/interrupt", repeat=True
        )

    def stream(self, path: str, headers: Mapping[str, str], timeout: httpx.Timeout) -> Any:
        """Stream a response: a context manager that yields an httpx.Response. Raises httpx.HTTPError."""
        return self._http.stream("GET", path, headers=dict(headers), timeout=timeout)

    def logs(
        self,
        deployment_id: str,
        revision_id: str | None,
        kind: str,
        body: Mapping[str, Any],
        *,
        wait_seconds: int = 0,
    ) -> dict[str, Any]:
        """Return a page of `build` or `deploy` log lines, with the keys `logs` and `next_offset`.

        `wait_seconds`: without a revision, the service waits up to this long for a first line.
        """
        revision = f"/revisions/{revision_id}" if revision_id else ""
        wait = f"?wait={wait_seconds}" if wait_seconds and not revision else ""
        path = f"/v1/projects/{deployment_id}{revision}/{kind}_logs{wait}"
        return self.send("POST", path, body, repeat=True)

    # Uploads

    def upload(
        self, deployment_id: str, archive: BinaryIO, size: int, sent: Callable[[int], None] | None = None
    ) -> str:
        """Upload the archive to the address that the service assigns. Returns its `object_path`.

        `sent` is called with the number of bytes sent so far, which restarts at 0 when the upload is retried.
        """
        digest = _content_digest(archive)
        for attempt in range(1, UPLOAD_TRIES + 1):
            slot = self.send(
                "POST", f"/v2/deployments/{deployment_id}/upload-url", {"supports_upload_headers": True}
            )
            headers = {**UPLOAD_HEADERS, "Content-Digest": digest, **(slot.get("upload_headers") or {})}
            archive.seek(0)
            try:
                answer = httpx.put(
                    slot["upload_url"],
                    content=_parts(archive, sent),
                    headers={**headers, "Content-Length": str(size)},
                    timeout=UPLOAD_SECONDS,
                )
            except httpx.HTTPError as error:
                if attempt == UPLOAD_TRIES:
                    where = slot["upload_url"].partition("?")[0].rpartition("/")[0]
                    raise CommandFailed(f"The upload to {where} failed: {error}") from error
            else:
                if not _is_transient(answer, True) or attempt == UPLOAD_TRIES:
                    _require_success(answer, what="The upload")
                    return slot["object_path"]
            time.sleep(PAUSE_SECONDS * attempt)
        raise AssertionError("unreachable: the last try returns or raises")

    # HTTP

    def every(self, path: str, most: float = math.inf, /, **filters: str) -> Iterator[dict[str, Any]]:
        """Yield the items of a list, page after page, up to `most`."""
        offset = 0
        while most > offset:
            size = min(most - offset, PAGE)
            page = self.get(path, {**filters, "limit": size, "offset": offset})["resources"]
            yield from page
            if len(page) < size:
                return
            offset += PAGE

    def get(self, path: str, params: Mapping[str, Any] | None = None) -> Any:
        """Return the JSON at this path. Retries while the service is busy, failing or restarting."""
        return self._request("GET", path, params=params, repeat=True)

    def send(self, method: str, path: str, body: Any = None, *, repeat: bool = False) -> Any:
        """Send a call that changes something and return its JSON. `repeat`: repeating the call has no further effect.

        A POST carries an Idempotency-Key: a repeated POST returns the response of the first.
        """
        headers = {"Idempotency-Key": str(uuid4())} if method == "POST" else None
        return self._request(method, path, body=body, headers=headers, repeat=repeat)

    def _request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        repeat: bool,
    ) -> Any:
        for attempt in range(1, TRIES + 1):
            pause = PAUSE_SECONDS * attempt
            try:
                answer = self._http.request(method, path, params=params, json=body, headers=headers)
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                # A service that has never answered probably has another address, so retrying is useless.
                if attempt == TRIES or not repeat or not self._has_answered:
                    raise CommandFailed(self._why_unreachable(error)) from error
            else:
                self._has_answered = True
                if not _is_transient(answer, repeat) or attempt == TRIES:
                    return self._content(answer)
                pause = max(pause, _retry_after(answer))
            time.sleep(min(pause, LONGEST_PAUSE_SECONDS))
        raise AssertionError("unreachable: the last try returns or raises")

    def _content(self, answer: httpx.Response) -> Any:
        _require_success(answer, key=self._key, url=self.url)
        if not answer.content:
            return None
        try:
            return answer.json()
        except ValueError as error:
            raise CommandFailed(
                f"{answer.request.url} answers with something that is not JSON. Is this the service's address?"
            ) from error

    def _why_unreachable(self, error: Exception) -> str:
        if isinstance(error, httpx.UnsupportedProtocol):
            return f"{self.url!r} is not the address of a service: it must begin with http:// or https://."
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            return f"The certificate of {self.url} is not accepted ({error}). {PRIVATE_AUTHORITY}"
        return (
            f"{self.url} does not answer ({error or type(error).__name__}). Is the service running there?"
            " Start it with `runyard up`, or name its address with RUNYARD_URL or --url."
        )


def _how_to_list(name: str) -> str:
    """Return advice for a missing deployment. A name with the sign of previews may be that of a preview."""
    deployment, sign, _ = name.rpartition(PREVIEW_SIGN)
    previews = f" `runyard previews {deployment}` shows its previews." if deployment and sign else ""
    return f"{LISTS['/v2/deployments']}{previews}"


def _content_digest(archive: BinaryIO) -> str:
    """Return the Content-Digest header, by which the service verifies that the archive arrived intact."""
    hasher = hashlib.sha256()
    archive.seek(0)
    for part in _parts(archive, None):
        hasher.update(part)
    return f"sha-256=:{b64encode(hasher.digest()).decode()}:"


def _parts(archive: BinaryIO, sent: Callable[[int], None] | None) -> Iterator[bytes]:
    done = 0
    while part := archive.read(UPLOAD_BYTES):
        yield part
        done += len(part)
        if sent is not None:
            sent(done)


def _is_transient(answer: httpx.Response, repeat: bool) -> bool:
    """Whether the call may succeed later. `repeat`: repeating it has no further effect."""
    is_first_under_way = answer.status_code == 409 and "Retry-After" in answer.headers
    return answer.status_code in BUSY or (repeat and (answer.status_code >= 500 or is_first_under_way))


def _retry_after(answer: httpx.Response) -> float:
    value = answer.headers.get("Retry-After", "")
    return float(value) if value.isdecimal() else 0.0


def _require_success(
    answer: httpx.Response, what: str | None = None, *, key: ApiKey | None = None, url: str = ""
) -> None:
    if answer.is_success:
        return
    where = what or f"{answer.request.method} {answer.request.url.path}"
    reason = f"{where} was refused ({answer.status_code}): {_detail(answer)}"
    if answer.status_code >= 500:
        reason = f"{where} failed ({answer.status_code}): {_detail(answer)} Look at the service's own log."
    kind = Missing if answer.status_code == 404 else CommandFailed
    raise kind(f"{reason} {_what_to_do(answer, key, url)}".rstrip())


def _what_to_do(answer: httpx.Response, key: ApiKey | None, url: str) -> str:
    """Return advice for a refused call, by its status. Empty if the service's own text is enough."""
    match answer.status_code:
        case 401:
            if key is None:
                return ""
            source = f" from {key.source}" if key.source else ""
            return UNKNOWN_KEY.format(url=url, source=source, advice=key.advice)
        case 403:
            return CHECK_ORGANIZATION if "X-Tenant-Id" in _detail(answer) else OTHER_ROLE
        case 404:
            path = answer.request.url.path
            return next((hint for start, hint in LISTS.items() if start in path), NOT_A_SERVICE)
        case _:
            return ""


def _detail(answer: httpx.Response) -> str:
    """Return the `detail` of an answer as a sentence."""
    try:
        detail = answer.json()["detail"]
    except (ValueError, KeyError, TypeError):
        detail = answer.text[:500].strip() or answer.reason_phrase
    if isinstance(detail, list):
        detail = "; ".join(_violation(item) for item in detail)
    text = str(detail)
    return text if text.endswith((".", "!", "?")) or not text else f"{text}."


def _violation(item: Any) -> str:
    """Format a validation error as `source_config.repo_url: must be …`."""
    if not isinstance(item, dict):
        return str(item)
    path = [str(part) for part in item.get("loc") or []]
    name = ".".join(path[1:] if path[:1] == ["body"] and path[1:] else path)
    return f"{name}: {item.get('msg')}"
