"""Lines of user code on their way to the deployment's log: what one host may write."""

from __future__ import annotations

from uuid import uuid4

from tests.support.greened import World, constants, greened
from tests.support.waiting import until
from workers.runner import deployment_log
from workers.runner.deployment_log import BURST_LINES, LINES_A_SECOND, Allowance, DeployLog


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
    log._greenlet.kill()  # what is to be stored stays to be looked at
    with constants(deployment_log, REPORT_SECONDS=0.05):
        write, beside = log.of(uuid4(), noisy, []), log.of(uuid4(), quiet, [])

        for n in range(BURST_LINES * 3):
            write("INFO", f"line {n}", None)
        beside("INFO", "mine", None)

        until(lambda: "dropped" in log._lines[-1].message)
    assert [line.message for line in log._lines if line.revision_id == quiet] == ["mine"]
    told = [line.message for line in log._lines if line.revision_id == noisy]
    assert BURST_LINES < len(told) < BURST_LINES + LINES_A_SECOND
    dropped = BURST_LINES * 3 - (len(told) - 1)
    assert told[-1] == f"{dropped} lines dropped: more than {LINES_A_SECOND} a second"


@greened
def test_a_record_of_several_lines_stays_one_and_shows_no_secret(world: World) -> None:
    log = DeployLog()
    log._greenlet.kill()  # what is to be stored stays to be looked at

    log.of(uuid4(), uuid4(), ["first part\nsecond part"])(
        "INFO", "a\nfirst part\nsecond part\x1b[2J\nb", None
    )
    log.of(uuid4(), uuid4(), ["first part\nsecond part"])("INFO", "second part", None)

    assert [line.message for line in log._lines] == ["a\n***\\x1b[2J\nb", "***"]
