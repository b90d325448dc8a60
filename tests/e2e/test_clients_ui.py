"""The requests of chat interfaces in a browser, one after another in the order of their hooks.

The graphs are those in Python and, with the same behaviour, in TypeScript.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import orjson
import pytest
from httpx_sse import ServerSentEvent, connect_sse

from tests.support.stack import Stack
from tests.support.waiting import wait_until

ORIGIN = "https://chat.example.com"
MODES = ["values", "messages-tuple", "updates", "custom", "tools"]
HELLO = {"messages": [{"type": "human", "content": "hi", "id": "h1"}]}


class Browser:
    """A page of another origin that talks to a deployment."""

    def __init__(self, url: str, key: str) -> None:
        headers = {"Origin": ORIGIN, "X-Api-Key": key}
        self.http = httpx.Client(base_url=url, headers=headers, timeout=30)

    def get(self, path: str, **query: Any) -> Any:
        return self._read(self.http.get(path, params=query))

    def post(self, path: str, **body: Any) -> Any:
        return self._read(self.http.post(path, json=body))

    def _read(self, response: httpx.Response) -> Any:
        assert response.is_success, response.text
        assert response.headers["Access-Control-Allow-Origin"] == "*"
        return response.json() if response.content else None

    def events(self, method: str, path: str, **more: Any) -> Iterator[ServerSentEvent]:
        """Yield the events of a stream, as the hook reads them."""
        with connect_sse(self.http, method, path, **more) as source:
            yield from source.iter_sse()

    def submit(self, thread_id: str, graph: str, **body: Any) -> list[tuple[str, Any]]:
        sent = {"assistant_id": graph, "stream_mode": MODES, "on_disconnect": "cancel", **body}
        path = f"/threads/{thread_id}/runs/stream"
        return [(event.event, orjson.loads(event.data)) for event in self.events("POST", path, json=sent)]


@pytest.fixture(scope="module", params=["kitchen", pytest.param("twins", marks=pytest.mark.release)])
def url(request: pytest.FixtureRequest, stack: Stack) -> str:
    return f"{stack.url}/d/{request.getfixturevalue(request.param)}"


@pytest.fixture
def browser(stack: Stack, url: str) -> Iterator[Browser]:
    page = Browser(url, stack.api_key)
    yield page
    page.http.close()


@pytest.fixture
def thread_id(browser: Browser) -> str:
    return browser.post("/threads", metadata={})["thread_id"]


def test_a_page_of_another_origin_may_call_and_read_what_it_needs(url: str, browser: Browser) -> None:
    asked = {
        "Origin": ORIGIN,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "content-type,x-api-key,last-event-id",
    }
    preflight = httpx.options(f"{url}/threads", headers=asked)
    assert preflight.status_code == 200
    assert preflight.headers["Access-Control-Allow-Origin"] == "*"
    assert "POST" in preflight.headers["Access-Control-Allow-Methods"]
    allowed = preflight.headers["Access-Control-Allow-Headers"].lower()
    assert {"content-type", "x-api-key", "last-event-id"} <= {name.strip() for name in allowed.split(",")}

    answer = browser.http.post("/runs/wait", json={"assistant_id": "echo", "input": {"text": "x"}})
    readable = {name.strip().lower() for name in answer.headers["Access-Control-Expose-Headers"].split(",")}
    assert {"content-location", "location", "x-pagination-total", "x-pagination-next"} <= readable


def test_a_first_message_is_streamed_and_its_conversation_opened_again(browser: Browser) -> None:
    thread_id = browser.post("/threads", metadata={})["thread_id"]
    assert browser.get(f"/threads/{thread_id}/state")["checkpoint"] is None, "a thread without a state"

    events = browser.submit(thread_id, "speaks", input=HELLO)

    assert events[0][0] == "metadata"
    tokens = [data[0] for name, data in events if name == "messages"]
    assert "".join(token["content"] for token in tokens) == "hello big world"
    assert len({token["id"] for token in tokens}) == 1
    assert {name for name, _ in events} <= {"metadata", "values", "messages", "updates"}
    final = [data for name, data in events if name == "values"][-1]
    assert [message["type"] for message in final["messages"]] == ["human", "ai"]

    assert browser.get(f"/threads/{thread_id}/state")["values"] == final
    history = browser.post(f"/threads/{thread_id}/history", limit=20)
    assert history[0]["values"] == final
    parents = [state["parent_checkpoint"] for state in history]
    assert parents[:-1] == [state["checkpoint"] for state in history[1:]]
    assert parents[-1] is None


def test_an_edited_message_branches_off(browser: Browser, thread_id: str) -> None:
    browser.submit(thread_id, "echo", input={"text": "a"})
    first = browser.post(f"/threads/{thread_id}/history", limit=20)[-1]["checkpoint"]
    place = {name: value for name, value in first.items() if name != "thread_id"}

    events = browser.submit(thread_id, "echo", input={"text": "b"}, checkpoint=place)

    assert events[-1] == ("values", {"text": "b", "log": ["b"]})
    history = browser.post(f"/threads/{thread_id}/history", limit=20)
    assert len([state for state in history if state["parent_checkpoint"] == first]) == 2, "two branches"


def test_a_page_that_is_loaded_again_joins_its_run(browser: Browser, thread_id: str) -> None:
    path = f"/threads/{thread_id}/runs/stream"
    sent = {
        "assistant_id": "writes", "input": {"n": 30, "seconds": 0.03}, "stream_mode": MODES,
        "stream_resumable": True, "on_disconnect": "continue",
    }  # fmt: skip
    before = []
    for event in browser.events("POST", path, json=sent):
        before.append((event.event, event.data, event.id))
        if len(before) == 8:
            break  # the user leaves the page
    run_id = orjson.loads(before[0][1])["run_id"]

    again = browser.events(
        "GET", f"/threads/{thread_id}/runs/{run_id}/stream", headers={"Last-Event-ID": "-1"}
    )
    seen = [(event.event, event.data, event.id) for event in again]

    assert seen[:8] == before
    assert [orjson.loads(data)["i"] for name, data, _ in seen if name == "custom"] == list(range(30))


@pytest.mark.parametrize("rejoins", [False, True])
def test_a_stop_ends_the_run(browser: Browser, thread_id: str, rejoins: bool) -> None:
    more = {"on_disconnect": "continue", "stream_resumable": True} if rejoins else {}
    sent = {"assistant_id": "sleeps", "input": {"text": "x"}, "on_disconnect": "cancel", **more}
    for event in browser.events("POST", f"/threads/{thread_id}/runs/stream", json=sent):
        if event.event == "values":
            break
    runs = f"/threads/{thread_id}/runs"
    if rejoins:
        (run,) = browser.get(runs)
        browser.http.post(f"{runs}/{run['run_id']}/cancel", params={"wait": 0, "action": "interrupt"})

    wait_until(lambda: browser.get(runs)[0]["status"] == "interrupted", timeout=15)


def test_messages_sent_meanwhile_are_queued_and_shown(browser: Browser, thread_id: str) -> None:
    runs = f"/threads/{thread_id}/runs"
    first = browser.post(runs, assistant_id="sleeps", input={"seconds": 1})
    texts = ["one", "two"]
    for text in texts:
        browser.post(runs, assistant_id="echo", input={"text": text}, multitask_strategy="enqueue")

    queued = browser.get(runs, status="pending", limit=1000)
    assert {run["kwargs"]["input"].get("text") for run in queued} >= set(texts)

    browser.http.post(f"{runs}/{first['run_id']}/cancel", params={"wait": 1}).raise_for_status()
    for run in reversed(queued):
        browser.get(f"{runs}/{run['run_id']}/join")
    assert browser.get(f"/threads/{thread_id}/state")["values"]["log"][-2:] == texts


def test_a_question_is_found_and_answered(browser: Browser, thread_id: str) -> None:
    events = browser.submit(thread_id, "asks", input={"text": "x"})
    (asked,) = [data for name, data in events if name == "values"][-1]["__interrupt__"]

    state = browser.get(f"/threads/{thread_id}/state")
    assert [task["interrupts"][0]["id"] for task in state["tasks"]] == [asked["id"]]
    assert state["next"] == ["ask"]

    events = browser.submit(thread_id, "asks", command={"resume": {asked["id"]: "yes"}})
    assert events[-1][1]["log"] == ["before", "yes", "after"]


def test_the_history_of_an_inner_agent_is_found_by_its_task(browser: Browser, thread_id: str) -> None:
    events = browser.submit(thread_id, "nested", input={"text": "x"}, stream_subgraphs=True)
    inner = {name.partition("|")[2] for name, _ in events if "|" in name}
    (task,) = [
        task
        for state in browser.post(f"/threads/{thread_id}/history", limit=20)
        for task in state["tasks"]
        if task["name"] == "child"
    ]
    assert inner == {f"child:{task['id']}"}
    assert task["path"][:2] == ["__pregel_pull", "child"]
    assert task["result"]["log"] == ["before", "after"]

    (newest,) = browser.post(
        f"/threads/{thread_id}/history", limit=1, checkpoint={"checkpoint_ns": f"child:{task['id']}"}
    )
    assert newest["values"]["log"] == ["before", "after"]
