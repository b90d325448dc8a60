"""The benchmark, run against a minimal fake server and against the bare graphs."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from bench import report
from bench.__main__ import main
from bench.client import Client, Reply
from bench.in_process import InProcess
from bench.measuring import percentile
from bench.scenarios import delivery
from bench.server import Server
from bench.session import ECHO, Tally, on_thread, streamed
from bench.targets import Event, Recorded

LITTLE = [
    "--samples=3", "--seconds=0.05", "--warmup-seconds=0.01", "--clients=1,2", "--tokens=5",
    "--token-streams=2", "--token-rounds=1", "--paced-streams=2", "--paced-interval-seconds=0.001",
    "--idle-runs=3", "--idle-seconds=0.01", "--block-seconds=0.001", "--burners=1", "--burn-seconds=0.001",
    "--aging-runs=35",
]  # fmt: skip


RELAY = """
import os, pathlib, socket, sys, threading

def pump(source, sink):
    while data := source.recv(65536):
        sink.sendall(data)

port, server_port, pid_file = sys.argv[1:]
pathlib.Path(pid_file).write_text(str(os.getpid()))
listener = socket.create_server(("127.0.0.1", int(port)))
while True:
    client, _ = listener.accept()
    server = socket.create_connection(("127.0.0.1", int(server_port)))
    for pair in ((client, server), (server, client)):
        threading.Thread(target=pump, args=pair, daemon=True).start()
"""


class FakeServer:
    """Implements the part of the deployment API that the benchmark calls, and answers every run at once.

    `closes` announces and closes each connection after its answer. `forgets` closes it without the announcement.
    """

    def __init__(self) -> None:
        self.closes = self.forgets = False
        self.status = 200
        self.threads = 0  # number of threads that it reports
        self.framing: Callable[[bytes], list[bytes]] = lambda body: [body]
        self.requests: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def __enter__(self) -> FakeServer:
        self._thread.start()
        starting = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self._serve, "127.0.0.1", 0), self._loop
        )
        self._server = starting.result(60)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._loop.call_soon_threadsafe(self._server.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/d/bench"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                first, *lines = head.decode().split("\r\n")[:-2]
                headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
                sent = await reader.readexactly(int(headers.get("content-length", 0)))
                body = json.loads(sent or b"{}")
                method, path, _ = first.split()
                self.requests.append((path, headers, body))
                if method == "GET" and path.endswith("/stream"):
                    writer.write(b"HTTP/1.1 200 Open\r\nTransfer-Encoding: chunked\r\n\r\n")
                    continue
                writer.write(self._answer(path, body))
                await writer.drain()
                if self.closes or self.forgets:
                    break
        except asyncio.IncompleteReadError:
            pass  # the client has disconnected
        writer.close()

    def _answer(self, path: str, asked: dict[str, Any]) -> bytes:
        close = "Connection: close\r\n" if self.closes else ""
        head = f"HTTP/1.1 {self.status} Answer\r\n{close}"
        if not path.endswith("/stream"):
            made = {"/threads": {"thread_id": "t"}, "/threads/count": self.threads}
            there = next((made[end] for end in made if path.endswith(end)), None)
            body = json.dumps(output(asked) if there is None else there).encode()
            return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
        chunks = self.framing(transcript(asked))
        encoded = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks)
        return f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + encoded + b"0\r\n\r\n"


def output(asked: dict[str, Any]) -> dict[str, Any]:
    return {"reply": f"echo: {asked.get('input', {}).get('text')}", "spent_seconds": 0, "steps_left": 0}


def transcript(asked: dict[str, Any]) -> bytes:
    mode = asked["stream_mode"][0]
    count = asked["input"].get("count", 0)
    data: list[Any]
    if mode == "custom":
        data = [{"index": index, "made_at": time.time()} for index in range(count)]
    elif mode == "messages-tuple":
        data = [[{"content": f"{index}:{time.time()} "}, {}] for index in range(count)]
    else:
        data = [{"work": output(asked)}]
    name = mode.removesuffix("-tuple")
    lines = ["event: metadata", 'data: {"run_id":"r","attempt":1}', "", ": heartbeat", ""]
    for item in data:
        lines += [f"event: {name}", f"data: {json.dumps(item)}", ""]
    return "".join(f"{line}\r\n" for line in lines).encode()


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer() as fake:
        yield fake


def ask(server: FakeServer, *, streams: bool = False) -> Reply:
    async def run() -> Reply:
        target = Server(server.url, {"x-api-key": "k"})
        try:
            return await target.run(streamed(ECHO) if streams else ECHO, timeout_seconds=60)
        finally:
            await target.aclose()

    return asyncio.run(run())


def rows_of(path: Path) -> dict[tuple[str, str], dict[str, Any]]:
    return {(row["scenario"], row["case"]): row for row in report.read([path])}


def test_it_measures_a_server_by_its_address(server: FakeServer, tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"

    status = main(["--base-url", server.url, "--header", "x-api-key: k", "--out", str(out), *LITTLE])

    assert status == 0
    rows = rows_of(out)
    assert {scenario for scenario, _ in rows} == {
        "memory", "latency", "throughput", "tokens", "paced", "idle", "block", "noisy", "aging",
    }  # fmt: skip
    assert all(row["errors"] == 0 and row["label"] == "server" for row in rows.values())
    assert rows["latency", "stream_threaded"].keys() >= {
        "metadata_ms_p50",
        "first_data_ms_p50",
        "whole_ms_p50",
    }
    assert rows["tokens", "messages_2_streams"]["events"] == 10
    assert rows["paced", "custom_2_streams"]["lost"] == 0
    assert rows["idle", "3_runs"]["runs"] == 3
    assert sum(row["runs"] for (scenario, _), row in rows.items() if scenario == "aging") == 35
    assert all(headers["x-api-key"] == "k" for _, headers, _ in server.requests)
    assert all(path.startswith("/d/bench/") for path, _, _ in server.requests)


def test_it_measures_the_bare_graphs_by_the_same_scenarios(tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"

    status = main(["--in-process", "--out", str(out), *LITTLE])

    assert status == 0
    rows = rows_of(out)
    assert all(row["errors"] == 0 and row["label"] == "in-process" for row in rows.values())
    assert rows["tokens", "custom_2_streams"]["events"] == 10
    assert rows["tokens", "messages_2_streams"]["lost"] == 0
    assert rows["memory", "200_runs"]["memory_mb"] > 0
    assert "cpu_ms_per_run" in rows["latency", "wait_threaded_10_steps"]


def test_it_measures_what_a_server_keeps(server: FakeServer, tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    server.threads = 3
    asked = ["--past-runs=4", "--search-threads=5", "--watchers=40", "--scenario=long_thread,search,watching"]

    assert main(["--base-url", server.url, "--out", str(out), *LITTLE, *asked]) == 0

    rows = rows_of(out)
    assert all(row["errors"] == 0 for row in rows.values())
    assert {case for scenario, case in rows if scenario == "long_thread"} == {
        "first_run", "after_4_runs", "newest_state", "history_of_10",
    }  # fmt: skip
    assert rows["long_thread", "after_4_runs"]["times_the_first"] > 0
    assert rows["search", "one_in_1000"]["answers"] == 3
    made = [
        body["metadata"]
        for path, _, body in server.requests
        if body.get("metadata") and path.endswith("threads")
    ]
    assert sorted(metadata["user"] for metadata in made) == ["u3", "u4"], (
        "those that were there are not made again"
    )
    watching = rows["watching", "40_streams"]
    assert (watching["streams"], watching["streams_lost"], watching["runs"]) == (40, 0, 3)


def test_only_a_server_keeps_anything(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--in-process", "--scenario=search", *LITTLE]) == 1
    assert "only a server keeps" in capsys.readouterr().err


def test_it_puts_both_in_one_table_of_ratios(server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    main(["--base-url", server.url, "--in-process", "--label", "ours", "--scenario", "latency", *LITTLE])

    said = capsys.readouterr().out
    assert "| scenario | case | figure | better | ours | in-process | ratio |" in said
    assert "| latency | wait_threaded | whole_ms_p50 | less |" in said


def test_it_measures_others_beside_the_first_in_turn(
    server: FakeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "rows.jsonl"
    with FakeServer() as other:
        asked = [
            "--beside",
            f"theirs={other.url}",
            "--scenario=latency,throughput",
            "--repeat=2",
            "--clients=32",
        ]
        told = ["--header=x-api-key: k", "--label=ours", f"--out={out}"]

        assert main(["--base-url", server.url, *LITTLE, *asked, *told]) == 0

        assert all("x-api-key" not in headers for _, headers, _ in other.requests), "the key is the first's"
    turns = list(dict.fromkeys((row["repeat"], row["label"]) for row in report.read([out])))
    assert turns == [(0, "ours"), (0, "theirs"), (1, "ours"), (1, "theirs")]
    side_by_side = capsys.readouterr().out.partition("### Side by side\n")[2]
    assert "|  |  | ours | theirs | × theirs |" in side_by_side
    assert "| A run on a thread over SSE, to its end | ms, p50 |" in side_by_side


def test_each_server_has_a_name_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--base-url=http://127.0.0.1:1", "--beside=server=http://127.0.0.1:2"])

    assert "each server needs a name of its own" in capsys.readouterr().err


def test_durable_threads_in_process_are_in_a_database_when_a_run_ends() -> None:
    async def run() -> None:
        target = InProcess(durable=True)
        assert target.database
        try:
            thread = await target.create_thread()
            outcomes = [
                await target.run(call, timeout_seconds=30)
                for call in (ECHO, streamed(on_thread(ECHO, thread)), on_thread(ECHO, thread))
            ]
            with psycopg.connect(target.database.url) as conn:
                kept = conn.execute("SELECT DISTINCT thread_id FROM checkpoint").fetchall()
        finally:
            await target.aclose()
        assert [outcome.error for outcome in outcomes] == [""] * 3
        assert kept == [(thread,)], "of the stateless run nothing"

    asyncio.run(run())


def test_it_burns_cpu_on_the_other_deployment(server: FakeServer) -> None:
    with FakeServer() as other:
        main(["--base-url", server.url, "--noisy-url", other.url, "--scenario", "noisy", *LITTLE])

        assert {body["assistant_id"] for _, _, body in server.requests} == {"echo"}
        assert {body["assistant_id"] for _, _, body in other.requests} == {"burn"}


def test_it_measures_a_start_and_stops_what_it_started(tmp_path: Path, server: FakeServer) -> None:
    """The start command relays to a server that answers. The test checks that it is started, observed and stopped."""
    port = _free_port()
    relay = tmp_path / "relay.py"
    relay.write_text(RELAY)
    out = tmp_path / "rows.jsonl"

    status = main(
        [
            f"--base-url=http://127.0.0.1:{port}/d/bench",
            f"--start-command={sys.executable} {relay} {port} {server.port} {tmp_path / 'pid'}",
            "--scenario=coldstart",
            f"--out={out}",
        ]
    )

    assert status == 0
    row = rows_of(out)["coldstart", "start_to_first_run"]
    assert row["first_run_seconds"] >= row["listening_seconds"] > 0
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text()}").exists()


def test_a_start_command_that_ends_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    status = main(
        [
            f"--base-url=http://127.0.0.1:{_free_port()}",
            f"--start-command={sys.executable} -c 'raise SystemExit(3)'",
            "--scenario=coldstart",
        ]
    )

    assert status == 1
    assert "the start command ended with 3" in capsys.readouterr().err


def test_deploy_commands_are_timed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, count = tmp_path / "rows.jsonl", tmp_path / "count"
    add = f"{sys.executable} -c \"open('{count}', 'a').write('x')\""
    address = f"--base-url=http://127.0.0.1:{_free_port()}"
    asked = [address, "--scenario=deploying", f"--deploy-command={add}", f"--rollback-command={add}"]

    assert main([*asked, f"--out={out}"]) == 0

    rows = rows_of(out)
    assert {case for _, case in rows} == {"first", "again", "rollback"}
    assert all(row["command_ms_p50"] > 0 for row in rows.values())
    assert len(count.read_text()) == 11
    assert (
        main([address, "--scenario=deploying", f"--deploy-command={sys.executable} -c 'exit(\"no\")'"]) == 1
    )
    assert "ended with 1:\nno" in capsys.readouterr().err


def test_it_measures_nothing_of_a_server_that_runs_nothing(
    server: FakeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.status = 404

    status = main(["--base-url", server.url, *LITTLE])

    assert status == 1
    assert "a run of graph `echo` failed: status 404" in capsys.readouterr().err


def test_an_answer_without_the_work_is_an_error(server: FakeServer) -> None:
    server.framing = lambda body: [body.replace(b"echo: x", b"")]

    assert ask(server, streams=True).error.startswith("not the answer expected: event: metadata")


def test_a_failed_run_is_an_error(server: FakeServer) -> None:
    server.framing = lambda body: [body, b"event: error\r\ndata: {}\r\n\r\n"]

    assert ask(server, streams=True).error == "the run failed"


def test_a_server_that_is_not_there_is_an_error() -> None:
    async def run() -> Reply:
        return await Client(f"http://127.0.0.1:{_free_port()}", {}).post("/runs/wait", {}, timeout_seconds=60)

    assert asyncio.run(run()).error


@pytest.mark.parametrize("size", [1, 7, 100_000])
def test_events_are_read_whatever_the_chunks(server: FakeServer, size: int) -> None:
    server.framing = lambda body: [body[at : at + size] for at in range(0, len(body), size)]

    events = ask(server, streams=True).events()

    assert [event.name for event in events] == ["metadata", "updates"]
    assert events[1].data == {"work": {"reply": "echo: x", "spent_seconds": 0, "steps_left": 0}}


def test_an_event_arrives_with_the_read_that_completes_it() -> None:
    reply = Reply(
        chunks=[(1.0, b"event: a\ndata: 1\n\nevent: b\nda"), (2.0, b"ta: 2\n\n: heartbeat\r\n\r\n")]
    )

    assert reply.events() == [Event(1.0, "a", 1), Event(2.0, "b", 2)]


@pytest.mark.parametrize("habit", ["closes", "forgets"])
def test_connections_that_the_server_does_not_keep_lose_no_request(server: FakeServer, habit: str) -> None:
    setattr(server, habit, True)

    async def run() -> list[str]:
        target = Server(server.url, {})
        errors = []
        for _ in range(5):
            errors.append((await target.run(ECHO, timeout_seconds=60)).error)
        await target.aclose()
        return errors

    assert asyncio.run(run()) == [""] * 5


def test_lost_doubled_and_disordered_events_are_counted() -> None:
    def stream(*indexes: int) -> Recorded:
        return Recorded(recorded=[Event(2.0, "custom", {"index": i, "made_at": 1.0}) for i in indexes])

    tally = Tally()
    for outcome in (stream(0, 1, 2, 3), stream(0, 2, 1, 1), Recorded(error="timeout")):
        tally.add(outcome)

    seen = delivery(tally, "custom", 4)

    assert (seen.received, seen.lost, seen.doubled, seen.disordered) == (8, 1, 1, 1)
    assert seen.report()["delay_ms_p50"] == 1000.0


def test_a_comparison_is_of_medians() -> None:
    def rows(label: str, *figures: float) -> list[dict[str, Any]]:
        return [
            {"scenario": "throughput", "case": "c", "label": label, "runs_per_second": figure, "errors": 0}
            for figure in figures
        ]

    text = report.comparison(rows("ours", 10, 30, 20), rows("theirs", 5))

    assert "| throughput | c | runs_per_second | more | 20 | 5 | 4 |" in text
    assert "errors" not in text, "nothing to compare"


def test_files_that_hold_something_else_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.jsonl"
    other.write_text("[]\n")

    assert main(["--table", str(other)]) == 1
    assert "other.jsonl:1: not a row of this benchmark" in capsys.readouterr().err


def test_a_percentile_is_a_value_that_was_measured() -> None:
    assert [percentile([3.0, 1.0, 2.0], percent) for percent in (50, 95, 1)] == [2.0, 3.0, 1.0]


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]
