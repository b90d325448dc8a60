"""`threads.stream` of the unmodified Python clients, asynchronous and synchronous, against the whole platform.

Each client is tested over server-sent events and over WebSockets.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar
from uuid import uuid4

import httpx
import pytest
from langgraph_sdk import get_client

from tests.support.stack import Stack
from tests.support.waiting import wait_until

LIMIT_SECONDS = 60  # timeout of the asynchronous part of a test; far longer than any takes

T = TypeVar("T")


class World:
    """The deployment, with an asynchronous and a synchronous client that stream over one transport."""

    def __init__(self, stack: Stack, name: str, transport: str) -> None:
        self._transport = transport
        self._address, self._key = f"{stack.url}/d/{name}", stack.api_key
        self.sdk = self._streaming(stack.sdk(name))
        self.http = httpx.Client(base_url=self._address, headers={"X-Api-Key": stack.api_key})

    def _streaming(self, client: Any) -> Any:
        """Make the client send its key when it opens a WebSocket, which it does not do by default. Returns it."""
        headers = {"X-Api-Key": self._key}
        client.threads.stream = partial(client.threads.stream, transport=self._transport, headers=headers)
        return client

    def run(self, what: Callable[[Any], Awaitable[T]]) -> T:
        async def bounded() -> T:
            client = self._streaming(get_client(url=self._address, api_key=self._key))
            try:
                return await asyncio.wait_for(what(client), LIMIT_SECONDS)
            finally:
                await client.aclose()

        return asyncio.run(bounded())

    def output(self, graph: str, input: Any, thread_id: str | None = None, **more: Any) -> Any:
        """Start a run with the asynchronous client and return its output."""

        async def use(client: Any) -> Any:
            async with opened(client, graph, thread_id) as thread:
                assert set(await thread.run.start(input=input, **more)) == {"run_id"}
                return await thread.output

        return self.run(use)

    def thread(self) -> str:
        return str(self.sdk.threads.create()["thread_id"])

    def runs(self, thread_id: str) -> list[Any]:
        return list(self.sdk.runs.list(thread_id))


@pytest.fixture(scope="module", params=["websocket", pytest.param("sse", marks=pytest.mark.release)])
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def world(transport: str, stack: Stack, kitchen: str) -> World:
    return World(stack, kitchen, transport)


@pytest.fixture(scope="module")
def room(transport: str, stack: Stack, chatroom: str) -> World:
    """The deployment whose graphs are conversations."""
    return World(stack, chatroom, transport)


@asynccontextmanager
async def opened(client: Any, graph: str, thread_id: str | None = None) -> AsyncIterator[Any]:
    async with client.threads.stream(thread_id, assistant_id=graph) as thread:
        yield thread


def said(text: str) -> dict[str, Any]:
    return {"messages": [{"type": "human", "content": text}]}


def texts(values: Any) -> list[str]:
    return [message["content"] for message in values["messages"]]


@pytest.mark.parametrize("is_named", [True, False])
def test_output_is_what_the_run_came_to(world: World, is_named: bool) -> None:
    thread_id = str(uuid4()) if is_named else None
    assert world.output("echo", {"text": "hi"}, thread_id) == {"text": "hi", "log": ["hi"]}


@pytest.mark.release
def test_the_synchronous_client_gets_it_too(world: World) -> None:
    with world.sdk.threads.stream(assistant_id="echo") as thread:
        thread.run.start(input={"text": "hi"})
        assert thread.output == {"text": "hi", "log": ["hi"]}


def test_each_run_of_a_thread_has_its_own_output(world: World) -> None:
    """The first run is created by an older endpoint; each later run uses a new client-side thread object."""
    thread_id = world.thread()
    world.sdk.runs.wait(thread_id, "echo", input={"text": "0"})

    for n in range(1, 4):
        log = world.output("echo", {"text": str(n)}, thread_id)["log"]
        assert log == [str(i) for i in range(n + 1)]


def test_a_run_that_ends_before_anybody_looks_is_seen_all_the_same(world: World) -> None:
    async def use(client: Any) -> Any:
        async with opened(client, "echo") as thread:
            thread_id = thread.thread_id
            command = {
                "id": 1,
                "method": "run.start",
                "params": {"assistant_id": "echo", "input": {"text": "x"}},
            }
            world.http.post(f"/threads/{thread_id}/commands", json=command).raise_for_status()
            await asyncio.to_thread(wait_until, lambda: world.runs(thread_id)[0]["status"] == "success", 30)
            thread._run_seen = True
            thread._ensure_lifecycle_watcher_running()
            return await thread.output

    assert world.run(use)["log"] == ["x"]


def test_a_failed_run_raises_what_went_wrong(world: World) -> None:
    with pytest.raises(RuntimeError, match="Run errored: boom happened"):
        world.output("fails", {})


def test_a_refused_command_raises_its_code(world: World) -> None:
    with pytest.raises(RuntimeError, match=r"Protocol error \[unknown_error\]: 422: Invalid assistant"):
        world.output("nope", {})


def test_who_comes_while_a_run_goes_on_gets_its_end(world: World) -> None:
    thread_id = world.thread()
    world.sdk.runs.create(thread_id, "sleeps", input={"seconds": 2})
    # The client assumes that no run is live if the thread's state has no next node.
    wait_until(lambda: world.sdk.threads.get_state(thread_id)["next"], 30)

    async def use(client: Any) -> Any:
        async with opened(client, "sleeps", thread_id) as thread:
            return await thread.output

    assert world.run(use)["log"] == ["before", "woke"]


def test_a_cancelled_run_is_interrupted(world: World) -> None:
    thread_id = world.thread()

    async def use(client: Any) -> list[str]:
        async with opened(client, "sleeps", thread_id) as thread:
            started = await thread.run.start(input={"seconds": 60})
            words = []
            async for event in thread.subscribe(["lifecycle"]):
                words.append(event["params"]["data"]["event"])
                if words[-1] == "running":
                    await client.runs.cancel(thread_id, started["run_id"])
                if words[-1] == "interrupted":
                    break
            return words

    assert world.run(use) == ["running", "interrupted"]


def test_values_come_as_the_graph_makes_them(world: World) -> None:
    thread_id = world.thread()

    async def use(client: Any) -> Any:
        async with opened(client, "asks", thread_id) as thread:
            await thread.run.start(input={"text": "t"})
            first = [value async for value in thread.values]
            assert thread.interrupted
            (asked,) = thread.interrupts
            assert asked["value"] == {"question": "may I?"}
            await thread.run.respond("yes")
            again = [value async for value in thread.values]
            return first, again, await thread.output

    first, again, output = world.run(use)
    # The client stops at the question. It may arrive on the other connection before the newest values arrive here.
    assert first[-1].get("log", []) in ([], ["before"])
    assert again[-1] == output == {"text": "t", "log": ["before", "yes", "after"]}
    statuses = [run["status"] for run in world.runs(thread_id)]
    assert statuses == ["success", "success"]


@pytest.mark.release
def test_the_synchronous_client_answers_too(world: World) -> None:
    with world.sdk.threads.stream(world.thread(), assistant_id="asks") as thread:
        thread.run.start(input={"text": "t"})
        wait_until(lambda: thread.interrupts, 30)
        thread.run.respond("yes")
        assert thread.output["log"] == ["before", "yes", "after"]


ANSWERED_BOTH = ["hi", "first: yes to first?", "second: yes to second?"]


def response_to(asked: Any) -> dict[str, Any]:
    value = f"yes to {asked['value']['question']}"
    return {"interrupt_id": asked["interrupt_id"], "namespace": asked["namespace"], "response": value}


def answer_all(world: World, thread: Any) -> None:
    """Answer all interrupts in one command. The client has no method for this."""
    responses = [response_to(asked) for asked in thread.interrupts]
    command = {"id": 1, "method": "input.respond", "params": {"responses": responses}}
    answer = world.http.post(f"/threads/{thread.thread_id}/commands", json=command).json()
    assert answer["type"] == "success", answer


def test_two_questions_are_answered_at_once(room: World) -> None:
    async def use(client: Any) -> Any:
        async with opened(client, "asks_twice", room.thread()) as thread:
            await thread.run.start(input=said("hi"))
            await until(lambda: len(thread.interrupts) == 2)
            answer_all(room, thread)
            return await thread.output, len(room.runs(thread.thread_id))

    output, runs = room.run(use)
    assert texts(output) == ANSWERED_BOTH
    assert runs == 2


def test_two_questions_are_answered_one_after_the_other(room: World) -> None:
    """The run that receives the first answer interrupts again for the unanswered question."""

    async def use(client: Any) -> Any:
        async with opened(client, "asks_twice", room.thread()) as thread:
            await thread.run.start(input=said("hi"))
            await until(lambda: len(thread.interrupts) == 2)
            first, second = (response_to(asked) for asked in thread.interrupts)
            await thread.run.respond(second["response"], interrupt_id=second["interrupt_id"])
            await until(lambda: len(thread.interrupts) == 3)
            assert response_to(thread.interrupts[-1]) == first
            await thread.run.respond(first["response"], interrupt_id=first["interrupt_id"])
            return await thread.output

    assert texts(room.run(use)) == ANSWERED_BOTH


@pytest.mark.release
@pytest.mark.parametrize("is_at_once", [True, False])
def test_the_synchronous_client_answers_two_questions_too(room: World, is_at_once: bool) -> None:
    with room.sdk.threads.stream(room.thread(), assistant_id="asks_twice") as thread:
        thread.run.start(input=said("hi"))
        wait_until(lambda: len(thread.interrupts) == 2, 30)
        if is_at_once:
            answer_all(room, thread)
        else:
            first, second = (response_to(asked) for asked in thread.interrupts)
            thread.run.respond(second["response"], interrupt_id=second["interrupt_id"])
            wait_until(lambda: len(thread.interrupts) == 3, 30)
            thread.run.respond(first["response"], interrupt_id=first["interrupt_id"])
        assert texts(thread.output) == ANSWERED_BOTH


def test_who_comes_later_finds_what_is_asked(world: World) -> None:
    thread_id = world.thread()
    world.sdk.runs.wait(thread_id, "asks", input={"text": "t"})

    async def use(client: Any) -> Any:
        async with opened(client, "asks", thread_id) as thread:
            await until(lambda: thread.interrupts)
            await thread.run.respond("yes")
            return await thread.output

    assert world.run(use)["log"] == ["before", "yes", "after"]


def test_input_for_a_thread_that_asks_is_the_answer(world: World) -> None:
    thread_id = world.thread()
    world.sdk.runs.wait(thread_id, "asks", input={"text": "t"})

    assert world.output("asks", "yes", thread_id)["log"] == ["before", "yes", "after"]


def test_messages_come_token_by_token(world: World) -> None:
    async def use(client: Any) -> Any:
        async with opened(client, "speaks") as thread:
            await thread.run.start(input={"messages": [{"type": "human", "content": "hi", "id": "mine"}]})
            messages = [message async for message in thread.messages]
            return [[part async for part in message.text] for message in messages], await thread.output

    (tokens,), output = world.run(use)
    assert "".join(tokens) == "hello big world"
    assert len(tokens) > 2
    assert output["messages"][0]["id"] == "mine"
    assert output["messages"][1]["content"] == "hello big world"


def test_tool_calls_come_with_what_became_of_them(room: World) -> None:
    async def use(client: Any) -> Any:
        async with opened(client, "helps") as thread:
            await thread.run.start(input=said("find Oslo nothing"))
            calls = {call.input["about"]: call async for call in thread.tool_calls}
            seen = {about: [delta async for delta in call.deltas] for about, call in calls.items()}
            with pytest.raises(RuntimeError, match="nobody knows"):
                await calls["nothing"].output
            found = calls["Oslo"]
            return (
                seen,
                (found.name, found.namespace, found.tool_call_id, await found.output),
                await thread.output,
            )

    seen, (name, namespace, tool_call_id, result), output = room.run(use)
    assert seen == {about: ["looking ", "for ", about] for about in ("Oslo", "nothing")}
    assert (name, namespace) == ("find", [])
    assert result["content"] == "Oslo is known"
    assert tool_call_id == result["tool_call_id"] == output["messages"][2]["tool_call_id"]


@pytest.mark.release
def test_the_synchronous_client_gets_tool_calls_too(room: World) -> None:
    with room.sdk.threads.stream(assistant_id="helps") as thread:
        thread.run.start(input=said("find Oslo nothing"))
        calls = {call.input["about"]: call for call in thread.tool_calls}
        assert {about: list(call.deltas) for about, call in calls.items()} == {
            about: ["looking ", "for ", about] for about in ("Oslo", "nothing")
        }
        assert calls["Oslo"].output["content"] == "Oslo is known"
        with pytest.raises(RuntimeError, match="nobody knows"):
            _ = calls["nothing"].output


def test_the_channel_of_tools_has_each_step_of_a_call(room: World) -> None:
    async def use(client: Any) -> Any:
        async with opened(client, "helps") as thread:
            await thread.run.start(input=said("find nothing"))
            return [event["params"]["data"] async for event in thread.subscribe(["tools"])]

    steps = room.run(use)
    assert len({step.pop("tool_call_id") for step in steps}) == 1
    assert steps == [
        {"event": "tool-started", "tool_name": "find", "input": {"about": "nothing"}},
        *({"event": "tool-output-delta", "delta": word} for word in ("looking ", "for ", "nothing")),
        {"event": "tool-error", "message": "nobody knows"},
    ]


def test_what_is_said_in_a_subgraph_stays_there(room: World) -> None:
    async def use(client: Any) -> Any:
        async with opened(client, "researches") as thread:
            await thread.run.start(input=said("hello"))
            (child,) = [child async for child in thread.subgraphs]  # this also reads the child's messages
            messages = [message async for message in child.messages]
            return [await message.text for message in messages], [
                message async for message in thread.messages
            ]

    assert room.run(use) == (["heard: hello."], [])


def answered_before(room: World) -> tuple[str, dict[str, Any]]:
    """Return a thread with two turns, and the settings of a run that continues after the first turn."""
    thread_id = room.thread()
    for text in ("one", "two"):
        room.sdk.runs.wait(thread_id, "chat", input=said(text))
    checkpoint = next(
        state["checkpoint"]["checkpoint_id"]
        for state in room.sdk.threads.get_history(thread_id)
        if not state["next"] and len(state["values"]["messages"]) == 2
    )
    return thread_id, {"configurable": {"checkpoint_id": checkpoint}}


FORKED = ["one", "heard: one.", "other", "heard: other."]


def test_a_run_goes_on_from_an_earlier_checkpoint(room: World) -> None:
    thread_id, config = answered_before(room)

    assert texts(room.output("chat", said("other"), thread_id, config=config)) == FORKED
    assert texts(room.sdk.threads.get_state(thread_id)["values"]) == FORKED


@pytest.mark.release
def test_the_synchronous_client_goes_on_from_an_earlier_checkpoint_too(room: World) -> None:
    thread_id, config = answered_before(room)
    with room.sdk.threads.stream(thread_id, assistant_id="chat") as thread:
        thread.run.start(input=said("other"), config=config)
        assert texts(thread.output) == FORKED


def test_input_at_an_earlier_checkpoint_is_no_answer(room: World) -> None:
    thread_id, config = answered_before(room)
    room.sdk.runs.wait(thread_id, "approves", input=said("may I"))
    assert room.sdk.threads.get_state(thread_id)["tasks"][0]["interrupts"]

    assert texts(room.output("chat", said("other"), thread_id, config=config)) == FORKED


def test_subgraphs_are_found(world: World) -> None:
    async def use(client: Any) -> Any:
        async with opened(client, "nested") as thread:
            await thread.run.start(input={"text": "t"})
            return [(child.graph_name, child.path) async for child in thread.subgraphs]

    ((name, path),) = world.run(use)
    assert name == "child"
    assert path[0].startswith("child:")


def test_several_projections_see_one_run(world: World) -> None:
    async def use(client: Any) -> Any:
        async with opened(client, "speaks") as thread:
            await thread.run.start(input={"messages": [{"type": "human", "content": "hi"}]})
            items = [
                (name, item) async for name, item in thread.interleave_projections(["values", "messages"])
            ]
            return [name for name, _ in items], items[-1][1]

    names, last = world.run(use)
    assert names.count("messages") == 1
    assert last["messages"][-1]["content"] == "hello big world"


def test_a_run_of_an_older_endpoint_shows_its_content_to_who_watches(world: World) -> None:
    thread_id = world.thread()

    async def use(client: Any) -> Any:
        async with opened(client, "echo", thread_id) as thread:
            events = thread.subscribe(["values", "lifecycle"])
            seen = asyncio.ensure_future(_until_end(events))
            await until(lambda: thread._shared_stream)
            await thread._shared_stream.ready
            await client.runs.create(thread_id, "echo", input={"text": "x"})
            return await seen

    seen = world.run(use)
    assert seen[0]["method"] == "lifecycle"
    assert seen[-2]["params"]["data"]["log"] == ["x"]


async def until(holds: Callable[[], Any]) -> None:
    while not holds():
        await asyncio.sleep(0.02)


async def _until_end(events: AsyncIterator[Any]) -> list[Any]:
    seen = []
    async for event in events:
        seen.append(event)
        if event["method"] == "lifecycle" and event["params"]["data"]["event"] == "completed":
            break
    return seen
