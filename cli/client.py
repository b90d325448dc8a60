"""The control plane as the command line sees it, and where it finds the address and the key."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import httpx
from dotenv import dotenv_values

from cli.errors import CommandFailed
from shared.settings import Settings

KEY_NAMES = ("LANGGRAPH_HOST_API_KEY", "LANGSMITH_API_KEY", "LANGCHAIN_API_KEY")
PAGE = 100
TRIES, PAUSE_SECONDS = 5, 0.5
UPLOAD_SECONDS = 300.0


def find_url(url: str | None, settings: Settings) -> str:
    """The service's address: given, from the environment, or this machine's."""
    return (url or os.environ.get("LANGGRAPH_HOST_URL") or settings.url).rstrip("/")


def find_key(key: str | None, settings: Settings, env_file: Path = Path(".env")) -> str:
    """An API key: given, from the environment or `.env`, or the one `runyard up` keeps; else CommandFailed."""
    local = (
        {name: value for name, value in dotenv_values(env_file).items() if value}
        if env_file.is_file()
        else {}
    )
    chosen = key or settings.api_key or local.get("RUNYARD_API_KEY") or os.environ.get(KEY_NAMES[0])
    for name in KEY_NAMES:
        chosen = chosen or local.get(name) or os.environ.get(name)
    kept = settings.data_dir / "admin.key"
    if not chosen and kept.is_file():
        chosen = kept.read_text().strip()
    if not chosen:
        raise CommandFailed(
            "No API key. Set RUNYARD_API_KEY in the environment or in .env, or pass --api-key."
            " On the machine where the service runs, `runyard keys create` makes one."
        )
    return chosen


class Client:
    """The control plane's calls; what it refuses is raised as CommandFailed."""

    def __init__(self, url: str, key: str) -> None:
        self.url = url
        self._has_answered = False
        self._http = httpx.Client(base_url=url, headers={"X-Api-Key": key}, timeout=30)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def deployments(self, *, name: str | None = None, name_contains: str = "") -> Iterator[dict[str, Any]]:
        """All deployments, page after page."""
        params: dict[str, Any] = {"name_contains": name_contains, "limit": PAGE}
        if name is not None:
            params |= {"name": name, "name_contains": name}
        offset = 0
        while True:
            page = self._get("/v2/deployments", {**params, "offset": offset})["resources"]
            yield from page
            if len(page) < PAGE:
                return
            offset += PAGE

    def find(self, name: str) -> dict[str, Any] | None:
        """The deployment of that name, None when there is none."""
        return next((row for row in self.deployments(name=name) if row.get("name") == name), None)

    def deployment(self, deployment_id: str) -> dict[str, Any]:
        return self._get(f"/v2/deployments/{deployment_id}")

    def create(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return self._send("POST", "/v2/deployments", body)

    def change(self, deployment_id: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return self._send("PATCH", f"/v2/deployments/{deployment_id}", body)

    def delete(self, deployment_id: str) -> None:
        self._send("DELETE", f"/v2/deployments/{deployment_id}")

    def newest_revision(self, deployment_id: str) -> dict[str, Any]:
        rows = self._get(f"/v2/deployments/{deployment_id}/revisions", {"limit": 1})["resources"]
        if not rows:
            raise CommandFailed("The deployment has no revision.")
        return rows[0]

    def revision(self, deployment_id: str, revision_id: str) -> dict[str, Any]:
        return self._get(f"/v2/deployments/{deployment_id}/revisions/{revision_id}")

    def upload(self, deployment_id: str, archive: BinaryIO, size: int) -> str:
        """Put the archive where the service wants it; what the service calls it from now on."""
        place = self._send(
            "POST", f"/v2/deployments/{deployment_id}/upload-url", {"supports_upload_headers": True}
        )
        headers = {
            "Content-Type": "application/gzip",
            **(place.get("upload_headers") or {}),
            "Content-Length": str(size),
        }
        try:
            answer = httpx.put(place["upload_url"], content=archive, headers=headers, timeout=UPLOAD_SECONDS)
        except httpx.HTTPError as error:
            raise CommandFailed(
                f"The upload to {place['upload_url'].partition('?')[0]} failed: {error}"
            ) from error
        _require_success(answer)
        return place["object_path"]

    def logs(
        self, deployment_id: str, revision_id: str | None, kind: str, body: Mapping[str, Any]
    ) -> dict[str, Any]:
        """A page of `build` or `deploy` log lines: `logs` and `next_offset`."""
        revision = f"/revisions/{revision_id}" if revision_id else ""
        return self._send("POST", f"/v1/projects/{deployment_id}{revision}/{kind}_logs", body, repeat=True)

    def _get(self, path: str, params: Mapping[str, Any] | None = None) -> Any:
        return self._request("GET", path, params=params, repeat=True)

    def _send(self, method: str, path: str, body: Any = None, *, repeat: bool = False) -> Any:
        return self._request(method, path, body=body, repeat=repeat)

    def _request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: Any = None,
        repeat: bool,
    ) -> Any:
        for attempt in range(1, TRIES + 1):
            last = attempt == TRIES or not repeat
            try:
                answer = self._http.request(method, path, params=params, json=body)
            except httpx.HTTPError as error:
                if last or not self._has_answered:  # a wrong address will not become right
                    raise CommandFailed(
                        f"{self.url} does not answer ({error}). Is the service running there?"
                        " Start it with `runyard up`, or name its address with RUNYARD_URL."
                    ) from error
            else:
                self._has_answered = True
                if answer.status_code < 500 or last:
                    _require_success(answer)
                    return answer.json() if answer.content else None
            time.sleep(PAUSE_SECONDS * attempt)
        raise AssertionError("unreachable: the last try returns or raises")


def _require_success(answer: httpx.Response) -> None:
    if answer.is_success:
        return
    where = f"{answer.request.method} {answer.request.url.path}"
    if answer.status_code == 401:
        raise CommandFailed(
            f"The service does not accept this API key ({where}: 401). Check RUNYARD_API_KEY."
        )
    raise CommandFailed(f"{where} answered {answer.status_code}: {_detail(answer)}")


def _detail(answer: httpx.Response) -> str:
    try:
        detail = answer.json()["detail"]
    except (ValueError, KeyError, TypeError):
        return answer.text[:500]
    if isinstance(detail, list):
        return "; ".join(f"{'.'.join(map(str, item.get('loc', [])))}: {item.get('msg')}" for item in detail)
    return str(detail)
