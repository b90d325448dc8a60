"""`runyard deploy`: a project directory to a serving revision, told step by step."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from typing import Any

from cli.client import Client
from cli.errors import CommandFailed
from cli.project import Project

POLL_SECONDS = 0.3
SLOW_POLL_SECONDS = 2.0
WAIT_SECONDS = 900.0
LAST_LINES = 30
FAILED = frozenset({"CREATE_FAILED", "BUILD_FAILED", "DEPLOY_FAILED", "SKIPPED", "INTERRUPTED"})

Say = Callable[[str], None]


def deploy(
    client: Client, project: Project, name: str, say: Say, *, kind: str = "dev", wait: bool = True
) -> dict[str, Any]:
    """Bring this project to the deployment of that name; its record once it serves. Raises CommandFailed."""
    secrets, refused = project.secrets()
    for variable in refused:
        say(f"{variable} is reserved and is not sent")
    found = client.find(name)
    if found is None:
        say(f"Creating the deployment {name}")
        found = client.create(
            {
                "name": name,
                "source": "internal_source",
                "source_config": {"deployment_type": kind},
                "source_revision_config": {},
                "secrets": secrets,
            }
        )
    else:
        say(f"Updating the deployment {name}")
    object_path = _upload(client, project, found["id"], say)
    client.change(
        found["id"],
        {
            "revision_source": "internal_source",
            "source_revision_config": {
                "source_tarball_path": object_path,
                "langgraph_config_path": project.config_path,
            },
            "secrets": secrets,
        },
    )
    revision_id = client.newest_revision(found["id"])["id"]
    say(f"Building revision {revision_id}")
    if wait:
        follow(client, found["id"], revision_id, say)
    return client.deployment(found["id"])


def _upload(client: Client, project: Project, deployment_id: str, say: Say) -> str:
    with tempfile.TemporaryFile() as archive:
        size = project.write_archive(archive)
        say(f"Uploading {max(size // 1024, 1)} KiB of source")
        archive.seek(0)
        return client.upload(deployment_id, archive, size)


def follow(client: Client, deployment_id: str, revision_id: str, say: Say) -> None:
    """Show a revision's way and its build log until it serves; CommandFailed when it does not get there."""
    started = time.monotonic()
    status, offset, shown = "", None, []
    while True:
        now = client.revision(deployment_id, revision_id)["status"]
        page = client.logs(deployment_id, revision_id, "build", _page(offset))
        offset = page.get("next_offset") or offset
        for line in page["logs"]:
            shown.append(line["message"])
            say(f"  {line['message']}")
        if now != status:
            status = now
            say(f"{status} after {time.monotonic() - started:.1f} s")
        if status == "DEPLOYED" and not page["logs"]:
            return
        if status in FAILED and not page["logs"]:
            raise CommandFailed(
                f"The revision ended as {status}. {_reason(client, deployment_id, revision_id, shown)}"
            )
        waited = time.monotonic() - started
        if waited > WAIT_SECONDS:
            raise CommandFailed(
                f"The revision is still {status} after {WAIT_SECONDS:g} s; the build goes on there."
            )
        if not page["logs"]:
            time.sleep(POLL_SECONDS if waited < 30 else SLOW_POLL_SECONDS)


def _page(offset: str | None) -> dict[str, Any]:
    return {"order": "asc", "limit": 100, **({"offset": offset} if offset else {})}


def _reason(client: Client, deployment_id: str, revision_id: str, shown: list[str]) -> str:
    """Why a revision failed, from its record or from the last lines of its log."""
    told = client.revision(deployment_id, revision_id).get("status_message")
    if told:
        return str(told)
    return "Its last lines:\n" + "\n".join(shown[-LAST_LINES:]) if shown else "Its log is empty."
