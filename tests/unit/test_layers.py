"""Import rules: web → shared ← workers; the command line and the graph host are separate.

Within `shared`, `web` and `workers` an import goes to a lower layer or stays in its own. There are no import cycles.
"""

from __future__ import annotations

import ast
import gc
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
OURS = frozenset({"shared", "web", "workers", "cli", "tests", "bench"})
HOST = PROJECT / "workers" / "graph_host"
SHARED_WITH_HOST = ("workers.graph_host.frames", "workers.graph_host.masking")

# LangGraph and its dependencies, which every graph host has.
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
        "langsmith",
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
        "marshmallow",  # shared rules have no schemas: web and the builder each check what they are sent
        "gunicorn",
        "langgraph",
        "langchain_core",
        "httpx",  # guarded calls use httpx2 and httpcore2
        "httpcore",
    },
    "web": {"workers", "cli", "langgraph", "langchain_core"},
    "workers": {"web", "cli", "flask"},
    "cli": {"web", "workers", "flask", "marshmallow", "celery"},
}

# The layers ("floors") of a package, lowest first, each with its subpackages and single files ("rooms"). Modules
# directly in `workers` are in no layer: they may import every room and hold what rooms share.
FLOORS = {
    "shared": (
        {"errors", "setting_values", "settings", "sign_in_settings"},
        {"models", "infra", "records"},
        {"sql"},
        {"eventlog", "threads", "store", "store_vectors", "vector_indexes", "fleet", "audit"},
        {"deployments", "oauth", "figures", "hosts"},
        {"user_code"},
        {"assistants", "agents"},
        {"runs"},
        {"thread_runs"},
        {"crons", "thread_stream", "thread_copies", "protocol"},
        {"thread_updates"},
        {"inbox"},
        {"removal"},
        {"replays"},
        {"access"},
    ),
    "web": (
        {"schemas"},
        {"http"},
        {"gate"},
        {"control_plane", "deployment_api", "ops"},
        {"app"},
        {"wsgi", "gunicorn"},
    ),
    "workers": ({"graph_host"}, {"isolation"}, {"runner"}, {"builder"}),
    "cli": (
        {"errors"},
        {"client"},
        {"output"},
        {"commands"},
        {"deployments"},
        {"runs", "machine"},
        {"doctor", "backups"},
        {"operating"},
        {"main"},
    ),
}
# Rooms that no other room may import.
BESIDE = {"shared": {"migrations"}, "web": set[str](), "workers": {"upkeep"}, "cli": set[str]()}

# Packages that decode stored bytes into objects.
DECODERS = frozenset({"langgraph", "langchain_core", "ormsgpack", "msgpack", "pickle", "marshal", "shelve"})


@pytest.fixture(scope="module", autouse=True)
def no_collections() -> Iterator[None]:
    """Hold garbage collections back, which would scan the trees of all modules again and again."""
    gc.disable()
    yield
    gc.enable()


def modules(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.py") if "__pycache__" not in path.parts)


@cache
def imported(path: Path) -> set[str]:
    """Return the top-level packages that a module imports anywhere in its code; relative imports are not included."""
    names: set[str] = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module)
    return {name.partition(".")[0] for name in names}


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """Return all nodes of a module. Walking the trees anew for each rule would take most of the time of these tests."""
    return tuple(ast.walk(tree(path)))


def name(path: Path) -> str:
    return str(path.relative_to(PROJECT))


def dotted(path: Path) -> str:
    """Return the name by which a module is imported."""
    return ".".join(path.relative_to(PROJECT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {dotted(path): path for package in FORBIDDEN for path in modules(PROJECT / package)}


def imports(part: Iterable[ast.AST], module: str) -> Iterator[str]:
    """Yield our modules that these nodes of `module` import."""
    for node in part:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom):
            source = base(node, module)
            for alias in node.names:
                inner = f"{source}.{alias.name}"
                yield from (found for found in [inner if inner in MODULES else source] if found in MODULES)


def base(node: ast.ImportFrom, module: str) -> str:
    """Return the absolute name of the module or package in a `from … import`."""
    if not node.level:
        return node.module or ""
    is_package = MODULES[module].name == "__init__.py"
    parts = module.split(".")
    parents = parts[: len(parts) - node.level + is_package]
    return ".".join([*parents, *filter(None, [node.module])])


@cache
def graph() -> Mapping[str, set[str]]:
    """Return, for each of our modules, our modules that it imports."""
    return {module: set(imports(nodes(path), module)) - {module} for module, path in MODULES.items()}


def room(module: str) -> str:
    """Return the subpackage or single file that a module belongs to; empty for the package itself."""
    return module.partition(".")[2].partition(".")[0]


def circle(edges: Mapping[str, Iterable[str]]) -> list[str]:
    """Return one cycle of the graph; empty if there is none."""
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def rooms_of(package: str) -> dict[str, set[str]]:
    """Return, for each room of a package, the rooms of the package that it imports."""
    found: dict[str, set[str]] = {}
    for module, others in graph().items():
        if module.startswith(f"{package}."):
            within = {room(other) for other in others if other.startswith(f"{package}.")}
            found.setdefault(room(module), set()).update(within - {room(module)})
    return found


def floor(package: str, room: str) -> int:
    return next(number for number, rooms in enumerate(FLOORS[package]) if room in rooms)


@pytest.mark.parametrize("package", FORBIDDEN)
def test_a_package_imports_only_what_its_layer_may_and_nothing_that_decodes_a_checkpoint(
    package: str,
) -> None:
    wrong = {
        name(path): found
        for path in modules(PROJECT / package)
        if not path.is_relative_to(HOST) and (found := imported(path) & FORBIDDEN[package])
    }
    assert wrong == {}

    for path in modules(PROJECT / package):
        if not path.is_relative_to(HOST):
            assert not imported(path) & DECODERS, path


def test_every_room_has_its_floor() -> None:
    for package in ("shared", "web"):
        placed = set().union(*FLOORS[package], BESIDE[package])
        assert {room for room in rooms_of(package) if room} == placed
    folders = {path.parent.name for path in (PROJECT / "workers").glob("*/__init__.py")}

    assert folders == set().union(*FLOORS["workers"], BESIDE["workers"])


@pytest.mark.parametrize("package", FLOORS)
def test_an_import_goes_downward_or_stays_on_its_floor_to_no_room_beside_and_in_no_circle(
    package: str,
) -> None:
    rooms = set().union(*FLOORS[package])
    upward = {
        (module, other)
        for module, others in graph().items()
        for other in others
        if module.startswith(f"{package}.") and other.startswith(f"{package}.")
        if {room(module), room(other)} <= rooms
        if floor(package, room(module)) < floor(package, room(other))
    }
    assert upward == set()

    wrong = {
        room: found
        for room, others in rooms_of(package).items()
        if room in rooms and (found := others & BESIDE[package])
    }
    assert wrong == {}
    assert circle({room: others & rooms for room, others in rooms_of(package).items() if room in rooms}) == []


def test_no_modules_import_each_other_in_a_circle_or_hidden_from_the_running_program() -> None:
    assert circle(graph()) == []
    assert rooms_of("workers")["upkeep"] & set().union(*FLOORS["workers"]) == set()

    hidden = {
        module
        for module, path in MODULES.items()
        for node in nodes(path)
        if isinstance(node, ast.If)
        and "TYPE_CHECKING" in ast.unparse(node.test)
        and any(imports(ast.walk(node), module))
    }
    assert hidden == set()


def test_the_graph_host_imports_nothing_of_ours_and_only_what_a_revision_has() -> None:
    allowed = HOST_MAY_IMPORT | sys.stdlib_module_names
    wrong = {name(path): found for path in modules(HOST) if (found := imported(path) - allowed)}
    assert wrong == {}
    for path in modules(HOST):
        for node in nodes(path):
            if isinstance(node, ast.ImportFrom):
                assert node.level <= len(path.relative_to(HOST).parts), name(path)


def test_only_frames_and_the_masking_of_secrets_are_shared_with_the_graph_host() -> None:
    for package in ("workers", "shared", "web", "cli"):
        for path in modules(PROJECT / package):
            if path.is_relative_to(HOST):
                continue
            for node in nodes(path):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("workers.graph_host"):
                    names = {alias.name for alias in node.names}
                    assert names <= {"frames"} or node.module in SHARED_WITH_HOST, name(path)


def test_only_settings_reads_the_environment() -> None:
    """Entry points pass `os.environ` to Settings.from_env; no other code reads single variables."""
    for package in ("shared", "web", "workers"):
        for path in modules(PROJECT / package):
            if path.is_relative_to(HOST):
                continue
            for node in nodes(path):
                reads = isinstance(node, ast.Attribute) and node.attr in ("getenv",)
                picks = isinstance(node, ast.Subscript) and is_environment(node.value)
                gets = isinstance(node, ast.Attribute) and node.attr == "get" and is_environment(node.value)
                assert not any((reads, picks, gets)), f"{name(path)}:{getattr(node, 'lineno', '?')}"


def is_environment(node: ast.AST) -> bool:
    """Whether the node is `os.environ`."""
    is_environ = isinstance(node, ast.Attribute) and node.attr == "environ"
    return is_environ and isinstance(node.value, ast.Name) and node.value.id == "os"


def test_nothing_uses_the_orm() -> None:
    users = {
        name(path)
        for package in FORBIDDEN
        for path in modules(PROJECT / package)
        if not path.is_relative_to(HOST)
        for node in nodes(path)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sqlalchemy.orm")
    }
    assert users == set()
