"""Feedback on runs: the URLs of a run's stream, what holders of a URL may do, and the records that callers read."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import orjson
import pytest
from flask.testing import FlaskClient
from sqlalchemy import text
from werkzeug.test import TestResponse

import tests.support.factories as make
from shared.infra import encryption
from shared.infra.postgres import connection
from shared.infra.sealed import seal
from shared.models import RunStatus, ThreadStatus
from shared.runs import feedback
from shared.user_code import loopback
from tests.contract.conftest import Api
from tests.contract.run_calls import BOOM, ended
from tests.contract.streaming import first, join, sse, stream, text_of
from tests.support.acting import Actor
from tests.support.user_code import owner_only
from web.gate import limits

KEYS = ["thumbs", "how was it?"]


def urls_of(streamed: str) -> dict[str, str]:
    """Return the data of the last event, which must be `feedback`."""
    name, data, *_ = streamed.removesuffix("\r\n\r\n").split("\r\n\r\n")[-1].split("\r\n")
    assert name == "event: feedback"
    found: dict[str, str] = orjson.loads(data.removeprefix("data: "))
    return found


@pytest.fixture
def run(api: Api, thread_id: str) -> UUID:
    return UUID(ended(api, thread_id, status="success"))


@pytest.fixture
def url(api: Api, run: UUID) -> str:
    return url_of(api, run)


def url_of(api: Api, run_id: UUID, *keys: str) -> str:
    """Return the path of a feedback URL of the run."""
    root = f"/d/{api.deployment.name}"
    urls = feedback.FeedbackUrls(root, api.deployment.id, run_id, keys or ["thumbs"])
    return next(iter(urls.by_key().values()))


def listed(api: Api, run_id: UUID) -> list[dict[str, Any]]:
    """Return the feedback on a run without the times."""
    records: Any = api.get(f"/runs/{run_id}/feedback").json
    return [{name: value for name, value in record.items() if not name.endswith("_at")} for record in records]


def record(run_id: UUID, key: str = "thumbs", source: str = feedback.URL, **said: Any) -> dict[str, Any]:
    nothing = dict.fromkeys(("score", "value", "comment", "correction"))
    return {"run_id": str(run_id), "key": key, "source": source, **nothing, **said}


# Streams


def test_a_successful_stream_ends_with_urls_to_which_anyone_can_send_feedback(
    api: Api, anonymous: FlaskClient, thread_id: str
) -> None:
    response, run_id = stream(api, thread_id, feedback_keys=KEYS, stream_mode="values")
    actor = Actor(run_id)
    actor.emit("values", {"n": 1})
    actor.finish({"n": 1})

    streamed = text_of(response)
    assert streamed.startswith(first(run_id) + sse("values", {"n": 1}) + "event: feedback\r\n")
    urls = urls_of(streamed)
    assert list(urls) == KEYS
    place = f"http://localhost/d/{api.deployment.name}/feedback/"
    assert all(url.startswith(place) and run_id not in url for url in urls.values()), urls

    said = {"score": True, "value": {"a": [1]}, "comment": "Good\n", "correction": {"n": 2}}
    sent = anonymous.post(urls["how was it?"], json=said, headers={"Origin": "https://shop.example"})
    assert sent.status_code == 200, sent.text
    assert sent.headers["Access-Control-Allow-Origin"] == "*"
    assert listed(api, UUID(run_id)) == [record(UUID(run_id), "how was it?", **{**said, "score": 1.0})]


def test_a_stream_without_feedback_keys_and_one_that_fails_have_no_urls(api: Api, thread_id: str) -> None:
    for keys, end in ((None, {}), ([], {}), (KEYS, {"status": RunStatus.ERROR, "error": BOOM})):
        response, run_id = stream(api, thread_id, feedback_keys=keys)
        status = {"thread_status": ThreadStatus.ERROR} if end else {}
        Actor(run_id).finish({}, **end, **status)
        assert "feedback" not in text_of(response)


def test_a_resumable_stream_is_rejoined_before_and_after_its_urls(api: Api, thread_id: str) -> None:
    response, run_id = stream(api, thread_id, feedback_keys=["thumbs"], stream_resumable=True)
    Actor(run_id).finish({})
    assert text_of(response).endswith("\r\nid: 2\r\n\r\n")
    assert list(urls_of(text_of(join(api, run_id, "1")))) == ["thumbs"]
    assert text_of(join(api, run_id, "2")) == ""
    assert "feedback" not in text_of(join(api, run_id, "-", "?stream_mode=values"))
    assert urls_of(text_of(join(api, run_id, "-", "?stream_mode=feedback")))


def test_outputs_have_the_urls_too(api: Api, thread_id: str) -> None:
    body = {"assistant_id": "agent", "feedback_keys": ["thumbs"]}
    response = api.post(f"/threads/{thread_id}/runs/wait", body, buffered=False)
    run_id = api.get(f"/threads/{thread_id}/runs").json[0]["run_id"]
    Actor(run_id).finish({"n": 1}, output={"n": 1})
    for output in (response.json, api.get(f"/threads/{thread_id}/runs/{run_id}/join").json):
        assert {**output, "__feedback__": list(output["__feedback__"])} == {
            "n": 1,
            "__feedback__": ["thumbs"],
        }


def test_a_run_without_a_thread_is_kept_for_its_feedback(api: Api) -> None:
    body = {"assistant_id": "agent", "feedback_keys": ["thumbs"]}
    kept: Any = api.post("/runs", body).json
    assert kept["kwargs"]["temporary"] is False
    refused = api.post("/runs", {**body, "on_completion": "delete"})
    assert (refused.status_code, refused.json) == (
        422,
        {
            "detail": "feedback_keys: a run that is deleted at its end cannot have feedback: send on_completion=keep"
        },
    )


def test_feedback_keys_are_short_names_without_control_characters(api: Api, thread_id: str) -> None:
    for keys in ("thumbs", [""], ["a" * 181], ["a\n"], ["\0"], [1], ["a"] * 101, {"a": 1}):
        response = api.post(f"/threads/{thread_id}/runs", {"assistant_id": "agent", "feedback_keys": keys})
        assert (response.status_code, "feedback_keys" in response.text) == (422, True), (keys, response.text)


# Feedback URLs


def test_feedback_sent_again_replaces_the_first_whatever_the_url(
    api: Api, anonymous: FlaskClient, run: UUID
) -> None:
    for url, said in ((url_of(api, run), {"score": 1, "comment": "a"}), (url_of(api, run), {"score": 0})):
        assert anonymous.post(url, json=said).status_code == 200
    assert listed(api, run) == [record(run, score=0.0)]


def test_a_click_without_a_body_counts(api: Api, anonymous: FlaskClient, run: UUID, url: str) -> None:
    assert anonymous.post(url).status_code == 200
    assert listed(api, run) == [record(run)]


def test_a_get_stores_nothing_and_returns_a_page_whose_form_does(
    api: Api, anonymous: FlaskClient, run: UUID
) -> None:
    url = url_of(api, run, "<b>")
    page = anonymous.get(f"{url}?score=0.5&value=%3Cscript%3E&comment=%22%26")
    assert (page.status_code, page.mimetype) == (200, "text/html")
    assert ("<script>" in page.text, "<b>" in page.text) == (False, False)
    assert 'name="value" value="&lt;script&gt;"' in page.text
    assert f'action="{url.rpartition("/")[2]}"' in page.text
    assert "form-action 'self'" in page.headers["Content-Security-Policy"]
    assert anonymous.head(f"{url}?score=1").status_code == 200
    assert listed(api, run) == []

    sent = anonymous.post(url, data={"score": "0.5", "value": "<script>", "comment": ""})
    assert (sent.status_code, sent.mimetype) == (200, "text/html")
    assert listed(api, run) == [record(run, "<b>", score=0.5, value="<script>")]


def test_a_browser_gets_errors_as_a_page(api: Api, anonymous: FlaskClient, thread_id: str, url: str) -> None:
    browser = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    api.delete(f"/threads/{thread_id}")
    for path, query, status in ((url, "", 410), (url[:-2], "", 404), (url, "?score=x", 422)):
        page = anonymous.get(path + query, headers=browser)
        assert (page.status_code, page.mimetype) == (status, "text/html"), page.text
        assert "<h1>Feedback not sent</h1>" in page.text
        assert anonymous.get(path + query).mimetype == "application/json"
    sent = anonymous.post(url, data={"score": "1"}, headers=browser)
    assert (sent.status_code, sent.mimetype) == (410, "text/html")


@pytest.fixture
def bad_urls(api: Api, url: str, run: UUID) -> list[str]:
    path, _, token = url.rpartition("/")
    other = url_of(api, UUID(int=run.int))
    swapped = token[:60] + other.rpartition("/")[2][60:]
    neighbour = Api(api.client, make.deployment("neighbour", organization_id=api.deployment.organization_id))
    foreign = url_of(neighbour, run).rpartition("/")[2]
    secrets = (
        encryption.encrypt("{}").decode(),
        encryption.encrypt("[]").decode(),
        seal("mcp.request_state", [api.deployment.id.hex, run.hex, "score"], seconds=60),
        loopback.make(api.deployment.id, None),
    )
    bad = ("x", token[:-2], token + "A", f"A{token[1:]}", swapped, foreign, "a b", "é", *secrets)
    return [
        *(f"{path}/{each.rstrip('=')}" for each in bad),
        f"/d/neighbour/feedback/{token}",
        f"/d/missing/feedback/{token}",
    ]


def test_a_url_that_is_not_whole_or_of_another_run_deployment_or_purpose_is_unknown(
    api: Api, anonymous: FlaskClient, run: UUID, bad_urls: list[str]
) -> None:
    for url in bad_urls:
        limits.start_failures(anonymous.application)
        for response in (anonymous.post(url, json={"score": 1}), anonymous.get(url)):
            assert response.status_code == 404, (url, response.text)
    assert listed(api, run) == []


def test_unknown_tokens_count_as_failures_of_their_address(
    api: Api, anonymous: FlaskClient, url: str
) -> None:
    statuses = [anonymous.post(f"/d/{api.deployment.name}/feedback/x").status_code for _ in range(25)]
    assert statuses == [404] * 20 + [429] * 5
    assert anonymous.post(url).status_code == 200


def test_a_url_ends_with_its_time_and_with_its_run(
    api: Api, anonymous: FlaskClient, run: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feedback, "VALID_SECONDS", -1.0)
    expired = anonymous.post(url_of(api, run))
    assert (expired.status_code, expired.json) == (410, {"detail": feedback.EXPIRED})
    monkeypatch.undo()
    url = url_of(api, run)
    assert anonymous.post(url).status_code == 200
    with connection() as conn:
        conn.execute(text("DELETE FROM run"))
        assert conn.execute(text("SELECT count(*) FROM run_feedback")).scalar() == 0
    gone = anonymous.post(url)
    assert (gone.status_code, gone.json) == (410, {"detail": feedback.RUN_DELETED})
    assert anonymous.get(url).status_code == 410


def test_bad_feedback_is_refused_by_name(api: Api, anonymous: FlaskClient, run: UUID, url: str) -> None:
    def status(response: TestResponse, word: str) -> int:
        assert word in response.text, response.text
        return response.status_code

    bodies: list[tuple[Any, str]] = [
        ({"score": "1"}, "score"), ({"score": 1e7}, "score"), ({"score": []}, "score"),
        ({"value": "x" * 2_001}, "value"), ({"value": "\0"}, "value"), ({"value": {"\0": 1}}, "value"),
        ({"comment": 1}, "comment"), ({"comment": "\0"}, "comment"), ({"comment": "x" * 5_001}, "comment"),
        ({"correction": "x"}, "correction"), ({"correction": {"a": "x" * 10_000}}, "correction"),
    ]  # fmt: skip
    for body, word in bodies:
        assert status(anonymous.post(url, json=body), word) == 422
    for raw in (b'{"score": NaN}', b'{"score": Infinity}', b"{", b"\xff", b'{"score": 1e999}'):
        assert status(anonymous.post(url, data=raw, content_type="application/json"), "JSON") in (400, 422)
    for query in ("score=x", "score=NaN", "score=", "score=9999999", "value=%00", f"comment={'x' * 5_001}"):
        assert status(anonymous.get(f"{url}?{query}"), query.partition("=")[0]) == 422
    assert status(anonymous.get(f"{url}?score=1&score=0"), "score") == 422
    assert status(anonymous.post(url, data={"score": "nan"}), "score") == 422
    assert status(anonymous.post(url, data={f"f{n}": "x" for n in range(101)}), "fields") == 422
    large = anonymous.post(url, json={"comment": "x" * 1_100_000})
    assert large.status_code == 413
    assert anonymous.post(url, data={"comment": "x" * 1_100_000}).status_code == 413
    assert listed(api, run) == []


def test_auth_of_the_deployment_does_not_apply_to_urls_but_to_the_records(
    ann: Api, bob: Api, anonymous: FlaskClient, played: Any
) -> None:
    played.on(owner_only)
    thread = make.thread(ann.deployment.id, metadata={"owner": "ann"})
    run = make.run(ann.deployment, thread, status=RunStatus.SUCCESS)
    assert anonymous.post(url_of(ann, run), json={"score": 1}).status_code == 200
    mine = ann.post(f"/threads/{thread}/runs/{run}/feedback", {"key": "thumbs", "score": 0})
    assert mine.status_code == 200, mine.text
    assert [each["score"] for each in listed(ann, run)] == [1.0, 0.0]
    for path in (f"/runs/{run}/feedback", f"/threads/{thread}/runs/{run}/feedback"):
        assert bob.get(path).status_code == bob.post(path, {"key": "thumbs"}).status_code == 404


# Records of callers


def test_a_caller_has_one_record_for_each_key(api: Api, run: UUID) -> None:
    path = f"/runs/{run}/feedback"
    for body in ({"key": "b", "score": 1}, {"key": "a", "value": "x"}, {"key": "b", "score": 0.25}):
        assert api.post(path, body).status_code == 200
    source = listed(api, run)[0]["source"]
    assert source != feedback.URL
    assert listed(api, run) == [record(run, "b", source, score=0.25), record(run, "a", source, value="x")]
    assert api.post(path, {"score": 1}).status_code == 422


def test_a_run_has_a_maximum_of_records(
    api: Api, anonymous: FlaskClient, run: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feedback, "MOST_RECORDS", 1)
    for _ in range(2):
        assert anonymous.post(url_of(api, run)).status_code == 200
    for refused in (
        api.post(f"/runs/{run}/feedback", {"key": "thumbs"}),
        anonymous.post(url_of(api, run, "x")),
    ):
        assert refused.status_code == 409, refused.text


def test_runs_are_searched_by_feedback(api: Api, thread_id: str) -> None:
    good, bad, other = (UUID(ended(api, thread_id, status="success")) for _ in range(3))
    for run_id, score in ((good, 1), (bad, 0)):
        api.post(f"/runs/{run_id}/feedback", {"key": "thumbs", "score": score})
    api.post(f"/runs/{other}/feedback", {"key": "stars", "value": "five"})

    def found(**filter: Any) -> list[str]:
        response = api.post("/runs/search", {"status": ["success"], "feedback": filter})
        assert response.status_code == 200, response.text
        return [each["run_id"] for each in response.json]

    assert found(key="thumbs", below=0.5) == [str(bad)]
    assert found(key="thumbs", at_least=0) == [str(bad), str(good)]
    assert found(key="stars") == [str(other)]
    assert found(key="stars", at_least=0) == found(key="missing") == []
    refused = api.post("/runs/search", {"feedback": {"key": "thumbs", "belw": 1}})
    assert (refused.status_code, "feedback.belw" in refused.text) == (422, True)
