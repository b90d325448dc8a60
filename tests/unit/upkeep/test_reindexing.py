"""Store items without vectors: upkeep lets a graph host compute them."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from sqlalchemy import text

from shared import store, store_vectors
from shared.deployments.deployments import DeploymentRef
from shared.errors import HostError
from shared.hosts import calls
from shared.hosts.pending_calls import HostCall
from shared.infra.postgres import connection, dumps
from tests.support import factories
from workers.graph_host.store import SemanticIndex
from workers.upkeep import reindexing
from workers.upkeep.reindexing import Reindexing

pytestmark = pytest.mark.usefixtures("db", "redis")

CONFIG = {"dims": 3, "embed": "./agent.py:embed", "fields": ["$"]}


class Counting:
    """The project's embeddings: the frequency of each letter. They raise for the word `refused`."""

    refused = "poison"

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        if any(self.refused in text for text in texts):
            raise ValueError("refused")
        return [[float(text.count(letter)) for letter in "xyz"] for text in texts]

    def embed_query(self, text: str) -> list[float]:
        return self.embed_documents([text])[0]


class Host:
    """Answers calls at once, like a graph host with an index."""

    def __init__(self) -> None:
        self.config = CONFIG
        self.asked: list[int] = []  # number of operations in each call
        self.embeddings = Counting()

    def call(self, request: HostCall) -> bytes:
        ops = [dict(op) for op in request.document["ops"]]
        self.asked.append(len(ops))
        try:
            SemanticIndex(self.embeddings, self.config).add_vectors(ops)  # type: ignore[arg-type]
        except ValueError as error:
            raise HostError(str(error)) from error
        answer = [{name: op.get(name) for name in ("vectors", "indexed_by", "near")} for op in ops]
        return dumps(answer).encode()


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    host = Host()
    monkeypatch.setattr(calls, "call", host.call)
    return host


@pytest.fixture
def deployment() -> DeploymentRef:
    deployment = factories.deployment()
    with connection() as conn:
        assert store_vectors.prepare(conn)
    configure(deployment, CONFIG)
    return deployment


def configure(deployment: DeploymentRef, config: dict[str, Any] | None) -> None:
    query = text("UPDATE revision SET manifest = CAST(:manifest AS jsonb) WHERE id = :id")
    manifest = orjson.dumps({"store": {"index": config}}).decode()
    with connection() as conn:
        conn.execute(query, {"id": deployment.active_revision_id, "manifest": manifest})


def put(deployment: DeploymentRef, key: str, value: dict[str, Any]) -> None:
    """Store an item without vectors, like a revision without an index."""
    with connection() as conn:
        store.put(conn, deployment.id, ["a"], key, value)


def put_indexed(deployment: DeploymentRef, host: Host, key: str, value: dict[str, Any], index: Any) -> None:
    """Store an item with vectors, like a graph of the serving revision."""
    op = {"op": "put", "namespace": ["a"], "key": key, "value": value, "ttl": None, "index": index}
    SemanticIndex(host.embeddings, host.config).add_vectors([op])  # type: ignore[arg-type]
    with connection() as conn:
        store.answer(conn, deployment.id, [op])


def scores(deployment: DeploymentRef, near: list[float]) -> dict[str, Any]:
    with connection() as conn:
        found = store.search(conn, deployment.id, ["a"], near=near, limit=100)
    return {item["key"]: item["score"] and round(item["score"], 3) for item in found}


def reindexed(reindexing: Reindexing | None = None) -> Reindexing:
    reindexing = reindexing or Reindexing()
    reindexing.begin()
    reindexing.join()
    return reindexing


def test_items_from_before_the_index_are_found_by_meaning(deployment: DeploymentRef, host: Host) -> None:
    put(deployment, "x", {"text": "xx"})
    put(deployment, "y", {"text": "y"})
    assert set(scores(deployment, [1, 0, 0]).values()) == {None}

    reindexed()

    found = scores(deployment, [1, 0, 0])
    assert list(found) == ["x", "y"]
    assert found["x"] > 0.8
    host.asked.clear()
    reindexed()
    assert host.asked == [], "nothing is left to index"


def test_an_item_s_own_choice_holds_until_it_is_written_by_one_without_an_index(
    deployment: DeploymentRef, host: Host
) -> None:
    put_indexed(deployment, host, "left out", {"text": "x"}, False)
    put_indexed(deployment, host, "title", {"text": "z", "title": "x"}, ["title"])
    reindexed()
    assert host.asked == []
    assert scores(deployment, [1, 0, 0]) == {"title": 1.0, "left out": None}

    host.config = {**CONFIG, "fields": ["text"]}
    configure(deployment, host.config)
    reindexed()
    assert scores(deployment, [1, 0, 0]) == {"title": 1.0, "left out": None}

    put(deployment, "left out", {"text": "x"})
    reindexed()
    assert scores(deployment, [1, 0, 0]) == {"title": 1.0, "left out": 1.0}


def test_an_index_of_another_configuration_replaces_the_vectors(
    deployment: DeploymentRef, host: Host
) -> None:
    put_indexed(deployment, host, "k", {"text": "x", "title": "y"}, None)
    host.config = {**CONFIG, "fields": ["title"]}
    configure(deployment, host.config)

    reindexed()

    assert scores(deployment, [0, 1, 0]) == {"k": 1.0}


def test_an_item_that_cannot_be_embedded_leaves_the_others_alone_and_is_tried_again(
    deployment: DeploymentRef, host: Host
) -> None:
    for key in ("a", "c"):
        put(deployment, key, {"text": "x"})
    put(deployment, "b", {"text": f"x {Counting.refused}"})

    reindexed()
    found = scores(deployment, [1, 0, 0])
    assert (found["a"], found["c"], found["b"]) == (found["a"], found["a"], None)
    assert found["a"]

    host.embeddings.refused = "nothing"
    reindexed()
    assert scores(deployment, [1, 0, 0])["b"]


def test_embeddings_that_fail_are_asked_a_few_times_and_the_next_round_continues_there(
    deployment: DeploymentRef, host: Host
) -> None:
    for key in "abcd":
        put(deployment, key, {"text": f"x {Counting.refused}"})
    put(deployment, "e", {"text": "x"})

    reindexing_ = reindexed()
    assert host.asked == [5, 1, 1, 1]
    host.asked.clear()
    reindexed(reindexing_)
    assert host.asked == [2, 1, 1], "what follows is not kept waiting"
    assert scores(deployment, [1, 0, 0])["e"]


def test_many_items_are_read_in_batches(
    deployment: DeploymentRef, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reindexing, "BATCH", 2)
    for key in "abcde":
        put(deployment, key, {"text": "x"})

    reindexed()

    assert host.asked == [2, 2, 1]
    assert None not in scores(deployment, [1, 0, 0]).values()


def test_an_item_that_is_written_meanwhile_keeps_what_it_got(deployment: DeploymentRef, host: Host) -> None:
    put(deployment, "k", {"text": "x"})
    with connection() as conn:
        [item] = store_vectors.unindexed(conn, deployment.id, store_vectors.digest(CONFIG), limit=10)
    put_indexed(deployment, host, "k", {"text": "y"}, ["text"])

    with connection() as conn:
        store_vectors.add(conn, deployment.id, item, store_vectors.ItemVectors([("$", [1, 0, 0])], "old"))

    assert scores(deployment, [0, 1, 0]) == {"k": 1.0}


def test_a_deployment_without_an_index_is_left_alone(deployment: DeploymentRef, host: Host) -> None:
    configure(deployment, None)
    put(deployment, "k", {"text": "x"})
    reindexed()
    assert host.asked == []
