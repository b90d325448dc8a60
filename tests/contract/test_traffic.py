"""Splits of a deployment's traffic, promote and abort, and previews: the revision of each run, and rejected changes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import text

import tests.support.factories as make
from shared import assistants
from shared.deployments import deployments, shares, traffic
from shared.errors import HostUnusable, NotFound
from shared.infra.postgres import connection
from shared.models import RevisionStatus, RunStatus
from tests.contract import rpc
from tests.contract.conftest import Api, ControlPlane, Notifications, caller
from tests.contract.rpc import Called, text_message
from tests.contract.splitting import THREADS, act, newer, on_thread, operator, split
from tests.contract.statements import execute, one
from tests.support.creating import fire_due_crons
from web.gate.deployments import forget as forget_deployments

__all__ = ["newer", "operator"]


def expected(api: Api, newer: str, percent: int, thread_id: str) -> str:
    is_newer = shares.part_of(UUID(thread_id)) >= 100 - percent
    return newer if is_newer else str(api.deployment.active_revision_id)


def test_without_a_split_all_runs_get_what_serves(api: Api, newer: str, operator: ControlPlane) -> None:
    serving = str(api.deployment.active_revision_id)
    record: Any = operator.get(f"/v2/deployments/{api.deployment.id}").json
    assert record["traffic"] == [{"revision_id": serving, "revision_number": 1, "percent": 100}]
    assert {on_thread(api, id) for id in THREADS[:10]} == {serving}


def test_threads_are_split_and_stay_with_their_revision(api: Api, newer: str, operator: ControlPlane) -> None:
    serving = str(api.deployment.active_revision_id)
    response = split(operator, api, (newer, 30), (serving, 70))
    assert response.json["traffic"] == [
        {"revision_id": serving, "revision_number": 1, "percent": 70},
        {"revision_id": newer, "revision_number": 2, "percent": 30},
    ]
    first = [on_thread(api, id) for id in THREADS]
    assert first == [expected(api, newer, 30, id) for id in THREADS]
    assert set(first) == {serving, newer}
    assert [on_thread(api, id) for id in THREADS[:20]] == first[:20]

    found: Any = api.post("/runs/search", {"status": ["pending"], "limit": 1000}).json
    assert Counter(run["revision_id"] for run in found) == Counter([*first, *first[:20]])
    read: Any = api.get(f"/threads/{THREADS[0]}/runs").json
    assert {run["revision_id"] for run in read} == {first[0]}


EVERY_WAY: dict[str, Callable[[Api], str]] = {
    "stateless": lambda api: api.post("/runs", {"assistant_id": "agent"}).json["run_id"],
    "batch": lambda api: api.post("/runs/batch", [{"assistant_id": "agent"}]).json[0]["run_id"],
    "on a thread": lambda api: api.post(
        f"/threads/{uuid4()}/runs", {"assistant_id": "agent", "if_not_exists": "create"}
    ).json["run_id"],
    "rejecting": lambda api: api.post(
        f"/threads/{uuid4()}/runs",
        {"assistant_id": "agent", "if_not_exists": "create", "multitask_strategy": "reject"},
    ).json["run_id"],
    "command": lambda api: api.post(
        f"/threads/{api.post('/threads').json['thread_id']}/commands",
        {"id": 1, "method": "run.start", "params": {"assistant_id": "agent", "input": {}}},
    ).json["result"]["run_id"],
    "a cron": lambda api: _of_cron(api),
    "a retry": lambda api: _of_retry(api),
}


def _of_retry(api: Api) -> str:
    thread_id = uuid4()
    body = {"assistant_id": "agent", "if_not_exists": "create"}
    run_id = api.post(f"/threads/{thread_id}/runs", body).json["run_id"]
    with connection() as conn:
        failed = {"id": run_id, "status": RunStatus.ERROR}
        conn.execute(text("UPDATE run SET status = :status, ended_at = now() WHERE run_id = :id"), failed)
        conn.execute(text("UPDATE thread SET status = 'error' WHERE thread_id = :id"), {"id": thread_id})
    response = api.post(f"/threads/{thread_id}/runs/{run_id}/retry")
    assert response.status_code == 200, response.text
    return str(response.json["run_id"])


def _of_cron(api: Api) -> str:
    cron: Any = api.post("/runs/crons", {"assistant_id": "agent", "schedule": "0 * * * *", "input": {}}).json
    with connection() as conn:
        due = text("UPDATE cron SET next_run_date = now() - interval '1 second' WHERE cron_id = :id")
        conn.execute(due, {"id": cron["cron_id"]})
    (fired,) = fire_due_crons()
    assert str(UUID(fired.row["metadata"]["cron_id"])) == cron["cron_id"]
    return str(fired.run_id)


def test_however_a_run_is_made_it_gets_its_threads_share(
    api: Api, newer: str, operator: ControlPlane
) -> None:
    split(operator, api, (newer, 50), (api.deployment.active_revision_id, 50))
    for way, create in EVERY_WAY.items():
        for _ in range(3):
            run = one("SELECT thread_id, revision_id FROM run WHERE run_id = :id", id=create(api))
            assert (way, str(run.revision_id)) == (way, expected(api, newer, 50, str(run.thread_id)))


def test_a_graph_that_is_only_in_one_revision_is_run_there(
    api: Api, newer: str, operator: ControlPlane
) -> None:
    make.assistant(api.deployment.id, "third", assistant_id=assistants.default_id("third"))
    split(operator, api, (newer, 10), (api.deployment.active_revision_id, 90))
    assert {on_thread(api, id, assistant="third") for id in THREADS[:20]} == {newer}


BAD: dict[str, tuple[Any, list[str | int]]] = {
    "too little": ([("serving", 99)], ["body", "traffic"]),
    "too much": ([("serving", 100), ("newer", 1)], ["body", "traffic"]),
    "nothing": ([], ["body", "traffic"]),
    "twice": ([("newer", 50), ("newer", 50)], ["body", "traffic"]),
    "unknown": ([("serving", 50), ("unknown", 50)], ["body", "traffic", 1, "revision_id"]),
    "failed": ([("failed", 50), ("serving", 50)], ["body", "traffic", 0, "revision_id"]),
    "of another": ([("foreign", 50), ("serving", 50)], ["body", "traffic", 0, "revision_id"]),
    "below": ([("serving", 101), ("newer", -1)], ["body", "traffic", 0, "percent"]),
    "a fraction": ([("serving", 99.5), ("newer", 0.5)], ["body", "traffic", 0, "percent"]),
    "no id": ([("x", 100)], ["body", "traffic", 0, "revision_id"]),
}


def test_a_split_that_cannot_be_is_refused_by_its_field(
    api: Api, newer: str, operator: ControlPlane, subtests: pytest.Subtests
) -> None:
    known = {
        "serving": api.deployment.active_revision_id,
        "newer": newer,
        "unknown": uuid4(),
        "failed": make.revision(api.deployment.id, number=3, status=RevisionStatus.BUILD_FAILED),
        "foreign": make.deployment("foreign").active_revision_id,
    }
    for what, (parts, loc) in BAD.items():
        with subtests.test(what):
            response = split(operator, api, *((known.get(name, name), percent) for name, percent in parts))
            assert (response.status_code, response.json["detail"][0]["loc"]) == (422, loc), response.text
            record: Any = operator.get(f"/v2/deployments/{api.deployment.id}").json
            assert len(record["traffic"]) == 1
    unchanged = operator.call("PATCH", f"/v2/deployments/{api.deployment.id}", {"traffic": None})
    assert unchanged.status_code == 200


def test_what_serves_nothing_cannot_be_split_nor_promoted(control: ControlPlane) -> None:
    made = control.create()
    revision_id = made["latest_revision_id"]
    body = {"traffic": [{"revision_id": revision_id, "percent": 100}]}
    assert control.call("PATCH", f"/v2/deployments/{made['id']}", body).status_code == 409
    refused = control.post(f"/v2/deployments/{made['id']}/traffic/promote", {"revision_id": revision_id})
    assert (refused.status_code, refused.json["detail"][0]["loc"]) == (422, ["body", "revision_id"])
    assert made["traffic"] == []


def test_promote_and_abort_end_a_split_however_often(api: Api, newer: str, operator: ControlPlane) -> None:
    serving = api.deployment.active_revision_id
    split(operator, api, (newer, 100))
    assert {on_thread(api, id) for id in THREADS[:5]} == {newer}
    for _ in range(2):
        assert act(operator, api, "abort").json["traffic"][0]["revision_id"] == str(serving)
    assert {on_thread(api, id) for id in THREADS[:5]} == {str(serving)}

    split(operator, api, (newer, 10), (serving, 90))
    for _ in range(2):
        record = act(operator, api, "promote", revision_id=newer).json
        assert record["traffic"] == [{"revision_id": newer, "revision_number": 2, "percent": 100}]
        assert (record["active_revision_id"], record["latest_revision_id"]) == (newer, newer)
    assert {on_thread(api, id) for id in THREADS[:5]} == {newer}
    record = act(operator, api, "promote", revision_id=str(serving)).json
    assert record["active_revision_number"] == 1


def judged(api: Api, revision_id: str, verdict: str | None, rule: str = "errors>0") -> str:
    """Insert a replay of the revision that ended with this verdict. Returns its id."""
    replay_id = make.replay(api.deployment, rule=rule)
    execute(
        "UPDATE replay SET status = 'done', ended_at = now(), verdict = :verdict, revision_id = :revision_id,"
        " summary = CAST(:summary AS jsonb) WHERE id = :id",
        id=replay_id,
        revision_id=revision_id,
        verdict=verdict,
        summary=json.dumps({"rules": [{"rule": rule, "failed": verdict == "failed"}]}),
    )
    return str(replay_id)


def test_a_required_replay_of_the_very_revision_must_have_passed(
    api: Api, newer: str, operator: ControlPlane
) -> None:
    path, serving = f"/v2/deployments/{api.deployment.id}", str(api.deployment.active_revision_id)
    execute("UPDATE revision SET source = 'github'")
    execute("UPDATE revision SET preview = 'candidate' WHERE id = :id", id=newer)
    judged(api, serving, "passed")

    def setting(change: dict[str, Any]) -> bool:
        answer: Any = operator.call("PATCH", path, change).json
        return answer["require_replay"]

    def split(id: str, percent: int = 100, **more: Any) -> Any:
        rest = [{"revision_id": serving, "percent": 100 - percent}] if percent < 100 else []
        shares = [{"revision_id": id, "percent": percent}, *rest]
        return operator.call("PATCH", path, {"traffic": shares, **more})

    def changes() -> list[Any]:
        redeploy = operator.call("POST", f"{path}/revisions/{newer}/redeploy")
        return [split(newer, 10), split(newer), redeploy, act(operator, api, "promote", revision_id=newer)]

    # the flags of one request are no settings
    flagged = [
        act(operator, api, "promote", revision_id=newer, require_replay=True),
        split(newer, 10, traffic_requires_replay=True),
    ]
    assert [(one.status_code, "none was judged" in one.json["detail"]) for one in flagged] == [
        (409, True)
    ] * 2
    assert setting({"display_name": "x"}) is False
    assert setting({"require_replay": True}) is True
    assert setting({"display_name": "y"}) is True
    assert [answer.status_code for answer in changes()] == [409] * 4
    # the serving revision may keep its traffic
    assert split(serving).status_code == 200

    judged(api, newer, "passed")
    replay_id = judged(api, newer, "failed", "cost>+20%")
    judged(api, newer, None)
    for answer in changes():
        assert answer.status_code == 409
        assert answer.json["detail"].endswith(f"its newest replay, {replay_id}, failed: cost>+20%.")

    judged(api, newer, "passed")
    assert [answer.status_code for answer in changes()] == [200] * 4
    judged(api, serving, "failed")
    judged(api, newer, "failed")
    # a revision that has served may serve again, unless the request itself requires a replay
    assert split(serving, traffic_requires_replay=True).status_code == 409
    assert act(operator, api, "promote", revision_id=serving, require_replay=True).status_code == 409
    for id in (serving, newer):
        assert act(operator, api, "promote", revision_id=id).status_code == 200
        assert operator.call("POST", f"{path}/revisions/{id}/redeploy").status_code == 200
    assert split(serving, 100).status_code == 200
    entries: Any = operator.get("/v2/audit").json["resources"][:5]
    assert [entry["detail"].get("without_replay") for entry in entries] == [[1], *[True] * 4]


def test_a_deploy_without_a_preview_is_refused_if_replays_are_required(
    api: Api, operator: ControlPlane
) -> None:
    path, variables = f"/v2/deployments/{api.deployment.id}", [{"name": "A", "value": "1"}]
    deploys: list[tuple[str, str, dict[str, Any]]] = [
        ("POST", f"{path}/revisions", {"secret_changes": variables}),
        ("PATCH", path, {"secret_changes": variables}),
        ("PATCH", path, {"secrets": variables}),
    ]
    execute("UPDATE revision SET source = 'github'")
    execute("""UPDATE deployment SET source_config = '{"repo_url": "https://git.example.com/a.git"}'""")
    operator.call("PATCH", path, {"require_replay": True})
    for method, url, body in deploys:
        refused: Any = operator.call(method, url, body)
        assert (refused.status_code, "--preview NAME --replay" in refused.json["detail"]) == (409, True)
    assert operator.call("PATCH", path, {"display_name": "x"}).status_code == 200
    assert operator.call("POST", f"{path}/revisions", {"preview": "candidate"}).status_code == 201
    # a request that ends the setting may deploy; one that begins it may not
    assert operator.call("PATCH", path, {"require_replay": False, "secrets": variables}).status_code == 200
    begins = operator.call("PATCH", path, {"require_replay": True, "secrets": variables})
    assert begins.status_code == 409
    # the first revision is exempt
    execute("UPDATE deployment SET active_revision_id = NULL, require_replay = true")
    assert operator.call("PATCH", path, {"secrets": variables}).status_code == 200


def test_promote_applies_the_configuration_that_the_revision_was_built_with(
    api: Api, operator: ControlPlane
) -> None:
    configs = {"agent": {"configurable": {"model": "small"}}}
    revision_id = make.revision(api.deployment.id, number=2, manifest={"configs": configs})
    execute("""UPDATE assistant_version SET metadata = '{"created_by": "system"}'""")
    act(operator, api, "promote", revision_id=str(revision_id))
    shown: Any = api.get(f"/assistants/{assistants.default_id('agent')}").json
    assert (shown["config"], shown["context"]) == (configs["agent"], {"model": "small"})


def test_a_revision_whose_process_does_not_start_is_not_promoted(
    api: Api, newer: str, operator: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unusable(*_: Any, **__: Any) -> bytes:
        raise HostUnusable("it ended while it started")

    monkeypatch.setattr("shared.hosts.calls.call", unusable)
    execute(
        "INSERT INTO worker (id, kind, pool, host_name, pid, version, isolation, bounds_tasks,"
        " bounds_memory, state, slots, running, ended_a_minute, heard_seconds, hosts) VALUES"
        " ('w', 'runner', 'default', 'h', 1, '0', 0, false, false, 'ready', 1, 0, 0, 0, '[]')"
    )
    refused = act(operator, api, "promote", revision_id=newer)
    assert refused.status_code == 409
    assert "it ended while it started" in refused.json["detail"]
    record: Any = operator.get(f"/v2/deployments/{api.deployment.id}").json
    assert record["active_revision_id"] == str(api.deployment.active_revision_id)


def test_promotes_splits_and_deploys_at_once_leave_one_whole_state(
    api: Api, newer: str, operator: ControlPlane
) -> None:
    serving, id = api.deployment.active_revision_id, api.deployment.id
    organization_id = api.deployment.organization_id
    both = [shares.Share(serving, 50), shares.Share(UUID(newer), 50)]  # type: ignore[arg-type]

    def again(change: Callable[[Any], None]) -> None:
        for _ in range(15):
            with connection() as conn:
                change(conn)

    changes: list[Callable[[Any], None]] = [
        lambda conn: traffic.promote(conn, organization_id, id, UUID(newer)),
        lambda conn: traffic.split(conn, organization_id, id, both),
        lambda conn: traffic.abort(conn, organization_id, id),
        lambda conn: _serve(conn, id, serving),
    ]
    with ThreadPoolExecutor(4) as pool:
        for going in [pool.submit(again, change) for change in changes]:
            going.result(60)

    record: Any = operator.get(f"/v2/deployments/{id}").json
    assert sum(share["percent"] for share in record["traffic"]) == 100
    assert record["active_revision_id"] in (str(serving), newer)


def _serve(conn: Any, deployment_id: UUID, revision_id: Any) -> None:
    conn.execute(text("SELECT 1 FROM deployment WHERE id = :id FOR UPDATE"), {"id": deployment_id})
    traffic.serve(conn, deployment_id, revision_id)


def test_whatever_has_a_share_is_warmed_by_the_change_and_by_runners_that_start(
    api: Api, newer: str, operator: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    serving, pool = str(api.deployment.active_revision_id), api.deployment.pool
    announced: list[tuple[str, str]] = []
    monkeypatch.setattr("shared.hosts.calls.announce", lambda id, pool: announced.append((str(id), pool)))

    def at_start() -> list[str]:
        with connection() as conn:
            return [str(id) for id in deployments.recently_used(conn, pool, limit=1)]

    make.deployment("older")
    api.post("/threads")
    assert at_start() == [serving]
    split(operator, api, (serving, 20), (newer, 80))
    assert (announced, at_start()) == ([(serving, pool), (newer, pool)], [newer, serving])
    split(operator, api, (serving, 0), (newer, 100))
    assert (announced[2:], at_start()) == ([(newer, pool)], [newer])
    act(operator, api, "abort")
    assert (announced[3:], at_start()) == ([(serving, pool)], [serving])


def test_a_deployment_that_is_being_deleted_is_not_promoted(
    api: Api, newer: str, operator: ControlPlane
) -> None:
    assert operator.call("DELETE", f"/v2/deployments/{api.deployment.id}").status_code == 204
    for what, body in (("promote", {"revision_id": newer}), ("abort", {})):
        assert act(operator, api, what, **body).status_code == 404
    with connection() as conn, pytest.raises(NotFound):
        traffic.promote(conn, api.deployment.organization_id, api.deployment.id, UUID(newer))


# Other protocols


def _by_mcp(api: Api, heard: Notifications, tool: str, _: str) -> str:
    return Called(api, heard, "/mcp", "tools/call", {"name": tool, "arguments": {"messages": "hi"}}).run_id


def _by_a2a(api: Api, heard: Notifications, agent: str, thread_id: str) -> str:
    message = {"message": text_message(contextId=thread_id), "configuration": {"returnImmediately": True}}
    task = rpc.result(api, f"/a2a/{agent}", "SendMessage", message)["task"]
    assert task["contextId"] == thread_id
    return str(task["id"]).partition(":")[2]


@pytest.mark.parametrize("call", [_by_mcp, _by_a2a])
def test_a_tools_call_and_an_agents_task_get_their_threads_share(
    api: Api, newer: str, operator: ControlPlane, notifications: Notifications, call: Any
) -> None:
    make.takes(api.deployment, "agent", rpc.CHAT)
    make.takes(replace(api.deployment, active_revision_id=UUID(newer)), "agent", rpc.CHAT)
    split(operator, api, (newer, 50), (api.deployment.active_revision_id, 50))
    for thread_id in THREADS[:8]:
        run_id = call(api, notifications, "agent", thread_id)
        with connection() as conn:
            query = text("SELECT thread_id, revision_id FROM run WHERE run_id = :id")
            row = conn.execute(query, {"id": run_id}).one()
        assert str(row.revision_id) == expected(api, newer, 50, str(row.thread_id))
        assert call is _by_mcp or str(row.thread_id) == thread_id


@pytest.mark.parametrize("call", [_by_mcp, _by_a2a])
def test_a_graph_that_only_a_share_has_is_a_tool_and_an_agent(
    api: Api, newer: str, operator: ControlPlane, notifications: Notifications, call: Any
) -> None:
    make.assistant(api.deployment.id, "third", assistant_id=assistants.default_id("third"), name="third")
    make.takes(replace(api.deployment, active_revision_id=UUID(newer)), "third", rpc.CHAT)
    assert api.get("/a2a/third").status_code == 404, "nothing that serves has it"
    split(operator, api, (newer, 10), (api.deployment.active_revision_id, 90))

    assert api.get("/a2a/third").status_code == 200
    assert "third" in {tool["name"] for tool in rpc.result(api, "/mcp", "tools/list")["tools"]}
    run_id = call(api, notifications, "third", THREADS[0])
    with connection() as conn:
        query = text("SELECT revision_id FROM run WHERE run_id = :id")
        assert str(conn.execute(query, {"id": run_id}).scalar_one()) == newer
    act(operator, api, "abort")
    forget_deployments()
    assert "third" not in {tool["name"] for tool in rpc.result(api, "/mcp", "tools/list")["tools"]}


def test_a_task_is_asked_in_the_words_of_its_threads_revision(
    api: Api, newer: str, operator: ControlPlane, notifications: Notifications
) -> None:
    make.takes(api.deployment, "agent", rpc.CHAT)
    make.takes(replace(api.deployment, active_revision_id=UUID(newer)), "agent", rpc.TRIP)
    split(operator, api, (api.deployment.active_revision_id, 50), (newer, 50))
    on_newer = next(id for id in THREADS if expected(api, newer, 50, id) == newer)
    on_older = next(id for id in THREADS if expected(api, newer, 50, id) != newer)
    assert _by_a2a(api, notifications, "agent", on_older)
    refused = rpc.error(api, "/a2a/agent", "SendMessage", {"message": text_message(contextId=on_newer)})
    assert "takes no text" in refused[1]


def preview(control: ControlPlane, deployment: Any, name: Any = "pr-1", **body: Any) -> Any:
    path = control.upload(deployment)
    config = {"source_tarball_path": path, "langgraph_config_path": "langgraph.json"}
    sent = {"preview": name, "source_revision_config": config, **body}
    return control.post(f"/v2/deployments/{deployment['id']}/revisions", sent)


def test_a_previews_address_runs_its_revision_and_no_other_does(
    api: Api, newer: str, operator: ControlPlane
) -> None:
    serving = str(api.deployment.active_revision_id)
    make.preview(api.deployment.id, UUID(newer))
    split(operator, api, (serving, 50), (newer, 50))

    assert {on_thread(api, id, "chat--pr-1") for id in THREADS[:10]} == {newer}
    act(operator, api, "abort")
    assert {on_thread(api, id) for id in THREADS[:10]} == {serving}

    (listed,) = operator.get(f"/v2/deployments/{api.deployment.id}/previews").json["resources"]  # type: ignore[index]
    assert listed["url"].endswith("/d/chat--pr-1")
    assert (listed["revision_id"], listed["revision_number"]) == (newer, 2)
    previewed = Api(api.client, replace(api.deployment, name="chat--pr-1"))
    assert previewed.get("/ok").status_code == 200
    assert previewed.get("/info").json["host"]["revision_id"] == newer
    assert previewed.get(f"/threads/{THREADS[0]}").status_code == 200  # threads belong to the deployment

    forget_deployments()
    path = f"/v2/deployments/{api.deployment.id}/previews/pr-1"
    assert operator.call("DELETE", path).status_code == 204
    assert operator.call("DELETE", path).status_code == 404
    assert previewed.get("/info").status_code == 404
    assert previewed.post("/runs", {"assistant_id": "agent"}).status_code == 404


def test_a_preview_is_at_its_own_host_too_and_others_do_not_reach_it(
    app_with: Any, api: Api, newer: str, neighbour: Api
) -> None:
    make.preview(api.deployment.id, UUID(newer))
    theirs = Api(neighbour.client, replace(neighbour.deployment, name="chat--pr-1"))
    assert theirs.get("/info").status_code == 404
    assert theirs.post("/runs", {"assistant_id": "agent"}).status_code == 404
    client = caller(app_with(app_domain="agents.test"), str(api.client.environ_base["HTTP_X_API_KEY"]))
    found = client.get("/info", headers={"Host": "chat--pr-1.agents.test"})
    assert found.json["host"]["revision_id"] == newer  # type: ignore[index]


def test_a_deployment_has_its_name_before_a_preview(api: Api, newer: str, operator: ControlPlane) -> None:
    make.preview(api.deployment.id, UUID(newer))
    other = make.deployment("chat--pr-1", organization_id=api.deployment.organization_id)
    assert on_thread(api, THREADS[0], "chat--pr-1") == str(other.active_revision_id)
    record: Any = operator.get(f"/v2/deployments/{api.deployment.id}").json
    assert preview(operator, record).status_code == 409


def test_a_preview_is_built_beside_what_is_to_serve(
    control: ControlPlane, notifications: Notifications
) -> None:
    made = control.create(secrets=[{"name": "A", "value": "1"}])
    record = control.deploy(made)
    latest = record["latest_revision_id"]
    first, second = preview(control, made).json, preview(control, made).json
    other = preview(control, made, "pr-2").json
    assert [first["preview"], first["status"], other["preview"]] == ["pr-1", "QUEUED", "pr-2"]
    assert control.get(f"/v2/deployments/{made['id']}").json["latest_revision_id"] == latest  # type: ignore[index]

    newest = control.deploy(made)["latest_revision_id"]

    def statuses() -> dict[str, str]:
        return {row["id"]: row["status"] for row in control.revisions(made)}

    assert statuses() == {
        latest: "AWAITING_BUILD", first["id"]: "SKIPPED", second["id"]: "QUEUED", other["id"]: "QUEUED",
        newest: "QUEUED",
    }  # fmt: skip
    order = [latest, newest, second["id"], other["id"]]
    for begun in order:
        assert statuses()[begun] == "AWAITING_BUILD"
        control.post(f"/v2/deployments/{made['id']}/revisions/{begun}/interrupt")
    assert [id for _, id in notifications.heard] == order


def test_deleting_a_preview_stops_what_is_built_for_it(control: ControlPlane) -> None:
    made = control.create()
    revision = preview(control, made).json
    assert revision["status"] == "AWAITING_BUILD"
    (listed,) = control.get(f"/v2/deployments/{made['id']}/previews").json["resources"]  # type: ignore[index]
    assert (listed["url"], listed["latest_revision_status"]) == (None, "AWAITING_BUILD")
    assert control.call("DELETE", f"/v2/deployments/{made['id']}/previews/pr-1").status_code == 204
    assert control.revision(made, revision["id"])["status"] == "INTERRUPTED"


def test_a_preview_has_a_name_that_an_address_can_have(
    control: ControlPlane, subtests: pytest.Subtests
) -> None:
    made = control.create()
    for name in ("", "PR", "a--b", "-a", "a-", "a_b", "a/b", "x" * 41, 7):
        with subtests.test(name=name):
            refused = preview(control, made, name)
            if name == "":
                assert refused.status_code == 422
                continue
            assert (refused.status_code, refused.json["detail"][0]["loc"]) == (422, ["body", "preview"])


def test_a_preview_needs_source_and_there_are_not_too_many(
    control: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = control.create()
    refused = control.post(f"/v2/deployments/{made['id']}/revisions", {"preview": "pr-1"})
    assert refused.status_code == 400
    monkeypatch.setattr(traffic, "MOST_PREVIEWS", 1)
    assert preview(control, made).status_code == 201
    assert preview(control, made).status_code == 201
    assert preview(control, made, "pr-2").status_code == 409


def test_a_preview_that_is_promoted_is_what_the_next_change_builds_on(
    api: Api, newer: str, operator: ControlPlane
) -> None:
    make.preview(api.deployment.id, UUID(newer))
    execute(
        "UPDATE revision SET preview = 'pr-1', archive_digest = repeat('0', 64),"
        """ source_revision_config = '{"langgraph_config_path": "new.json"}' WHERE id = :id""",
        id=newer,
    )
    act(operator, api, "promote", revision_id=newer)
    record: Any = operator.get(f"/v2/deployments/{api.deployment.id}").json
    changed = operator.change(record, secret_changes=[{"name": "A", "value": "1"}])
    latest = operator.revision(changed)
    assert latest["source_revision_config"]["langgraph_config_path"] == "new.json"
    assert operator.revision(changed, newer)["preview"] is None


def test_its_reference_says_which_address_it_was_called_at(api: Api, newer: str) -> None:
    make.preview(api.deployment.id, UUID(newer))
    with connection() as conn:
        found = deployments.resolve(conn, api.deployment.organization_id, "chat--pr-1")
        assert found is not None
        assert (found.name, found.address_name, str(found.active_revision_id)) == (
            "chat",
            "chat--pr-1",
            newer,
        )
        assert deployments.resolve(conn, api.deployment.organization_id, "chat--pr-2") is None
        assert deployments.resolve(conn, api.deployment.organization_id, "--pr-1") is None
