"""Run `runyard` commands in the process of the tests, alone or against a scripted control plane."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

import typer.testing
from typer.main import get_command
from typer.testing import CliRunner, Result

from cli.main import app
from tests.support.control_plane import ControlPlane, D, R, record

# Builds all commands once, which takes ten times as long as one of them runs.
typer.testing._get_command = cache(get_command)


def invoke(*words: str, input: str | None = None, env: Mapping[str, str | None] | None = None) -> Result:
    """Run a command as a shell does."""
    return CliRunner().invoke(app, words, input=input, env=env, prog_name="runyard")


def runyard(server: ControlPlane, *words: str, input: str | None = None) -> Result:
    """Run a command with the address and an API key of the scripted control plane."""
    return invoke(*words, "--url", server.url, "--api-key", "key", input=input)


def json_lines(ran: Result) -> list[dict[str, Any]]:
    return [json.loads(text) for text in ran.stdout.splitlines()]


def deployed(server: ControlPlane, *statuses: str, active: int | None = 0) -> list[dict[str, Any]]:
    """Script a deployment with revisions of these statuses, newest first. `active` is an index into them."""
    rows = [
        {
            "id": f"{n}" * 8 + R[8:-8] + f"{n}" * 8,
            "number": len(statuses) - n + 1,
            "status": word,
            "status_message": None,
            "created_at": f"2026-01-0{9 - n}",
        }
        for n, word in enumerate(statuses, 1)
    ]
    serving = None if active is None else rows[active]
    found = record(
        status="READY",
        latest_revision_id=rows[0]["id"],
        latest_revision_number=rows[0]["number"],
        latest_revision_status=rows[0]["status"],
        active_revision_id=serving and serving["id"],
        active_revision_number=serving and serving["number"],
        source_config={"custom_url": serving and "http://127.0.0.1:8123/d/app"},
        pool="gpu",
    )
    server.answers = {
        "GET /v2/deployments": [(200, {"resources": [found]})],
        f"GET /v2/deployments/{D}": [(200, found)],
        f"GET /v2/deployments/{D}/revisions": [(200, {"resources": rows})],
        f"DELETE /v2/deployments/{D}": [(204, None)],
    }
    return rows
