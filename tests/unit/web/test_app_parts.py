"""The kinds of parts that web and graph hosts exchange: web may not import what a host runs, so it spells them again."""

from __future__ import annotations

from web.deployment_api import app_parts
from workers.graph_host import frames


def test_web_and_hosts_mean_the_same_parts() -> None:
    for name in ("HEAD", "BODY", "END", "TEXT", "BYTES", "CLOSE", "FAILED"):
        assert getattr(app_parts, name) == getattr(frames, name)
