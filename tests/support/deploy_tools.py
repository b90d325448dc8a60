"""The programs that read the files of deploy/: Docker Compose, and Helm as its library for Go, both from packages of PyPI."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.support import other_clients

LOCKS = Path(__file__).parents[1] / "deploying"
RENDER = """
import helm_python, json, sys
with helm_python.Chart.load(sys.argv[1]) as chart:
    print(json.dumps(chart.render(values=json.load(sys.stdin), name="agents", namespace="agents")))
"""
LINT = "import helm_python, json, sys; print(json.dumps(helm_python.lint(sys.argv[1])))"


def compose() -> Path:
    """The program docker-compose, from the source distribution that holds it."""
    lock = LOCKS / "compose.lock"
    place = other_clients.CACHE / f"compose-{hashlib.sha256(lock.read_bytes()).hexdigest()[:12]}"
    if not place.exists():
        with tempfile.TemporaryDirectory(dir=_cache()) as folder:
            _python("-m", "pip", "download", "--quiet", "--no-deps", "--no-build-isolation", "--no-binary", ":all:",
                    "--require-hashes", "--requirement", str(lock), "--dest", folder)  # fmt: skip
            [archive] = Path(folder).glob("*.tar.gz")
            with tarfile.open(archive) as packed:
                [member] = [
                    name for name in packed.getnames() if name.endswith("/src/compose/docker-compose")
                ]
                packed.extract(member, folder, filter="data")
            (Path(folder) / member).chmod(0o755)
            os.replace(Path(folder) / member, place)
    return place


def render_chart(chart: Path, values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What `helm template` prints, as manifests."""
    rendered = json.loads(_python("-c", RENDER, str(chart), input=json.dumps(values)))
    return [found for text in rendered.values() for found in yaml.safe_load_all(text) if found]


def lint_chart(chart: Path) -> dict[str, Any]:
    """What `helm lint` finds."""
    return json.loads(_python("-c", LINT, str(chart)))


def _python(*arguments: str, input: str = "") -> str:
    """The output of a Python program beside Helm's library."""
    program = other_clients.installed(LOCKS / "requirements.lock")
    done = subprocess.run(
        [program, *arguments], input=input, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def _cache() -> Path:
    other_clients.CACHE.mkdir(parents=True, exist_ok=True)
    return other_clients.CACHE
