"""Deployments and their revisions over HTTP: validation, records, and effects of changes."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import text

from shared.access.api_keys import DEFAULT_ORGANIZATION_ID
from shared.deployments import secrets
from shared.figures import budgets
from shared.infra import encryption
from shared.infra.postgres import connection
from tests.contract.conftest import ControlPlane, Notifications
from tests.contract.statements import column, execute
from tests.support.refusals import detail, place
from tests.support.revisions import set_serving

NO_LIMITS = dict.fromkeys(
    (
        "max_concurrent_runs",
        "hosts_per_runner",
        "run_timeout_seconds",
        "memory_mb",
        *budgets.NAMES,
    )
)


def test_a_new_deployment_is_shown_whole(control: ControlPlane) -> None:
    made = control.create(
        "my-agent",
        source_config={"deployment_type": "dev_zero"},
        secrets=[{"name": "OPENAI_API_KEY", "value": "sk-a-secret"}],
    )
    for name in ("created_at", "updated_at"):
        assert datetime.fromisoformat(made[name]).tzinfo is not None
    revision_id = made["latest_revision_id"]
    assert revision_id
    shown = {key: value for key, value in made.items() if not key.endswith("_at")}
    assert shown == {
        "id": made["id"],
        "tenant_id": str(DEFAULT_ORGANIZATION_ID),
        "name": "my-agent",
        "display_name": None,
        "source": "internal_source",
        "source_config": {
            "integration_id": None,
            "repo_url": None,
            "deployment_type": "dev_zero",
            "build_on_push": None,
            "custom_url": None,
            "resource_spec": None,
            "listener_id": None,
            "listener_config": None,
            "install_command": None,
            "build_command": None,
            "template_id": None,
        },
        "source_revision_config": {
            "repo_ref": None,
            "langgraph_config_path": None,
            "image_uri": None,
            "source_tarball_path": None,
            "repo_commit_sha": None,
        },
        "secrets": [{"name": "OPENAI_API_KEY", "value": "********"}],
        "secret_references": [],
        "status": "READY",
        "latest_revision_id": revision_id,
        "latest_revision_number": 1,
        "latest_revision_status": "CREATING",
        "active_revision_id": None,
        "active_revision_number": None,
        "traffic": [],
        "least_key_role": None,
        "image_version": None,
        "is_preview": False,
        "is_managed_deep_agent": False,
        "agent": None,
        "pool": "default",
        "limits": NO_LIMITS,
        "used_today": {"tokens": None, "cost": None, "unpriced_models": []},
        "inbox": None,
        "require_replay": False,
    }
    for mount in ("", "/api-host"):
        assert control.get(f"{mount}/v2/deployments/{made['id']}").json == made


RULES = {
    "webhook": "https://93.184.216.34/hook",
    "remind_after_seconds": 3600,
    "expire_after_seconds": 0.5,
    "on_expiry": {"action": "answer", "answer": None},
}
REFUSED_RULES: list[tuple[Any, list[str], str]] = [
    ([], [], "must be an object"),
    ({"webhok": "x"}, ["webhok"], "not known. Did you mean webhook?"),
    ({"webhook": "http://93.184.216.34/"}, ["webhook"], "Webhook must use https"),
    ({"webhook": 7}, ["webhook"], "must be a string"),
    ({"remind_after_seconds": 0}, ["remind_after_seconds"], "must be greater than 0"),
    ({"remind_after_seconds": "1"}, ["remind_after_seconds"], "must be a number"),
    ({"expire_after_seconds": 10**9}, ["expire_after_seconds"], "must be less than or equal to 31622400"),
    ({"on_expiry": {}}, ["on_expiry", "action"], "this field is required"),
    ({"on_expiry": {"action": "stop"}}, ["on_expiry", "action"], "must be one of"),
    ({"on_expiry": {"action": "answer"}}, ["on_expiry", "answer"], "required with the action answer"),
    ({"on_expiry": {"action": "cancel", "answer": None}}, ["on_expiry", "answer"], "allowed only with the action answer"),
    ({"on_expiry": {"action": "answer", "answer": ["\0"]}}, ["on_expiry", "answer"], "must not contain the character U+0000"),
    ({"on_expiry": {"action": "answer", "answer": "x" * 70_000}}, ["on_expiry", "answer"], "must have at most 65536 bytes"),
]  # fmt: skip


def test_a_deployment_has_rules_for_questions_until_they_are_null(control: ControlPlane) -> None:
    created = control.create(inbox={**RULES, "remind_after_seconds": None})
    without_reminder = {name: value for name, value in RULES.items() if name != "remind_after_seconds"}
    assert created["inbox"] == without_reminder
    revisions = control.revisions(created)

    assert control.change(created, display_name="other")["inbox"] == without_reminder
    assert control.change(created, inbox=RULES)["inbox"] == RULES
    assert control.change(created, inbox={})["inbox"] == {}, "no rules, whatever langgraph.json has"
    assert control.change(created, inbox=None)["inbox"] is None
    assert control.revisions(created) == revisions, "the rules make no revision"


def test_rules_for_questions_that_are_refused_are_named(control: ControlPlane) -> None:
    created = control.create(inbox=RULES)
    for rules, loc, message in REFUSED_RULES:
        response = control.call("PATCH", f"/v2/deployments/{created['id']}", {"inbox": rules})
        assert response.status_code == 422, rules
        body: Any = response.json
        (violation,) = body["detail"]
        assert (violation["loc"], violation["msg"][: len(message)]) == (["body", "inbox", *loc], message)
    unchanged: Any = control.get(f"/v2/deployments/{created['id']}").json
    assert unchanged["inbox"] == RULES


def test_a_deployment_is_given_limits_and_loses_them(control: ControlPlane) -> None:
    made = control.create(limits={"max_concurrent_runs": 4, "memory_mb": 512})
    assert made["limits"] == {**NO_LIMITS, "max_concurrent_runs": 4, "memory_mb": 512}
    revisions = control.revisions(made)

    wanted = {"max_concurrent_runs": 0, "run_timeout_seconds": 2.5, "memory_mb": None}
    patched = control.change(made, limits=wanted)

    assert patched["limits"] == {**NO_LIMITS, "run_timeout_seconds": 2.5, "memory_mb": 512}
    assert control.revisions(made) == revisions, "a limit makes no revision"


def test_its_first_revision_waits_for_source_and_its_address_is_shown_once_it_serves(
    control: ControlPlane, notifications: Notifications
) -> None:
    made = control.create()
    revision = control.revision(made)
    shown = [revision[name] for name in ("status", "status_message", "source")]
    assert shown == ["CREATING", None, "internal_source"]
    assert revision["source_revision_config"]["tracked_packages"] == []
    assert [row["id"] for row in control.revisions(made)] == [revision["id"]]
    assert notifications.heard == []

    deployed = control.deploy(made)
    assert deployed["source_config"]["custom_url"] is None
    set_serving(made, deployed["latest_revision_id"])
    shown: Any = control.get(f"/v2/deployments/{made['id']}").json
    assert shown["source_config"]["custom_url"] == "http://localhost/d/chat"
    assert shown["active_revision_id"] == deployed["latest_revision_id"]


def test_a_type_has_one_name_and_a_default(control: ControlPlane) -> None:
    for sent, kept in (
        ("serverless", "dev_zero"),
        ("dedicated", "prod"),
        ("dev_free_zero", "dev_free_zero"),
    ):
        made = control.create(sent, source_config={"deployment_type": sent})
        assert (sent, made["source_config"]["deployment_type"]) == (sent, kept)
        listed: Any = control.get("/v2/deployments", deployment_type=sent).json
        assert (sent, [row["id"] for row in listed["resources"]]) == (sent, [made["id"]])
    little: Any = control.post("/v2/deployments", {"name": "a", "source": "internal_source"})
    assert (little.status_code, little.json["source_config"]["deployment_type"]) == (201, "prod")


def test_an_agent_is_named_by_the_service(control: ControlPlane) -> None:
    control.create("agent-b-staging")
    for agent_id, name in (("a-1", "agent-a-1-staging"), ("b", "agent-b-staging-")):  # the second is taken
        agent = {"agent_id": agent_id, "environment": "staging"}
        made = control.create(None, agent=agent)  # type: ignore[arg-type]
        assert made["agent"] == agent
        assert made["name"] == name or (agent_id == "b" and made["name"].startswith(name))
        listed: Any = control.get("/v2/deployments", agent_id=agent_id, agent_environment="staging").json
        assert [row["id"] for row in listed["resources"]] == [made["id"]]
        again = control.post("/v2/deployments", {"agent": agent, "source": "internal_source"})
        assert again.status_code == 409


def test_a_name_is_taken_once(control: ControlPlane, stranger: ControlPlane) -> None:
    control.create("chat")
    again = control.post("/v2/deployments", {"name": "chat", "source": "internal_source"})
    assert (again.status_code, detail(again)) == (409, "A deployment named 'chat' already exists.")
    stranger.create("chat")


def test_a_name_is_needed_without_an_agent(control: ControlPlane) -> None:
    response = control.post("/v2/deployments", {"source": "internal_source"})
    assert place(response) == (["body", "name"], "missing")
    for name in ("-a", "a/b"):
        response = control.post("/v2/deployments", {"source": "internal_source", "name": name})
        assert (name, place(response)) == (name, (["body", "name"], "string_pattern_mismatch"))


def test_what_it_cannot_do_is_refused_in_words(control: ControlPlane, subtests: pytest.Subtests) -> None:
    rows: list[Any] = [
        {"source": "github", "source_config": {"repo_url": "ssh://git@git.example/a"}},
        {"source": "external_docker", "source_revision_config": {"image_uri": "a@sha256:b"}},
        {"source": "internal_docker"},
        {"source": "internal_source", "source_revision_config": {"image_uri": "a@sha256:b"}},
        {"source": "internal_source", "source_revision_config": {"source_tarball_path": "a/b"}},
        {"source": "internal_source", "source_config": {"custom_url": "https://a.example"}},
        *(
            {"source": "internal_source", "source_config": {name: command}}
            for name in ("install_command", "build_command")
            for command in (
                "npm ci; ls",
                "npm ci & ls",
                "npm ci &&& ls",
                "npm ci > x",
                "echo $HOME",
                "a `b`",
                'a "b"',
            )
        ),
        {"source": "internal_source", "source_config": {"listener_id": str(uuid4())}},
        {"source": "internal_source", "secret_references": [{"name": "A"}]},
    ]
    for body in rows:
        with subtests.test(body=body):
            response = control.post("/v2/deployments", {"name": "a", **body})
            assert response.status_code == 400
            assert isinstance(detail(response), str)
            assert control.get("/v2/deployments").json == {"resources": [], "offset": 0}


def test_a_javascript_project_may_have_its_own_commands(control: ControlPlane) -> None:
    commands = {"install_command": "npm ci && npx prisma generate", "build_command": "npm run build"}
    source = {"name": "a", "source": "internal_source", "source_config": commands}

    created = control.post("/v2/deployments", source).json

    assert {name: created["source_config"][name] for name in commands} == commands
    emptied = {"source_config": {"build_command": ""}}
    changed = control.call("PATCH", f"/v2/deployments/{created['id']}", emptied).json
    assert changed["source_config"]["install_command"] == commands["install_command"]
    assert changed["source_config"]["build_command"] == ""


def test_the_platforms_own_variables_cannot_be_set(control: ControlPlane, subtests: pytest.Subtests) -> None:
    rows: list[Any] = ["DATABASE_URL", "RUNYARD_API_KEY", "LD_PRELOAD", "POSTGRES_URI", "a-b", "1A"]
    for name in rows:
        with subtests.test(name=name):
            secrets = [{"name": "FINE", "value": "1"}, {"name": name, "value": "1"}]
            response = control.post(
                "/v2/deployments", {"name": "a", "source": "internal_source", "secrets": secrets}
            )
            assert response.status_code == 400
            assert name in detail(response)
            assert "FINE" not in detail(response)


def test_secrets_are_never_shown_nor_stored_in_the_clear_and_need_a_key(control: ControlPlane) -> None:
    made = control.create(secrets=[{"name": "TOKEN", "value": "a-very-secret-value"}])
    for path in ("/v2/deployments", f"/v2/deployments/{made['id']}"):
        assert "a-very-secret-value" not in control.get(path).text
    with connection() as conn:
        stored = conn.execute(text("SELECT value FROM secret")).scalar_one()
        assert b"a-very-secret-value" not in bytes(stored)
        kept = secrets.secrets_of(conn, made["latest_revision_id"])
    assert kept == {"TOKEN": "a-very-secret-value"}
    encryption.configure([])  # remove the encryption key
    body = {"name": "a", "source": "internal_source", "secrets": [{"name": "A", "value": "1"}]}
    refused = control.post("/v2/deployments", body)
    assert (refused.status_code, "RUNYARD_ENCRYPTION_KEYS" in detail(refused)) == (503, True)
    assert names(control) == ["chat"]


def test_some_changes_make_no_revision(control: ControlPlane, subtests: pytest.Subtests) -> None:
    rows: list[Any] = [
        {},
        {"display_name": "My agent"},
        {"source_config": {"build_on_push": False}},
        {"source_config": None, "source_revision_config": None, "secrets": None, "display_name": None},
        {"source_revision_config": {"repo_ref": None}, "secrets": [], "pool": "gpu"},
    ]
    for number, body in enumerate(rows):
        with subtests.test(body=body):
            made = control.create(f"app-{number}")
            deployed = control.deploy(made)
            changed = control.change(made, **body)
            assert changed["latest_revision_id"] == deployed["latest_revision_id"]
            assert changed["display_name"] == body.get("display_name")
            assert changed["pool"] == body.get("pool", "default")
            assert len(control.revisions(made)) == 1


def test_a_resource_spec_is_kept_as_sent_and_makes_a_revision(control: ControlPlane) -> None:
    spec = {"min_scale": 0, "cpu": 0.5, "labels": {"team": "a"}, "newer": [1]}
    made = control.create(source_config={"resource_spec": spec, "unknown": 1})
    assert made["source_config"]["resource_spec"] == spec
    assert "unknown" not in made["source_config"]
    deployed = control.deploy(made)
    changed = control.change(made, source_config={"resource_spec": {"cpu": 2}})
    assert changed["latest_revision_id"] != deployed["latest_revision_id"]
    assert changed["source_config"]["resource_spec"] == {"cpu": 2}


def test_a_display_name_comes_by_a_change_only_and_what_is_fixed_is_not_changed(
    control: ControlPlane,
) -> None:
    made = control.create(display_name="Early")
    assert made["display_name"] is None
    assert control.change(made, display_name="My agent")["display_name"] == "My agent"
    assert control.change(made, display_name=None)["display_name"] == "My agent"
    empty = control.call("PATCH", f"/v2/deployments/{made['id']}", {"display_name": ""})
    assert place(empty) == (["body", "display_name"], "string_too_short")

    assert control.change(made, source_config=made["source_config"])["source_config"] == made["source_config"]
    for name, value in {"deployment_type": "prod", "custom_url": "https://a.example"}.items():
        response = control.call("PATCH", f"/v2/deployments/{made['id']}", {"source_config": {name: value}})
        assert (response.status_code, detail(response)) == (400, f"{name} of a deployment cannot be changed.")


def test_a_change_it_cannot_make_is_refused_and_changes_nothing(
    control: ControlPlane, subtests: pytest.Subtests
) -> None:
    made = control.create()
    rows: list[Any] = [
        {"revision_source": "internal_docker"},
        {"source_revision_config": {"image_uri": "a@sha256:b"}},
        {"source_revision_config": {"source_tarball_path": "elsewhere/a.tar.gz"}},
    ]
    for body in rows:
        with subtests.test(body=body):
            response = control.call("PATCH", f"/v2/deployments/{made['id']}", {"display_name": "New", **body})
            assert response.status_code == 400
            assert control.get(f"/v2/deployments/{made['id']}").json == made


def names(control: ControlPlane, **query: Any) -> list[str]:
    response = control.get("/v2/deployments", **query)
    assert response.status_code == 200, response.text
    found: Any = response.json
    return [row["name"] for row in found["resources"]]


def test_lists_come_in_pages_newest_first_also_of_one_moment(control: ControlPlane) -> None:
    for name in ("a", "b", "c"):
        control.create(name)
    first: Any = control.get("/v2/deployments", limit=2).json
    assert ([row["name"] for row in first["resources"]], first["offset"]) == (["c", "b"], 2)
    second: Any = control.get("/v2/deployments", limit=2, offset=first["offset"]).json
    assert ([row["name"] for row in second["resources"]], second["offset"]) == (["a"], 3)
    assert control.get("/v2/deployments", offset=3).json == {"resources": [], "offset": 3}

    control.create("d")
    execute("UPDATE deployment SET created_at = now()")
    assert names(control) == ["d", "c", "b", "a"]
    assert [names(control, limit=1, offset=n) for n in range(4)] == [["d"], ["c"], ["b"], ["a"]]


def test_filters_are_all_met(control: ControlPlane) -> None:
    made = {name: control.create(name) for name in ("app", "app-two", "other")}
    assert names(control, name="app", name_contains="app") == ["app"]
    assert names(control, name_contains="app") == ["app-two", "app"]
    assert names(control, name_contains="", name="", agent_id="", tag_value_ids="") == [
        "other",
        "app-two",
        "app",
    ]
    assert names(control, name_contains="%") == []
    assert names(control, status="READY", name="other") == ["other"]
    assert names(control, status="AWAITING_DELETE") == []
    assert names(control, deployment_type="prod") == []
    assert names(control, deployment_type="dev", name="app") == ["app"]
    ids = f"{made['app']['id']},{made['other']['id']}"
    assert names(control, deployment_ids=ids) == ["other", "app"]
    assert names(control, deployment_ids="") == ["other", "app-two", "app"]
    assert names(control, image_version="1") == []
    assert names(control, tag_value_ids=str(uuid4())) == []
    assert names(control, agent_id="app") == names(control, agent_environment="staging") == []
    assert names(control, remote_reconciled="true", name="app") == ["app"]
    assert place(control.get("/v2/deployments", deployment_ids="x"))[0] == ["query", "deployment_ids", 0]


def test_a_deleted_deployment_is_gone_from_lists_and_its_name_is_free(control: ControlPlane) -> None:
    made = control.create("chat")
    control.deploy(made)
    response = control.call(
        "DELETE", f"/v2/deployments/{made['id']}", query_string="delete_tracing_project=true"
    )
    assert (response.status_code, response.data, response.content_type) == (204, b"", None)
    assert names(control) == []
    shown: Any = control.get(f"/v2/deployments/{made['id']}").json
    assert shown["status"] == "AWAITING_DELETE"
    assert control.create("chat")["id"] != made["id"]
    again = control.call("DELETE", f"/v2/deployments/{made['id']}")
    assert (again.status_code, detail(again)) == (404, f"Deployment ID {made['id']} not found.")


def test_nothing_can_be_done_with_a_deleted_deployment(control: ControlPlane) -> None:
    made = control.create()
    revision_id = control.deploy(made)["latest_revision_id"]
    control.call("DELETE", f"/v2/deployments/{made['id']}")
    deployment, revision = f"/v2/deployments/{made['id']}", f"/revisions/{revision_id}"
    assert control.call("PATCH", deployment, {"display_name": "x"}).status_code == 404
    for path in ("/upload-url", "/push-token", "/revisions", f"{revision}/redeploy", f"{revision}/interrupt"):
        assert control.post(deployment + path).status_code == 404
    for path in ("/revisions", revision, f"{revision}/stream"):
        assert control.get(deployment + path).status_code == 404
    assert column("SELECT status FROM revision") == ["INTERRUPTED"]


def test_several_are_deleted_at_once(control: ControlPlane) -> None:
    a, b = control.create("a"), control.create("b")
    missing = str(uuid4())
    path = "/v2/deployments"
    response = control.call("DELETE", path, query_string={"deployment_ids": [a["id"], missing]})
    assert response.status_code == 207
    assert response.json == {
        "deleted": [a["id"]],
        "failed": [{"id": missing, "detail": f"Deployment ID {missing} not found."}],
    }
    response = control.call("DELETE", path, query_string={"deployment_ids": [b["id"]]})
    assert (response.status_code, response.json) == (200, {"deleted": [b["id"]], "failed": []})
    assert place(control.call("DELETE", path)) == (["query", "deployment_ids"], "missing")


def test_it_says_that_it_has_no_listeners_registry_or_github(control: ControlPlane) -> None:
    assert control.get("/v2/listeners", limit=100, offset=0).json == {"resources": [], "offset": 0}
    assert control.get(f"/v2/listeners/{uuid4()}").status_code == 404
    assert control.post("/v2/listeners", {}).status_code == 400
    assert control.get("/v1/integrations/github/install").json == []
    assert control.get(f"/v1/integrations/github/{uuid4()}/repos").json == []
    token = control.post(f"/v2/deployments/{control.create()['id']}/push-token")
    assert token.status_code == 400
    assert "--remote" in detail(token)
