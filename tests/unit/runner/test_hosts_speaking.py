"""Output of graph hosts: frames for their runs, printed lines, and floods of both."""

from __future__ import annotations

from uuid import UUID, uuid4

import gevent

from tests.support.greened import World, constants, greened, within
from tests.support.played_hosts import Occupant, Stage, stage
from tests.support.waiting import until
from workers.graph_host import frames
from workers.runner import deployment_log, printed_output
from workers.runner.deployment_log import BURST_LINES, LINES_A_SECOND, Allowance, DeployLog


@within(stage)
def test_frames_of_a_run_reach_it_and_late_ones_of_a_run_that_left_are_nobodys(s: Stage) -> None:
    occupant = Occupant().enter(s.acquire())

    until(lambda: occupant.frames == [(frames.EVENT, b"values\n{}")])

    host, left, other = s.acquire(), Occupant(), Occupant()
    host.enter(left.id, left, b"run")
    host.leave(left.id)
    other.enter(host)
    until(lambda: other.frames)

    assert left.frames == []
    assert host.died is None


@within(stage)
def test_what_is_printed_becomes_lines_of_bounded_length_however_it_is_written(s: Stage) -> None:
    s.part = "prints halves"
    Occupant().enter(s.acquire())
    until(lambda: "end" in [message for _, message, _ in s.lines])

    blank, hello, *long, end = [message for _, message, _ in s.lines]
    assert (blank, hello, end) == ("", "hellö world", "end")
    assert "".join(long) == "x" * 10_000
    assert max(map(len, long)) <= printed_output.LINE_BYTES
    assert {(level, run_id) for level, _, run_id in s.lines} == {("INFO", None)}


@greened
def test_a_host_that_floods_its_output_leaves_most_turns_to_others(world: World) -> None:
    lines = turns = readings = 0
    seen_at = -1

    def work_for_a_while(level: str, message: str, run_id: UUID | None) -> None:
        nonlocal lines, readings, seen_at
        lines += 1
        if turns != seen_at:
            seen_at, readings = turns, readings + 1
        sum(range(2_000))

    with stage(world) as s:
        s.part = "floods its output"
        s.output = work_for_a_while
        Occupant().enter(s.acquire())
        while lines < 10_000:
            gevent.sleep(0)
            turns += 1 if lines else 0

        assert turns > 5 * readings > 0


@greened
def test_a_host_that_floods_its_socket_leaves_others_their_turns(world: World) -> None:
    lines = turns = 0

    def count(level: str, message: str, run_id: UUID | None) -> None:
        nonlocal lines
        lines += 1

    with stage(world) as s:
        s.part = "floods its socket"
        s.output = count
        Occupant().enter(s.acquire())
        until(lambda: lines > 0)
        while lines < 60_000:
            gevent.sleep(0.001)
            turns += 1

        assert turns >= 3, "all of it was read in one turn or two"


# Rate limit of a host's lines in the deployment log


def test_a_flood_is_cut_to_an_allowance_and_counted() -> None:
    now = 0.0
    allowance = Allowance(lambda: now)

    taken = [allowance.take() for _ in range(BURST_LINES + 50)]

    assert taken == [True] * BURST_LINES + [False] * 50
    now = 1.0
    assert not allowance.take(), "what was dropped is told first"
    assert allowance.report() == 51
    assert [allowance.take() for _ in range(LINES_A_SECOND + 1)] == [True] * LINES_A_SECOND + [False]


@greened
def test_a_host_that_floods_the_log_gets_a_notice_and_others_keep_their_lines(world: World) -> None:
    log, noisy, quiet = DeployLog(), uuid4(), uuid4()
    log._greenlet.kill()  # keep the lines in the queue, where the test reads them
    with constants(deployment_log, REPORT_SECONDS=0.05, LINES_A_SECOND=0):
        write, beside = log.of(uuid4(), noisy, []), log.of(uuid4(), quiet, [])

        for n in range(BURST_LINES * 3):
            write("INFO", f"line {n}", None)
        beside("INFO", "mine", None)

        until(lambda: "dropped" in log._lines[-1].message)
    assert [line.message for line in log._lines if line.revision_id == quiet] == ["mine"]
    told = [line.message for line in log._lines if line.revision_id == noisy]
    assert len(told) == BURST_LINES + 1
    assert told[-1] == f"{BURST_LINES * 2} lines dropped: more than 0 a second"


@greened
def test_a_record_of_several_lines_stays_one_and_shows_no_secret(world: World) -> None:
    log = DeployLog()
    log._greenlet.kill()  # keep the lines in the queue, where the test reads them

    log.of(uuid4(), uuid4(), ["first part\nsecond part"])(
        "INFO", "a\nfirst part\nsecond part\x1b[2J\nb", None
    )
    log.of(uuid4(), uuid4(), ["first part\nsecond part"])("INFO", "second part", None)

    assert [line.message for line in log._lines] == ["a\n***\\x1b[2J\nb", "***"]
