"""Where the command line looks for the service, a key and an organization."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cli.api.access import find_key, find_tenant, find_url, read_env
from cli.errors import CommandFailed
from shared.settings import Settings

pytestmark = pytest.mark.usefixtures("nowhere")

# Each place a key can be in, the first one found wins.
ORDER = [
    ("given", ""),
    ("process", "RUNYARD_API_KEY"),
    (".env", "RUNYARD_API_KEY"),
    ("process", "LANGGRAPH_HOST_API_KEY"),
    (".env", "LANGGRAPH_HOST_API_KEY"),
    (".env", "LANGSMITH_API_KEY"),
    ("process", "LANGSMITH_API_KEY"),
    (".env", "LANGCHAIN_API_KEY"),
    ("process", "LANGCHAIN_API_KEY"),
    ("kept", ""),
]


@pytest.mark.parametrize("first", range(len(ORDER)), ids=lambda n: " ".join(ORDER[n]).strip())
def test_a_key_is_taken_from_the_first_source_that_has_one(
    first: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given, local = None, {}
    for place, name in ORDER[first:]:  # all places after it have one too
        key = f"{place} {name}".strip().replace(" ", "-")
        if place == "given":
            given = key
        elif place == "process":
            monkeypatch.setenv(name, key)
        elif place == ".env":
            local[name] = key
        else:
            (tmp_path / "data").mkdir()
            (tmp_path / "data" / "admin.key").write_text(f"{key}\n")
    env_file = tmp_path / ".env"
    env_file.write_text("".join(f"export {name}='{key}'\n" for name, key in local.items()))

    found = find_key(given, Settings.from_env(os.environ))

    assert found == " ".join(ORDER[first]).strip().replace(" ", "-")


def test_a_key_is_missed_with_where_to_put_one_or_refused_without_showing_it() -> None:
    with pytest.raises(CommandFailed, match=r"Set RUNYARD_API_KEY in the environment or in \.env"):
        find_key(None, Settings.from_env(os.environ))
    with pytest.raises(CommandFailed) as told:
        find_key("schlüssel", Settings.from_env(os.environ))
    assert "schlüssel" not in str(told.value)


def test_the_address_is_given_named_or_where_the_service_last_listened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(url: str | None = None) -> str:
        return find_url(url, Settings.from_env(os.environ))

    assert found() == "http://127.0.0.1:8123"
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "url").write_text("http://127.0.0.1:2024\n")
    assert found() == "http://127.0.0.1:2024"
    monkeypatch.setenv("RUNYARD_PORT", "9000")
    assert found() == "http://127.0.0.1:9000"
    monkeypatch.setenv("LANGGRAPH_HOST_URL", "https://other.example")
    assert found() == "https://other.example"
    monkeypatch.setenv("RUNYARD_URL", "https://yard.example/api-host/")
    assert found() == "https://yard.example/api-host"
    assert found("https://given.example/") == "https://given.example"


def test_an_organization_is_given_or_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_tenant(None) is None
    monkeypatch.setenv("LANGSMITH_TENANT_ID", "process")
    assert find_tenant(None) == "process"
    assert find_tenant(None, {"LANGSMITH_TENANT_ID": "file"}) == "file"
    monkeypatch.setenv("RUNYARD_ORG", "ours")
    assert find_tenant(None, {"LANGSMITH_TENANT_ID": "file"}) == "ours"
    assert find_tenant("given") == "given"


def test_a_line_that_sets_nothing_is_reported_once_and_a_file_that_cannot_be_read_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / ".env"
    path.write_text("A=1\nnot a variable\nB=2\n")
    for _ in range(2):
        assert read_env(path) == {"A": "1", "B": "2"}
    assert capsys.readouterr().err == f"Line 2 of {path} is not NAME=value: it sets nothing.\n"

    (tmp_path / ".env").write_bytes(b"\xff\xfe")
    with pytest.raises(CommandFailed, match="cannot be read"):
        read_env(tmp_path / ".env")
