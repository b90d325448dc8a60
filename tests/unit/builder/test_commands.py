"""The command lines of build steps: what is run, and with what."""

from __future__ import annotations

from pathlib import Path

from workers.builder import commands
from workers.builder.config.manifest import PipConfig

UV, ENV, PYTHON = "/opt/uv", Path("/r/env"), Path("/r/env/bin/python")
INDEX = PipConfig("https://one/simple", ("https://two/simple", "https://three/simple"), ("https://four",))


def test_an_environment_is_of_the_given_interpreter_and_of_no_project() -> None:
    assert commands.create_environment(UV, ENV, "/usr/bin/python3.11") == [
        *(UV, "venv", "--quiet", "--python", "/usr/bin/python3.11", "--no-project", "/r/env")
    ]


def test_an_archive_is_unpacked_where_the_working_directory_offers_no_modules() -> None:
    argv = commands.unpack("/usr/bin/python3", Path("/r/a.tar.gz"), Path("/r/project"))

    assert argv[argv.index("-m") :] == ["-m", "workers.builder.unpack", "/r/a.tar.gz", "/r/project"]
    assert "-P" in argv


def test_requirements_are_resolved_for_the_interpreter() -> None:
    inputs = [Path("/r/a.in"), Path("/r/b.txt")]
    argv = commands.resolve(UV, inputs, Path("/r/pylock.toml"), "/usr/bin/python3", None)

    assert argv[:3] == [UV, "pip", "compile"]
    assert argv[argv.index("--python") + 1] == "/usr/bin/python3"
    assert argv[argv.index("--output-file") + 1] == "/r/pylock.toml"
    assert argv[argv.index("--format") + 1] == "pylock.toml"
    assert argv[-2:] == ["/r/a.in", "/r/b.txt"]
    assert "--index-url" not in argv


def test_wheels_are_installed_by_their_hashes_and_nothing_is_built() -> None:
    argv = commands.install_wheels(UV, Path("/r/out.txt"), PYTHON)

    assert argv[:3] == [UV, "pip", "install"]
    assert {"--no-deps", "--no-build", "--require-hashes"} < set(argv)
    assert argv[argv.index("--requirement") + 1] == "/r/out.txt"
    assert argv[argv.index("--link-mode") + 1] == "hardlink"


def test_what_is_built_is_copied_and_local_packages_are_editable() -> None:
    argv = commands.install_built(UV, Path("/r/b.txt"), [Path("/r/p/a"), Path("/r/p/b")], PYTHON, None)

    assert "--no-deps" in argv
    assert argv[argv.index("--link-mode") + 1] == "copy"
    assert argv[-6:] == ["--requirement", "/r/b.txt", "--editable", "/r/p/a", "--editable", "/r/p/b"]


def test_a_project_s_own_index_reaches_every_step_that_runs_for_it_alone() -> None:
    wanted = [
        *("--index-url", "https://one/simple"),
        *("--extra-index-url", "https://two/simple", "--extra-index-url", "https://three/simple"),
        *("--find-links", "https://four"),
    ]
    for argv in (
        commands.resolve(UV, [], Path("/o"), "p", INDEX),
        commands.install_built(UV, Path("/b"), [Path("/d")], PYTHON, INDEX),
    ):
        at = argv.index("--index-url")
        assert argv[at : at + len(wanted)] == wanted


def test_modules_are_compiled_by_an_interpreter_that_does_not_run_them() -> None:
    argv = commands.compile_bytecode("/usr/bin/python3", [Path("/r/env")])

    assert argv[0] == "/usr/bin/python3"
    assert {"-I", "-S"} < set(argv[:4])
    assert argv[-1] == "/r/env"


def test_a_graph_host_is_told_its_socket_later() -> None:
    assert commands.graph_host(PYTHON, Path("/app/graph_host"), threads=8) == [
        *("/r/env/bin/python", "/app/graph_host", "--socket", "{socket}", "--threads", "8")
    ]
