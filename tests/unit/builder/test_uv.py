"""The package installer uv: command lines, parsed output and errors, and use of the shared package cache."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from shared.errors import BuildFailed
from workers.builder.config.dependencies import PipConfig
from workers.builder.python import toolchain
from workers.builder.python.installer import refresh_unsatisfied
from workers.builder.python.requirements import (
    BUILT_HERE,
    Requirements,
    from_lock,
    has_options,
    names_files,
)
from workers.builder.steps import WriteLine

UV, ENV, PYTHON = str(toolchain.program()), Path("/r/env"), Path("/r/env/bin/python")
OUTSIDE = Path("/usr/bin/python3.11")
INDEX = PipConfig("https://one/simple", ("https://two/simple", "https://three/simple"), ("https://four",))


def test_an_interpreter_is_found_by_its_version() -> None:
    listed = [
        {"implementation": "pypy", "version": "3.12.1", "path": "/a"},
        {"implementation": "cpython", "version": "3.1.2", "path": "/b"},
        {"implementation": "cpython", "version": "3.12.2", "path": "/c"},
    ]

    assert list(toolchain.pythons(orjson.dumps(listed), "3.12")) == ["/c"]
    assert list(toolchain.pythons(b"[]", "3.12")) == []


def test_packages_come_from_the_project_s_own_index() -> None:
    assert "--index-url" not in toolchain.resolve([], Path("/o"), OUTSIDE, None)

    wanted = [
        *("--index-url", "https://one/simple"),
        *("--extra-index-url", "https://two/simple", "--extra-index-url", "https://three/simple"),
        *("--find-links", "https://four"),
    ]
    for argv in (
        toolchain.resolve([], Path("/o"), OUTSIDE, INDEX),
        toolchain.install_built(Path("/b"), [Path("/d")], PYTHON, INDEX),
    ):
        at = argv.index("--index-url")
        assert argv[at : at + len(wanted)] == wanted


def test_wheels_are_installed_by_their_hashes_and_what_is_built_is_copied() -> None:
    argv = toolchain.install_wheels(Path("/r/out.txt"), PYTHON)

    assert {"--no-deps", "--no-build", "--require-hashes"} < set(argv)
    assert argv[argv.index("--link-mode") + 1] == "hardlink"

    argv = toolchain.install_built(Path("/r/b.txt"), [Path("/r/p/a"), Path("/r/p/b")], PYTHON, None)

    assert "--no-deps" in argv
    assert argv[argv.index("--link-mode") + 1] == "copy"


def test_the_operator_s_index_of_pip_is_the_installer_s_unless_it_has_one() -> None:
    def index(**passed_on: str) -> str | None:
        return toolchain.variables(passed_on, Path("/cache")).get("UV_INDEX_URL")

    assert index() is None
    assert index(PIP_INDEX_URL="https://pip") == "https://pip"
    assert index(PIP_INDEX_URL="https://pip", UV_INDEX_URL="https://uv") == "https://uv"
    assert index(PIP_INDEX_URL="https://pip", UV_DEFAULT_INDEX="https://uv") is None
    assert toolchain.without_variables({"UV_INDEX_URL": "x", "PIP_INDEX_URL": "x", "PATH": "/bin"}) == {
        "PATH": "/bin"
    }


def test_packages_come_from_elsewhere_only_where_a_project_says_so() -> None:
    for pyproject in (
        *(
            "[tool.uv]\nindex-url = 'x'",
            "[tool.uv]\nextra-index-url = ['x']",
            "[tool.uv]\nfind-links = ['x']",
        ),
        *("[tool.uv.pip]\nfind-links = ['x']", "[[tool.uv.index]]\nurl = 'x'"),
        *("[tool.uv.sources]\nx = { git = 'y' }", "[tool]\nuv = { index = [{ url = 'x' }] }"),
        *("[tool.uv\n", "[tool]\nuv = 7"),
    ):
        assert toolchain.is_redirected_by(f"{pyproject}\n".encode()), pyproject
    for pyproject in (
        "[project]\nname = 'tool.uv'\n[tool.uvicorn]\nx = 1",
        "[tool.uv]\ndev-dependencies = ['pytest']\npackage = true\nexclude-newer = '2026-01-01'",
        "[tool.uv]\nsources = {}\nindex = []",
        "[tool.uv.workspace]\nmembers = ['libs/*']",
        "[tool.uv.pip]\ngenerate-hashes = true",
    ):
        assert not toolchain.is_redirected_by(pyproject.encode()), pyproject


def test_a_command_that_works_is_run_once_and_its_output_shown_whole() -> None:
    ran: list[list[str]] = []
    shown: list[str] = []

    def run(argv: list[str], write_line: WriteLine) -> None:
        ran.append(argv)
        write_line("INFO", f"{toolchain.UNSATISFIED} at first")
        write_line("INFO", "found")

    refresh_unsatisfied(run, ["uv"], lambda _, line: shown.append(line))

    assert shown == [f"{toolchain.UNSATISFIED} at first", "found"]
    assert ran == [["uv"]]


def test_a_command_is_run_again_only_when_no_version_fits() -> None:
    ran: list[list[str]] = []
    shown: list[str] = []

    def failing(line: str) -> Callable[[list[str], WriteLine], None]:
        def run(argv: list[str], write_line: WriteLine) -> None:
            ran.append(argv)
            write_line("ERROR", line)
            raise BuildFailed("requirements", line)

        return run

    for line in (toolchain.UNSATISFIED, "dns error"):
        with pytest.raises(BuildFailed):
            refresh_unsatisfied(failing(line), ["uv"], lambda _, line: shown.append(line))

    assert ran == [["uv"], ["uv", toolchain.REFRESH], ["uv"]]
    assert shown == [toolchain.UNSATISFIED, "dns error"]


# Resolved package sets


PROJECT = Path("/r/project")
HASH = "sha256 = 'aa'"
LOCK = f"""
[[packages]]
name = "wheel"
version = "1.0"
sdist = {{ url = "https://x/wheel.tar.gz", hashes = {{ sha256 = "00" }} }}
wheels = [
    {{ url = "https://x/wheel-b.whl", hashes = {{ sha256 = "bb" }} }},
    {{ url = "https://x/wheel-a.whl", hashes = {{ {HASH} }} }},
]
[[packages]]
name = "source-only"
version = "2.0"
sdist = {{ url = "https://x/s.tar.gz", hashes = {{ sha256 = "cc" }} }}
[[packages]]
name = "repository"
version = "3.0"
vcs = {{ type = "git", url = "https://x/r.git", commit-id = "dd", subdirectory = "sub" }}
[[packages]]
name = "address"
archive = {{ url = "https://x/a.whl", hashes = {{ {HASH} }} }}
[[packages]]
name = "near"
directory = {{ path = "/r/project/libs/near" }}
[[packages]]
name = "edited"
directory = {{ path = "libs/edited", editable = true }}
[[packages]]
name = "own"
directory = {{ path = "/r/project/own", editable = true }}
[[packages]]
name = "no-hash"
version = "4.0"
wheels = [{{ url = "https://x/n.whl" }}]
[[packages]]
name = "from-a-folder"
version = "5.0"
wheels = [{{ path = "/wheels/f.whl", hashes = {{ {HASH} }} }}]
"""
BUILT = (
    "source-only==2.0 --hash=sha256:cc",
    "repository @ git+https://x/r.git@dd#subdirectory=sub",
    "address @ https://x/a.whl",
    "near @ file://${PROJECT_ROOT}/libs/near",
    "-e file://${PROJECT_ROOT}/libs/edited",
    "no-hash==4.0",
    "from-a-folder==5.0 --hash=sha256:aa",
)
WHEEL = "wheel==1.0 --hash=sha256:aa --hash=sha256:bb"


def test_only_pinned_wheels_of_the_operator_s_index_are_shared() -> None:
    found = from_lock(LOCK, PROJECT, [PROJECT / "own"], is_from_operator_index=True)
    assert found.wheels == (WHEEL,)
    assert found.built == BUILT

    assert tomllib.loads(found.lock)["packages"] == [
        {
            "name": "wheel",
            "version": "1.0",
            "wheels": [
                {"url": "https://x/wheel-b.whl", "hashes": {"sha256": "bb"}},
                {"url": "https://x/wheel-a.whl", "hashes": {"sha256": "aa"}},
            ],
        }
    ]

    foreign = from_lock(LOCK, PROJECT, [PROJECT / "own"], is_from_operator_index=False)
    assert foreign.wheels == ()
    assert set(foreign.built) == {WHEEL, *BUILT}


def test_a_set_is_the_same_after_it_was_stored() -> None:
    found = from_lock(LOCK, PROJECT, [], is_from_operator_index=True)
    assert Requirements.parse(str(found)) == found
    assert Requirements.parse(str(found)).key == found.key
    assert Requirements.parse("") == Requirements()
    assert BUILT_HERE not in str(Requirements(wheels=(WHEEL,)))
    assert Requirements.parse("a==1\nb==2\n") == Requirements(built=("a==1", "b==2"))


def test_a_lock_that_says_nothing_or_leads_outside_is_refused() -> None:
    unreadable = ("[", "packages = 7", "[[packages]]\nversion = '1'", "[[packages]]\nname = 'a'", "x = 1")
    outside = "[[packages]]\nname = 'a'\ndirectory = { path = '/etc' }"
    for lock, reason in (
        *((lock, "their list cannot be read") for lock in unreadable),
        (outside, "outside the project"),
    ):
        with pytest.raises(BuildFailed, match=reason):
            from_lock(lock, PROJECT, [], is_from_operator_index=True)


def test_it_is_seen_what_requirements_lead_to() -> None:
    for content, options, files in (
        (b"httpx\n# -r other\nlangchain>=1\n", False, False),
        (b"x @ git+https://example.com/x.git\n", False, False),
        (b"httpx\n-r base.txt\n", True, True),
        (b"  --index-url https://x\n", True, True),
        (b"-e ./lib\n", True, True),
        (b"./lib\n", False, True),
        (b"lib @ file:///lib\n", False, True),
        (b"lib @ ${PROJECT_ROOT}/lib\n", False, True),
    ):
        assert (has_options(content), names_files(content)) == (options, files), content
    assert not names_files(b"\n" * 2**20)
