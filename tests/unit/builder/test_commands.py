"""The command lines of build steps: what is run, and with what."""

from __future__ import annotations

from pathlib import Path

from workers.builder import commands


def test_an_archive_is_unpacked_where_the_working_directory_offers_no_modules() -> None:
    argv = commands.unpack("/usr/bin/python3", Path("/r/a.tar.gz"), Path("/r/project"))

    assert argv[argv.index("-m") :] == ["-m", "workers.builder.unpack", "/r/a.tar.gz", "/r/project"]
    assert "-P" in argv


def test_modules_are_compiled_by_an_interpreter_that_does_not_run_them() -> None:
    argv = commands.compile_bytecode("/usr/bin/python3", [Path("/r/env")])

    assert argv[0] == "/usr/bin/python3"
    assert {"-I", "-S"} < set(argv[:4])
    assert argv[-1] == "/r/env"


def test_a_graph_host_gets_its_socket_later() -> None:
    assert commands.graph_host(Path("/r/env/bin/python"), Path("/app/graph_host"), threads=8) == [
        *("/r/env/bin/python", "/app/graph_host", "--socket", "{socket}", "--threads", "8")
    ]
