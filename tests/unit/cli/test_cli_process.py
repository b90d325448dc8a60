"""`runyard process`: what it becomes, and with which variables."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli import process, procfile
from cli.main import app
from shared.settings import BadSetting


def test_an_unknown_name_is_answered_with_those_there_are() -> None:
    ran = CliRunner().invoke(app, ["process", "postgres"])

    assert ran.exit_code == 2
    assert "'postgres'" in ran.stderr
    assert "release, web, runner, builder, beat" in ran.stderr


def test_a_setting_that_cannot_be_used_is_named_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RUNYARD_PORT", "http")

    ran = CliRunner().invoke(app, ["process", "web"])

    assert ran.exit_code == 1
    assert "RUNYARD_PORT" in ran.stderr


def test_it_becomes_the_command_of_the_procfile_in_the_folder_of_the_service(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    became: list[tuple[str, list[str], str, str]] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RUNYARD_POOL", "gpu")
    monkeypatch.setattr(
        os,
        "execve",
        lambda program, argv, given: became.append((program, argv, given["RUNYARD_POOL"], os.getcwd())),
    )

    ran = CliRunner().invoke(app, ["process", "runner"])

    [line] = [line for line in procfile.read() if line.name == "runner"]
    assert ran.exit_code == 0, ran.output
    assert became == [("/bin/sh", line.argv, "gpu", str(procfile.PROJECT))]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_paths_are_meant_from_where_it_was_typed(here: Path) -> None:
    (here / "url").write_text("postgresql://somewhere/db")
    given = {"RUNYARD_DATA_DIR": "data", "DATABASE_URL_FILE": "url", "RUNYARD_API_KEY_FILE": ""}

    environment = process.environment_of(process.line_of("web"), given)

    assert environment["RUNYARD_DATA_DIR"] == str(here / "data")
    assert environment["RUNYARD_CACHE_DIR"] == str(here / "data" / "cache")
    assert environment["DATABASE_URL_FILE"] == str(here / "url")
    assert environment["RUNYARD_API_KEY_FILE"] == ""


def test_modules_and_programs_are_ours_whatever_the_caller_has(here: Path) -> None:
    given = {"PATH": "/theirs/bin", "PYTHONPATH": "/theirs", "OTHER": "as it is"}

    environment = process.environment_of(process.line_of("web"), given)

    assert environment["PATH"] == f"{Path(sys.executable).parent}{os.pathsep}/theirs/bin"
    assert environment["PYTHONPATH"] == str(procfile.PROJECT)
    assert environment["PYTHONSAFEPATH"] == "1"
    assert environment["OTHER"] == "as it is"


def test_beat_gets_no_key(here: Path) -> None:
    given = {"DATABASE_URL": "postgresql://x/y", "RUNYARD_API_KEY": "k", "REDIS_URL": "redis://r"}

    environment = process.environment_of(process.line_of("beat"), given)

    assert not {"DATABASE_URL", "RUNYARD_API_KEY"} & environment.keys()
    assert environment["REDIS_URL"] == "redis://r"


def test_a_file_that_cannot_be_read_is_named(here: Path) -> None:
    with pytest.raises(BadSetting, match="DATABASE_URL_FILE"):
        process.environment_of(process.line_of("web"), {"DATABASE_URL_FILE": "missing"})
