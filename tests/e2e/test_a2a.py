"""A deployment's agents over A2A: a client of protocol 1.0 discovers, calls and follows them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import httpx
import pytest
from a2a.client import A2ACardResolver, Client, ClientConfig, ClientFactory
from a2a.client.errors import AgentCardResolutionError
from a2a.types.a2a_pb2 import (
    CancelTaskRequest,
    GetExtendedAgentCardRequest,
    GetTaskRequest,
    ListTasksRequest,
    Message,
    Part,
    Role,
    SendMessageRequest,
    StreamResponse,
    SubscribeToTaskRequest,
    Task,
    TaskState,
)
from a2a.utils.errors import (
    A2AError,
    ContentTypeNotSupportedError,
    InvalidParamsError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.struct_pb2 import Value

from tests.support.stack import Stack

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Agency:
    """Client of the agents of one deployment, with an API key."""

    def __init__(self, url: str, key: str) -> None:
        self.url, self.key = url, key

    @asynccontextmanager
    async def agent(self, name: str, *, streaming: bool = True) -> AsyncIterator[Client]:
        async with httpx.AsyncClient(headers={"X-Api-Key": self.key}, timeout=60) as http:
            card = await A2ACardResolver(http, f"{self.url}/a2a/{name}").get_agent_card()
            assert all(one.url.startswith(f"{self.url}/a2a/") for one in card.supported_interfaces)
            yield ClientFactory(ClientConfig(httpx_client=http, streaming=streaming)).create(card)


@pytest.fixture(scope="module")
def agents(stack: Stack, agency: str) -> Agency:
    return Agency(f"{stack.url}/d/{agency}", stack.api_key)


def message(
    text: str | None = None, *, data: Any = None, at_once: bool = False, **more: Any
) -> SendMessageRequest:
    part = Part(text=text) if data is None else Part(data=ParseDict(data, Value()))
    sent = Message(message_id=str(uuid4()), role=Role.ROLE_USER, parts=[part], **more)
    request = SendMessageRequest(message=sent)
    request.configuration.return_immediately = at_once
    return request


async def items(client: Client, request: SendMessageRequest) -> list[StreamResponse]:
    return [item async for item in client.send_message(request)]


async def task(client: Client, request: SendMessageRequest) -> Task:
    """Send a message without streaming and return the task."""
    (item,) = await items(client, request)
    return item.task


def text_of(parts: Any) -> str:
    return "".join(part.text for part in parts)


async def refused(kind: type[A2AError], awaitable: Awaitable[Any]) -> None:
    with pytest.raises(kind):
        await awaitable


async def test_the_card_leads_to_the_agent(agents: Agency) -> None:
    async with httpx.AsyncClient(headers={"X-Api-Key": agents.key}) as http:
        card = await A2ACardResolver(http, f"{agents.url}/a2a/talks").get_agent_card()
    assert (card.name, card.description) == ("talks", "Answers in three words.")
    assert [one.protocol_version for one in card.supported_interfaces] == ["1.0", "0.3"]
    scheme = card.security_schemes["api_key"].api_key_security_scheme
    assert (scheme.location, scheme.name) == ("header", "X-Api-Key")
    assert card.capabilities.streaming
    async with agents.agent("talks") as client:
        assert (await client.get_extended_agent_card(GetExtendedAgentCardRequest())).skills == card.skills


async def test_a_card_needs_a_key(agents: Agency) -> None:
    with pytest.raises(AgentCardResolutionError) as caught:
        async with Agency(agents.url, "").agent("talks"):
            pass
    assert caught.value.status_code == 401


async def test_a_message_is_answered(agents: Agency) -> None:
    async with agents.agent("talks", streaming=False) as client:
        done = await task(client, message("hi"))
        assert done.status.state == TaskState.TASK_STATE_COMPLETED
        assert text_of(done.artifacts[0].parts) == "hello big world"
        assert [one.role for one in done.history] == [Role.ROLE_USER, Role.ROLE_AGENT]
        assert await client.get_task(GetTaskRequest(id=done.id)) == done
        again = await task(client, message("more", context_id=done.context_id))
        assert again.context_id == done.context_id
        listed = await client.list_tasks(ListTasksRequest(context_id=done.context_id))
        assert [one.id for one in listed.tasks] == [again.id, done.id]
        assert listed.total_size == 2


async def test_every_update_of_a_stream_is_readable(agents: Agency) -> None:
    async with agents.agent("talks") as client:
        read = await items(client, message("hi"))
    kinds = [item.WhichOneof("payload") for item in read]
    assert kinds[:2] == ["task", "status_update"]
    assert kinds[-2:] == ["artifact_update", "status_update"]
    assert set(kinds[2:-2]) == {"status_update"}
    assert read[0].task.status.state == TaskState.TASK_STATE_SUBMITTED
    place = (read[0].task.id, read[0].task.context_id)
    updates = [item.status_update for item in read if item.HasField("status_update")]
    assert {(update.task_id, update.context_id) for update in updates} == {place}
    assert {update.status.state for update in updates[:-1]} == {TaskState.TASK_STATE_WORKING}
    so_far = [text_of(update.status.message.parts) for update in updates[1:-1]]
    assert so_far
    assert all("hello big world".startswith(text) for text in so_far)
    artifact = read[-2].artifact_update
    assert (text_of(artifact.artifact.parts), artifact.last_chunk) == ("hello big world", True)
    assert updates[-1].status.state == TaskState.TASK_STATE_COMPLETED


async def test_data_is_taken_and_given(agents: Agency) -> None:
    async with agents.agent("counts", streaming=False) as client:
        done = await task(client, message(data={"city": "Rome", "nights": 2}))
        assert MessageToDict(done.artifacts[0].parts[0].data)["log"] == ["Rome", 2.0]
        await refused(InvalidParamsError, items(client, message("Rome")))
    async with agents.agent("counts") as client:
        await refused(InvalidParamsError, items(client, message("Rome")))


async def test_a_failure_is_reported(agents: Agency) -> None:
    async with agents.agent("fails") as client:
        last = (await items(client, message("hi")))[-1].status_update.status
    assert last.state == TaskState.TASK_STATE_FAILED
    assert text_of(last.message.parts) == "Error executing assistant: ValueError: boom happened"


@pytest.mark.parametrize("name", ["asks", "books"])
async def test_a_question_is_answered_in_its_context(agents: Agency, name: str) -> None:
    first = {"asks": message("go"), "books": message(data={"city": "Rome"})}[name]
    asked = {"asks": "Which colour?", "books": {"question": "Book Rome?"}}[name]

    async with agents.agent(name) as client:
        read = await items(client, first)
        artifact, status = read[-2].artifact_update.artifact, read[-1].status_update
        assert status.status.state == TaskState.TASK_STATE_INPUT_REQUIRED
        (interrupt,) = MessageToDict(artifact.parts[0].data)["interrupts"]
        assert (artifact.name, interrupt["value"]) == ("Interrupt", asked)
        waiting = await client.get_task(GetTaskRequest(id=status.task_id))
        assert waiting.status.state == TaskState.TASK_STATE_INPUT_REQUIRED
        answer = {"colour": "green"} if name == "asks" else {interrupt["id"]: "yes"}
        joined = client.subscribe(SubscribeToTaskRequest(id=status.task_id))
        assert (await anext(joined)).task == waiting
        read = await items(client, message(data=answer, context_id=status.context_id))
        assert read[0].task.id == read[-1].status_update.task_id == status.task_id
        seen = [item async for item in joined]
        assert seen[-1].status_update.status.state == TaskState.TASK_STATE_COMPLETED
        assert read[-1].status_update.status.state == TaskState.TASK_STATE_COMPLETED
        (part,) = read[-2].artifact_update.artifact.parts
        said = part.text if name == "asks" else MessageToDict(part.data)["log"]
        assert said == ("You said green" if name == "asks" else ["yes"])


async def test_a_task_is_cancelled_while_it_waits(agents: Agency) -> None:
    async with agents.agent("asks", streaming=False) as client:
        asked = await task(client, message("go"))
        cancelled = await client.cancel_task(CancelTaskRequest(id=asked.id))
        assert (cancelled.id, cancelled.status.state) == (asked.id, TaskState.TASK_STATE_CANCELED)
        await refused(TaskNotCancelableError, client.cancel_task(CancelTaskRequest(id=asked.id)))
        await refused(UnsupportedOperationError, items(client, message("green", task_id=asked.id)))
        again = await task(client, message("go", context_id=asked.context_id))
        assert (again.id != asked.id, again.status.state) == (True, TaskState.TASK_STATE_INPUT_REQUIRED)


async def test_files_go_in_and_out(agents: Agency) -> None:
    image = Part(raw=b"hi", media_type="image/png", filename="a.png")
    request = message("look")
    request.message.parts.extend([image, Part(url="http://127.0.0.1:1/cat", media_type="image/png")])
    async with agents.agent("draws", streaming=False) as client:
        done = await task(client, request)
        document = Part(raw=b"%PDF", media_type="application/pdf", filename="a.pdf")
        assert list(done.artifacts[0].parts) == [*request.message.parts, document]
        refusal = message("look")
        refusal.message.parts.append(document)
        await refused(ContentTypeNotSupportedError, items(client, refusal))


async def test_a_task_is_cancelled_while_it_works(agents: Agency) -> None:
    async with agents.agent("sleeps", streaming=False) as client:
        made = await task(client, message("hi", at_once=True))
        assert made.status.state == TaskState.TASK_STATE_SUBMITTED
        working = GetTaskRequest(id=made.id)
        while (await client.get_task(working)).status.state != TaskState.TASK_STATE_WORKING:
            await asyncio.sleep(0.05)
        cancelled = await client.cancel_task(CancelTaskRequest(id=made.id))
        assert cancelled.status.state == TaskState.TASK_STATE_CANCELED
        await refused(TaskNotCancelableError, client.cancel_task(CancelTaskRequest(id=made.id)))
        unknown = f"{uuid4()}:{uuid4()}"
        await refused(TaskNotFoundError, client.get_task(GetTaskRequest(id=unknown)))
        await refused(TaskNotFoundError, client.cancel_task(CancelTaskRequest(id=unknown)))


async def test_a_task_goes_on_without_its_client_and_is_joined_again(agents: Agency) -> None:
    async with agents.agent("sleeps") as client:
        stream = client.send_message(message("hi"))
        made = (await anext(stream)).task
        await stream.aclose()  # type: ignore[attr-defined]
    async with agents.agent("sleeps") as client:
        joined = client.subscribe(SubscribeToTaskRequest(id=made.id))
        first = await anext(joined)
        assert first.task.id == made.id

        async def rest() -> list[StreamResponse]:
            return [item async for item in joined]

        reading = asyncio.create_task(rest())
        await client.cancel_task(CancelTaskRequest(id=made.id))
        last = (await reading)[-1].status_update.status
        assert last.state == TaskState.TASK_STATE_CANCELED
