"""The Procfile consumes every queue, and everything that it names exists."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from cli.machine import up
from cli.machine.procfile import PROJECT, BadProcfile, ProcfileLine, read
from cli.machine.supervisor import Child, SupervisedProgram, Supervisor
from shared.infra import broker, system
from shared.settings import Settings
from workers.isolation import sandbox

LINES = {line.name: line.command for line in read()}


def consumed() -> set[str]:
    """Return the queues in the worker lines, with the defaults of variables substituted."""
    found: set[str] = set()
    for command in LINES.values():
        for names in re.findall(r"-Q (\S+)", command):
            found |= set(re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", names).split(","))
    return found


def test_it_has_the_processes_of_the_design_and_serves_every_queue() -> None:
    assert list(LINES) == ["release", "web", "runner", "builder", "beat"]
    assert consumed() == {broker.BUILDS, broker.runs_queue("default"), broker.hosts_queue("default")}
    assert (PROJECT / "web" / "gunicorn.py").is_file()
    assert (PROJECT / "workers" / "app.py").is_file()
    assert (PROJECT / "shared" / "migrations" / "__main__.py").is_file()


def test_the_shell_hands_over_to_the_command() -> None:
    assert ProcfileLine("web", "gunicorn -c x").argv == ["/bin/sh", "-c", "exec gunicorn -c x"]

    assert ProcfileLine("release", "x").environment({"HONCHO_PROCESS_NAME": "release.1"}) == {}

    whole = {
        "DATABASE_URL": "a",
        "RUNYARD_API_KEY": "b",
        "RUNYARD_ENCRYPTION_KEYS_FILE": "c",
        "REDIS_URL": "d",
    }

    assert ProcfileLine("beat", "x").environment(whole) == {"REDIS_URL": "d"}
    assert ProcfileLine("web", "x").environment(whole) == whole


class Recorder(Supervisor):
    """A supervisor that starts nothing and records the environments."""

    def __init__(self) -> None:
        super().__init__(lambda name, line: None)
        self.given: dict[str, Mapping[str, str]] = {}
        self.with_beat: list[str] = []

    def start(self, program: SupervisedProgram, *, restarts: bool = True) -> Child:
        self.given[program.name] = program.environment
        if program.argv[-1].endswith("--with-beat"):
            self.with_beat.append(program.name)
        return Child(program)

    def wait_until(
        self, condition: Callable[[], bool], *, seconds: float, needs: Child | None = None
    ) -> bool:
        return True


def test_every_process_is_started_with_what_it_needs_and_beat_within_one_builder() -> None:
    keys = {"DATABASE_URL", "RUNYARD_API_KEY", "RUNYARD_ENCRYPTION_KEYS"}
    settings, recorder = Settings.from_env({}), Recorder()

    for is_first in (True, False):
        up._start_processes(settings, recorder, up.environment_of(settings), [], is_first=is_first)

    assert {name: keys & given.keys() for name, given in recorder.given.items()} == {
        "web": keys, "runner": keys, "builder": keys,
    }  # fmt: skip
    assert all("REDIS_URL" in given for given in recorder.given.values())

    settings = Settings.from_env({"RUNYARD_PROCESSES": "web=2, runner=3, builder=2"})
    recorder = Recorder()

    for is_first in (True, False):
        up._start_processes(settings, recorder, up.environment_of(settings), [], is_first=is_first)

    assert set(recorder.given) == {"web", "runner", "runner.2", "runner.3", "builder", "builder.2"}
    assert recorder.with_beat == ["builder"]
    assert recorder.given["web"]["RUNYARD_PROCESSES"] == "web=2,runner=3,builder=2"


def test_the_fork_server_gets_no_address_and_no_key_and_is_not_started_where_a_fork_is_not_safe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(system, "is_linux", lambda: False)
    recorder = Recorder()

    assert up.start_fork_server(Settings.from_env({}), recorder) is None
    assert recorder.given == {}

    monkeypatch.setenv("DATABASE_URL", "postgresql://secret")
    monkeypatch.setattr(system, "is_linux", lambda: True)
    recorder = Recorder()

    up.start_fork_server(
        replace(Settings.from_env({}), api_key="secret", encryption_keys=("secret",)), recorder
    )

    assert "secret" not in str(recorder.given["forks"])


def test_no_process_looks_for_modules_where_its_starter_has_his(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/theirs")

    environment = up.environment_of(Settings.from_env({}))

    assert (environment["PYTHONPATH"], environment["PYTHONSAFEPATH"]) == (str(PROJECT), "1")


@pytest.mark.parametrize(
    "line",
    [
        f"12:00:00.00{{}} WARNING {sandbox.__name__}: isolation level 0: no bwrap",
        f'{{{{"at":{{}},"level":"WARNING","logger":"{sandbox.__name__}","message":"isolation level 0"}}}}',
    ],
)
def test_what_processes_say_of_the_machine_they_share_is_shown_once(line: str) -> None:
    shown: list[str] = []
    show = up.OncePerMachine(lambda name, line: shown.append(name))

    for number, name in enumerate(("runner", "builder")):
        show(name, line.format(number))
        show(name, "WARNING workers.runner: the database is away")

    assert shown == ["runner", "runner", "builder"]


def test_valkey_s_advice_on_the_kernel_and_its_ordinary_end_are_left_out_and_its_errors_are_shown() -> None:
    shown: list[tuple[str, str]] = []
    show = up.OncePerMachine(lambda name, line: shown.append((name, line)))
    at = "7:M 24 Nov 2026 19:28:03.919 # "

    for name in ("valkey", "runner"):
        show(name, f"{at}WARNING Memory overcommit must be enabled! Without it, a background save may fail.")
        show(name, f"{at}WARNING You have Transparent Huge Pages (THP) support enabled in your kernel.")
        show(name, "7:signal-handler (1795660632) Received SIGTERM scheduling shutdown...")
        show(name, f"{at}Valkey is now ready to exit, bye bye...")
        show(name, f"{at}MISCONF Errors writing to the AOF file: No space left on device")

    assert [name for name, _ in shown] == ["valkey", *["runner"] * 5]


def test_a_line_that_is_none_is_named(tmp_path: Path) -> None:
    bad = tmp_path / "Procfile"
    bad.write_text("# a comment\n\nweb: serve\nnonsense\n")
    with pytest.raises(BadProcfile, match="line 4"):
        read(bad)
