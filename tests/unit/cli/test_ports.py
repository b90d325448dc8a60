"""A port that is taken is named with what chooses another one."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from cli.machine.embedded import CannotStart
from cli.machine.up import up
from cli.output import Lines
from shared.settings import Settings


@pytest.mark.parametrize(("dev", "chooses"), [(None, "RUNYARD_PORT"), ("my-project", "--port")])
def test_a_port_that_is_taken_is_reported_with_what_chooses_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dev: str | None, chooses: str
) -> None:
    monkeypatch.setattr("cli.machine.up.close_memory", lambda: None)  # the tests' process stays open
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        settings = Settings(data_dir=tmp_path / "data", port=port, dev_deployment=dev)
        with pytest.raises(CannotStart, match=rf"Port {port} .* choose another with {chooses}\."):
            up(settings, Lines(), lambda settings: None)
