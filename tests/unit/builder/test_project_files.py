"""The files that a langgraph.json refers to: directories, requirements, pip configurations, and uv workspaces."""

from __future__ import annotations

import json
import shutil
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from shared.errors import BuildFailed
from tests.unit.builder.conftest import GRAPHS, Read, refuse
from workers.builder.config import dependencies, manifest
from workers.builder.config.dependencies import PipConfig
from workers.builder.config.manifest import Manifest


def test_a_file_that_says_nothing_or_lies_elsewhere_is_refused(root: Path) -> None:
    for content, match in (
        (None, "langgraph.json is not in the archive"),
        (b"{", "langgraph.json is not valid JSON"),
        (b"[" * 5000, "langgraph.json is not valid JSON"),
        (b"\xff\xfe{}", "langgraph.json is not valid JSON"),
        (b"[]", "must hold a JSON object"),
        (b'"text"', "must hold a JSON object"),
        (b"null", "must hold a JSON object"),
        (b'{"graphs": {"a": "./a\\u0000.py:g"}}', "NUL"),
        (b'{"x": "' + b"x" * 2**20 + b'"}', "larger than 1024 KiB"),
    ):
        if content is not None:
            (root / "langgraph.json").write_bytes(content)
        with pytest.raises(BuildFailed, match=match):
            manifest.read(root, None)

    for path in ("../langgraph.json", "/etc/passwd", "a\\b.json", "a/../../b.json", "x\0y"):
        with pytest.raises(
            BuildFailed, match=r"the configuration file .* (relative path|outside the archive)"
        ):
            manifest.read(root, path)

    (root / "secret").write_text(json.dumps({"dependencies": ["."], "graphs": GRAPHS}))
    (root / "langgraph.json").unlink()
    (root / "langgraph.json").symlink_to(root / "secret")
    with pytest.raises(BuildFailed, match="cannot be read"):
        manifest.read(root, None)


def test_a_directory_is_a_package_or_plain_and_all_else_a_requirement(read: Read, root: Path) -> None:
    wanted = ["httpx>=0.27", "langchain_openai", "x @ git+https://example.com/x.git@v1", "agent.py"]

    assert read(dependencies=[".", *wanted]).requirements == tuple(wanted)

    for name in ("app", "lib", "old", "flat", "tools/saw"):
        (root / name).mkdir(parents=True)
    (root / "app/agent.py").touch()
    (root / "lib/pyproject.toml").write_text("[project]\nname = 'lib'\nversion = '1'\n")
    (root / "old/setup.py").touch()
    (root / "flat/__init__.py").touch()
    (root / "tools/saw/__init__.py").touch()

    found = read(
        at="app/langgraph.json", dependencies=[".", "../lib", "./../old", "../flat", "../tools", "../flat"]
    )

    assert found.packages == (PurePosixPath("lib"), PurePosixPath("old"))
    paths = [PurePosixPath(name) for name in ("app", "flat", "tools", "flat")]
    assert found.plain == tuple(paths)
    assert found.import_paths == (PurePosixPath(), PurePosixPath("tools")), "flat is a package of its parent"


def test_a_package_of_a_plain_directory_may_not_stand_for_a_library_or_for_another(
    root: Path, read: Read
) -> None:
    for name in sorted(dependencies.RESERVED_PACKAGES):
        (root / name).mkdir()
        (root / name / "anything.py").touch()
        refuse(read, f"a package named '{name}', which is reserved")
        shutil.rmtree(root / name)

    for name in ("pydantic", "my-tools"):
        (root / name).mkdir()
        (root / name / "__init__.py").touch()
    refuse(read, "'pydantic', which is reserved", dependencies=["./pydantic"])
    refuse(read, "'my-tools' cannot be imported: its name has a hyphen", dependencies=["./my-tools"])

    for name in ("a/tools", "b/tools"):
        (root / name).mkdir(parents=True)
        (root / name / "x.py").touch()
    refuse(read, "'a' and 'b' both hold a package named 'tools'", dependencies=["./a", "./b"])


def test_credentials_in_requirements_of_the_project_are_refused(root: Path, read: Read) -> None:
    for name in dependencies.REQUIREMENT_FILES:
        (root / name).write_text("x @ git+https://token@example.com/x.git")
        refuse(read, f"^{name}: a URL must not hold a user name or password")
        (root / name).unlink()


def test_a_pip_configuration_says_where_packages_come_from_or_is_refused(root: Path, read: Read) -> None:
    (root / "pip.conf").write_text(
        "[global]\nindex-url = https://one/simple\nextra-index-url =\n  https://two\n  https://three\n"
        "[install]\nfind-links = https://four ./wheels\n"
    )

    index = read(pip_config_file="./pip.conf").index

    urls = ("https://one/simple", ("https://two", "https://three"))
    assert index is not None
    assert index == PipConfig(*urls, ("https://four",), ("wheels",))
    assert index.within(Path("/p")) == PipConfig(*urls, ("https://four", "/p/wheels"))

    (root / "odd.conf").write_text("no section\n")
    (root / "told.conf").write_text("[global]\nindex-url = https://user:pass@one/simple\n")
    (root / "far.conf").write_text("[global]\nfind-links = ../wheels\n")

    refuse(read, "pip_config_file: 'odd.conf' is not a pip configuration", pip_config_file="odd.conf")
    refuse(read, "must not hold a user name or password", pip_config_file="told.conf")
    refuse(read, "pip_config_file: 'none.conf' is not in the archive", pip_config_file="none.conf")
    refuse(read, "leads outside", pip_config_file="../pip.conf")
    refuse(read, "find-links: '../wheels' leads outside", pip_config_file="far.conf")
    refuse(read, "pip_config_file: must be a path", pip_config_file=7)


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


def test_its_authorization_and_app_are_of_a_package_that_is_installed(project: Project) -> None:
    for key, name in (("auth", "path"), ("http", "app")):
        inside: dict[str, Any] = {key: {name: "./agent.py:own"}}
        outside: dict[str, Any] = {key: {name: "../two/agent.py:own"}}
        assert project.read(**inside)
        text = f"{key}.{name}: 'apps/two/agent.py' is in none of the packages that are installed"
        assert text in project.refused(**outside)
