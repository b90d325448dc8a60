"""The MCP client of the second line is asked by graphs, and follows tasks with an extension of its own."""

import asyncio
import json
import os
from contextlib import asynccontextmanager
from typing import Any, Literal

import httpx2
import mcp_types as types
from mcp.client import Client
from mcp.client.extension import ClientExtension, ResultClaim
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

URL, KEY = os.environ["DEPLOYMENT_URL"], os.environ["DEPLOYMENT_KEY"]


class Answering:
    """An elicitation callback that gives these answers, one for each request in turn."""

    def __init__(self, *answers):
        self.answers, self.messages = list(answers), []

    async def __call__(self, context, params):
        self.messages.append(params.message)
        answer = self.answers.pop(0)
        if isinstance(answer, str):
            return types.ElicitResult(action=answer)
        return types.ElicitResult(action="accept", content=answer)


class TaskResult(types.Result):
    result_type: Literal["task"] = "task"
    task_id: str
    status: str
    ttl_ms: int | None = None


class TaskParams(types.RequestParams):
    task_id: str
    input_responses: dict[str, Any] | None = None


class TaskRequest(types.Request[TaskParams, str]):
    name_param = "taskId"


class AnyResult(types.Result, extra="allow"):
    pass


class Tasks(ClientExtension):
    """Follows tasks to their end, and answers their questions one at a time."""

    identifier = "io.modelcontextprotocol/tasks"

    def __init__(self, answers=None, cancels=False):
        self.answers, self.cancels, self.seen = answers or {}, cancels, []

    def claims(self):
        return [ResultClaim(result_type="task", model=TaskResult, resolve=self.resolve)]

    async def send(self, context, method, task_id, **more):
        params = TaskParams(task_id=task_id, **more)
        return (
            await context.session.send_request(TaskRequest(method=method, params=params), AnyResult)
        ).model_dump(by_alias=True)

    async def resolve(self, task, context):
        if self.cancels:
            await self.send(context, "tasks/cancel", task.task_id)
        while True:
            shown = await self.send(context, "tasks/get", task.task_id)
            if not self.seen or self.seen[-1] != shown["status"]:
                self.seen.append(shown["status"])
            if shown["status"] == "input_required":
                key = next(iter(shown["inputRequests"]))
                response = {"action": "accept", "content": self.answers[key]}
                await self.send(context, "tasks/update", task.task_id, input_responses={key: response})
            elif shown["status"] == "completed":
                return types.CallToolResult.model_validate(shown["result"])
            elif shown["status"] != "working":
                return types.CallToolResult(content=[], is_error=True)
            else:
                await asyncio.sleep(0.2)


@asynccontextmanager
async def connected(**more):
    async with httpx2.AsyncClient(headers={"X-Api-Key": KEY}, timeout=60) as http:
        transport = streamable_http_client(f"{URL}/mcp", http_client=http)
        async with Client(transport, mode="auto", **more) as client:
            yield client


def said(result):
    return result.content[0].text


async def check_it_answers_a_question():
    answering = Answering({"name": "Alice"})
    async with connected(elicitation_callback=answering) as client:
        result = await client.call_tool("test_input_required_result_elicitation", {})
    assert said(result) == "Hello, Alice!", result
    assert answering.messages == ["What is your name?"]


async def check_it_declines_a_question():
    async with connected(elicitation_callback=Answering("decline")) as client:
        result = await client.call_tool("test_input_required_result_elicitation", {})
    assert result.is_error
    assert said(result) == "The question was declined"


async def check_it_answers_two_questions_at_once():
    answering = Answering({"name": "a"}, {"name": "b"})
    async with connected(elicitation_callback=answering) as client:
        result = await client.call_tool("multi_input", {})
    assert sorted(answering.messages) == ["One?", "Two?"]
    assert sorted(json.loads(said(result))["answers"]) == ["a", "b"]


async def check_it_answers_two_questions_in_turn():
    answering = Answering({"name": "Alice"}, {"color": "blue"})
    async with connected(elicitation_callback=answering) as client:
        result = await client.call_tool("test_input_required_result_multi_round", {})
    assert said(result) == "Alice likes blue"


async def check_a_client_without_a_callback_is_not_asked():
    async with connected() as client:
        result = await client.call_tool("test_input_required_result_elicitation", {})
    assert "__interrupt__" in said(result)


async def check_a_state_is_used_once():
    async with connected(elicitation_callback=Answering()) as client:
        name = "test_input_required_result_elicitation"
        asked = await client.session.call_tool(name, {}, allow_input_required=True)
        response = types.ElicitResult(action="accept", content={"name": "Alice"})
        again = {"input_responses": {"user_name": response}, "request_state": asked.request_state}
        assert said(await client.session.call_tool(name, {}, **again)) == "Hello, Alice!"
        try:
            await client.session.call_tool(name, {}, **again)
            code = None
        except MCPError as error:
            code = error.error.code
    assert code == -32602


async def check_a_task_is_followed_to_its_end():
    tasks = Tasks()
    async with connected(extensions=[tasks]) as client:
        result = await client.call_tool("slow_compute", {"seconds": 1, "label": "x"})
    assert json.loads(said(result))["result"] == "computed x"
    assert tasks.seen == ["working", "completed"]


async def check_the_questions_of_a_task_are_answered_one_at_a_time():
    tasks = Tasks({"one": {"name": "a"}, "two": {"name": "b"}})
    async with connected(extensions=[tasks], elicitation_callback=Answering()) as client:
        result = await client.call_tool("multi_input", {})
    assert sorted(json.loads(said(result))["answers"]) == ["a", "b"]
    assert "input_required" in tasks.seen


async def check_a_question_may_come_before_the_task():
    tasks = Tasks()
    async with connected(extensions=[tasks], elicitation_callback=Answering({"name": "Alice"})) as client:
        result = await client.call_tool("test_tool_with_task", {})
    assert said(result) == "Done for Alice"
    assert tasks.seen[-1] == "completed"


async def check_a_task_is_cancelled():
    tasks = Tasks(cancels=True)
    async with connected(extensions=[tasks]) as client:
        result = await client.call_tool("slow_compute", {"seconds": 60})
    assert result.is_error
    assert tasks.seen[-1] == "cancelled"


async def check_a_failing_tool_completes_its_task():
    async with connected(extensions=[Tasks()]) as client:
        result = await client.call_tool("failing_job", {})
    assert result.is_error
    assert said(result) == "ValueError: this job always fails"
