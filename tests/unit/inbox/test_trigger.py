"""Questions follow their thread: which changes of a thread open, keep and close them."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import text

import tests.support.factories as make
from shared import thread_copies
from shared.deployments.deployments import DeploymentRef
from shared.infra import database_version
from shared.infra.postgres import connection, driver, dumps
from shared.models import RunStatus, ThreadStatus
from shared.runs import cancel
from shared.runs.drafts import RunRequest
from shared.threads import records, state
from tests.support import owning
from tests.support.creating import insert_run

TABLES = (database_version.VERSIONS / "0101_inbox_and_sign_in.sql").read_text()
FILL = TABLES[TABLES.index("CREATE FUNCTION pg_temp") : TABLES.index("ALTER TABLE question")]
ONE = {"task": [{"id": "q", "value": {"question": "May I?"}}]}
TWO = {"task": [{"id": "q", "value": 1}], "other": [{"id": "r", "value": 2}]}


class Graph:
    """A thread of a deployment, and its graph."""

    def __init__(self, deployment: DeploymentRef) -> None:
        self.deployment = deployment
        self.thread_id = make.thread(deployment.id)

    def start(self, **request: Any) -> UUID:
        """Create a run. Returns its id."""
        requested = RunRequest(**{"assistant_id": "agent", "input": {}, **request})
        with driver() as conn:
            return insert_run(conn, self.deployment, requested, thread_id=self.thread_id, key_id="k").run_id

    def resume(self, value: Any) -> UUID:
        return self.start(input=None, command={"resume": value})

    def end(
        self,
        run_id: UUID,
        interrupts: Any = None,
        *,
        next: list[str] | None = None,
        stored: str | None = None,
        **fields: Any,
    ) -> None:
        """Run a pending run to its end: at these interrupts, or before these nodes."""
        (run,) = owning.claim(run_id)
        waits = bool(interrupts or next)
        fields = {
            "thread_status": ThreadStatus.INTERRUPTED if waits else ThreadStatus.IDLE,
            "state": dumps(make.state(self.thread_id, "c", next=next or (["node"] if interrupts else []))),
            "interrupts": stored or dumps({} if interrupts is None else interrupts),
            "values": "{}",
            **fields,
        }
        owning.finish(run, **fields)

    def ask(self, interrupts: Any = ONE, **fields: Any) -> UUID:
        run_id = self.start()
        self.end(run_id, interrupts, **fields)
        return run_id

    def questions(self) -> list[dict[str, Any]]:
        with connection() as conn:
            rows = conn.execute(
                text("SELECT *, xmin FROM question WHERE thread_id = :id ORDER BY asked_at, interrupt_id"),
                {"id": self.thread_id},
            )
            return [dict(row) for row in rows.mappings()]

    @property
    def open(self) -> list[str]:
        return [row["interrupt_id"] for row in self.questions() if row["closed_at"] is None]


@pytest.fixture
def graph(deployment: DeploymentRef) -> Graph:
    return Graph(deployment)


def test_an_interrupt_is_a_question_until_a_run_resumes_the_thread(graph: Graph) -> None:
    asked = graph.ask()

    (question,) = graph.questions()
    assert (question["kind"], question["value"], question["run_id"]) == (
        "interrupt",
        {"question": "May I?"},
        asked,
    )
    assert (question["asked_by"], question["closed_at"]) == ("k", None)

    answer = graph.resume("yes")
    (question,) = graph.questions()
    assert question["closed_at"] is not None
    assert (question["answer"], question["answered_by"], question["answer_run_id"]) == ("yes", "k", answer)
    graph.end(answer)
    assert len(graph.questions()) == 1


def test_a_breakpoint_is_a_question_until_the_run_continues(graph: Graph) -> None:
    graph.ask(None, next=["work"])
    (question,) = graph.questions()
    assert (question["kind"], question["interrupt_id"], question["value"]) == (
        "breakpoint",
        "breakpoint",
        ["work"],
    )

    answer = graph.start(input=None)
    (question,) = graph.questions()
    assert (question["answer"], question["answer_run_id"]) == (None, answer)
    assert question["answered_at"] is not None


def test_a_run_with_input_closes_questions_without_an_answer(graph: Graph) -> None:
    graph.ask()
    graph.start()
    (question,) = graph.questions()
    assert question["closed_at"] is not None
    assert question["answered_at"] is None


def test_an_answer_by_id_leaves_the_other_question_open(graph: Graph) -> None:
    graph.ask(TWO)
    answer = graph.resume({"q": "yes"})
    assert graph.open == ["r"]

    second = graph.resume({"r": "no"})  # while the first run is live
    assert graph.open == []
    assert [row["answer"] for row in graph.questions()] == ["yes", "no"]
    graph.end(answer, {"other": TWO["other"]})
    graph.end(second)
    assert [row["answer_run_id"] for row in graph.questions()] == [answer, second]


def test_the_other_question_stays_the_same_row_after_the_answer(graph: Graph) -> None:
    graph.ask(TWO)
    before = {row["interrupt_id"]: row["question_id"] for row in graph.questions()}
    graph.end(graph.resume({"q": "yes"}), {"other": TWO["other"]})
    assert graph.open == ["r"]
    assert {row["interrupt_id"]: row["question_id"] for row in graph.questions()} == before


def test_a_value_that_names_none_of_several_questions_answers_none(graph: Graph) -> None:
    graph.ask(TWO)
    graph.resume("yes")  # the graph refuses it
    assert [row["closed_at"] is None for row in graph.questions()] == [False, False]
    assert [row["answered_at"] for row in graph.questions()] == [None, None]


def test_a_thread_asks_at_most_1000_questions_at_once(graph: Graph) -> None:
    """Large documents are read once for all of them: the commit would otherwise exceed the time of a statement."""
    interrupts = [{"id": f"{number:05}", "value": number} for number in range(10_000)]
    values = dumps({"messages": [{"type": "ai", "content": "x" * 1_000_000}]})
    graph.ask({"task": interrupts}, values=values)
    assert graph.open == [interrupt["id"] for interrupt in interrupts[:1000]]

    answer = graph.resume({"00000": "yes", "05000": "no"})
    assert len(graph.open) == 999
    graph.end(answer, {"task": [one for one in interrupts if one["id"] not in ("00000", "05000")]})
    assert graph.open == [interrupt["id"] for interrupt in interrupts[1:1001]]
    assert [row["answer"] for row in graph.questions() if row["answered_at"]] == ["yes"]

    graph.resume({interrupt["id"]: "yes" for interrupt in interrupts[1:] if interrupt["id"] != "05000"})
    assert graph.open == []


def test_an_open_question_is_closed_when_its_thread_ends_without_it(graph: Graph) -> None:
    graph.ask(TWO)
    answer = graph.resume({"q": "yes"})
    later = graph.start()
    graph.end(answer, {}, status=RunStatus.ERROR, thread_status=ThreadStatus.ERROR)
    graph.end(later)
    assert graph.open == []


def test_a_node_that_asks_again_under_the_same_id_asks_a_new_question(graph: Graph) -> None:
    graph.ask()
    graph.end(graph.resume("yes"), {"task": [{"id": "q", "value": "Sure?"}]})
    first, second = graph.questions()
    assert (first["answer"], second["value"], second["closed_at"]) == ("yes", "Sure?", None)


def test_a_question_comes_back_when_the_run_that_ignored_it_is_cancelled(graph: Graph) -> None:
    graph.ask()
    ignoring = graph.start()
    assert graph.open == []
    with connection() as conn:
        cancel.cancel_run(conn, graph.deployment.id, graph.thread_id, ignoring)
    assert graph.open == ["q"]
    assert len(graph.questions()) == 1


@pytest.mark.parametrize("action", ["interrupt", "rollback"])
def test_a_question_is_asked_again_when_its_answer_is_cancelled(graph: Graph, action: str) -> None:
    graph.ask()
    answer = graph.resume("yes")
    with connection() as conn:
        cancel.cancel_run(conn, graph.deployment.id, graph.thread_id, answer, action=action)
    answered, again = graph.questions()
    assert (answered["answer"], again["closed_at"], again["run_id"]) == ("yes", None, answered["run_id"])


def test_a_breakpoint_comes_back_when_the_run_that_continues_is_cancelled(graph: Graph) -> None:
    graph.ask(None, next=["work"])
    continuing = graph.start(input=None)
    with connection() as conn:
        cancel.cancel_run(conn, graph.deployment.id, graph.thread_id, continuing)
    assert graph.open == ["breakpoint"]


def test_a_cancelled_run_is_no_breakpoint(graph: Graph) -> None:
    run_id = graph.start()
    graph.end(run_id, None, next=["work"], status=RunStatus.INTERRUPTED)
    assert graph.questions() == []


@pytest.mark.parametrize("deletes_newest", [True, False])
def test_a_deleted_run_ends_the_questions_of_its_checkpoint(graph: Graph, deletes_newest: bool) -> None:
    earlier = graph.start()
    (run,) = owning.claim(earlier)
    owning.store(run, "b")
    owning.finish(run)
    asked = graph.start()
    (run,) = owning.claim(asked)
    owning.store(run, "c")
    owning.finish(
        run,
        thread_status=ThreadStatus.INTERRUPTED,
        values="{}",
        state=dumps(make.state(graph.thread_id, "c", next=["node"])),
        interrupts=dumps(ONE),
    )
    assert graph.open == ["q"]

    with connection() as conn:
        cancel.delete_run(conn, graph.deployment.id, graph.thread_id, asked if deletes_newest else earlier)
        thread = records.get(conn, graph.deployment.id, graph.thread_id)
    assert (graph.open, thread["status"]) == (([], "idle") if deletes_newest else (["q"], "interrupted"))


def updated(graph: Graph, next: list[str]) -> None:
    """Store an update of the thread's state, as a graph host returns it."""
    answer = {"written": [], "state": {"next": next}, "interrupts": {}}
    with connection() as conn:
        state.store_update(
            conn, graph.deployment.id, graph.thread_id, uuid4(), answer, b"{}", [], from_newest=False
        )


def test_an_update_of_the_state_asks_no_question_and_closes_those_that_it_ends(graph: Graph) -> None:
    updated(graph, ["work"])
    assert graph.questions() == []
    graph.ask()
    updated(graph, [])
    assert graph.open == []


def test_an_update_at_a_breakpoint_keeps_it(graph: Graph) -> None:
    graph.ask(None, next=["work"])
    updated(graph, ["other"])
    (question,) = graph.questions()
    assert (question["closed_at"], question["value"]) == (None, ["other"])


@pytest.mark.parametrize("answers_first", [False, True])
def test_an_update_that_removes_interrupts_asks_whether_to_continue(
    graph: Graph, answers_first: bool
) -> None:
    graph.ask(TWO)
    if answers_first:
        graph.end(graph.resume({"q": True}), {"other": TWO["other"]})
    updated(graph, ["work"])
    assert graph.open == ["breakpoint"]
    updated(graph, ["other"])
    assert graph.open == ["breakpoint"]

    cancelled = graph.start()
    assert graph.open == []
    with connection() as conn:
        cancel.cancel_run(conn, graph.deployment.id, graph.thread_id, cancelled)
    assert graph.open == ["breakpoint"]

    graph.end(graph.start(input=None), ONE)
    assert graph.open == ["q"]


def test_a_copy_of_a_thread_asks_nothing_and_a_deleted_thread_takes_its_questions_along(graph: Graph) -> None:
    graph.ask()
    with connection() as conn:
        copy = thread_copies.copy(conn, graph.deployment.id, graph.thread_id)
        count = text("SELECT count(*) FROM question WHERE thread_id = :id")
        assert conn.execute(count, {"id": copy["thread_id"]}).scalar() == 0
        cancel.delete_thread(conn, graph.deployment.id, graph.thread_id)
    assert graph.questions() == []


def test_other_changes_of_a_thread_touch_no_question(graph: Graph) -> None:
    graph.ask()
    before = graph.questions()
    with connection() as conn:
        records.update(conn, graph.deployment.id, graph.thread_id, metadata={"title": "other"})
        thread_copies.prune(conn, graph.deployment.id, [graph.thread_id], strategy="keep_latest")
        records.settle(conn, graph.deployment.id, graph.thread_id)
    assert graph.questions() == before


MALFORMED: list[Any] = [
    [],
    {"task": "text"},
    {"task": [1, None, {"value": 1}, {"id": None}]},
    {"task": [{"id": "x" * 20_000, "value": 1}]},
    {"task": [{"id": {"a": 1}}]},
    {"task": {"id": "q"}},
    "text",
]


@pytest.mark.parametrize("interrupts", MALFORMED)
def test_malformed_interrupts_do_not_fail_the_end_of_a_run(graph: Graph, interrupts: Any) -> None:
    run_id = graph.start()
    graph.end(run_id, interrupts, thread_status=ThreadStatus.INTERRUPTED)
    assert owning.row(run_id)["status"] == "success"
    graph.end(graph.resume({"q": 1}))


@pytest.mark.parametrize(
    "document",
    ['{"t": [{"id": "q", "value": "a\\u0000b \\ud800"}]}', '{"t": [{"id": "q\\u0000", "value": 1e999999}]}'],
)
def test_texts_that_postgresql_cannot_read_do_not_fail_the_end_of_a_run(graph: Graph, document: str) -> None:
    run_id = graph.start()
    graph.end(
        run_id,
        None,
        thread_status=ThreadStatus.INTERRUPTED,
        stored=document,
        values='{"messages": [{"type": "human", "content": "a\\u0000"}]}',
    )
    assert owning.row(run_id)["status"] == "success"
    answer = graph.start(input=None, command={"resume": {"q": "a\0", "b": "\0"}})
    graph.end(answer)
    assert owning.row(answer)["status"] == "success"


@pytest.mark.parametrize(
    "rules", [{"expire_after_seconds": "soon"}, {"expire_after_seconds": 1e300}, [], "x", {"webhook": {}}]
)
def test_malformed_rules_do_not_keep_a_question_from_being_asked(graph: Graph, rules: Any) -> None:
    with connection() as conn:
        conn.execute(text("UPDATE deployment SET inbox = CAST(:rules AS jsonb)"), {"rules": dumps(rules)})
    graph.ask()
    assert graph.open == ["q"]


@pytest.mark.parametrize(
    ("metadata", "values", "title"),
    [
        ({"title": "  A  title "}, {}, "A title"),
        ({"title": {"a": 1}}, {"messages": [{"type": "human", "content": "hello\nthere"}]}, "hello there"),
        (
            {},
            {
                "messages": [
                    "x",
                    {"type": "ai", "content": "no"},
                    {"role": "user", "content": [1, {"text": "yes"}]},
                ]
            },
            "yes",
        ),
        ({}, {"messages": {"type": "human"}}, ""),
        ({}, ["messages"], ""),
        ({}, None, ""),
        ({"title": ""}, {"messages": [{"type": "human", "content": "x" * 500}]}, "x" * 120),
    ],
)
def test_the_title_of_a_thread(deployment: DeploymentRef, metadata: Any, values: Any, title: str) -> None:
    with connection() as conn:
        query = text("SELECT thread_title(CAST(:metadata AS jsonb), CAST(:values AS json))")
        assert conn.execute(query, {"metadata": dumps(metadata), "values": dumps(values)}).scalar() == title


def test_callers_have_a_label(deployment: DeploymentRef) -> None:
    with connection() as conn:
        keys = "INSERT INTO api_key (id, organization_id, name, secret_hash) VALUES ('k1', :id, 'ci', '')"
        conn.execute(text(keys), {"id": deployment.organization_id})
        people = "INSERT INTO account (id, issuer, subject, name) VALUES ('account:1', 'https://id', 'ann', 'Ann Miller')"
        conn.execute(text(people))
        ids = ["k1", "account:1", "account:gone", "user:ann", ""]
        labels = conn.execute(
            text("SELECT key_label(id) FROM unnest(CAST(:ids AS text[])) AS id"), {"ids": ids}
        )
        assert labels.scalars().all() == ["ci (k1)", "Ann Miller", "account:gone", None, None]


def test_the_migration_fills_in_the_questions_of_interrupted_threads(graph: Graph) -> None:
    other, plain = Graph(graph.deployment), Graph(graph.deployment)
    graph.ask(TWO)
    other.ask(None, next=["work"])
    updated(plain, ["work"])
    malformed = Graph(graph.deployment)
    malformed.ask({"task": "text"}, thread_status=ThreadStatus.INTERRUPTED)
    with connection() as conn:
        conn.execute(text("DELETE FROM question"))
        conn.exec_driver_sql(FILL)
    assert graph.open == ["q", "r"]
    assert other.open == ["breakpoint"]
    assert plain.open == malformed.open == []
    graph.end(graph.resume({"q": 1}), {"other": TWO["other"]})
    assert graph.open == ["r"]
