"""The store as graph code sees it: the same behaviour as LangGraph's own store, and additions of this service."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID, uuid4

import orjson
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from langgraph.store.base import GetOp, ListNamespacesOp, MatchCondition, Op, PutOp, SearchItem, SearchOp
from langgraph.store.memory import InMemoryStore
from sqlalchemy import text

import tests.support.factories as make
from shared import store, store_vectors
from shared.deployments.deployments import DeploymentRef
from shared.errors import Invalid
from shared.hosts.pending_calls import HostCall
from shared.infra.postgres import connection
from workers.graph_host.connection import Document
from workers.graph_host.output import current_run_id
from workers.graph_host.store import HostStore, SemanticIndex, StoreFailed
from workers.runner import host_requests

SEARCH = {
    "op": "search", "namespace": [], "filter": None, "limit": 1, "offset": 0, "refresh": False, "near": None,
}  # fmt: skip


class Runner:
    """Fakes the runner's end of the socket, with the same JSON."""

    def __init__(self, deployment_id: UUID) -> None:
        self.deployment_id = deployment_id

    def ask_blocking(self, kind: int, id: bytes, document: Document, blobs: list[bytes]) -> list[bytes]:
        asked = orjson.loads(document(1))
        try:
            with connection() as conn:
                return [orjson.dumps(store.answer(conn, self.deployment_id, asked["ops"]))]
        except Invalid as error:
            return [orjson.dumps({"error": error.message})]

    async def ask(self, kind: int, id: bytes, document: Document, blobs: list[bytes]) -> list[bytes]:
        return self.ask_blocking(kind, id, document, blobs)


@pytest.fixture
def deployment(db: Any) -> DeploymentRef:
    current_run_id.set(bytes(range(16)))
    return make.deployment()


def of(deployment: DeploymentRef) -> HostStore:
    return HostStore(Runner(deployment.id))  # type: ignore[arg-type]


labels = st.sampled_from(["a", "b", "aa", "*x", "ü", "10", "9"])
spaces = st.lists(labels, min_size=1, max_size=3).map(tuple)
keys = st.sampled_from(["k", "", "l.m"])
scalars = st.one_of(st.none(), st.booleans(), st.integers(-3, 3), st.sampled_from(["x", "y", "", "ß"]))
values = st.dictionaries(
    st.sampled_from(["p", "q"]),
    st.one_of(scalars, st.lists(scalars, max_size=2), st.dictionaries(st.sampled_from(["r", "s"]), scalars)),
)
wanted = st.one_of(
    scalars,
    st.lists(scalars, max_size=2),
    st.dictionaries(st.sampled_from(["r", "s"]), scalars),
    st.fixed_dictionaries({"$ne": scalars}),
    st.fixed_dictionaries({"$eq": scalars}),
)
filters = st.one_of(st.none(), st.dictionaries(st.sampled_from(["p", "q"]), wanted, max_size=2))
patterns = st.lists(st.one_of(labels, st.just("*")), min_size=1, max_size=2).map(tuple)
matches = st.builds(MatchCondition, match_type=st.sampled_from(["prefix", "suffix"]), path=patterns)
ops: st.SearchStrategy[Op] = st.one_of(
    st.builds(
        PutOp,
        namespace=spaces,
        key=keys,
        value=st.one_of(values, values, st.none()),
        index=st.none(),
        ttl=st.none(),
    ),
    st.builds(GetOp, namespace=spaces, key=keys, refresh_ttl=st.booleans()),
    st.builds(
        SearchOp,
        namespace_prefix=st.lists(labels, max_size=2).map(tuple),
        filter=filters,
        limit=st.integers(1, 5),
        offset=st.integers(0, 2),
        query=st.none(),
        refresh_ttl=st.booleans(),
    ),
    st.builds(
        ListNamespacesOp,
        match_conditions=st.one_of(st.none(), st.lists(matches, min_size=1, max_size=2).map(tuple)),
        max_depth=st.one_of(st.none(), st.integers(1, 3)),
        limit=st.integers(1, 5),
        offset=st.integers(0, 2),
    ),
)


def plain(op: Op, result: Any) -> Any:
    """Return a result without times, and a search result without its order, which LangGraph does not define."""
    if isinstance(op, SearchOp):
        return len(result), [item.score for item in result]
    if isinstance(op, GetOp):
        return None if result is None else (result.namespace, result.key, result.value)
    return result


def everything(own: Any, filter: Any, prefix: tuple[str, ...]) -> list[Any]:
    found: list[SearchItem] = own.search(prefix, filter=filter, limit=1000)
    return sorted(
        orjson.dumps((item.namespace, item.key, item.value), option=orjson.OPT_SORT_KEYS) for item in found
    )


def without_empty(own: InMemoryStore) -> None:
    """Remove empty namespaces. LangGraph's store still lists namespaces without items, and those it only searched."""
    for namespace in [name for name, items in own._data.items() if not items]:
        del own._data[namespace]


@hypothesis_settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(batches=st.lists(st.lists(ops, min_size=1, max_size=4), max_size=8))
def test_it_answers_like_the_library_s_own_store(deployment: DeploymentRef, batches: list[list[Op]]) -> None:
    with connection() as conn:
        conn.execute(text("DELETE FROM store_item"))
    ours, theirs = of(deployment), InMemoryStore()

    for batch in batches:
        without_empty(theirs)
        # First: reads of LangGraph's store create empty namespaces, which it would then list.
        batch.sort(key=lambda op: not isinstance(op, ListNamespacesOp))
        expected = theirs.batch(batch)
        got = ours.batch(batch)

        for op, one, other in zip(batch, got, expected, strict=True):
            assert plain(op, one) == plain(op, other), op
            if isinstance(op, SearchOp):
                assert everything(ours, op.filter, op.namespace_prefix) == everything(
                    theirs, op.filter, op.namespace_prefix
                )


def test_a_search_is_by_last_change_and_compares_values_of_one_type(deployment: DeploymentRef) -> None:
    own = of(deployment)
    for n, value in enumerate([1, 2.5, "m", None, 10]):
        own.put(("n",), str(n), {"v": value})
    own.put(("n",), "0", {"v": 1})

    def found(**filter: Any) -> list[str]:
        return [item.key for item in own.search(("n",), filter=filter)]

    assert found() == ["0", "4", "3", "2", "1"]
    assert found(v={"$gt": 1}) == ["4", "1"]
    assert found(v={"$gte": 1, "$lt": 10}) == ["0", "1"]
    assert found(v={"$lte": "z"}) == ["2"]
    assert found(v={"$ne": 1}) == ["4", "3", "2", "1"]
    with pytest.raises(StoreFailed, match=r"Unsupported operator: \$in"):
        found(v={"$in": [1]})


@pytest.mark.parametrize(
    "op",
    [
        {"op": "get", "namespace": ["a"], "key": "\x00", "refresh": False},
        {"op": "get", "namespace": ["\x00"], "key": "k", "refresh": False},
        {**SEARCH, "filter": {"a": "\x00"}},
        {**SEARCH, "filter": {"\x00": 1}},
        {**SEARCH, "namespace": ["\x00"]},
        {**SEARCH, "limit": 2**64},
    ],
)
def test_what_the_database_refuses_of_a_graph_has_an_answer(
    deployment: DeploymentRef, op: dict[str, Any]
) -> None:
    (answer,) = host_requests.answer_call(
        HostCall(
            deployment_id=deployment.id,
            revision_id=uuid4(),
            pool="default",
            document={"op": "state"},
            thread_id=uuid4(),
        ),
        {"op": "store", "ops": [op]},
    )
    assert orjson.loads(answer)["error"].startswith(("the database refuses it: ", "key: "))


def test_a_value_replaced_keeps_when_it_was_made(deployment: DeploymentRef) -> None:
    own = of(deployment)
    own.put(("a",), "k", {"n": 1})
    first = own.get(("a",), "k")
    own.put(("a",), "k", {"n": 2})
    second = own.get(("a",), "k")

    assert first is not None
    assert second is not None
    assert second.created_at == first.created_at
    assert second.updated_at > first.updated_at

    wrong: Any = of(deployment)
    with pytest.raises(StoreFailed, match="value: must be an object"):
        wrong.put(("a",), "k", "text")
    bad_key: Any = 5
    for op in (PutOp(("a",), bad_key, {}), PutOp(("a",), bad_key, None), GetOp(("a",), bad_key)):
        with pytest.raises(StoreFailed, match="key: must be a string"):
            wrong.batch([op])


def test_an_item_expires_unless_it_is_read(deployment: DeploymentRef) -> None:
    own = of(deployment)
    own.put(("a",), "read", {}, ttl=10)
    own.put(("a",), "looked at", {}, ttl=10)
    own.put(("a",), "forever", {})
    own.put(("b",), "longer than times can be", {}, ttl=1e15)

    def pass_minutes(minutes: int) -> None:
        with connection() as conn:
            conn.execute(
                text("UPDATE store_item SET expires_at = expires_at - make_interval(mins => :m)"),
                {"m": minutes},
            )

    pass_minutes(6)
    assert own.get(("a",), "read") is not None
    assert own.get(("a",), "looked at", refresh_ttl=False) is not None
    pass_minutes(6)
    with connection() as conn:
        swept = store.sweep(conn)

    assert swept == 1
    assert [item.key for item in own.search(("a",))] == ["forever", "read"]
    assert own.get(("a",), "looked at") is None


def test_both_ways_to_call_it_and_other_deployments(deployment: DeploymentRef) -> None:
    async def roundtrip() -> Any:
        own = of(deployment)
        await own.aput(("a",), "k", {"n": 1})
        return await own.aget(("a",), "k"), await own.alist_namespaces()

    item, namespaces = asyncio.run(roundtrip())

    assert (item.value, namespaces) == ({"n": 1}, [("a",)])
    assert of(make.deployment("other")).get(("a",), "k") is None

    current_run_id.set(bytes(16))
    with pytest.raises(StoreFailed, match="only be used while a graph runs"):
        of(deployment).get(("a",), "k")


@pytest.mark.parametrize(
    ("namespace", "key", "value", "message"),
    [
        (["langgraph"], "k", {}, "Root label"),
        ([], "k", {}, "cannot be empty"),
        (["a.b"], "k", {}, "no dots"),
        ([""], "k", {}, "no dots"),
        (["a"] * 65, "k", {}, "at most 64 labels"),
        (["a"], "k" * 1025, {}, "key: at most"),
        (["a"], 5, {}, "key: must be a string"),
        (["a"], "k", "text", "value: must be an object"),
        (["a"], "k", [1], "value: must be an object"),
        (["a"], "k", {"x": "\x00"}, "NUL"),
        (["a"], "k", {"x": "y" * store.MAX_VALUE_BYTES}, "value: at most"),
    ],
)
def test_what_cannot_be_put_is_refused_by_name(
    deployment: DeploymentRef, namespace: list[str], key: Any, value: Any, message: str
) -> None:
    with pytest.raises(Invalid, match=message), connection() as conn:
        store.put(conn, deployment.id, namespace, key, value)


class Counting:
    """The project's embeddings: the frequency of each letter."""

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        return self.embed_documents(texts)

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [[float(text.count(letter)) for letter in "xyz"] for text in texts]

    async def aembed_query(self, text: str) -> list[float]:
        return self.embed_query(text)

    def embed_query(self, text: str) -> list[float]:
        return self.embed_documents([text])[0]


@pytest.fixture
def indexed(deployment: DeploymentRef) -> HostStore:
    with connection() as conn:
        assert store_vectors.prepare(conn), "the embedded PostgreSQL has the extension"
    index = SemanticIndex(Counting(), {"dims": 3, "fields": ["text", "more[*]"]})  # type: ignore[arg-type]
    return HostStore(Runner(deployment.id), None, index)  # type: ignore[arg-type]


def test_the_nearest_in_meaning_come_first_and_the_rest_after_them(indexed: HostStore) -> None:
    indexed.put(("a",), "x", {"text": "xx"})
    indexed.put(("a",), "y", {"text": "y"})
    indexed.put(("a",), "many", {"text": "zz", "more": ["y", "x"]})
    indexed.put(("a",), "left out", {"text": "x"}, index=False)
    indexed.put(("a",), "other field", {"text": "z", "title": "x"}, index=["title"])
    indexed.put(("a",), "no direction", {"text": "?"})

    found = indexed.search(("a",), query="x", limit=10)

    assert [item.key for item in found[:3]] == ["other field", "many", "x"]
    assert [item.score for item in found[:3]] == [1.0, 1.0, 1.0]
    assert (found[3].key, found[3].score) == ("y", 0.0)
    assert {(item.key, item.score) for item in found[4:]} == {("left out", None), ("no direction", None)}
    assert [item.key for item in indexed.search(("a",), query="x", filter={"text": "y"})] == ["y"]
    assert [item.key for item in indexed.search(("a",), query="x", limit=1, offset=2)] == ["x"]


def test_a_value_that_changed_is_found_by_what_it_is_now(
    indexed: HostStore, deployment: DeploymentRef
) -> None:
    indexed.put(("a",), "k", {"text": "x"})
    indexed.put(("a",), "k", {"text": "y"})
    assert indexed.search(("a",), query="y")[0].score == 1.0

    of(deployment).put(("a",), "k", {"text": "x"})  # stored by a revision without an index

    assert indexed.search(("a",), query="x")[0].score is None, "no vector is of this value"
    indexed.delete(("a",), "k")
    with connection() as conn:
        assert conn.execute(text("SELECT count(*) FROM store_vector")).scalar_one() == 0


LIBRARY_VALUES: list[dict[str, Any]] = [
    {"text": "xx"},
    {"text": "y", "more": {"list": ["x", {"deep": "z"}], "number": 1}},
    {"text": None},
    {},
]


@pytest.mark.parametrize("fields", [None, ["$"], ["text"], ["more.list[*]"], ["{text,more.number}"], ["*"]])
def test_texts_are_embedded_as_the_library_s_own_store_does(
    deployment: DeploymentRef, fields: list[str] | None
) -> None:
    config = {"dims": 3, "fields": fields}
    library = InMemoryStore(index={"dims": 3, "embed": Counting().embed_documents, "fields": fields})  # type: ignore[typeddict-item]
    with connection() as conn:
        store_vectors.prepare(conn)
    own = HostStore(Runner(deployment.id), None, SemanticIndex(Counting(), config))  # type: ignore[arg-type]
    indexes: list[Any] = [None, False, ["text"], ["more.list[*].deep", "text"], []]
    for index in indexes:
        namespace = (str(index).replace(".", ""),)
        for n, value in enumerate(LIBRARY_VALUES):
            for each in (library, own):
                each.put(namespace, str(n), value, index=index)

        def scores(each: Any, namespace: tuple[str, ...] = namespace) -> dict[str, Any]:
            found = each.search(namespace, query="xy", limit=10)
            return {item.key: item.score and round(item.score, 5) for item in found}

        # A text whose vector is zero has no score here, and the score 0 in LangGraph's store.
        assert {key: score or None for key, score in scores(own).items()} == {
            key: score or None for key, score in scores(library).items()
        }, index


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_put_whose_embedding_fails_stores_nothing(deployment: DeploymentRef, number: float) -> None:
    class Failing(Counting):
        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            return [[number, 0.0, 0.0] for _ in texts]

    own = HostStore(Runner(deployment.id), None, SemanticIndex(Failing(), {"dims": 3}))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="not finite"):
        own.put(("a",), "k", {"text": "x"})
    assert own.get(("a",), "k") is None


def test_embeddings_of_another_size_are_refused(deployment: DeploymentRef) -> None:
    index = SemanticIndex(Counting(), {"dims": 4, "fields": ["text"]})  # type: ignore[arg-type]
    own = HostStore(Runner(deployment.id), None, index)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"an embedding of 3 dimensions: store\.index\.dims says 4"):
        own.put(("a",), "k", {"text": "x"})
