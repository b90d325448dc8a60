"""`runyard process`: the program that replaces it, and that program's environment."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from cli.errors import CommandFailed
from cli.machine import procfile
from shared.setting_values import BadSetting
from tests.support.commands import invoke

SERVERS = {
    "DATABASE_URL": "postgresql://somewhere/db",
    "REDIS_URL": "redis://somewhere",
    "RUNYARD_ENCRYPTION_KEYS": "k",
}


def test_an_unknown_name_and_a_bad_setting_are_named_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ran = invoke("process", "postgres")

    assert ran.exit_code == 2
    assert "'postgres'" in ran.stderr
    assert "release, web, runner, builder, beat" in ran.stderr

    monkeypatch.setenv("RUNYARD_PORT", "http")

    ran = invoke("process", "web")

    assert ran.exit_code == 1
    assert "RUNYARD_PORT" in ran.stderr

    monkeypatch.delenv("RUNYARD_PORT")
    for command in ("process web", "up"):
        monkeypatch.setenv("RUNYARD_DEV_DEPLOYMENT", "chat")

        ran = invoke(*command.split())

        assert (ran.exit_code, "RUNYARD_DEV_DEPLOYMENT is set by `runyard dev`" in ran.stderr) == (1, True)


def test_it_becomes_the_command_of_the_procfile_in_the_folder_of_the_service(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    became: list[tuple[str, list[str], str, str]] = []
    monkeypatch.chdir(tmp_path)
    for name, value in {**SERVERS, "RUNYARD_POOL": "gpu", "RUNYARD_SLOTS": "9"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(
        os,
        "execve",
        lambda program, argv, given: became.append((program, argv, given["RUNYARD_POOL"], os.getcwd())),
    )

    ran = invoke("process", "runner")

    [line] = [line for line in procfile.read() if line.name == "runner"]
    assert ran.exit_code == 0, ran.output
    assert "RUNYARD_SLOTS is not a setting" in ran.stderr
    assert became == [("/bin/sh", line.argv, "gpu", str(procfile.PROJECT))]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_paths_are_meant_from_where_it_was_typed_and_modules_and_programs_are_ours(here: Path) -> None:
    """Relative paths are resolved in the caller's directory. PATH and PYTHONPATH find the service's code first."""
    (here / "url").write_text("postgresql://somewhere/db")
    given = {
        **SERVERS,
        "DATABASE_URL": "",
        "DATABASE_URL_FILE": "url",
        "RUNYARD_DATA_DIR": "data",
        "RUNYARD_API_KEY_FILE": "",
    }

    environment = procfile.environment_of(procfile.line_of("web"), given)

    assert environment["RUNYARD_DATA_DIR"] == str(here / "data")
    assert environment["RUNYARD_CACHE_DIR"] == str(here / "data" / "cache")
    assert environment["DATABASE_URL_FILE"] == str(here / "url")
    assert environment["RUNYARD_API_KEY_FILE"] == ""

    given = {**SERVERS, "PATH": "/theirs/bin", "PYTHONPATH": "/theirs", "OTHER": "as it is"}

    environment = procfile.environment_of(procfile.line_of("web"), given)

    assert environment["PATH"] == f"{Path(sys.executable).parent}{os.pathsep}/theirs/bin"
    assert environment["PYTHONPATH"] == str(procfile.PROJECT)
    assert environment["PYTHONSAFEPATH"] == "1"
    assert environment["OTHER"] == "as it is"


def test_beat_gets_no_key(here: Path) -> None:
    given = {**SERVERS, "RUNYARD_API_KEY": "k"}

    environment = procfile.environment_of(procfile.line_of("beat"), given)

    assert not {"DATABASE_URL", "RUNYARD_API_KEY", "RUNYARD_ENCRYPTION_KEYS"} & environment.keys()
    assert environment["REDIS_URL"] == SERVERS["REDIS_URL"]


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("release", "DATABASE_URL"),
        ("web", "DATABASE_URL and REDIS_URL and RUNYARD_ENCRYPTION_KEYS"),
        ("runner", "DATABASE_URL and REDIS_URL and RUNYARD_ENCRYPTION_KEYS"),
        ("builder", "DATABASE_URL and REDIS_URL and RUNYARD_ENCRYPTION_KEYS"),
        ("beat", "REDIS_URL"),
    ],
)
def test_what_a_process_cannot_do_without_is_named(here: Path, name: str, missing: str) -> None:
    with pytest.raises(CommandFailed, match=f"{name} needs {missing}: set"):
        procfile.environment_of(procfile.line_of(name), {})


def test_a_file_that_cannot_be_read_is_named(here: Path) -> None:
    with pytest.raises(BadSetting, match="DATABASE_URL_FILE"):
        procfile.environment_of(procfile.line_of("web"), {"DATABASE_URL_FILE": "missing"})
