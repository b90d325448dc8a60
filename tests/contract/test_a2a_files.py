"""Files, data and A2UI in A2A messages and tasks."""

from __future__ import annotations

from typing import Any

import pytest

import tests.support.factories as make
from tests.contract import rpc
from tests.contract.a2a_calls import (
    AGENT,
    GET,
    SEND,
    VERSIONS,
    error,
    finish,
    result,
    row,
    sent,
    state,
    task_of,
)
from tests.contract.conftest import Api, Notifications
from tests.contract.rpc import BOTH, text_message

pytestmark = pytest.mark.usefixtures("taking_graphs")
versions = pytest.mark.parametrize("version", VERSIONS)

PNG = {
    "1.0": {"raw": "aGk=", "mediaType": "image/png", "filename": "a.png"},
    "0.3": {"kind": "file", "file": {"bytes": "aGk=", "mimeType": "image/png", "name": "a.png"}},
}
LINK = {
    "1.0": {"url": "http://x/cat", "mediaType": "image/png"},
    "0.3": {"kind": "file", "file": {"uri": "http://x/cat", "mimeType": "image/png"}},
}
PDF = {
    "1.0": {"raw": "JVBERg==", "mediaType": "application/pdf"},
    "0.3": {"kind": "file", "file": {"bytes": "JVBERg==", "mimeType": "application/pdf"}},
}
A2UI = "https://a2ui.org/a2a-extension/a2ui/"
UI = {"data": {"beginRendering": {}}, "metadata": {"mimeType": "application/json+a2ui"}}


def conversation(body: Any, content: Any) -> dict[str, Any]:
    question = {"type": "human", "content": body["parts"][0].get("text", "hi"), "id": body["messageId"]}
    return {"messages": [question, {"type": "ai", "content": content, "id": "a"}]}


@versions
def test_files_go_in_and_out(api: Api, notifications: Notifications, version: str) -> None:
    body = {**text_message(), "parts": [{"text": "look"}, PNG[version], LINK[version]]}
    call = sent(api, notifications, body, SEND[version])
    image = {"type": "image", "mime_type": "image/png"}
    extras = {"filename": "a.png"}
    (asked,) = row(call.run_id)["input"]["messages"]
    content = [
        {"type": "text", "text": "look"},
        {**image, "base64": "aGk=", "extras": extras},
        {**image, "url": "http://x/cat"},
    ]
    assert asked == {"role": "user", "id": body["messageId"], "content": content}
    answer = [
        {"type": "text", "text": "seen"},
        {**image, "base64": "aGk=", "extras": extras},
        {"type": "file", "base64": "JVBERg==", "mime_type": "application/pdf"},
        {"type": "data", "data": [1]},
    ]
    values = {"messages": [{"type": "human", **asked}, {"type": "ai", "content": answer, "id": "a"}]}
    finish(call.run_id, values)
    task = task_of(version, call.result())
    text = {"1.0": {"text": "seen"}, "0.3": {"kind": "text", "text": "seen"}}[version]
    data = {"1.0": {"data": [1]}, "0.3": {"kind": "data", "data": {"value": [1]}}}[version]
    assert task["artifacts"][0]["parts"] == [text, PNG[version], PDF[version], data]
    assert task["history"][0]["parts"][1:] == [PNG[version], LINK[version]]
    assert task["history"][1]["parts"] == task["artifacts"][0]["parts"]


@versions
def test_a_media_type_that_the_card_does_not_list_is_refused(api: Api, version: str) -> None:
    body = {**text_message(), "parts": [{"text": "a"}, PDF[version]]}
    assert error(api, SEND[version], {"message": body}) == -32005
    for path in ("/a2a/other",):
        found, text = rpc.error(api, path, SEND[version], {"message": {**body, "parts": [PNG[version]]}})
        assert found == -32602
        assert "city, nights, note" in text


def test_an_assistant_names_the_media_types_that_it_takes(api: Api, notifications: Notifications) -> None:
    modes = {"a2a": {"input_modes": ["text/plain", "application/pdf"], "output_modes": ["text/plain"]}}
    path = f"/a2a/{make.assistant(api.deployment.id, metadata=modes)}"
    card: Any = api.get(path).json
    assert card["defaultInputModes"] == card["skills"][0]["inputModes"] == modes["a2a"]["input_modes"]
    assert card["defaultOutputModes"] == modes["a2a"]["output_modes"]
    taken = {**text_message(), "parts": [PDF["1.0"]]}
    sent(api, notifications, taken, path=path).response.close()
    refused = {**text_message(), "parts": [PNG["1.0"]]}
    assert error(api, "SendMessage", {"message": refused}, path=path) == -32005


@versions
def test_a_response_that_is_not_base64_is_a_failure(
    api: Api, notifications: Notifications, version: str
) -> None:
    body = text_message()
    call = sent(api, notifications, body, SEND[version])
    finish(call.run_id, conversation(body, [{"type": "image", "base64": "no base64"}]))
    assert rpc.answered(call.response)["error"]["code"] == -32006
    run = row(call.run_id)
    task = result(api, GET[version], {"id": f"{run['thread_id']}:{call.run_id}"})
    assert task["status"]["state"] == state(version, "failed")
    text = "Invalid agent response: a block of type image is not base64"
    assert task["status"]["message"]["parts"][0]["text"] == text


@pytest.mark.parametrize("offer", [True, ["v0.9", "v1.0"]])
def test_a2ui_passes_through_when_it_is_active(api: Api, notifications: Notifications, offer: Any) -> None:
    path = f"/a2a/{make.assistant(api.deployment.id, metadata={'a2a': {'a2ui': offer}})}"
    card: Any = api.get(path).json
    offered = [one["uri"] for one in card["capabilities"]["extensions"][1:]]
    assert offered == [f"{A2UI}{version}" for version in (["v0.9"] if offer is True else offer)]
    assert "application/json+a2ui" in card["defaultInputModes"]
    about = {"metadata": {"a": 1}, "extensions": offered[:1]}
    body = {**text_message(), "parts": [{"text": "a"}, UI], **about}
    assert error(api, "SendMessage", {"message": body}, path=path) == -32602
    for header in ("A2A-Extensions", "X-A2A-Extensions"):
        headers = {**BOTH, header: f"https://other.example, {offered[0]}"}
        call = rpc.Called(api, notifications, path, "SendMessage", {"message": body}, headers=headers)
        assert call.response.headers["A2A-Extensions"] == offered[0]
        (asked,) = row(call.run_id)["input"]["messages"]
        assert asked["content"] == [{"type": "text", "text": "a"}, {"type": "data", **UI}]
        assert asked["additional_kwargs"] == {"a2a": about}
        finish(call.run_id, conversation(body, [{"type": "text", "text": "b"}, {"type": "data", **UI}]))
        task = call.result()["task"]
        assert task["artifacts"][0]["parts"] == [{"text": "b"}, UI]
    plain = result(api, "GetTask", {"id": task["id"]}, path=path)
    assert plain["artifacts"][0]["parts"] == [{"text": "b"}]


def test_a2ui_is_off_by_default(api: Api) -> None:
    card: Any = api.get(AGENT).json
    assert A2UI not in str(card)
    headers = {**BOTH, "A2A-Extensions": f"{A2UI}v0.9"}
    body = {**text_message(), "parts": [UI]}
    assert error(api, "SendMessage", {"message": body}, headers=headers) == -32602
