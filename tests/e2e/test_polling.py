"""What a pipeline does with a deployment, over HTTP: create once, deploy, wait for the end, read the way there."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

import httpx

from tests.e2e.test_revisions import BUILD_SECONDS, ENDS, App, project
from tests.support.stack import Stack

WAIT = {"wait": 25}


def test_a_pipeline_waits_for_its_revision(stack: Stack) -> None:
    app = App(stack)
    id = app.push(project())
    path = f"/v2/deployments/{app.id}/revisions/{id}"

    seen = waited_for(stack, path)

    assert seen[-1]["status"] == "DEPLOYED"
    assert len({record["updated_at"] + record["status"] for record in seen}) == len(seen)
    told = events(stack, f"{path}/stream")
    assert told[-1][1:] == ("end", {"status": "DEPLOYED"})
    middle = told[len(told) // 2]
    assert events(stack, f"{path}/stream", **{"Last-Event-ID": middle[0]}) == told[told.index(middle) + 1 :]


def waited_for(stack: Stack, path: str) -> list[Any]:
    """Every record that a caller sees who always waits for the next one, to the last."""
    seen: list[Any] = []
    tag = ""
    while not seen or seen[-1]["status"] not in ENDS:
        headers = {"If-None-Match": tag} if tag else {}
        answer = stack.client.get(path, params=WAIT, headers=headers, timeout=BUILD_SECONDS)
        tag = answer.headers["ETag"]
        if answer.status_code != httpx.codes.NOT_MODIFIED:
            assert answer.is_success, answer.text
            seen.append(answer.json())
    return seen


def events(stack: Stack, path: str, **headers: str) -> list[tuple[str, str, Any]]:
    """Id, name and data of each event."""
    answer = stack.client.get(path, headers=headers, timeout=BUILD_SECONDS)
    blocks = [
        dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        for block in answer.text.split("\r\n\r\n")
    ]
    return [(fields["id"], fields["event"], json.loads(fields["data"])) for fields in blocks if fields]


def test_a_create_whose_answer_was_lost_is_sent_again(stack: Stack) -> None:
    body = {"name": f"app-{uuid4().hex[:8]}", "source": "internal_source"}
    headers = {"Idempotency-Key": str(uuid4())}
    first, again = (stack.client.post("/v2/deployments", json=body, headers=headers) for _ in range(2))
    assert (first.status_code, again.status_code) == (201, 201)
    assert again.content == first.content
    assert again.headers["Idempotent-Replayed"] == "true"
