"""Changes of deployments: status, secrets, git repositories, and simultaneous calls of several clients."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import orjson
import pytest
from sqlalchemy import text

from shared.deployments import limits, secrets
from shared.eventlog import events
from shared.infra import redis as shared_redis
from shared.infra.postgres import connection
from shared.models import RunStatus
from tests.contract.conftest import Api, ControlPlane, Notifications
from tests.contract.statements import column, execute
from tests.support.acting import Actor


def listed(control: ControlPlane, **filters: str) -> list[str]:
    """Return the names of the matching deployments."""
    page: Any = control.get("/v2/deployments", **filters).json
    return [row["name"] for row in page["resources"]]


def ended(control: ControlPlane, deployment: dict[str, Any], status: str) -> dict[str, Any]:
    """End the newest revision with this status. Returns the deployment's record."""
    execute(
        "UPDATE revision SET status = :status WHERE id = :id",
        status=status,
        id=deployment["latest_revision_id"],
    )
    return control.get(f"/v2/deployments/{deployment['id']}").json


def test_a_deployment_that_serves_nothing_and_builds_nothing_is_not_ready(control: ControlPlane) -> None:
    made = control.create("app")
    assert control.deploy(made)["status"] == "READY", "it is on its way"

    failed = ended(control, made, "BUILD_FAILED")
    assert (failed["status"], failed["latest_revision_status"]) == ("UNUSED", "BUILD_FAILED")
    assert [listed(control, status=status) for status in ("UNUSED", "READY")] == [["app"], []]

    again = control.deploy(made)
    assert (again["status"], again["latest_revision_number"]) == ("READY", 2)
    execute("UPDATE deployment SET active_revision_id = latest_revision_id")
    serving = ended(control, again, "DEPLOYED")
    assert (serving["status"], serving["active_revision_number"]) == ("READY", 2)
    assert ended(control, control.deploy(made), "BUILD_FAILED")["status"] == "READY", "the old one serves"


@pytest.mark.parametrize(
    ("auth", "role"),
    [
        (None, "read"),
        ({"parameters": [], "handlers": []}, "run"),
        ({"parameters": [], "handlers": [], "disable_studio_auth": True}, None),
    ],
)
def test_a_deployment_names_the_least_role_of_a_key_that_it_accepts(
    control: ControlPlane, auth: dict[str, Any] | None, role: str | None
) -> None:
    made = control.create("app")
    assert control.deploy(made)["least_key_role"] is None, "no revision serves"
    execute("UPDATE revision SET user_code = CAST(:code AS json)", code=json.dumps({"auth": auth}))
    execute("UPDATE deployment SET active_revision_id = latest_revision_id")
    serving: Any = control.get(f"/v2/deployments/{made['id']}").json
    assert serving["least_key_role"] == role


def test_the_hosts_of_a_revision_know_when_another_one_serves(control: ControlPlane) -> None:
    made = control.create("app")
    first = control.deploy(made)["latest_revision_id"]
    second = control.deploy(made)["latest_revision_id"]
    ids = [UUID(first), UUID(second)]
    with connection() as conn:
        assert not any(found.is_replaced for found in limits.of_hosts(conn, ids).values()), "none serves"
        conn.execute(text("UPDATE deployment SET active_revision_id = latest_revision_id"))
        assert [limits.of_hosts(conn, ids)[id].is_replaced for id in ids] == [True, False]


TWO = [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]


def kept(deployment: Any) -> dict[str, str]:
    with connection() as conn:
        return secrets.secrets_of(conn, deployment["latest_revision_id"])


def test_some_secrets_change_and_the_rest_stays(control: ControlPlane) -> None:
    made = control.create(secrets=TWO)
    deployed = control.deploy(made)
    changes = [{"name": "B", "value": None}, {"name": "C", "value": "3"}, {"name": "none", "value": None}]

    changed = control.change(made, secret_changes=changes)

    assert changed["latest_revision_number"] == 2
    assert (kept(deployed), kept(changed)) == ({"A": "1", "B": "2"}, {"A": "1", "C": "3"})
    gone = control.change(made, secret_changes=[{"name": name, "value": None} for name in "AC"])
    assert (gone["secrets"], kept(gone)) == ([], {}), "the last ones too"


def test_a_new_set_comes_before_its_changes_and_no_change_makes_no_revision(control: ControlPlane) -> None:
    made = control.create(secrets=TWO)
    control.deploy(made)
    change = control.change(made, secrets=TWO[:1], secret_changes=[{"name": "A", "value": "9"}])
    assert kept(change) == {"A": "9"}

    made = control.deploy(control.create("unchanged"))
    for changes in ([], None):
        assert control.change(made, secret_changes=changes)["latest_revision_number"] == 1, changes


def test_a_name_that_is_the_service_s_own_is_refused(control: ControlPlane) -> None:
    made = control.deploy(control.create(secrets=TWO))
    path = f"/v2/deployments/{made['id']}"
    body = {"secret_changes": [{"name": "DATABASE_URI", "value": "x"}]}
    refused = control.call("PATCH", path, body)
    assert (refused.status_code, "DATABASE_URI" in refused.text) == (400, True)
    assert len(control.revisions(made)) == 1
    body = {"secret_changes": [{"name": f"N{n}", "value": "x"} for n in range(499)]}
    assert control.call("PATCH", path, body).status_code == 400, "501 in all"


URL = "https://git.example.com/team/agents.git"
REF = {"repo_ref": "main", "langgraph_config_path": "apps/one/langgraph.json", "image_uri": None}


def create(control: ControlPlane, **config: Any) -> Any:
    return control.create(
        source="github",
        source_config={
            "integration_id": None,
            "repo_url": URL,
            "deployment_type": "dev",
            "build_on_push": False,
        },
        source_revision_config={**REF, **config},
    )


def built(revision_id: str, commit: str = "c" * 40) -> None:
    """Mark a revision as built from this commit, as a builder does."""
    with connection() as conn:
        conn.execute(
            text("INSERT INTO archive (digest, size) VALUES ('d', 1) ON CONFLICT DO NOTHING"),
        )
        conn.execute(
            text(
                "UPDATE revision SET status = 'DEPLOYED', archive_digest = 'd', requirements = '',"
                " manifest = '{}', source_revision_config ="
                " CAST(CAST(source_revision_config AS jsonb) || jsonb_build_object('repo_commit_sha',"
                " CAST(:commit AS text)) AS json) WHERE id = :id"
            ),
            {"id": revision_id, "commit": commit},
        )


def test_the_first_revision_is_built_at_once(control: ControlPlane, notifications: Notifications) -> None:
    made = create(control)

    assert made["source"] == "github"
    assert made["source_config"]["repo_url"] == URL
    revision = control.revision(made)
    assert (revision["status"], revision["source"]) == ("AWAITING_BUILD", "github")
    assert revision["source_revision_config"]["repo_ref"] == "main"
    assert revision["source_revision_config"]["repo_commit_sha"] is None
    assert notifications.heard == [("builds", revision["id"])]
    control.change(made, source_config={"build_on_push": True})
    assert len(control.revisions(made)) == 1, "that alone builds nothing"
    assert revision["changes"]["source"] == {
        "archive_digest": None,
        "repo_url": URL,
        "repo_ref": "main",
        "repo_commit_sha": None,
        "commit_message": None,
    }


def test_the_same_ref_again_is_a_new_revision_of_what_it_stands_for_then(control: ControlPlane) -> None:
    made = create(control)
    built(made["latest_revision_id"])

    changed = control.change(
        made, source_config={"build_on_push": True}, source_revision_config={"repo_ref": "main"}
    )

    assert changed["source_config"]["build_on_push"] is True
    newest, oldest = control.revisions(changed)
    assert newest["status"] == "AWAITING_BUILD"
    assert newest["source_revision_config"]["repo_commit_sha"] is None
    assert newest["source_revision_config"]["langgraph_config_path"] == "apps/one/langgraph.json"
    assert oldest["source_revision_config"]["repo_commit_sha"] == "c" * 40
    again: Any = control.post(f"/v2/deployments/{made['id']}/revisions/{oldest['id']}/redeploy").json
    assert again["source_revision_config"]["repo_commit_sha"] == "c" * 40, "an old one of what was fetched"
    with connection() as conn:
        digest = text("SELECT archive_digest FROM revision WHERE id = :id")
        assert conn.execute(digest, {"id": newest["id"]}).scalar_one() is None, "it is fetched anew"


def test_what_cannot_be_fetched_is_refused_in_words(control: ControlPlane) -> None:
    rows: list[tuple[dict[str, Any], dict[str, Any], str]] = [
        ({"repo_url": "git@github.com:a/b.git"}, {}, "repo_url: must be a URL that begins with https://"),
        ({"repo_url": "file:///etc"}, {}, "repo_url: must be a URL that begins with https://"),
        ({"repo_url": "https://me:pw@github.com/a/b"}, {}, "repo_url: must be a URL without user name"),
        (
            {"repo_url": "https://10.1.2.3/a"},
            {},
            "repo_url: 10.1.2.3 is not an address this service may call",
        ),
        ({"repo_url": URL}, {"repo_ref": "--upload-pack=id"}, "repo_ref must be a branch"),
        ({"repo_url": URL, "build_on_push": True}, {"repo_ref": "refs/tags/v1"}, "must be false for a tag"),
    ]
    for config, revision, said in rows:
        sent = {"source_config": config, "source_revision_config": revision}
        response: Any = control.post("/v2/deployments", {"name": "a", "source": "github", **sent})
        assert (said, response.status_code) == (said, 400)
        assert said in response.json["detail"]


def test_a_repository_must_be_named_and_stays(control: ControlPlane) -> None:
    response = control.post("/v2/deployments", {"name": "a", "source": "github"})
    assert response.status_code == 422
    assert response.json is not None
    assert response.json["detail"][0]["loc"] == ["body", "source_config", "repo_url"]

    made = create(control)
    other = {"source_config": {"repo_url": "https://git.example.com/other"}}
    refused = control.call("PATCH", f"/v2/deployments/{made['id']}", other)
    assert (refused.status_code, refused.json) == (
        400,
        {"detail": "repo_url of a deployment cannot be changed."},
    )
    plain = control.create("plain")
    body = {"revision_source": "github", "source_revision_config": {"repo_ref": "main"}}
    assert control.call("PATCH", f"/v2/deployments/{plain['id']}", body).status_code == 400


def test_an_upload_may_stand_in_for_the_repository(control: ControlPlane) -> None:
    made = create(control)
    built(made["latest_revision_id"])

    changed = control.deploy(made, revision_source="internal_source")

    assert control.revision(changed)["source"] == "internal_source"
    assert control.revision(changed)["status"] == "AWAITING_BUILD"


def test_the_runs_of_a_deleted_deployment_end_and_their_followers_see_it(
    control: ControlPlane, api: Api, redis: Any
) -> None:
    waiting, running = (api.post("/runs", {"assistant_id": "agent", "input": {}}).json for _ in range(2))
    actor = Actor(running["run_id"], owner="runner")
    with redis.pubsub() as runner:
        runner.subscribe(shared_redis.control_channel("runner"))
        assert runner.get_message(timeout=5)["type"] == "subscribe"

        response = control.call("DELETE", f"/v2/deployments/{api.deployment.id}")

        assert response.status_code == 204
        told = orjson.loads(runner.get_message(timeout=5)["data"])
    assert (told["run_id"], told["action"]) == (running["run_id"], "interrupt")
    assert told["reason"] == "the deployment was deleted"
    log = events.logged(redis, UUID(waiting["run_id"]), 0)
    assert [event.name for event in log] == ["end"]
    rows = execute("SELECT run_id, status, cancel_requested FROM run")
    assert {(str(row.run_id), row.status, row.cancel_requested) for row in rows} == {
        (waiting["run_id"], "interrupted", None),
        (running["run_id"], "running", "interrupt"),
    }
    assert api.post("/threads").status_code == 404
    actor.finish(status=RunStatus.INTERRUPTED)


def at_once(count: int, act: Callable[[int], Any]) -> list[Any]:
    """Call `act` in this many threads at the same moment. Returns their results."""
    gate = threading.Barrier(count)

    def go(n: int) -> Any:
        gate.wait(timeout=10)
        return act(n)

    with ThreadPoolExecutor(count) as crowd:
        return list(crowd.map(go, range(count)))


def test_of_two_creates_at_once_one_is_refused(control: ControlPlane) -> None:
    body = {"name": "chat", "source": "internal_source"}
    answers = at_once(4, lambda _: control.post("/v2/deployments", body).status_code)
    assert sorted(answers) == [201, 409, 409, 409]
    listed: Any = control.get("/v2/deployments").json
    assert len(listed["resources"]) == 1


def test_of_several_changes_at_once_each_makes_a_revision_and_the_last_one_waits(
    control: ControlPlane,
) -> None:
    made = control.create()
    first = control.deploy(made)["latest_revision_id"]
    answers = at_once(4, lambda n: control.change(made, secrets=[{"name": "N", "value": str(n)}]))
    listed = control.revisions(made)
    assert len({answer["latest_revision_id"] for answer in answers}) == 4
    assert {row["id"] for row in listed} == {first, *(answer["latest_revision_id"] for answer in answers)}
    assert [row["status"] for row in listed] == ["QUEUED", "SKIPPED", "SKIPPED", "SKIPPED", "AWAITING_BUILD"]
    shown: Any = control.get(f"/v2/deployments/{made['id']}").json
    assert shown["latest_revision_id"] == listed[0]["id"]


def test_of_a_change_and_a_deletion_at_once_nothing_is_left_on_its_way(control: ControlPlane) -> None:
    made = control.create()
    control.deploy(made)
    path = f"/v2/deployments/{made['id']}"
    answers = at_once(
        2,
        lambda n: (
            control.call("PATCH", path, {"secrets": [{"name": "A", "value": "1"}]}).status_code
            if n
            else control.call("DELETE", path).status_code
        ),
    )
    assert answers[0] == 204
    assert answers[1] in (200, 404)
    left = set(column("SELECT status FROM revision"))
    assert left <= {"INTERRUPTED", "SKIPPED"}
