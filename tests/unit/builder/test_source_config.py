"""`source: {kind: uv}`: which package of a workspace is deployed, and which local ones come with it."""

from __future__ import annotations

import json
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from shared.errors import BuildFailed
from workers.builder.config import manifest
from workers.builder.config.manifest import Manifest

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
    assert found.locked.is_ours
    assert (found.requirements, found.plain, found.import_paths) == ((), (), ())

    project.write("uv.lock", LOCK.replace("https://pypi.org/simple", "https://index.example/simple"))
    elsewhere = project.read().locked
    assert elsewhere is not None
    assert not elsewhere.is_ours


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
