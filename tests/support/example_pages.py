"""Pages of examples: built with the packages of their lock file, and served by Vite beside a deployment."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.support import javascript
from tests.support.servers import free_port
from tests.support.waiting import wait_until

BUILD = ("node_modules/typescript/bin/tsc", "node_modules/vite/bin/vite.js build")


def built(page: Path) -> Path:
    """Check the types of a page and build it. Returns the directory with its packages."""
    for command in BUILD:
        assert javascript.run_script(page, *command.split()) == 0
    return javascript.installed(page)


@contextmanager
def served(built_page: Path, deployment_url: str, api_key: str, **more: str) -> Iterator[str]:
    """Serve a built page, which talks to a deployment. Yields its address. `more` are environment variables."""
    port = free_port()
    server = subprocess.Popen(
        [
            *(javascript.NODE / "node", "node_modules/vite/bin/vite.js", "preview"),
            *("--host", "127.0.0.1", "--port", str(port), "--strictPort"),
        ],
        cwd=built_page,
        env=javascript.environment(DEPLOYMENT_URL=deployment_url, RUNYARD_API_KEY=api_key, **more),
        stdout=subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{port}/"
    try:
        wait_until(lambda: _serves(url), 60)
        yield url
    finally:
        server.terminate()
        server.wait(timeout=30)


def _serves(url: str) -> bool:
    try:
        return httpx.get(url).is_success
    except httpx.TransportError:
        return False
