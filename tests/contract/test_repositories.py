"""Deployments built from a git repository, over HTTP: validation, and the events that start a build."""

from __future__ import annotations

from typing import Any

from sqlalchemy import text

from shared.infra.postgres import connection
from tests.contract.conftest import ControlPlane, Notifications

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
