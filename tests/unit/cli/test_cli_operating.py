"""`runyard workers`, `keys` and `limits`: their calls and their output."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from cli.operating import workers
from tests.support.commands import runyard
from tests.support.control_plane import ControlPlane, D, record
from tests.support.greened import constants

pytestmark = pytest.mark.usefixtures("nowhere")

POOL = {
    "name": "default", "runners": 2, "draining": 0, "silent": 0, "slots": 20, "hosts": 0, "running": 0, "pending": 0,
    "oldest_wait_seconds": 0.0, "ended_a_minute": 0,
}  # fmt: skip


def worker(id: str, kind: str = "runner", **fields: Any) -> dict[str, Any]:
    host_name, pid, _ = id.split(":")
    return {
        "id": id, "kind": kind, "pool": "default", "state": "ready", "host_name": host_name, "pid": int(pid),
        "running": 0, "slots": 10, "hosts": [], "host_count": 0, "isolation": 2, "version": "0.2.0",
        "silent_seconds": 1.0, **fields,
    }  # fmt: skip


FLEET = [worker("box:1:a"), worker("box:2:b", "builder"), worker("other:1:c"), worker("box2:1:d", "builder")]


@pytest.fixture
def fleet(server: ControlPlane) -> Iterator[ControlPlane]:
    server.answers["GET /v2/workers"] = [(200, {"workers": FLEET, "pools": [POOL]})]
    for row in FLEET:
        for action in ("drain", "resume"):
            server.answers[f"POST /v2/workers/{row['id'].replace(':', '%3A')}/{action}"] = [(202, None)]
    with constants(workers, WATCH_SECONDS=0.01):
        yield server


def changed(server: ControlPlane) -> list[str]:
    """Return `ACTION ID` for each worker that was drained or resumed since the last call of this function."""
    calls = [asked.split("/")[3:] for asked in server.asked if asked.startswith("POST")]
    server.asked.clear()
    server.bodies.clear()
    return [f"{action} {id.replace('%3A', ':')}" for id, action in calls]


def test_workers_are_drained_by_id_by_process_or_by_machine(fleet: ControlPlane) -> None:
    for name, ids in (("box:1:a", ["box:1:a"]), ("other:1", ["other:1:c"]), ("box", ["box:1:a", "box:2:b"])):
        for action in ("drain", "resume"):
            ran = runyard(fleet, "workers", action, name)
            assert ran.exit_code == 0, ran.output
            assert changed(fleet) == [f"{action} {id}" for id in ids]
    for arguments, code, reason in (
        (("drain",), 2, "There are 2 runners; choose one: box:1, other:1."),
        (("resume", "nobody"), 1, "There is no worker nobody. `runyard workers` lists them."),
    ):
        ran = runyard(fleet, "workers", *arguments)
        assert (ran.exit_code, reason in ran.stderr) == (code, True), ran.output
        assert changed(fleet) == []


def test_a_drain_waits_for_the_second_heartbeat_and_for_what_runs(fleet: ControlPlane) -> None:
    """Given these answers after the drain: an old heartbeat, a new one from before the worker learned of the drain, one
    with a running run, and one without.
    """
    looks = [FLEET[0] | {"silent_seconds": seconds, "running": running} for seconds, running in (
        (1.0, 0), (4.0, 0), (0.5, 0), (0.2, 1), (0.1, 0), (0.1, 0)
    )]  # fmt: skip
    pool = POOL | {"runners": 1, "draining": 1}
    fleet.answers["GET /v2/workers"] = [(200, {"workers": [row], "pools": [pool]}) for row in looks]

    ran = runyard(fleet, "workers", "drain", "--wait", "60", "--json")

    assert ran.exit_code == 0, ran.output
    assert json.loads(ran.stdout) == [{"id": "box:1:a", "state": "ready", "running": 0}]
    assert len(fleet.answers["GET /v2/workers"]) == 1, "it looked until the last of these answers"

    ran = runyard(fleet, "workers", "drain", "--wait", "0.01")
    assert ran.exit_code == 3
    assert (
        "Not idle after 0.01 s: box:1 (has not confirmed the drain yet). The drain continues." in ran.stderr
    )
    busy = {"workers": [FLEET[0] | {"running": 2}], "pools": [pool]}
    fleet.answers["GET /v2/workers"] = [(200, busy)]
    assert "box:1 (2 running)." in runyard(fleet, "workers", "drain", "--wait", "0.01").stderr

    ran = runyard(fleet, "workers", "drain")
    assert "No other runner serves the pool default" in ran.stderr


def test_workers_alone_still_lists_them(fleet: ControlPlane) -> None:
    ran = runyard(fleet, "workers")
    assert "builder" in ran.stdout
    assert len(json.loads(runyard(fleet, "workers", "--json").stdout)["workers"]) == 4


KEY = {
    "id": "abcdefgh", "name": "ci", "role": "deploy", "expires_at": None, "revoked_at": None,
    "max_concurrent_runs": 3, "max_tokens_per_day": None, "max_run_tokens": None,
}  # fmt: skip


def test_a_key_is_updated_with_what_is_given_and_nothing_else(server: ControlPlane) -> None:
    patch = "PATCH /v2/keys/abcdefgh"
    server.answers[patch] = [(200, KEY)]
    for options, body in (
        (["--name", "ci"], {"name": "ci"}),
        (["--role", "deploy", "--days", "0"], {"role": "deploy", "lifetime_days": 0}),
        (
            ["--max-concurrent-runs", "3", "--max-run-tokens", "0"],
            {"max_concurrent_runs": 3, "max_run_tokens": 0},
        ),
        (
            ["--max-cost-per-day", "1.5", "--budget-webhook", ""],
            {"max_cost_per_day": 1.5, "budget_webhook": ""},
        ),
    ):
        ran = runyard(server, "keys", "update", "ryd_abcdefgh_secret", *options)
        assert ran.stdout == "Key abcdefgh (ci): role deploy, valid, max_concurrent_runs 3.\n", ran.output
        assert server.body(patch) == body
    server.asked.clear()
    for options, says in (([], "Nothing to change"), (["--role", "boss"], "There is no role 'boss'")):
        ran = runyard(server, "keys", "update", "abcdefgh", *options)
        assert (ran.exit_code, says in ran.stderr, server.asked) == (2, True, []), ran.output


def test_limits_are_shown_and_changed_without_a_revision(server: ControlPlane) -> None:
    limits = {"max_concurrent_runs": 4, "memory_mb": None, "max_run_cost": 0.00001}
    found = record(pool="gpu", limits=limits, require_replay=False)
    patch = f"PATCH /v2/deployments/{D}"
    server.answers = {"GET /v2/deployments": [(200, {"resources": [found]})], patch: [(200, found)]}

    ran = runyard(server, "limits", "app")
    assert [line.split() for line in ran.stdout.splitlines()] == [
        ["pool", "gpu"], ["max_concurrent_runs", "4"], ["memory_mb", "-"], ["max_run_cost", "0.00001"],
        ["require_replay", "False"],
    ]  # fmt: skip
    assert patch not in server.asked

    ran = runyard(
        server, "limits", "app", "--pool", "gpu", "--run-timeout", "0", "--memory-mb", "512", "--json"
    )
    assert json.loads(ran.stdout) == {
        "id": D,
        "name": "app",
        "pool": "gpu",
        **limits,
        "require_replay": False,
    }
    assert server.body(patch) == {"pool": "gpu", "limits": {"run_timeout_seconds": 0, "memory_mb": 512}}

    runyard(server, "limits", "app", "--max-user-cost-per-day", "0.25", "--max-thread-tokens-per-day", "9")
    assert server.body(patch) == {"limits": {"max_user_cost_per_day": 0.25, "max_thread_tokens_per_day": 9}}

    runyard(server, "limits", "app", "--require-replay")
    assert server.body(patch) == {"require_replay": True}


@pytest.mark.parametrize("command", ["limits", "deploy"])
@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("--run-timeout", "inf", "must be a finite number"),
        ("--run-timeout", "nan", "Input should be greater than"),
        ("--pool", "", "must not be empty"),
    ],
)
def test_a_limit_that_no_service_takes_is_refused(
    server: ControlPlane, command: str, option: str, value: str, says: str
) -> None:
    ran = runyard(server, command, option, value)
    assert ran.exit_code == 2
    assert option in ran.stderr
    assert says in ran.stderr
    assert server.asked == []
