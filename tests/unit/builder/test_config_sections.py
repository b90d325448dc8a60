"""Validation of `auth`, `checkpointer`, `http`, `store` and `source` in langgraph.json."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from shared.errors import BuildFailed
from workers.builder.config import manifest
from workers.builder.config.manifest import Manifest
from workers.builder.config.schema import Cors, Http

PATH = "./auth.py:auth"
SWITCHES = [name for name in Http().fields if name.startswith(("enable_", "disable_"))]
Read = Callable[[str, Any], Any]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("app.py", "auth.py"):
        (tmp_path / name).touch()
    return tmp_path


@pytest.fixture
def read(root: Path) -> Read:
    """Return a function that reads one section of a langgraph.json."""

    def reading(section: str, value: Any) -> Any:
        config = {"dependencies": ["."], "graphs": {"agent": "./app.py:graph"}, section: value}
        (root / "langgraph.json").write_text(json.dumps(config))
        return getattr(manifest.read(root, None), section)

    return reading


# Invalid values, each with the error text that follows the section's name.
NO_OBJECT = ": must be an object"
NO_ARRAY = ": must be an array"
NO_MINUTES = ": must be a number"
REFUSED: dict[str, list[tuple[Any, str]]] = {
    "auth": [
        (PATH, NO_OBJECT),
        ([], NO_OBJECT),
        ({"disable_studio_auth": True}, ".path: None must have the form"),
        ({"path": "./auth.py"}, ".path: './auth.py' must have the form"),
        ({"path": "auth.py:auth"}, ".path: write './auth.py:auth' for a file"),
        ({"path": "./other.py:auth"}, ".path: the file './other.py' is not in the archive"),
        ({"path": "../auth.py:auth"}, ".path: '../auth.py' leads outside the archive"),
        ({"path": "./auth.ts:auth"}, ".path: './auth.ts' is a JavaScript authorization"),
        ({"path": PATH, "disable_studio_auth": "no"}, ".disable_studio_auth: must be true or false"),
        ({"path": PATH, "cache": 60}, f".cache{NO_OBJECT}"),
        ({"path": PATH, "cache": {"cache_keys": "authorization"}}, f".cache.cache_keys{NO_ARRAY}"),
        ({"path": PATH, "cache": {"cache_keys": ["a b"]}}, f".cache.cache_keys{NO_ARRAY}"),
        *(
            ({"path": PATH, "cache": {"ttl_seconds": seconds}}, f".cache.ttl_seconds{NO_MINUTES} between 0")
            for seconds in (3601, True, -1)
        ),
        ({"path": PATH, "cache": {"max_size": 1.5}}, ".cache.max_size: must be a whole number"),
        ({"path": PATH, "openapi": []}, f".openapi{NO_OBJECT}"),
        ({"path": PATH, "openapi": {"security": {}}}, ".openapi.security: must be as OpenAPI has it"),
        ({"path": PATH, "openapi": {"paths": {"/a": []}}}, ".openapi.paths: must be as OpenAPI has it"),
    ],
    "checkpointer": [
        ("./saver.py:saver", NO_OBJECT),
        ({"path": "./saver.py:saver"}, ".path: not supported: this server keeps checkpoints itself"),
        ({"backend": "mongo"}, ".backend: not supported: this server keeps checkpoints itself"),
        ({"serde": True}, f".serde{NO_OBJECT}"),
        ({"serde": {"pickle_fallback": True}}, ".serde.pickle_fallback: not supported: to read a"),
        ({"serde": {"allowed_msgpack_modules": ["a.B"]}}, ".serde.allowed_msgpack_modules: must be"),
        ({"serde": {"allowed_json_modules": [["a"]]}}, ".serde.allowed_json_modules: must be"),
        ({"serde": {"allowed_json_modules": [["a", 1]]}}, ".serde.allowed_json_modules: must be"),
        ({"serde": {"other": 1}}, ".serde.other: not known"),
        ({"ttl": 5}, f".ttl{NO_OBJECT}"),
        ({"ttl": {"strategy": "forget"}}, ".ttl.strategy: must be one of delete, keep_latest"),
        ({"ttl": {"default_ttl": "5"}}, f".ttl.default_ttl{NO_MINUTES}"),
        ({"ttl": {"default_ttl": -1}}, f".ttl.default_ttl{NO_MINUTES}"),
        ({"ttl": {"sweep_interval_minutes": True}}, f".ttl.sweep_interval_minutes{NO_MINUTES}"),
        ({"ttl": {"other": 1}}, ".ttl.other: not known"),
    ],
    "http": [
        ([1], NO_OBJECT),
        ([], NO_OBJECT),
        *(({name: "yes"}, f".{name}: must be true or false") for name in SWITCHES),
        ({"app": "app.py:app"}, ".app: write './app.py:app' for a file"),
        ({"app": "./none.py:app"}, ".app: the file './none.py' is not in the archive"),
        ({"app": {"path": "./app.py:app"}}, ".app: {'path': './app.py:app'} must have the form"),
        ({"middleware_order": "last"}, ".middleware_order: must be middleware_first or auth_first"),
        ({"middleware_scope": "all"}, ".middleware_scope: must be custom_routes"),
        ({"middleware_scope": ["custom_routes"]}, ".middleware_scope: must be custom_routes"),
        *(
            ({"mount_prefix": prefix}, ".mount_prefix: must be a path like")
            for prefix in ("api", "/a b", "/a//b", "/a/../b", "/./b", "/{x}", "/ä", 5, "/" + "a" * 300)
        ),
        ({"configurable_headers": ["x-team"]}, f".configurable_headers{NO_OBJECT}"),
        ({"logging_headers": {"includes": "x"}}, f".logging_headers.includes{NO_ARRAY}"),
        ({"configurable_headers": {"excludes": ["a b"]}}, ".configurable_headers.excludes: must be"),
        ({"cors": "*"}, f".cors{NO_OBJECT}"),
        ({"cors": {"allow_origins": "*"}}, f".cors.allow_origins{NO_ARRAY}"),
        ({"cors": {"allow_headers": ["a\r\nb"]}}, f".cors.allow_headers{NO_ARRAY}"),
        ({"cors": {"allow_credentials": 1}}, ".cors.allow_credentials: must be true or false"),
        ({"cors": {"allow_origin_regex": "("}}, ".cors.allow_origin_regex: is no regular expression"),
        ({"cors": {"allow_origin_regex": 7}}, ".cors.allow_origin_regex: must be a regular expression"),
        ({"cors": {"allow_origin_regex": "a" * 501}}, ".cors.allow_origin_regex: must be a regular"),
        ({"cors": {"max_age": -1}}, ".cors.max_age: must be a whole number"),
        ({"cors": {"max_age": True}}, ".cors.max_age: must be a whole number"),
    ],
    "store": [
        ([], NO_OBJECT),
        ({"path": "x"}, ".path: not known"),
        ({"ttl": 5}, f".ttl{NO_OBJECT}"),
        ({"ttl": {"default_ttl": "5"}}, f".ttl.default_ttl{NO_MINUTES} of minutes"),
        ({"ttl": {"default_ttl": -1}}, f".ttl.default_ttl{NO_MINUTES} of minutes"),
        ({"ttl": {"refresh_on_read": 1}}, ".ttl.refresh_on_read: must be true or false"),
        ({"index": {"dims": 3}}, ".index.embed: must be"),
        ({"index": {"embed": "a:b"}}, ".index.dims: must be"),
        ({"index": {"dims": True, "embed": "a:b"}}, ".index.dims: must be"),
        ({"index": {"dims": 3, "embed": "a:b", "fields": []}}, ".index.fields: must be"),
        ({"index": {"dims": 3, "embed": "a:b", "other": 1}}, ".index.other: not known"),
    ],
}


@pytest.mark.parametrize("section", REFUSED)
def test_what_makes_no_sense_is_refused_by_name(read: Read, section: str) -> None:
    for told, says in REFUSED[section]:
        with pytest.raises(BuildFailed) as caught:
            pytest.fail(f"{told} is accepted as {read(section, told)}")
        assert caught.value.message.startswith(section + says), f"{told}: {caught.value.message}"
    assert read(section, None) == read(section, {}) == {}, "a project need not say anything"


# auth


def test_an_authorization_needs_no_more_than_its_path(read: Read) -> None:
    assert read("auth", {"path": PATH}) == {
        "path": PATH,
        "disable_studio_auth": False,
        "openapi": {},
        "cache_keys": [],
        "cache_seconds": None,
        "cache_size": None,
    }
    assert read("auth", {"path": "pkg.security:auth"})["path"] == "pkg.security:auth"


def test_how_its_answers_are_kept_and_described_is_kept(read: Read) -> None:
    openapi = {"securitySchemes": {"bearer": {"type": "http"}}, "security": [{"bearer": []}], "paths": {}}
    cache = {"cache_keys": ["Authorization", "X-Team", "x-team"], "ttl_seconds": 3600, "max_size": 100}

    found = read("auth", {"path": PATH, "disable_studio_auth": True, "openapi": openapi, "cache": cache})

    assert found["disable_studio_auth"] is True
    assert found["openapi"] == openapi
    assert found["cache_keys"] == ["authorization", "x-team"]
    assert (found["cache_seconds"], found["cache_size"]) == (3600, 100)


# checkpointer, store


def test_how_long_threads_and_items_of_the_store_live_is_kept(read: Read) -> None:
    told = {"strategy": "keep_latest", "default_ttl": 0.5, "sweep_interval_minutes": 5, "sweep_limit": 10}
    assert read("checkpointer", {"ttl": told, "path": None}) == {
        "ttl": {"strategy": "keep_latest", "default_ttl": 0.5}
    }
    assert read("checkpointer", {"ttl": {}}) == {"ttl": {"strategy": "delete", "default_ttl": None}}

    kept = {
        "ttl": {"default_ttl": 1.5, "sweep_interval_minutes": 5},
        "index": {"dims": 3, "embed": "openai:small"},
    }
    assert read("store", kept) == {
        "ttl": {"default_ttl": 1.5, "refresh_on_read": True},
        "index": {"dims": 3, "embed": "openai:small", "fields": ["$"]},
    }


def test_classes_that_checkpoints_may_hold_are_kept(read: Read, root: Path) -> None:
    classes = [["my_agent.models", "State"], ["my_agent", "file", "Other"]]
    serde = {"allowed_msgpack_modules": classes, "pickle_fallback": False}
    assert read("checkpointer", {"serde": serde}) == {"serde": {"allowed_msgpack_modules": classes}}
    every = {"serde": {"allowed_msgpack_modules": True}}
    assert read("checkpointer", every) == every
    assert read("checkpointer", {"serde": {"allowed_msgpack_modules": []}}) == {}
    assert read("checkpointer", {"serde": {"allowed_json_modules": None}, "backend": "default"}) == {}

    told = {"serde": {"allowed_json_modules": [["my_agent", "State"]], "allowed_msgpack_modules": None}}
    assert read("checkpointer", told) == {}
    (note,) = manifest.read(root, None).notes
    assert note.startswith("checkpointer.serde.allowed_json_modules: has no meaning here")
    assert read("checkpointer", {"serde": None}) == {}
    assert manifest.read(root, None).notes == ()


# http


def test_only_what_is_said_is_kept_with_small_letters_and_without_a_last_slash(read: Read) -> None:
    assert read("http", {"app": None, "disable_mcp": None, "cors": None, "mount_prefix": "/"}) == {}
    switches = {"disable_mcp": False, "disable_a2a": True}
    assert read("http", switches) == switches

    found = read(
        "http", {"configurable_headers": {"includes": ["X-Team"], "excludes": None}, "mount_prefix": "/api/"}
    )

    assert found == {"configurable_headers": {"includes": ["x-team"]}, "mount_prefix": "/api"}


def test_everything_there_is_is_kept(read: Read) -> None:
    told = {
        **dict.fromkeys(SWITCHES, True),
        "app": "./app.py:app",
        "middleware_order": "auth_first",
        "middleware_scope": "custom_routes",
        "mount_prefix": "/my-api/v1",
        "configurable_headers": {"includes": ["x-team-*"], "excludes": ["*token*"]},
        "logging_headers": {"includes": ["user-agent"]},
        "cors": {
            "allow_origins": ["https://a.example", "*"],
            "allow_methods": ["GET"],
            "allow_headers": ["x-team"],
            "allow_credentials": True,
            "allow_origin_regex": r"https://[a-z]+\.example",
            "expose_headers": ["x-total"],
            "max_age": 60,
        },
    }
    assert set(told) == set(Http().fields)
    assert set(told["cors"]) == set(Cors().fields)

    assert read("http", told) == told


MATCHED_SOON = (
    r"https://.*\.example\.com",
    r"^https?://(localhost|127\.0\.0\.1)(:\d+)?$",
    r"https://(?:[a-z0-9-]+\.)?example\.(com|org)",
    r"(?i)https://[a-z]{1,63}-[0-9]+\.[^.]+\.example",
    r"http://(\d{1,3}\.){3}\d{1,3}(?=:80)",
    r".*",
)
REPEATS_A_GROUP = "it repeats a group that repeats or chooses"
# Regular expressions whose matching time could block the process, with their errors.
MATCHED_LATE = {
    r"(a+)+b": REPEATS_A_GROUP,
    r"(a|aa)*b": REPEATS_A_GROUP,
    r"(?:[a-z-]+\.)*example": REPEATS_A_GROUP,
    r"((a?){4}){4}b": REPEATS_A_GROUP,
    r".*.*.*.*b": "it has more than 3 repetitions",
    r"(?=.*a)(?=.*b).*.*c": "it has more than 3 repetitions",
    r"(a*)\1\1b": "it refers to a group",
    r"((a)?)?(?(2)b|c)": "it refers to a group",
}


def test_origins_are_matched_by_a_regular_expression_that_is_soon_matched(read: Read) -> None:
    for regex in MATCHED_SOON:
        told = {"cors": {"allow_origin_regex": regex}}
        assert read("http", told) == told
    for regex, reason in MATCHED_LATE.items():
        with pytest.raises(BuildFailed, match=f"^http.cors.allow_origin_regex: {re.escape(reason)}"):
            read("http", {"cors": {"allow_origin_regex": regex}})


# `source`: the deployed package of a workspace, and the local packages it depends on


WORKSPACE = "[tool.uv.workspace]\nmembers = ['apps/*', 'libs/*']\nexclude = ['libs/old']\n"
REGISTRY = "source = { registry = 'https://pypi.org/simple' }"
LOCK = f"""
version = 1
[[package]]
name = "one"
version = "1"
source = {{ editable = "apps/one" }}
dependencies = [{{ name = "tools-lib" }}, {{ name = "httpx" }}]
[[package]]
name = "two"
version = "1"
source = {{ virtual = "apps/two" }}
[[package]]
name = "tools-lib"
version = "1"
source = {{ editable = "libs/tools" }}
dependencies = [{{ name = "base" }}]
[[package]]
name = "base"
version = "1"
source = {{ directory = "libs/base" }}
[[package]]
name = "httpx"
version = "0.28.1"
{REGISTRY}
"""


class Project:
    """A workspace of two applications and two libraries."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write("pyproject.toml", WORKSPACE)
        self.write("uv.lock", LOCK)
        names = {"apps/one": "one", "apps/two": "two", "libs/tools": "Tools_Lib", "libs/base": "base"}
        for path, name in {**names, "libs/old": "one"}.items():
            self.package(path, name)

    def write(self, path: str, content: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(content)

    def package(self, path: str, name: str, more: str = "") -> None:
        self.write(f"{path}/pyproject.toml", f"[project]\nname = '{name}'\nversion = '1'\n{more}")
        self.write(f"{path}/agent.py", "graph = None\n")

    def read(
        self, at: str = "apps/one/langgraph.json", graph: str = "./agent.py:graph", **more: Any
    ) -> Manifest:
        config = {"graphs": {"agent": graph}, "source": {"kind": "uv", "root": "../.."}, **more}
        self.write(at, json.dumps(config))
        return manifest.read(self.root, at)

    def refused(self, **more: Any) -> str:
        with pytest.raises(BuildFailed) as caught:
            self.read(**more)
        assert caught.value.step == "configuration"
        return caught.value.message


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def paths(*names: str) -> tuple[PurePosixPath, ...]:
    return tuple(map(PurePosixPath, names))


def test_the_package_around_the_configuration_is_deployed_after_what_it_needs(project: Project) -> None:
    found = project.read()

    assert found.packages == paths("libs/base", "libs/tools", "apps/one")
    assert found.locked is not None
    assert (found.locked.root, found.locked.package) == (PurePosixPath(), "one")
    assert found.locked.is_from_public_index
    assert (found.requirements, found.plain, found.import_paths) == ((), (), ())

    project.write("uv.lock", LOCK.replace("https://pypi.org/simple", "https://index.example/simple"))
    elsewhere = project.read().locked
    assert elsewhere is not None
    assert not elsewhere.is_from_public_index


def test_a_package_may_be_named_and_one_alone_needs_no_name(project: Project) -> None:
    config = {"kind": "uv", "root": ".", "package": "tools.lib"}
    found = project.read(at="langgraph.json", graph="./libs/tools/agent.py:graph", source=config)
    assert found.packages == paths("libs/base", "libs/tools")

    project.package("alone", "alone")
    project.write(
        "alone/uv.lock", "[[package]]\nname = 'alone'\nversion = '1'\nsource = { editable = '.' }\n"
    )
    alone = project.read(at="alone/langgraph.json", source={"kind": "uv"})
    assert alone.packages == paths("alone")


SOURCES = [
    ("uv", "source: must be an object"),
    ({}, "source.kind: must be 'uv'"),
    ({"kind": "poetry"}, "source.kind: must be 'uv'"),
    ({"kind": "uv", "root": ""}, "source.root: must be a non-empty string"),
    ({"kind": "uv", "root": 1}, "source.root: must be a non-empty string"),
    ({"kind": "uv", "package": ""}, "source.package: must be a non-empty string"),
    ({"kind": "uv", "extra": "x"}, "source.extra: unknown key"),
    ({"kind": "uv"}, "source.root: 'apps/one' holds no uv.lock"),
    ({"kind": "uv", "root": "../../.."}, "source.root: '../../..' leads outside the archive"),
    (
        {"kind": "uv", "root": "../..", "package": "three"},
        "source.package: there is no 'three'; there are base",
    ),
]


def test_a_source_that_cannot_be_one_is_refused(project: Project) -> None:
    for source, said in SOURCES:
        assert said in project.refused(source=source), source


def test_what_does_not_fit_together_is_refused(project: Project) -> None:
    assert "dependencies: must be empty" in project.refused(dependencies=["."])
    assert "is in none of the packages" in project.refused(graph="../two/agent.py:graph")
    root = {"kind": "uv", "root": "."}
    assert "source.package: name the one" in project.refused(
        at="langgraph.json", source=root, graph="./apps/one/agent.py:graph"
    )

    project.package("libs/base", "base", "[tool.uv]\npackage = false\n")
    assert "source: 'libs/base' has tool.uv.package = false" in project.refused()
    project.package("libs/base", "one")
    assert "source: 'apps/one' and 'libs/base' are both named" in project.refused()
    project.package("libs/base", "base")
    project.write("uv.lock", LOCK.replace('"libs/base"', '"../elsewhere"'))
    assert "source: the local package 'base' at '../elsewhere'" in project.refused()
    project.write("uv.lock", "version = 1\n")
    assert "source.root: uv.lock does not know 'one'" in project.refused()
    project.write(
        "uv.lock", "[[package]]\nname = 'one'\nsource = { editable = 'apps/one' }\ndependencies = [7]\n"
    )
    assert "source.root: uv.lock cannot be read" in project.refused()
    project.write("uv.lock", "[")
    assert "uv.lock is not valid TOML" in project.refused()
    project.write("pyproject.toml", "[tool.uv.workspace]\nmembers = ['../*']\n")
    assert "leads outside the root" in project.refused()
