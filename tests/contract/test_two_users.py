"""Two users of one deployment, whose handlers filter by owner, see nothing of each other."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType, ModuleType
from typing import Any
from uuid import UUID, uuid4

import orjson
import pytest
from flask import Flask

import tests.support.factories as make
from shared.access.api_keys import Caller
from shared.deployments.deployments import DeploymentRef
from shared.user_code.users import user_of
from tests.contract.conftest import Api, Users
from tests.contract.statements import execute
from tests.support import user_code
from web.deployment_api.protocols.v2_socket import Session
from web.gate.context import Authorization, RequestContext, publish
from web.gate.deployments import by_id
from web.gate.deployments import forget as forget_deployments
from web.http.websocket import ClientMessage

HOURLY = {"assistant_id": "agent", "schedule": "0 * * * *"}


@pytest.fixture(autouse=True)
def by_owner(users: Users, own_key: None) -> None:
    users.played.on(user_code.owner_only)


def post(api: Api, path: str, body: Any) -> Any:
    response = api.post(path, body)
    assert response.status_code == 200, response.text
    return response.json


@pytest.fixture
def anns(users: Users) -> dict[str, str]:
    """Ids of ann's records: a thread, an assistant, a cron and a cron on her thread."""
    thread_id = post(users.ann, "/threads", {})["thread_id"]
    assistant = post(users.ann, "/assistants", {"graph_id": "agent"})
    cron = post(users.ann, "/runs/crons", HOURLY)
    own = {"thread": thread_id, "assistant": assistant["assistant_id"], "cron": cron["cron_id"]}
    return {**own, "thread cron": post(users.ann, f"/threads/{thread_id}/runs/crons", HOURLY)["cron_id"]}


def test_neither_finds_or_counts_what_is_the_others(users: Users, anns: dict[str, str]) -> None:
    for path, count in (("/threads", 1), ("/assistants", 1), ("/runs/crons", 2)):
        found = users.bob.post(f"{path}/search", {})
        assert (path, found.json, found.headers.get("x-pagination-total")) == (path, [], "0")
        assert (path, users.bob.post(f"{path}/count", {}).json) == (path, 0)
        hers = users.ann.post(f"{path}/search", {"limit": 1})
        assert (path, users.ann.post(f"{path}/count", {}).json) == (path, count)
        assert (len(hers.json), hers.headers["x-pagination-total"]) == (1, str(count))


def test_a_page_is_of_what_is_visible(users: Users) -> None:
    ids = []
    for _ in range(3):
        ids.append(post(users.ann, "/threads", {})["thread_id"])
        post(users.bob, "/threads", {})
    page = users.ann.post("/threads/search", {"limit": 2, "sort_by": "created_at"})
    assert [record["thread_id"] for record in page.json] == ids[:0:-1]
    assert (page.headers["x-pagination-total"], page.headers["x-pagination-next"]) == ("3", "2")


def test_an_id_that_is_taken_is_taken_whosever_it_is(users: Users, anns: dict[str, str]) -> None:
    for if_exists, hers in (("raise", 409), ("do_nothing", 200)):
        thread = {"thread_id": anns["thread"], "if_exists": if_exists}
        assistant = {"assistant_id": anns["assistant"], "graph_id": "agent", "if_exists": if_exists}
        for path, body in (("/threads", thread), ("/assistants", assistant)):
            statuses = [who.post(path, body).status_code for who in (users.bob, users.ann)]
            assert (path, if_exists, statuses) == (path, if_exists, [409, hers])


def test_nobody_gives_away_what_is_theirs_takes_a_name_or_owns_a_default_assistant(
    users: Users, anns: dict[str, str]
) -> None:
    for path in (
        f"/threads/{anns['thread']}",
        f"/assistants/{anns['assistant']}",
        f"/runs/crons/{anns['cron']}",
    ):
        changed = users.ann.patch(path, {"metadata": {"owner": "bob"}})
        assert changed.json["metadata"]["owner"] == "ann"
    assert post(users.bob, "/threads", {"metadata": {"owner": "ann"}})["metadata"] == {"owner": "bob"}
    copy = post(users.ann, f"/threads/{anns['thread']}/copy", {})
    assert copy["metadata"]["owner"] == "ann"
    assert users.bob.post("/assistants/search", {}).json == []
    assert users.ann.get("/assistants/agent/graph").status_code == 404
    assert users.ann.post("/runs/crons", HOURLY).status_code == 200


def test_one_foreign_thread_keeps_all_from_being_pruned(users: Users, anns: dict[str, str]) -> None:
    own = post(users.bob, "/threads", {})["thread_id"]
    for other in (anns["thread"], str(uuid4())):
        response = users.bob.post("/threads/prune", {"thread_ids": [own, other]})
        expected = {"detail": "At least one thread not found or not authorized"}
        assert (response.status_code, response.json) == (404, expected)
    assert users.bob.get(f"/threads/{own}").status_code == 200
    assert users.bob.post("/threads/prune", {"thread_ids": [own]}).json == {"pruned_count": 1}


def test_the_threads_of_an_assistant_are_not_all_deleted_with_it(users: Users, anns: dict[str, str]) -> None:
    of_assistant = {"assistant_id": anns["assistant"]}
    hers = make.thread(users.deployment.id, metadata={**of_assistant, "owner": "ann"})
    his = make.thread(users.deployment.id, metadata={**of_assistant, "owner": "bob"})
    assert users.ann.delete(f"/assistants/{anns['assistant']}?delete_threads=true").status_code == 204
    assert users.ann.get(f"/threads/{hers}").status_code == 404
    assert users.bob.get(f"/threads/{his}").status_code == 200


# Store


def test_two_users_never_meet_in_the_store(users: Users) -> None:
    item = {"namespace": ["notes"], "key": "k", "value": {"of": "ann"}}
    assert users.ann.call("PUT", "/store/items", item).status_code == 204
    assert users.bob.call("PUT", "/store/items", {**item, "value": {"of": "bob"}}).status_code == 204
    for api, name in ((users.ann, "ann"), (users.bob, "bob")):
        found: Any = api.get("/store/items?namespace=notes&key=k").json
        assert (found["namespace"], found["value"]) == ([name, "notes"], {"of": name})
        for prefix in ({}, {"namespace_prefix": ["notes"]}):
            items: Any = api.post("/store/items/search", prefix).json
            assert [item["value"]["of"] for item in items["items"]] == [name]
        assert api.post("/store/namespaces", {}).json == {"namespaces": [[name, "notes"]]}
        assert api.post("/store/namespaces", {"prefix": ["*"]}).json == {"namespaces": [[name, "notes"]]}
    assert users.bob.call("DELETE", "/store/items", {"namespace": ["notes"], "key": "k"}).status_code == 204
    assert users.ann.get("/store/items?namespace=notes&key=k").json is not None


def test_what_a_handler_leaves_is_checked_like_what_is_sent(users: Users) -> None:
    def leaves(**left: Any) -> Any:
        return lambda ctx, value: value.update(left)

    item = {"namespace": ["notes"], "key": "k", "value": {}}
    for left, status in (
        ({"namespace": []}, 400), ({"namespace": 3}, 422), ({"namespace": ["a", 1]}, 422),
        ({"namespace": ["a.b"]}, 422), ({"key": None}, 422), ({"value": []}, 422), ({"ttl": "x"}, 422),
        ({"namespace": ["a"], "key": "other", "value": {"v": 2}}, 204),
    ):  # fmt: skip
        users.played.on(leaves(**left))
        assert users.ann.call("PUT", "/store/items", item).status_code == status, left
    assert users.ann.get("/store/items?namespace=x&key=y").status_code == 200
    users.played.on(user_code.allow)
    assert users.ann.get("/store/items?namespace=a&key=other").json["value"] == {"v": 2}


def test_a_handler_that_leaves_no_namespace_opens_none(users: Users) -> None:
    users.ann.call("PUT", "/store/items", {"namespace": ["notes"], "key": "k", "value": {}})
    users.played.on(lambda ctx, value: value.clear())
    for path in ("/store/items/search", "/store/namespaces"):
        assert users.bob.post(path, {"namespace_prefix": ["mine"]}).status_code == 500


@pytest.mark.parametrize("name", ["a.b", "*"])
def test_a_name_that_is_no_label_opens_no_other_namespace(users: Users, name: str) -> None:
    users.played.users[name] = user_code.user(name)
    for owner in (["a", "b"], ["c", "d"]):
        users.played.on(user_code.allow)
        users.ann.call("PUT", "/store/items", {"namespace": owner, "key": "k", "value": {}})
    users.played.on(user_code.owner_only)
    other = users.of(name)
    assert other.post("/store/namespaces", {}).status_code in (422, 500)
    if name == "a.b":
        assert other.get("/store/items?key=k").status_code == 422
        assert other.post("/store/items/search", {}).status_code == 422
    else:
        assert other.get("/store/items?key=k").status_code == 500


def test_users_who_are_remembered_are_not_taken_for_each_other(users: Users, anns: dict[str, str]) -> None:
    user_code.protect(users.deployment, parameters=["authorization"], cache_seconds=60)
    for _ in range(2):
        assert users.ann.get(f"/threads/{anns['thread']}").status_code == 200
        assert users.bob.get(f"/threads/{anns['thread']}").status_code == 404


def keeps(holder: object, kind: type) -> bool:
    """Return whether an object refers to an object of this kind, directly or indirectly, other than through the app."""
    known, left = {id(holder)}, [holder]
    while left:
        for found in gc.get_referents(left.pop()):
            if isinstance(found, kind):
                return True
            if id(found) not in known and not isinstance(found, (type, ModuleType, FunctionType, Flask)):
                known.add(id(found))
                left.append(found)
    return False


class PlayedSocket:
    """The server's end of a WebSocket whose client is played by the test."""

    is_closed = False

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.take: Callable[[ClientMessage], None] = lambda message: None

    @contextmanager
    def receiving(self, take: Callable[[ClientMessage], None], wake: Callable[[], None]) -> Iterator[None]:
        self.take = take
        yield

    def beat(self) -> None:
        """Do nothing: no client is connected."""

    def send(self, *messages: bytes) -> None:
        self.sent += map(orjson.loads, messages)


def test_a_users_socket_commands_nothing_where_nobody_is_asked_any_more(users: Users) -> None:
    """Otherwise a user who waited for another user's thread could write to it once authorization is removed."""
    socket: Any = PlayedSocket()
    thread_id = users.ann.post("/threads", {}).json["thread_id"]
    app, chat = users.owner.client.application, users.deployment
    with app.test_request_context(f"/d/chat/threads/{thread_id}/stream/events"):
        serving = by_id(chat.id)
        assert serving is not None
        publish(
            RequestContext(
                request_id="1",
                caller=Caller(chat.organization_id, "", "user:1", "run"),
                user=user_of(user_code.user("bob")),
                authorization=Authorization(serving, is_authorized=True),
                run_headers={},
            )
        )
        session = Session(socket, UUID(thread_id), {"owner": "bob"}, heartbeat_seconds=0.01)
    assert not keeps(session, DeploymentRef), (
        "thousands of idle sockets would each keep a parsed langgraph.json"
    )
    steps = session.steps()
    next(steps)
    execute("UPDATE revision SET user_code = NULL WHERE id = :id", id=chat.active_revision_id)
    forget_deployments()
    start = {"id": 1, "method": "run.start", "params": {"assistant_id": "agent", "input": {}}}
    socket.take(ClientMessage(orjson.dumps(start), is_text=True))
    steps.close()
    (answer,) = socket.sent
    assert (answer["type"], answer["message"][:4]) == ("error", "403:")
    assert users.owner.get(f"/threads/{thread_id}/runs").json == []
