"""The API document's operations, and existing records, for tests that iterate over each interface."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

from uuid_utils.compat import uuid6

import tests.support.factories as make
from tests.contract.conftest import Api, ControlPlane, new_key
from tests.support.acting import Actor

CONTROL_PLANE = ("/v1/", "/v2/")

Schema = Mapping[str, Any]


@dataclass(frozen=True)
class Described:
    """An operation of the document."""

    method: str
    path: str
    said: Mapping[str, Any]

    def __str__(self) -> str:
        return f"{self.method} {self.path}"

    def address(self, known: Mapping[str, str], **others: str) -> str:
        """Return the path with these parameter values."""
        return self.path.format_map({**known, **others})

    def parameters(self, place: str) -> dict[str, Schema]:
        return {p["name"]: p["schema"] for p in self.said["parameters"] if p["in"] == place}


@dataclass(frozen=True)
class Document:
    content: Mapping[str, Any]

    def control_plane(self) -> Iterator[Described]:
        yield from (described for described in self.operations() if described.path.startswith(CONTROL_PLANE))

    def operations(self) -> Iterator[Described]:
        for path, operations in self.content["paths"].items():
            for method, said in operations.items():
                yield Described(method.upper(), path, said)

    def whole(self, schema: Schema) -> Schema:
        """Resolve a schema that is a reference, or an alternative with null, into one plain schema."""
        if "$ref" in schema:
            return self.whole(self.content["components"]["schemas"][schema["$ref"].rpartition("/")[2]])
        kinds = [kind for kind in schema.get("anyOf", ()) if kind != {"type": "null"}]
        if not kinds:
            return schema
        found = self.whole(kinds[0]) if len(kinds) == 1 else {"type": self._types_of(kinds)}
        return {**found, "type": [*types(found), "null"]} if {"type": "null"} in schema["anyOf"] else found

    def _types_of(self, kinds: Sequence[Schema]) -> list[str]:
        """Return every type that these schemas allow. Drops their other constraints."""
        return list(dict.fromkeys(kind for schema in kinds for kind in types(self.whole(schema))))

    def body(self, described: Described) -> Schema | None:
        body = described.said.get("requestBody")
        return self.whole(body["content"]["application/json"]["schema"]) if body else None


def types(schema: Schema) -> list[str]:
    found = schema.get("type", [])
    return list(found) if isinstance(found, list) else [found]


def document_of(asked: ControlPlane | Api) -> Document:
    """Return the document of the service or of a deployment."""
    content: Any = asked.get("/openapi.json").json
    return Document(content)


def records(control: ControlPlane) -> dict[str, str]:
    """Create records of the control plane. Returns their ids by path parameter."""
    deployment = control.deploy(control.create(f"app-{uuid4().hex}"))
    path = f"/v2/deployments/{deployment['id']}/revisions/{deployment['latest_revision_id']}/interrupt"
    assert control.post(path).status_code == 200  # a client that follows the build then reaches its end
    key = new_key()
    provider = {
        "provider_id": f"provider-{uuid4().hex}",
        "name": "Some provider",
        "client_id": "us",
        "auth_url": "https://example.org/authorize",
        "token_url": "https://example.org/token",
    }
    assert control.post("/v2/auth/providers", provider).status_code == 200
    return {
        "deployment_id": deployment["id"],
        "revision_id": deployment["latest_revision_id"],
        "organization_id": str(make.organization()),
        "key_id": key.split("_")[1],
        "worker_id": str(uuid4()),
        "listener_id": str(uuid4()),
        "integration_id": str(uuid4()),
        "provider_id": provider["provider_id"],
        "auth_id": str(uuid4()),
        "token_id": str(uuid4()),
        "token": "nobody-has-it",
        "question_id": str(uuid4()),
        "replay_id": str(uuid4()),
        "position": "1",
        "link_id": str(uuid4()),
        "name": "no-preview",
    }


def deployment_records(api: Api) -> dict[str, str]:
    """Create an assistant, a cron, a thread with a pending run and an idle thread. Returns ids by path parameter."""
    assistant: Any = api.post("/assistants", {"graph_id": "agent"}).json
    cron: Any = api.post("/runs/crons", {"assistant_id": "agent", "schedule": "0 0 1 1 *"}).json
    threads: list[Any] = [api.post("/threads").json["thread_id"] for _ in range(2)]
    runs: list[Any] = [api.post(f"/threads/{id}/runs", {"assistant_id": "agent"}).json for id in threads]
    checkpoint_id = str(uuid6())
    actor = Actor(runs[1]["run_id"])
    make.stored(actor.run, checkpoint_id)
    actor.finish({"a": 1}, state=make.state(threads[1], checkpoint_id))
    return {
        "assistant_id": assistant["assistant_id"],
        "cron_id": cron["cron_id"],
        "thread_id": threads[0],
        "run_id": runs[0]["run_id"],
        "idle_thread_id": threads[1],
        "ended_run_id": runs[1]["run_id"],
        "delivery_id": str(make.webhook_delivery(api.deployment, UUID(runs[1]["run_id"]))),
        "operation_id": str(make.bulk_operation(api.deployment)),
        "checkpoint_id": checkpoint_id,
        "namespace": "child",
        "resource": "mcp",
        "component_set": make.components(api.deployment),
        "file": f"{hashlib.sha256(b'').hexdigest()[:32]}.js",
        "question_id": str(make.question(api.deployment)),
        "token": "nobody-has-it",
    }
