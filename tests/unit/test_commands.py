"""The command lines of build steps: what is run, and with what."""

from __future__ import annotations

from pathlib import Path

from workers import commands
from workers.manifest import PipConfig

UV, ENV, PYTHON = "/opt/uv", Path("/r/env"), Path("/r/env/bin/python")
INDEX = PipConfig("https://one/simple", ("https://two/simple", "https://three/simple"), ("https://four",))


def test_an_environment_is_of_the_given_interpreter_and_of_no_project() -> None:
    assert commands.create_environment(UV, ENV, "/usr/bin/python3.11") == [
        *(UV, "venv", "--quiet", "--python", "/usr/bin/python3.11", "--no-project", "/r/env")
    ]


def test_an_archive_is_unpacked_where_the_working_directory_offers_no_modules() -> None:
    argv = commands.unpack("/usr/bin/python3", Path("/r/a.tar.gz"), Path("/r/project"))

    assert argv[argv.index("-m") :] == ["-m", "workers.unpack", "/r/a.tar.gz", "/r/project"]
    assert "-P" in argv


def test_requirements_are_resolved_for_the_environment() -> None:
    argv = commands.resolve(UV, [Path("/r/a.in"), Path("/r/b.txt")], Path("/r/out.txt"), str(PYTHON), None)

    assert argv[:3] == [UV, "pip", "compile"]
    assert argv[argv.index("--python") + 1] == str(PYTHON)
    assert argv[argv.index("--output-file") + 1] == "/r/out.txt"
    assert argv[-2:] == ["/r/a.in", "/r/b.txt"]
    assert "--index-url" not in argv


def test_exactly_what_was_resolved_is_installed() -> None:
    argv = commands.install(
        UV, Path("/r/out.txt"), PYTHON, None, link_mode="hardlink", compile_bytecode=False
    )

    assert argv[:3] == [UV, "pip", "install"]
    assert "--no-deps" in argv
    assert argv[argv.index("--requirement") + 1] == "/r/out.txt"
    assert argv[argv.index("--link-mode") + 1] == "hardlink"
    assert "--compile-bytecode" not in argv
    assert "--compile-bytecode" in commands.install(
        UV, Path("/r/out.txt"), PYTHON, None, link_mode="copy", compile_bytecode=True
    )


def test_local_packages_are_editable_and_bring_nothing() -> None:
    argv = commands.install_packages(UV, [Path("/r/p/a"), Path("/r/p/b")], PYTHON, None)

    assert "--no-deps" in argv
    assert argv[-4:] == ["--editable", "/r/p/a", "--editable", "/r/p/b"]


def test_a_project_s_own_index_reaches_every_step_that_fetches() -> None:
    wanted = [
        *("--index-url", "https://one/simple"),
        *("--extra-index-url", "https://two/simple", "--extra-index-url", "https://three/simple"),
        *("--find-links", "https://four"),
    ]
    for argv in (
        commands.resolve(UV, [], Path("/o"), "p", INDEX),
        commands.install(UV, Path("/o"), PYTHON, INDEX, link_mode="copy", compile_bytecode=False),
        commands.install_packages(UV, [Path("/d")], PYTHON, INDEX),
    ):
        at = argv.index("--index-url")
        assert argv[at : at + len(wanted)] == wanted


def test_a_graph_host_is_told_its_socket_later() -> None:
    assert commands.graph_host(PYTHON, Path("/app/graph_host"), threads=8) == [
        *("/r/env/bin/python", "/app/graph_host", "--socket", "{socket}", "--threads", "8")
    ]
