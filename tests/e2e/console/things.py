"""Test data for the console's pages: assistants, crons, store items, webhooks, OAuth grants."""

from __future__ import annotations

from typing import Any

import httpx

from tests.support.oauth_server import OAuthServer
from tests.support.receiver import Receiver
from tests.support.stack import Stack
from tests.support.waiting import wait_until

HOSTILE = '"><img src=x onerror="window.hacked=1"><script>window.hacked=1</script>\x1b[31m{{7*7}}'
LARGE = "large " * 175_000  # about 1 MB


def furnish(stack: Stack, name: str, receiver: Receiver, server: OAuthServer) -> dict[str, str]:
    """Create some objects of each kind. Returns the ids and addresses that scenarios cannot know in advance."""
    at = Deployment(stack, name)
    _put_items(at)
    _name_assistants(at)
    _send_webhooks(at, receiver)
    _grant(stack, server)
    assert stack.client.post("/v2/keys", json={"name": HOSTILE, "role": "read"}).is_success
    return {"fired": _let_a_cron_fire(at), "oauth": server.url}


class Deployment:
    """A deployment over HTTP."""

    def __init__(self, stack: Stack, name: str) -> None:
        headers = {"X-Api-Key": stack.api_key}
        self.client = httpx.Client(base_url=f"{stack.url}/d/{name}", headers=headers, timeout=60)

    def call(self, method: str, path: str, **body: Any) -> Any:
        answer = self.client.request(method, path, json=body or None)
        assert answer.is_success, answer.text
        return answer.json() if answer.content else None

    def post(self, path: str, **body: Any) -> Any:
        return self.call("POST", path, **body)

    def put(self, namespace: list[str], key: str, value: dict[str, Any], **more: Any) -> None:
        self.call("PUT", "/store/items", namespace=namespace, key=key, value=value, **more)


def _put_items(at: Deployment) -> None:
    for key, text in (("likes", "tea and tea"), ("dislikes", "rain")):
        at.put(["users", "42"], key, {"text": text})
    at.put(["users", "42", "notes"], "first", {"text": "coffee"}, ttl=90)
    at.put(["hostile", "<script>alert(1)</script>"], HOSTILE, {HOSTILE: HOSTILE})
    at.put(["large"], "one", {"text": "no more", "body": LARGE, "list": list(range(20_000))})


def _name_assistants(at: Deployment) -> None:
    at.post("/assistants", graph_id="echo", name=HOSTILE, description=HOSTILE, metadata={"note": HOSTILE})


def _send_webhooks(at: Deployment, receiver: Receiver) -> None:
    """Send a webhook that is delivered, then one that the receiver rejects."""
    receiver.statuses = [200, 500]  # the last status repeats
    for number in (1, 2):
        at.post("/runs/wait", assistant_id="echo", webhook=f"{receiver.url}?secret={number}")
        wait_until(lambda number=number: len(receiver.calls) == number, 30, what="the webhook")


def _grant(stack: Stack, server: OAuthServer) -> None:
    """Create a provider and let two users consent."""
    server.client("client_secret_post", f"{stack.url}/v2/auth/callback/acme")
    assert stack.client.post("/v2/auth/providers", json=server.provider(uses_pkce=True)).is_success
    for user in ("ann", HOSTILE):
        body = {"provider": "acme", "scopes": ["read"], "user_id": user}
        asked = stack.client.post("/v2/auth/authenticate", json=body).json()
        assert httpx.get(server.consent(asked["url"])).is_success


def _let_a_cron_fire(at: Deployment) -> str:
    body = {"assistant_id": "echo", "input": {"text": HOSTILE}, "on_run_completed": "keep"}
    cron = at.post("/runs/crons", **body, schedule="* * * * * *")["cron_id"]
    ended = {"metadata": {"cron_id": cron}, "status": ["success"]}
    wait_until(lambda: at.post("/runs/search", **ended), 30, what="a run of the cron")
    at.call("PATCH", f"/runs/crons/{cron}", schedule="30 9 * * 1-5", timezone="Europe/Berlin")
    return cron
