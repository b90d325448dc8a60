"""What the A2A client of protocol 0.3 makes of a deployment's agents."""

import asyncio
import os
from contextlib import asynccontextmanager
from uuid import uuid4

import httpx
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.client.errors import A2AClientHTTPError, A2AClientJSONRPCError
from a2a.types import (
    DataPart,
    FilePart,
    FileWithBytes,
    FileWithUri,
    Message,
    MessageSendConfiguration,
    Part,
    Role,
    TaskIdParams,
    TaskQueryParams,
    TaskState,
    TextPart,
)

URL, KEY = os.environ["DEPLOYMENT_URL"], os.environ["DEPLOYMENT_KEY"]


@asynccontextmanager
async def agent(name, *, streaming=True, key=KEY):
    """The agent of that name, as its card describes it."""
    async with httpx.AsyncClient(headers={"X-Api-Key": key}, timeout=60) as http:
        card = await A2ACardResolver(http, f"{URL}/a2a/{name}").get_agent_card()
        assert card.url.startswith(f"{URL}/a2a/")
        yield ClientFactory(ClientConfig(httpx_client=http, streaming=streaming)).create(card)


def message(text=None, data=None, **more):
    part = TextPart(text=text) if data is None else DataPart(data=data)
    return Message(message_id=str(uuid4()), role=Role.user, parts=[Part(root=part)], **more)


async def sent(client, said, **more):
    """What comes back: the last state of the task, and every update."""
    found = [item async for item in client.send_message(said, **more)]
    return found[-1][0], [update for _, update in found]


def text_of(parts):
    return "".join(part.root.text for part in parts)


async def refused(code, awaitable):
    try:
        await awaitable
        found = None
    except A2AClientJSONRPCError as error:
        found = error.error.code
    assert found == code


async def check_the_card():
    async with httpx.AsyncClient(headers={"X-Api-Key": KEY}) as http:
        card = await A2ACardResolver(http, f"{URL}/a2a/talks").get_agent_card()
    assert (card.name, card.description) == ("talks", "Answers in three words.")
    assert (card.preferred_transport, card.protocol_version) == ("JSONRPC", "0.3.0")
    assert card.security_schemes["api_key"].root.name == "X-Api-Key"
    assert card.capabilities.streaming is True


async def check_a_card_needs_a_key():
    try:
        async with agent("talks", key=""):
            found = None
    except A2AClientHTTPError as error:
        found = error.status_code
    assert found == 401


async def check_a_message_is_answered():
    async with agent("talks", streaming=False) as client:
        task, _ = await sent(client, message("hi"))
        assert task.status.state == TaskState.completed
        assert text_of(task.artifacts[0].parts) == "hello big world"
        assert [one.role for one in task.history] == [Role.user, Role.agent]
        again = await client.get_task(TaskQueryParams(id=task.id, history_length=1))
        assert again.status == task.status
        assert len(again.history) == 1


async def check_every_update_of_a_stream_is_readable():
    async with agent("talks") as client:
        task, updates = await sent(client, message("hi"))
    assert updates[0] is None
    kinds = [update.kind for update in updates[1:]]
    assert kinds[0] == "status-update"
    assert kinds[-2:] == ["artifact-update", "status-update"]
    states = [update.status.state for update in updates[1:] if update.kind == "status-update"]
    assert set(states[:-1]) == {TaskState.working}
    assert states[-1] == TaskState.completed
    assert [update.final for update in updates[1:] if update.kind == "status-update"].count(True) == 1
    assert updates[-1].final
    assert any(update.status.message for update in updates[1:-2])
    assert text_of(task.artifacts[0].parts) == "hello big world"


async def check_data_is_taken():
    async with agent("counts", streaming=False) as client:
        task, _ = await sent(client, message(data={"city": "Rome", "nights": 2}))
        assert task.artifacts[0].parts[0].root.data["log"] == ["Rome", 2]
        await refused(-32602, sent(client, message("Rome")))


async def check_a_refused_stream_says_why():
    async with agent("counts") as client:
        await refused(-32602, sent(client, message("Rome")))


async def check_a_failure():
    async with agent("fails") as client:
        task, updates = await sent(client, message("hi"))
    assert task.status.state == TaskState.failed
    assert text_of(updates[-1].status.message.parts) == "Error executing assistant: ValueError: boom happened"


async def check_a_question_is_answered_in_its_context():
    for streaming in (True, False):
        async with agent("asks", streaming=streaming) as client:
            asked, _ = await sent(client, message("go"))
            assert asked.status.state == TaskState.input_required
            (interrupt,) = asked.artifacts[0].parts[0].root.data["interrupts"]
            assert (asked.artifacts[0].name, interrupt["value"]) == ("Interrupt", "Which colour?")
            done, _ = await sent(client, message("green", context_id=asked.context_id))
            assert (done.id, done.status.state) == (asked.id, TaskState.completed)
            assert text_of(done.artifacts[0].parts) == "You said green"


async def check_a_task_is_cancelled_while_it_waits():
    async with agent("asks", streaming=False) as client:
        asked, _ = await sent(client, message("go"))
        cancelled = await client.cancel_task(TaskIdParams(id=asked.id))
        assert (cancelled.id, cancelled.status.state) == (asked.id, TaskState.canceled)
        await refused(-32002, client.cancel_task(TaskIdParams(id=asked.id)))
        await refused(-32004, sent(client, message("green", task_id=asked.id)))


async def check_files_go_in_and_out():
    image = Part(root=FilePart(file=FileWithBytes(bytes="aGk=", mime_type="image/png", name="a.png")))
    link = Part(root=FilePart(file=FileWithUri(uri="http://127.0.0.1:1/cat", mime_type="image/png")))
    said = message("look")
    said.parts += [image, link]
    async with agent("draws", streaming=False) as client:
        task, _ = await sent(client, said)
        parts = task.artifacts[0].parts
        assert parts[:3] == said.parts
        assert parts[3].root.file.mime_type == "application/pdf"
        said = message("look")
        said.parts.append(parts[3])
        await refused(-32005, sent(client, said))


async def check_a_task_is_cancelled_while_it_works():
    async with agent("sleeps", streaming=False) as client:
        at_once = MessageSendConfiguration(blocking=False)
        task, _ = await sent(client, message("hi"), configuration=at_once)
        assert task.status.state == TaskState.submitted
        cancelled = await client.cancel_task(TaskIdParams(id=task.id))
        assert cancelled.status.state == TaskState.canceled
        await refused(-32002, client.cancel_task(TaskIdParams(id=task.id)))
        await refused(-32001, client.get_task(TaskQueryParams(id=f"{uuid4()}:{uuid4()}")))


async def check_a_task_is_joined_again():
    async with agent("sleeps") as client:
        said = message("hi")
        stream = client.send_message(said)
        task, _ = await anext(stream)
        await stream.aclose()
        joined = client.resubscribe(TaskIdParams(id=task.id))
        first, _ = await anext(joined)
        assert first.id == task.id

        async def rest():
            return [item async for item in joined]

        reading = asyncio.create_task(rest())
        await client.cancel_task(TaskIdParams(id=task.id))
        _, last = (await reading)[-1]
        assert last.final
        assert last.status.state == TaskState.canceled
