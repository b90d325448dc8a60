"""A2A at a deployment's address: agent cards, the JSON-RPC envelope, and access."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import orjson
import pytest
from a2a.types.a2a_pb2 import AgentCard
from google.protobuf.json_format import ParseDict
from uuid_utils.compat import uuid7
from werkzeug.test import TestResponse

import tests.support.factories as make
from shared.infra.postgres import connection
from shared.models import THREAD, RunStatus, ThreadStatus
from tests.contract import rpc
from tests.contract.a2a_calls import (
    AGENT,
    AGENT_ID,
    CANCEL,
    GET,
    STREAM,
    SUBSCRIBE,
    VERSIONS,
    error,
    finish,
    live,
    message,
    result,
    row,
    run_of,
    said,
    sent,
    state,
)
from tests.contract.bad_input import BODIES, MAX_BYTES, bad_objects
from tests.contract.conftest import Api, MakeApp, Notifications, caller
from tests.contract.documented import document_of
from tests.contract.rpc import BOTH, CHAT, text_message
from tests.support.acting import Actor
from web.gate import limits

pytestmark = pytest.mark.usefixtures("taking_graphs")
versions = pytest.mark.parametrize("version", VERSIONS)


CARD, JSON = "/.well-known/agent-card.json", "application/json"


def test_the_addresses_of_a_card_are_those_of_the_settings_or_the_one_it_was_called_at(api: Api) -> None:
    evil = {"Host": "evil.example"}
    port = api.client.application.config["SETTINGS"].port
    card: Any = api.get(f"{AGENT}{CARD}", headers=evil).json
    assert card["url"].startswith(f"http://127.0.0.1:{port}/d/chat/a2a/")
    api.set(url="https://agents.example/")
    card = api.get(f"{AGENT}{CARD}", headers=evil).json
    assert card["url"].startswith("https://agents.example/d/chat/a2a/")
    assert "evil" not in str(card)
    api.set(listen_host="0.0.0.0", url="http://127.0.0.1:8123", port=8123)
    card = api.get(f"{AGENT}{CARD}").json
    assert card["url"].startswith("http://localhost/d/chat/a2a/")


def test_a_card_says_what_an_assistant_is_and_where(api: Api) -> None:
    card: Any = api.get(f"{AGENT}{CARD}").json
    settings = api.client.application.config["SETTINGS"]
    url = f"{settings.url}/d/chat/a2a/{AGENT_ID}"
    assert (card["name"], card["version"], card["description"]) == (
        "agent",
        "1",
        "Runs the assistant 'agent'.",
    )
    assert card["supportedInterfaces"] == [
        {"url": url, "protocolBinding": "JSONRPC", "protocolVersion": "1.0"},
        {"url": url, "protocolBinding": "JSONRPC", "protocolVersion": "0.3"},
    ]
    assert (card["url"], card["preferredTransport"], card["protocolVersion"]) == (url, "JSONRPC", "0.3.0")
    capabilities = card["capabilities"]
    assert capabilities["streaming"] is True
    assert capabilities["pushNotifications"] is capabilities["stateTransitionHistory"] is False
    assert capabilities["extensions"][0]["uri"].endswith("/a2a/extensions/history-scope/v1")
    files = ["image/*", "audio/*", "video/*", "application/octet-stream"]
    assert (
        card["defaultInputModes"] == card["defaultOutputModes"] == ["application/json", "text/plain", *files]
    )
    assert card["securitySchemes"]["api_key"]["apiKeySecurityScheme"]["name"] == "X-Api-Key"
    (skill,) = card["skills"]
    assert {"id", "name", "description", "tags", "examples", "inputModes", "outputModes"} == set(skill)


def test_a_card_is_found_in_three_places_and_by_either_name(api: Api) -> None:
    card = api.get(f"{AGENT}{CARD}").json
    for method in ("GetExtendedAgentCard", "agent/getAuthenticatedExtendedCard"):
        assert result(api, method) == card, method
    for path in (AGENT, f"/a2a/{AGENT_ID}", f"/a2a/{AGENT_ID}{CARD}", f"{CARD}?assistant_id={AGENT_ID}"):
        assert api.get(path).json == card, path
    assert api.get(CARD).status_code == 400
    for unknown in ("nope", str(uuid4())):
        assert api.get(f"/a2a/{unknown}").status_code == 404
        assert api.get(f"{CARD}?assistant_id={unknown}").status_code == 404


def test_a_card_of_version_1_has_only_the_fields_of_that_version(api: Api) -> None:
    whole: Any = api.get(f"{AGENT}{CARD}").json
    for more in ({"headers": {"A2A-Version": "1.0"}}, {"query_string": {"A2A-Version": "1.0.3"}}):
        card: Any = api.get(f"{AGENT}{CARD}", **more).json
        assert whole.keys() - card.keys() == {
            "url",
            "preferredTransport",
            "protocolVersion",
            "supportsAuthenticatedExtendedCard",
            "security",
        }
        assert set(card["capabilities"]) == {
            "streaming",
            "pushNotifications",
            "extendedAgentCard",
            "extensions",
        }
        (scheme,) = card["securitySchemes"].values()
        assert scheme == {"apiKeySecurityScheme": {"location": "header", "name": "X-Api-Key"}}
        ParseDict(card, AgentCard())
    assert api.get(f"{AGENT}{CARD}", headers={"A2A-Version": "0.3"}).json == whole


def test_a_card_may_be_kept_for_a_minute(api: Api) -> None:
    for path in (AGENT, f"{AGENT}{CARD}", f"{CARD}?assistant_id=agent"):
        response = api.get(path)
        assert response.headers["Cache-Control"] == "private, max-age=60"
        assert "A2A-Version" in response.headers["Vary"]
        tag = response.headers["ETag"]
        again = api.get(path, headers={"If-None-Match": tag})
        assert (again.status_code, again.data, again.headers["ETag"]) == (304, b"", tag)
        other = api.get(path, headers={"If-None-Match": tag, "A2A-Version": "1.0"})
        assert other.status_code == 200
    api.patch("/assistants/agent", {"description": "new"})
    assert api.get(AGENT, headers={"If-None-Match": tag}).status_code == 200


def test_a_trailing_slash_makes_no_difference(api: Api) -> None:
    card = api.get(AGENT).json
    for path in (f"{AGENT}/", f"{AGENT}{CARD}/", f"{CARD}/?assistant_id=agent"):
        response = api.get(path)
        assert (response.status_code, response.json) == (200, card), path
    assert result(api, "GetExtendedAgentCard", path=f"{AGENT}/") == card


def test_what_takes_no_text_says_so_in_its_card(api: Api) -> None:
    card: Any = api.get("/a2a/other").json
    assert card["defaultInputModes"] == ["application/json"]
    assert "city, nights, note" in card["skills"][0]["description"]


def test_the_address_in_a_card_is_the_public_one(app_with: MakeApp, api: Api) -> None:
    key = str(api.client.environ_base["HTTP_X_API_KEY"])
    rows: list[tuple[dict[str, str], str, str, str]] = [
        ({"url": "https://runs.example/mount"}, "localhost", "/d/chat", "https://runs.example/mount/d/chat"),
        ({"app_domain": "apps.example"}, "chat.apps.example", "", "http://chat.apps.example"),
        ({"dev_deployment": "chat"}, "localhost:8123", "", "http://127.0.0.1:8123"),
    ]
    for changes, host, path, address in rows:
        client = caller(app_with(**changes), key)
        card: Any = client.get(f"{path}{AGENT}", headers={"Host": host}).json
        assert card["url"] == f"{address}/a2a/{AGENT_ID}"


def test_what_is_no_call_is_refused_with_a_code(api: Api) -> None:
    document = document_of(api)
    (described,) = (one for one in document.operations() if str(one) == "POST /a2a/{assistant_id}")
    schema = document.body(described)
    assert schema is not None
    bodies = [raw for raw, _ in BODIES] + [b"", b'[{"jsonrpc": "2.0", "id": 1, "method": "GetTask"}]']
    bodies += [orjson.dumps(body) for loc, body, _ in bad_objects(document, schema) if loc != ["params"]]
    bodies += [
        b'{"jsonrpc": "2.0", "method": "GetTask"}',
        b'{"jsonrpc": "2.0", "id": null, "method": "GetTask"}',
    ]
    for raw in bodies:
        response = api.client.post(f"/d/chat{AGENT}", data=raw, headers=BOTH, content_type=JSON)
        answer: Any = response.json
        assert response.status_code == 200, (raw[:80], response.text)
        assert answer["error"]["code"] in (-32700, -32600), raw[:80]
    unknown: Any = api.post(AGENT, {"jsonrpc": "2.0", "method": "tasks/nonsense"}, headers=BOTH).json
    assert unknown["error"]["code"] == -32601
    not_json: Any = api.client.post(f"/d/chat{AGENT}", data=b"{", headers=BOTH, content_type=JSON).json
    assert not_json["error"]["code"] == -32700
    assert error(api, "GetTask", [1]) == -32602
    api.client.application.config["MAX_CONTENT_LENGTH"] = MAX_BYTES
    assert rpc.post(api, AGENT, "SendMessage", {"a": "x" * MAX_BYTES}).status_code == 413


def test_other_methods_versions_and_assistants_are_unknown(api: Api) -> None:
    for method in ("tasks/list", "message/nonsense", "sendMessage"):
        assert (method, error(api, method)) == (method, -32601)
    known, others = ("", "1.0", "0.3", "1.0.2", "0.3.26"), ("1", "1.7", "0.2", "9.9", "x", "1.0.", "1.0, 0.3")
    for version, expected in [*((one, -32001) for one in known), *((one, -32009) for one in others)]:
        code = error(api, "GetTask", {"id": "none"}, headers={**BOTH, "A2A-Version": version})
        assert (version, code) == (version, expected)
    for unknown in ("nope", str(uuid4())):
        response = rpc.post(api, f"/a2a/{unknown}", "GetTask", {"id": "x"})
        assert (response.status_code, response.json) == (404, {"detail": "Not Found"})


def test_a_body_that_is_no_json_by_its_type_is_refused(api: Api) -> None:
    raw = orjson.dumps({"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {"id": "x"}})
    for content_type in ("text/plain", "application/x-www-form-urlencoded", None):
        response = api.client.post(f"/d/chat{AGENT}", data=raw, content_type=content_type)
        answer: Any = response.json
        assert (response.status_code, answer["error"]["code"]) == (415, -32005), content_type
    taken = api.client.post(f"/d/chat{AGENT}", data=raw, content_type="application/json; charset=utf-8")
    assert taken.status_code == 200


def test_errors_of_version_1_say_their_reason_to_programs(api: Api) -> None:
    id = f"{uuid4()}:{uuid4()}"
    found: Any = rpc.answered(rpc.post(api, AGENT, "GetTask", {"id": id}))["error"]["data"]
    assert (found[0]["reason"], found[0]["metadata"]) == ("TASK_NOT_FOUND", {"taskId": id})
    found = rpc.answered(rpc.post(api, AGENT, "ListTasks", {"pageSize": "2"}))["error"]["data"]
    (violation,) = found[0]["fieldViolations"]
    assert (violation["field"], "integer" in violation["description"]) == ("pageSize", True)
    found = rpc.answered(rpc.post(api, AGENT, "tasks/get", {"id": id}))["error"]
    assert (found["code"], "data" in found) == (-32001, False)


def test_push_notifications_are_refused(api: Api) -> None:
    for method in (
        "CreateTaskPushNotificationConfig",
        "GetTaskPushNotificationConfig",
        "ListTaskPushNotificationConfigs",
        "DeleteTaskPushNotificationConfig",
        "tasks/pushNotificationConfig/set",
    ):
        assert (method, error(api, method)) == (method, -32003)
    configuration = {"taskPushNotificationConfig": {"url": "http://x"}}
    told = {"message": text_message(), "configuration": configuration}
    assert error(api, "SendMessage", told) == -32003


@versions
def test_a_stream_must_be_asked_for(api: Api, notifications: Notifications, version: str) -> None:
    told = {"message": message(version)}
    response = rpc.post(api, AGENT, STREAM[version], told, headers={"Accept": "application/json"})
    assert response.status_code == 400
    assert not notifications.heard


def test_others_neither_read_nor_list_nor_cancel_nor_continue_tasks(
    api: Api, neighbour: Api, notifications: Notifications
) -> None:
    task = live(api)
    for methods in (GET, CANCEL, SUBSCRIBE):
        assert error(neighbour, methods["1.0"], {"id": task["id"]}) == -32001
    assert error(neighbour, "SendMessage", {"message": text_message(taskId=task["id"])}) == -32001
    assert result(neighbour, "ListTasks")["tasks"] == []
    assert result(neighbour, "ListTasks", {"contextId": task["contextId"]})["tasks"] == []
    assert row(run_of(task))["status"] == RunStatus.PENDING
    # a context id is looked up in its own deployment only, so the same id is another thread there
    make.takes(neighbour.deployment, "agent", CHAT)
    own = live(neighbour, contextId=task["contextId"])
    assert row(run_of(own))["deployment_id"] == neighbour.deployment.id
    with connection() as conn:
        assert len(conn.execute(THREAD.select()).all()) == 2


def test_what_takes_long_holds_a_stream_slot_and_the_rest_does_not(
    api: Api, notifications: Notifications
) -> None:
    api.set(max_streams=1)
    limits.start(api.client.application)
    body = text_message()
    call = sent(api, notifications, body)

    def status(method: str, params: Any) -> int:
        return rpc.post(api, AGENT, method, params).status_code

    for method in ("SendMessage", "SendStreamingMessage"):
        assert status(method, {"message": text_message()}) == 503
    task = live(api)
    assert status("SubscribeToTask", {"id": task["id"]}) == 503
    assert status("GetTask", {"id": task["id"]}) == 200
    assert status("CancelTask", {"id": task["id"]}) == 200
    finish(call.run_id, said(body))
    assert call.result()
    call.response.close()
    assert status("SubscribeToTask", {"id": task["id"]}) == 200


def test_who_waits_for_a_cancelled_task_holds_a_slot(api: Api) -> None:
    api.set(max_streams=1)
    limits.start(api.client.application)
    streams: limits.Streams = api.client.application.extensions["runyard_streams"]
    task = live(api)
    actor = Actor(run_of(task))
    waiting = rpc.post(api, AGENT, "CancelTask", {"id": task["id"]}, buffered=False)
    assert streams.count == 1

    other = live(api)
    Actor(run_of(other))
    assert result(api, "CancelTask", {"id": other["id"]})["status"]["state"] == "TASK_STATE_WORKING"
    assert row(run_of(other))["cancel_requested"] == "interrupt"

    actor.finish(status=RunStatus.INTERRUPTED, thread_status=ThreadStatus.IDLE)
    assert rpc.answered(waiting)["result"]["status"]["state"] == "TASK_STATE_CANCELED"
    waiting.close()
    assert streams.count == 0


@versions
def test_tasks_of_a_graph_that_a_newer_revision_lacks_are_still_read_and_cancelled(
    api: Api, version: str
) -> None:
    task, waiting = live(api), live(api)
    Actor(run_of(task))
    make.removed_graph(api.deployment, "agent")
    assert result(api, GET[version], {"id": task["id"]})["id"] == task["id"]
    assert {each["id"] for each in result(api, "ListTasks")["tasks"]} == {task["id"], waiting["id"]}
    cancelled = result(api, CANCEL[version], {"id": waiting["id"]})
    assert cancelled["status"]["state"] == state(version, "canceled")
    subscription = rpc.post(api, AGENT, SUBSCRIBE[version], {"id": waiting["id"]})
    assert subscription.status_code == 200
    for method in ("SendMessage", "message/stream", "GetExtendedAgentCard"):
        assert rpc.post(api, AGENT, method, {"message": message(version)}).status_code == 404, method
    assert api.get(AGENT).status_code == 404


def test_the_project_may_switch_it_off(api: Api) -> None:
    make.switched_off(api.deployment, "disable_a2a")
    for path in (AGENT, f"{AGENT}{CARD}", f"{CARD}?assistant_id=agent"):
        assert api.get(path).status_code == 404, path
    assert rpc.post(api, AGENT, "GetTask", {"id": "x"}).status_code == 404
    assert rpc.result(api, "/mcp", "ping") == {}


def test_a_repeated_key_of_idempotency_means_nothing_here(api: Api, notifications: Notifications) -> None:
    headers = {**BOTH, "Idempotency-Key": str(uuid7())}
    told = {"message": text_message(), "configuration": {"returnImmediately": True}}
    answers: list[TestResponse] = [
        rpc.post(api, AGENT, "SendMessage", told, headers=headers) for _ in range(2)
    ]
    ids = {rpc.answered(response)["result"]["task"]["id"] for response in answers}
    assert len(ids) == 2
