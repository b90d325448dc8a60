"""Sample data for the pictures in the docs: a shop, with its own organization, that has run agents for two weeks."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import httpx
import psycopg

from cli.client.client import Client
from cli.deployments.deploy import deploy_project
from cli.deployments.project import Project
from tests.support.stack import Stack
from tests.support.waiting import wait_until

PROJECT = Path(__file__).parents[2]
EXAMPLES = PROJECT / "examples"
DEPLOYMENTS = {
    "support": PROJECT / "tests" / "projects" / "desk",
    "refunds": EXAMPLES / "approval",
    "research": EXAMPLES / "research",
}
SHOP = "lamplight"
QUESTIONS = {
    "ann": ["When does my order 1042 arrive?", "Can I send the shade back?"],
    "bo": ["Has order 1077 been sent?"],
    "cleo": ["How long may I keep a lamp before I send it back?", "And the shade?"],
    "dara": ["Please look up order 4040."],  # the graph fails on this one
    "eli": ["Where is my parcel, order 1101?"],
}
TOPIC = "smart lamps"
DAYS = 14


class Desk:
    """HTTP clients of the shop, one per API key."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        made = stack.client.post("/v2/organizations", json={"name": SHOP})
        assert made.is_success, made.text
        self.keys = {
            name: self._key(name, role)
            for name, role in (("Ann Miller", "admin"), ("CI", "deploy"), ("Web shop", "run"))
        }

    def _key(self, name: str, role: str) -> dict[str, Any]:
        made = self._stack.client.post(
            "/v2/keys", json={"name": name, "role": role}, headers={"X-Tenant-Id": SHOP}
        )
        assert made.is_success, made.text
        return made.json()

    def client(self, who: str) -> Client:
        return Client(self._stack.url, self.keys[who]["key"])

    def post(self, path: str, **body: Any) -> Any:
        headers = {"X-Api-Key": self.keys["Web shop"]["key"]}
        answer = httpx.post(f"{self._stack.url}/d/{path}", json=body, headers=headers, timeout=120)
        assert answer.is_success, answer.text
        return answer.json()

    def ask(self, thread: dict[str, Any], deployment: str, **graph_input: Any) -> dict[str, Any]:
        """Create a run on the thread as its owner and wait for its end. Returns the run."""
        at = f"{deployment}/threads/{thread['thread_id']}/runs"
        run = self.post(at, assistant_id=ASSISTANTS[deployment], input=graph_input, stream_resumable=True)
        alive = {"thread_id": thread["thread_id"], "status": ["pending", "running"]}
        wait_until(lambda: not self.post(f"{deployment}/runs/search", **alive), 60, what="the run's end")
        return run


ASSISTANTS = {"support": "support", "refunds": "approval", "research": "research"}


def furnish(stack: Stack) -> dict[str, str]:
    """Create the shop with its deployments and history. Returns the ids and keys that the scenarios need."""
    desk = Desk(stack)
    deployments = _deploy(desk)
    _past(stack, desk, deployments)
    known = {name: _ask_support(desk, name) for name in QUESTIONS}
    research = desk.post("research/threads", metadata={"team": "purchasing"})
    return {
        "key": desk.keys["Ann Miller"]["key"],
        "support": deployments["support"],
        "thread": known["ann"]["thread_id"],
        "failed": f"{known['dara']['thread_id']}/{known['dara']['run_id']}",
        "research": "/".join((research["thread_id"], desk.ask(research, "research", topic=TOPIC)["run_id"])),
        "refund": _ask_refund(desk),
        "busy": desk.post("support/threads", metadata={"customer": "fay"})["thread_id"],
    }


def _deploy(desk: Desk) -> dict[str, str]:
    """Deploy the shop's projects. Returns deployment ids by name; `support` serves its second revision."""
    with desk.client("CI") as client:
        for name, folder in DEPLOYMENTS.items():
            deploy_project(client, Project.read(folder), name, print)
    with desk.client("Ann Miller") as client:
        found = {name: (client.find(name) or {})["id"] for name in DEPLOYMENTS}
        client.change(found["support"], {"secret_changes": [{"name": "CARRIER_KEY", "value": "np-7741"}]})
        wait_until(
            lambda: (client.find("support") or {})["latest_revision_status"] == "DEPLOYED",
            120,
            what="the second revision",
        )
    return found


def _ask_support(desk: Desk, customer: str) -> dict[str, Any]:
    thread = desk.post("support/threads", metadata={"customer": customer})
    for text in QUESTIONS[customer]:
        run = desk.ask(thread, "support", messages=[{"role": "user", "content": text}])
    return run


def _ask_refund(desk: Desk) -> str:
    thread = desk.post("refunds/threads", metadata={"customer": "cleo"})
    desk.ask(thread, "refunds", customer="Cleo Hart", amount=129.5)
    return thread["thread_id"]


def _past(stack: Stack, desk: Desk, deployments: dict[str, str]) -> None:
    """Insert ended runs of the last hour and of the days before, as the end of a run writes them."""
    chance, now = Random(7), datetime.now(UTC)
    minutes = [
        now - timedelta(minutes=minute) for minute in range(1, 60) for _ in range(chance.randint(1, 5))
    ]
    days = [
        now - timedelta(days=day, minutes=5) for day in range(1, DAYS) for _ in range(chance.randint(20, 60))
    ]
    key = desk.keys["Web shop"]["id"]
    with psycopg.connect(stack.database_url) as conn, conn.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO ended_run (deployment_id, key_id, status, created_at, ended_at, attempts, wait_seconds,"
            " duration_seconds, first_token_seconds, usage) VALUES (%s, %s, %s, %s, %s, 1, %s, %s, %s, %s)",
            [_ended(chance, deployments, key, at) for at in minutes + days],
        )


def _ended(chance: Random, deployments: dict[str, str], key: str, at: datetime) -> tuple[Any, ...]:
    name = chance.choice(["support", "support", "support", "refunds", "research"])
    wait, duration = chance.uniform(0.01, 0.06), chance.lognormvariate(0.6, 0.5)
    status = "error" if chance.random() < 0.04 else "success"
    model = "gpt-5" if name == "research" else "gpt-5-mini"
    given, made = chance.randint(300, 1_800), chance.randint(60, 400)
    usage = {model: {"input_tokens": given, "output_tokens": made, "total_tokens": given + made}}
    created = at - timedelta(seconds=wait + duration)
    first_token = duration * chance.uniform(0.2, 0.4)
    return deployments[name], key, status, created, at, wait, duration, first_token, json.dumps(usage)
