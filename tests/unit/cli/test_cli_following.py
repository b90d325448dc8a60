"""Following a revision during a deploy: by its event stream, by its log if the stream breaks, and after Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import control_plane as fake
from tests.support.commands import json_lines, runyard
from tests.support.control_plane import (
    BUILD_LOG,
    REVISION,
    STREAM,
    ControlPlane,
    D,
    Held,
    R,
    deploy_answers,
)

pytestmark = pytest.mark.usefixtures("nowhere")


def test_a_build_is_shown_live_and_goes_on_where_the_stream_broke(
    server: ControlPlane, project: Path
) -> None:
    server.answers = deploy_answers(server)
    server.answers[REVISION] = [
        (200, {"id": R, "status": "BUILDING"}),
        (200, {"id": R, "status": "DEPLOYED"}),
    ]
    server.answers[STREAM] = [
        (200, fake.events(fake.status("BUILDING"), fake.live(1, "one"))),
        (200, fake.events(fake.live(2, "two"), fake.status("DEPLOYED"), first=3)),
    ]

    ran = runyard(server, "deploy", str(project), "--json")

    assert ran.exit_code == 0, ran.output
    told = json_lines(ran)
    assert [line["message"] for line in told if line["event"] == "log"] == ["one", "two"]
    statuses = [line["status"] for line in told if line["event"] == "status_change"]
    assert statuses == ["BUILDING", "DEPLOYED"]
    result = told[-1]
    assert (result["event"], result["status"], result["url"]) == ("result", "succeeded", "http://there/d/app")
    assert (result["deployment_id"], result["revision_id"]) == (D, R)
    assert server.header(STREAM, "Last-Event-ID") == [None, "2"]
    assert BUILD_LOG not in server.asked


def test_a_heartbeat_is_no_event_and_breaks_no_stream(server: ControlPlane, project: Path) -> None:
    server.answers = deploy_answers(server)
    server.answers[REVISION] = [(200, {"id": R, "status": "DEPLOYED"})]
    quiet = b": heartbeat\r\n\r\n" * 3
    server.answers[STREAM] = [
        (
            200,
            fake.events(fake.status("BUILDING"))
            + quiet
            + fake.events(fake.status("DEPLOYING"), first=2)
            + quiet
            + fake.events(fake.live(1, "one"), fake.status("DEPLOYED"), first=3),
        )
    ]

    told = json_lines(runyard(server, "deploy", str(project), "--json"))

    statuses = [line["status"] for line in told if line["event"] == "status_change"]
    assert statuses == ["BUILDING", "DEPLOYING", "DEPLOYED"]
    assert server.asked.count(STREAM) == 1
    assert BUILD_LOG not in server.asked


def test_a_line_has_the_same_time_streamed_and_polled(server: ControlPlane, project: Path) -> None:
    server.answers = deploy_answers(server)
    server.answers[REVISION] = [(200, {"id": R, "status": "DEPLOYED"})]
    polled = json_lines(runyard(server, "deploy", str(project), "--json"))

    server.answers = deploy_answers(server)
    server.answers[REVISION] = [(200, {"id": R, "status": "DEPLOYED"})]
    server.answers[STREAM] = [(200, fake.events(fake.live(1, "one"), fake.status("DEPLOYED")))]
    streamed = json_lines(runyard(server, "deploy", str(project), "--json"))

    times = [line["timestamp"] for line in (*polled, *streamed) if line["event"] == "log"]
    assert times == ["2023-11-14T22:13:20.001000+00:00"] * 2


def test_what_the_stream_lost_comes_from_the_log_once(server: ControlPlane, project: Path) -> None:
    server.answers = deploy_answers(server)
    server.answers[REVISION] = [(200, {"id": R, "status": "DEPLOYED"})]
    server.answers[STREAM] = [
        (200, b": history expired\r\n\r\n" + fake.events(fake.live(2, "two"), fake.status("DEPLOYED")))
    ]
    lines = [fake.line(number, word) for number, word in ((1, "one"), (2, "two"), (3, "three"))]
    server.answers[BUILD_LOG] = [
        (200, {"logs": lines, "next_offset": "x"}),
        (200, {"logs": [], "next_offset": "x"}),
    ]

    told = json_lines(runyard(server, "deploy", str(project), "--json"))

    assert sorted(line["message"] for line in told if line["event"] == "log") == ["one", "three", "two"]


PROJECT = Path(__file__).parents[3]


def test_a_build_goes_on_without_its_deployer(server: ControlPlane, tmp_path: Path) -> None:
    (tmp_path / "langgraph.json").write_text('{"graphs": {"agent": "./agent.py:graph"}}')
    server.answers = deploy_answers(server)
    server.answers[STREAM] = [(200, Held(fake.events(fake.status("BUILDING"))))]
    server.answers[REVISION] = [(200, {"id": R, "status": "BUILDING"})]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RUNYARD_")}
    process = subprocess.Popen(
        [sys.executable, "-m", "cli", "deploy", "--url", server.url, "--api-key", "key"],
        cwd=tmp_path,
        env=environment | {"PYTHONPATH": str(PROJECT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # A process that a shell starts in the background ignores SIGINT, and its children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None
    assert any("BUILDING after" in line for line in process.stdout)

    process.send_signal(signal.SIGINT)
    told, _ = process.communicate(timeout=20)

    assert process.returncode == 130
    assert "The build goes on there: `runyard status app`" in told
