"""`runyard inbox`: its requests, its output and its exit codes."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs

import pytest

from tests.support.commands import json_lines, runyard
from tests.support.control_plane import ControlPlane, record

pytestmark = pytest.mark.usefixtures("nowhere")

Q, OTHER = "66666666-6666-4666-8666-6666aaaaaaaa", "77777777-7777-4777-8777-7777bbbbbbbb"
T, RUN = "33333333-3333-4333-8333-3333cccccccc", "44444444-4444-4444-8444-4444dddddddd"
LIST, SHOWN = "GET /v2/inbox", f"GET /v2/inbox/{Q}"


def question(id: str = Q, value: Any = None, minute: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "id": id,
        "deployment_name": "desk",
        "thread_id": T,
        "thread_title": "Order 4711",
        "run_id": RUN,
        "kind": "interrupt",
        "value": value or {"question": "Refund it?", "amount": 20},
        "asked_at": f"2026-01-01T00:{minute:02d}:00+00:00",
        "asked_by": "ann",
        "status": "open",
        "assignee": None,
        **more,
    }


@pytest.fixture
def served(server: ControlPlane) -> ControlPlane:
    """An inbox with two open questions."""
    rows = [question(), question(OTHER, ["send"], 1, kind="breakpoint", assignee="bea", thread_title="")]
    answered = {"question": question(status="answered"), "run_id": RUN}
    link = {
        "id": OTHER,
        "url": "https://here/o/answer#tok",
        "expires_at": "2026-01-08T00:00:00+00:00",
        "label": "Ng",
    }
    server.answers = {
        "GET /v2/deployments": [(200, {"resources": [record()]})],
        LIST: [(200, {"resources": rows, "offset": 0, "total": 2})],
        SHOWN: [(200, rows[0])],
        f"PATCH /v2/inbox/{Q}": [(200, rows[0])],
        f"POST /v2/inbox/{Q}/answer": [(200, answered)],
        f"POST /v2/inbox/{OTHER}/answer": [(200, answered)],
        f"POST /v2/inbox/{Q}/link": [(200, link)],
        "GET /v2/me": [(200, {"role": "admin", "key": {"id": "k1", "name": "ops"}})],
    }
    return server


def query(server: ControlPlane) -> dict[str, str]:
    """Return the query of the last request for the list."""
    at = [number for number, asked in enumerate(server.asked) if asked == LIST][-1]
    return {name: values[0] for name, values in parse_qs(server.queries[at]).items()}


def test_open_questions_are_listed_with_their_words(served: ControlPlane) -> None:
    lines = runyard(served, "inbox", "list").stdout.splitlines()
    assert "Refund it?" in lines[1]
    assert "Order 4711" in lines[1]
    assert "Continue with send?" in lines[2]
    assert "bea" in lines[2]
    assert query(served) == {"status": "open", "limit": "100", "offset": "0"}
    rows = json.loads(runyard(served, "inbox", "list", "--json").stdout)
    assert [row["id"] for row in rows] == [Q, OTHER]


ACTION = {"action_request": {"action": "pay", "args": {}}, "config": {"allow_accept": True}}


@pytest.mark.parametrize(
    "value",
    [ACTION, [ACTION], {"action_requests": [{"name": "pay"}, None]}, {"actionRequests": [{"name": "pay"}]}],
)
def test_a_request_for_a_tool_call_is_listed_with_the_name_of_the_tool(
    served: ControlPlane, value: Any
) -> None:
    served.answers[LIST] = [(200, {"resources": [question(value=value)], "offset": 0, "total": 1})]
    assert "Approve pay?" in runyard(served, "inbox", "list").stdout


ASKING = {"action_request": {"action": "pay"}, "config": {"allow_respond": True}}
REVIEW = {"action_name": "pay", "allowed_decisions": ["respond"]}
JAVASCRIPT = {"actionName": "pay", "allowedDecisions": ["reject"]}


@pytest.mark.parametrize(
    "value",
    [
        ASKING,
        [ASKING],
        {"action_requests": [{"name": "pay"}], "review_configs": [REVIEW, None]},
        {"actionRequests": [{"name": "pay"}], "reviewConfigs": [JAVASCRIPT]},
    ],
)
def test_a_tool_call_that_nobody_may_approve_waits_for_an_answer(served: ControlPlane, value: Any) -> None:
    served.answers[LIST] = [(200, {"resources": [question(value=value)], "offset": 0, "total": 1})]
    assert "Answer pay?" in runyard(served, "inbox", "list").stdout


def test_a_large_value_is_read_to_show_its_question(served: ControlPlane) -> None:
    row = {**question(), "value": None, "is_value_left_out": True}
    served.answers[LIST] = [(200, {"resources": [row], "offset": 0, "total": 1})]
    assert f"A large question: `runyard inbox show {Q[-8:]}`" in " ".join(
        runyard(served, "inbox", "list", "--wide").stdout.split()
    )
    assert "Refund it?" in runyard(served, "inbox", "show", Q[-8:]).stdout


def test_characters_that_reverse_text_are_not_printed(served: ControlPlane) -> None:
    rows = [question(value="Pay \u202e001 EUR?")]
    served.answers[LIST] = [(200, {"resources": rows, "offset": 0, "total": 1})]
    assert "Pay \ufffd001 EUR?" in runyard(served, "inbox", "list").stdout
    assert r'"Pay \u202e001 EUR?"' in runyard(served, "inbox", "list", "--json").stdout


@pytest.mark.parametrize("words", [("snooze", Q, "99999999d"), ("list", "--since", "99999999d")])
def test_a_period_that_no_calendar_has_is_refused(served: ControlPlane, words: tuple[str, ...]) -> None:
    assert runyard(served, "inbox", *words).exit_code == 2


def test_filters_are_those_of_the_api(served: ControlPlane) -> None:
    words = "app --status all -a agent --assignee ann --since 2h --until 2026-02-01T00:00:00Z".split()
    ran = runyard(served, "inbox", "list", *words, "-m", "customer=acme", "-m", "level=3")
    assert ran.exit_code == 0, ran.output
    asked = query(served)
    since = datetime.now(UTC) - datetime.fromisoformat(asked.pop("asked_after"))
    assert abs(since - timedelta(hours=2)) < timedelta(minutes=1)
    assert asked == {
        "status": "all", "deployment": "app", "assistant_id": "agent", "assignee": "ann",
        "asked_before": "2026-02-01T00:00:00+00:00", "metadata": '{"customer": "acme", "level": 3}', "limit": "100",
        "offset": "0",
    }  # fmt: skip
    assert runyard(served, "inbox", "list", "-m", "customer").exit_code == 2
    served.answers[LIST] = [(200, {"resources": [], "offset": 0, "total": 0})]
    assert runyard(served, "inbox", "list").stdout == "There are no open questions.\n"


@pytest.mark.parametrize("id", [Q, Q[-8:], Q[:6]])
def test_a_question_is_shown_by_any_form_of_its_id(served: ControlPlane, id: str) -> None:
    text = runyard(served, "inbox", "show", id).stdout
    assert "Refund it?" in text
    assert f"{T} Order 4711" in text
    assert json.loads(runyard(served, "inbox", "show", id, "--json").stdout)["id"] == Q


def test_an_unknown_id_is_searched_among_all_statuses(served: ControlPlane) -> None:
    missing = runyard(served, "inbox", "show", "ffffffff")
    assert (missing.exit_code, "There is no question 'ffffffff'" in missing.stderr) == (1, True)
    assert served.asked.count(LIST) == 5
    assert runyard(served, "inbox", "show", "what?").exit_code == 2


@pytest.mark.parametrize(
    ("words", "body"),
    [
        (["yes, please"], {"answer": "yes, please"}),
        (['{"approved": true}'], {"answer": {"approved": True}}),
        (["42"], {"answer": 42}),
        (["42", "--text"], {"answer": "42"}),
        (["-"], {"answer": "from a file"}),
        (["--cancel"], {"action": "cancel"}),
    ],
)
def test_an_answer_is_json_or_text(served: ControlPlane, words: list[str], body: dict[str, Any]) -> None:
    ran = runyard(served, "inbox", "answer", Q[-8:], *words, input="from a file\n")
    assert ran.exit_code == 0, ran.output
    assert served.body(f"POST /v2/inbox/{Q}/answer") == body
    assert (RUN in ran.stdout) == ("--cancel" not in words)


def test_a_breakpoint_needs_no_answer_and_a_question_does(served: ControlPlane) -> None:
    assert runyard(served, "inbox", "answer", OTHER[-8:]).exit_code == 0
    assert served.body(f"POST /v2/inbox/{OTHER}/answer") == {"answer": None}
    for words in ([], ["yes", "--cancel"], ["{half"]):
        assert runyard(served, "inbox", "answer", Q, *words).exit_code == 2, words
    served.answers[f"POST /v2/inbox/{Q}/answer"] = [(409, {"detail": "ann has answered it already."})]
    refused = runyard(served, "inbox", "answer", Q, "yes")
    assert (refused.exit_code, "ann has answered it already." in refused.stderr) == (1, True)


def test_a_question_is_assigned_to_a_name_to_the_caller_or_to_nobody(served: ControlPlane) -> None:
    for words, assignee in ((["ann"], "ann"), ([], "ops"), (["--nobody"], None)):
        ran = runyard(served, "inbox", "assign", Q[-8:], *words)
        assert ran.exit_code == 0, ran.output
        assert served.body(f"PATCH /v2/inbox/{Q}") == {"assignee": assignee}
    assert runyard(served, "inbox", "assign", Q, "ann", "--nobody").exit_code == 2


def test_a_snooze_ends_after_a_period_or_at_a_time(served: ControlPlane) -> None:
    def until(*words: str) -> str | None:
        ran = runyard(served, "inbox", "snooze", Q, *words)
        assert ran.exit_code == 0, ran.output
        return served.body(f"PATCH /v2/inbox/{Q}")["snoozed_until"]

    for words, hours in (((), 1), (("2h",), 2), (("3d",), 72)):
        ahead = datetime.fromisoformat(str(until(*words))) - datetime.now(UTC)
        assert abs(ahead - timedelta(hours=hours)) < timedelta(minutes=1)
    assert until("2999-01-31T12:00:00+00:00") == "2999-01-31T12:00:00+00:00"
    assert until("--wake") is None
    for words in (["2001-01-31"], ["soon"], ["9999999999d"], ["1h", "--wake"]):
        assert runyard(served, "inbox", "snooze", Q, *words).exit_code == 2, words


def test_a_link_is_printed_once_and_alone(served: ControlPlane) -> None:
    ran = runyard(served, "inbox", "link", Q[-8:], "--label", "Ng", "--expires-in", "2h")
    assert ran.stdout == "https://here/o/answer#tok\n"
    assert "shown once" in ran.stderr
    assert served.body(f"POST /v2/inbox/{Q}/link") == {"expires_in_seconds": 7200, "label": "Ng"}
    assert json.loads(runyard(served, "inbox", "link", Q, "--json").stdout)["label"] == "Ng"


def test_links_are_listed_and_revoked(served: ControlPlane) -> None:
    link = {
        "id": OTHER, "label": "Ng", "created_by": "ops (k1)", "created_at": "2026-01-01T00:00:00+00:00",
        "expires_at": "2026-01-08T00:00:00+00:00", "used_at": None, "revoked_at": None,
    }  # fmt: skip
    used = {**link, "id": RUN, "used_at": "2026-01-02T00:00:00+00:00"}
    served.answers[f"GET /v2/inbox/{Q}/links"] = [(200, [link, used])]
    served.answers[f"DELETE /v2/inbox/links/{OTHER}"] = [(204, None)]
    lines = runyard(served, "inbox", "links", Q[-8:]).stdout.splitlines()
    assert [word in lines[1] for word in (OTHER[-8:], "Ng", "expired 2026-01-08")] == [True] * 3
    assert "used 2026-01-02" in lines[2]
    served.answers[SHOWN] = [(200, question(status="answered"))]
    lines = runyard(served, "inbox", "links", Q).stdout.splitlines()
    assert ["question closed" in lines[1], "used 2026-01-02" in lines[2]] == [True, True]

    ran = runyard(served, "inbox", "revoke-link", Q, OTHER[-8:])
    assert (ran.exit_code, ran.stdout) == (0, f"Revoked the link {OTHER}.\n")
    assert served.asked[-1] == f"DELETE /v2/inbox/links/{OTHER}"
    missing = runyard(served, "inbox", "revoke-link", Q, "ffffffff")
    assert (missing.exit_code, "has no link 'ffffffff'" in missing.stderr) == (1, True)


def test_watch_prints_each_question_once_and_ends_with_ctrl_c(
    served: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = question(), question(OTHER, "And this\x1b[31m?", 2)
    pages = [[first], [first], [first, second], [second]]
    answers = [(200, {"resources": rows, "offset": 0, "total": len(rows)}) for rows in pages]
    polls = 0

    def sleep(seconds: float) -> None:
        nonlocal polls
        polls += 1
        if polls == len(pages):
            raise KeyboardInterrupt

    monkeypatch.setattr("cli.runs.inbox.time.sleep", sleep)
    served.answers[LIST] = list(answers)
    ran = runyard(served, "inbox", "list", "--watch")
    assert ran.exit_code == 130
    lines = ran.stdout.splitlines()
    assert [Q[-8:] in lines[0], OTHER[-8:] in lines[1], len(lines)] == [True, True, 2]
    assert "\x1b" not in ran.stdout
    assert query(served)["asked_after"] == "2026-01-01T00:01:00+00:00"
    polls = 0
    served.answers[LIST] = list(answers)
    assert [row["id"] for row in json_lines(runyard(served, "inbox", "list", "--watch", "--json"))] == [
        Q,
        OTHER,
    ]
