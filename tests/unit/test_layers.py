"""Who may import whom: web → shared ← workers; the command line and the graph host stand apart."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
OURS = frozenset({"shared", "web", "workers", "cli", "tests", "bench"})
HOST = PROJECT / "workers" / "graph_host"

# What the library brings along may be used where the library is.
HOST_MAY_IMPORT = frozenset(
    {
        "graph_host",
        "langgraph",
        "langchain_core",
        "langgraph_sdk",
        "orjson",
        "ormsgpack",
        "pydantic",
        "httpx",
        "typing_extensions",
    }
)
FORBIDDEN = {
    "shared": {
        "web",
        "workers",
        "cli",
        "flask",
        "werkzeug",
        "marshmallow",
        "gunicorn",
        "langgraph",
        "langchain_core",
    },
    "web": {"workers", "cli", "langgraph", "langchain_core"},
    "workers": {"web", "cli", "flask", "marshmallow"},
    "cli": {"web", "workers", "flask", "marshmallow", "celery"},
}

# What makes objects of stored bytes.
DECODERS = frozenset({"langgraph", "langchain_core", "ormsgpack", "msgpack", "pickle", "marshal", "shelve"})


def modules(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.py") if "__pycache__" not in path.parts)


def imported(path: Path) -> set[str]:
    """The top-level packages a module imports, wherever in its text; relative ones are its own."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module)
    return {name.partition(".")[0] for name in names}


def name(path: Path) -> str:
    return str(path.relative_to(PROJECT))


@pytest.mark.parametrize("package", FORBIDDEN)
def test_a_package_imports_only_what_its_layer_may(package: str) -> None:
    wrong = {
        name(path): found
        for path in modules(PROJECT / package)
        if not path.is_relative_to(HOST) and (found := imported(path) & FORBIDDEN[package])
    }
    assert wrong == {}


def test_the_graph_host_imports_nothing_of_ours_and_only_what_a_revision_has() -> None:
    allowed = HOST_MAY_IMPORT | sys.stdlib_module_names
    wrong = {name(path): found for path in modules(HOST) if (found := imported(path) - allowed)}
    assert wrong == {}


def test_the_graph_host_does_not_reach_out_of_its_package() -> None:
    for path in modules(HOST):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                assert node.level <= len(path.relative_to(HOST).parts), name(path)


@pytest.mark.parametrize("package", FORBIDDEN)
def test_nothing_but_the_graph_host_can_decode_a_checkpoint(package: str) -> None:
    for path in modules(PROJECT / package):
        if not path.is_relative_to(HOST):
            assert not imported(path) & DECODERS, path


def test_of_the_runner_only_frames_is_shared_with_the_graph_host() -> None:
    for package in ("workers", "shared", "web", "cli"):
        for path in modules(PROJECT / package):
            if path.is_relative_to(HOST):
                continue
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("workers.graph_host"):
                    names = {alias.name for alias in node.names}
                    assert names <= {"frames"} or node.module == "workers.graph_host.frames", name(path)


def test_only_settings_reads_the_environment() -> None:
    """Process entries hand `os.environ` to Settings.from_env; nothing picks variables out of it."""
    for package in ("shared", "web", "workers"):
        for path in modules(PROJECT / package):
            if path.is_relative_to(HOST):
                continue
            for node in ast.walk(ast.parse(path.read_text())):
                reads = isinstance(node, ast.Attribute) and node.attr in ("getenv",)
                picks = isinstance(node, ast.Subscript) and ast.unparse(node.value) == "os.environ"
                gets = isinstance(node, ast.Call) and ast.unparse(node.func) == "os.environ.get"
                assert not any((reads, picks, gets)), f"{name(path)}:{getattr(node, 'lineno', '?')}"


def test_there_is_no_module_for_leftovers() -> None:
    assert not [name(path) for package in OURS for path in modules(PROJECT / package) if path.stem == "utils"]


def test_every_module_says_what_it_is_for() -> None:
    silent = [
        name(path)
        for package in OURS - {"tests"}
        for path in modules(PROJECT / package)
        if not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert silent == []
