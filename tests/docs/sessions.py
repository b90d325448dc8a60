"""A page's sessions: one shell, one Python and one Node for all its blocks, in one working folder.

What a shell block exports or changes to (`export`, `cd`) holds for every later block of the page.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Self
from urllib.parse import urlsplit

import httpx

from tests.docs.blocks import JAVASCRIPT, PYTHON, SHELL, Block
from tests.support.javascript import NEWEST, NODE, installed
from tests.support.servers import free_port
from tests.support.stack import Stack, heed_signals
from tests.support.waiting import PATIENCE, wait_until

BLOCK_SECONDS = 75  # multiplied by PATIENCE
SERVICE, DEV = "127.0.0.1:8123", "127.0.0.1:2024"  # addresses in the pages
NO_GET = (405, 501)  # statuses of a server that is there and expects another method
HERE = Path(__file__).parent
# A refused request must fail the block, as it would surprise a reader.
CURL = '#!/bin/sh\nexec "$CURL" --fail-with-body "$@"\n'
AFTER = 'env -0 > "$SESSION/environment"; pwd > "$SESSION/folder"; touch "$SESSION/done"\n'


class PageSession:
    """Runs the blocks of one page. Use as a context manager."""

    def __init__(self, folder: Path, stack: Stack, key: str) -> None:
        self.folder = folder / "page"
        self._session = folder / "session"
        self._stack = stack
        self._dev_port = free_port()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._programs: dict[Sequence[str], tuple[subprocess.Popen[bytes], IO[bytes]]] = {}
        for path in (self.folder, self._session, folder / "home", folder / "bin"):
            path.mkdir()
        (folder / "node_modules").mkdir()
        for client in (NEWEST, "mcp"):
            for package in (installed(client) / "node_modules").glob("[!.]*"):
                place = folder / "node_modules" / package.name
                if not place.exists():
                    place.symlink_to(package)
        (folder / "bin" / "curl").write_text(CURL)
        (folder / "bin" / "curl").chmod(0o755)
        self._environment = {
            **{name: value for name, value in stack.environment.items() if not name.startswith("RUNYARD_")},
            "RUNYARD_URL": stack.url,
            "RUNYARD_API_KEY": key,
            "LANGSMITH_API_KEY": "lsv2_pt_x",  # many users of LangGraph have one; it must not be sent to a service
            "HOME": str(folder / "home"),
            "XDG_CONFIG_HOME": str(folder / "home" / ".config"),
            "PATH": os.pathsep.join(
                map(str, (folder / "bin", NODE, Path(sys.executable).parent, os.environ["PATH"]))
            ),
            "CURL": shutil.which("curl") or "",
            "SESSION": str(self._session),
            "TERM": "dumb",
        }
        self._log = (folder / "output.log").open("w+b")
        self._shell = self._start(["bash", "--noprofile", "--norc"], stdin=subprocess.PIPE)
        self._working_folder = self.folder

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            for number in (signal.SIGINT, signal.SIGKILL):
                try:
                    os.killpg(process.pid, number)
                except ProcessLookupError:
                    break
                try:
                    process.wait(45 if number is signal.SIGINT and process is not self._shell else 0.2)
                except subprocess.TimeoutExpired:
                    continue
        self._log.close()

    def run(self, block: Block) -> None:
        """Write or execute a block. Raises AssertionError with the block and its output if it fails."""
        at = self._log.seek(0, os.SEEK_END)
        try:
            if block.title is not None:
                path = self._working_folder / block.title
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(self._translated(block.text))
            elif block.terminal is not None:
                self._run_beside(block)
            elif block.language in SHELL:
                self._run_shell(block)
            elif block.language in PYTHON:
                self._run_program(block, [sys.executable, str(HERE / "python_session.py")])
            elif block.language in JAVASCRIPT:
                command = [str(NODE / "node"), "--no-warnings", str(HERE / "typescript_session.mjs")]
                self._run_program(block, command)
        except AssertionError as error:
            self._log.seek(at)
            output = self._log.read().decode(errors="replace")[-6000:]
            raise AssertionError(f"{block.place}: {error}\n\n{block.text}\n--- output\n{output}") from None

    def _translated(self, text: str) -> str:
        """Return a text with the addresses of this test in place of those that the page names."""
        for there, here in {
            SERVICE: urlsplit(self._stack.url).netloc,
            DEV: f"127.0.0.1:{self._dev_port}",
        }.items():
            text = text.replace(there, here).replace(there.replace("127.0.0.1", "localhost"), here)
        return text

    def _start(
        self, command: Sequence[str], stdin: int = subprocess.DEVNULL, answers: Sequence[int] = ()
    ) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            command,
            cwd=self.folder,
            env=self._environment,
            stdin=stdin,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=heed_signals,
            pass_fds=answers,
        )
        self._processes.insert(0, process)
        return process

    def _run_shell(self, block: Block) -> None:
        done, script = self._session / "done", self._session / "block.sh"
        done.unlink(missing_ok=True)
        script.write_text(self._translated(block.text))
        command = f'source "{script}"'
        checked = f"( set -e; {command} ) && exit 97" if block.fails else f"set -e; {command}; set +e"
        assert self._shell.stdin is not None
        self._shell.stdin.write(f"{checked}\n{AFTER}".encode())
        self._shell.stdin.flush()
        wait_until(
            lambda: done.exists() or self._shell.poll() is not None, BLOCK_SECONDS, what="the block's end"
        )
        code = self._shell.poll()
        assert code != 97, f"it was expected to fail: {block.fails}"
        assert code is None, f"the shell ended with exit code {code}"
        variables = (self._session / "environment").read_bytes().decode().rstrip("\0").split("\0")
        self._environment = dict(variable.split("=", 1) for variable in variables)
        self._working_folder = Path((self._session / "folder").read_text().strip())

    def _run_beside(self, block: Block) -> None:
        """Start a block in a terminal of its own. The service under test stands for `runyard up`."""
        text = self._translated(block.text)
        if text.startswith("runyard up"):
            return
        text = text.replace("runyard dev", f"runyard dev --port {self._dev_port}")
        process = self._start(["bash", "-ec", f'cd "{self._working_folder}"\n{text}'])
        assert block.terminal is not None
        address = self._translated(block.terminal)
        if address.startswith("http"):
            wait_until(
                lambda: process.poll() is not None or _answers(address), 90, what=f"an answer at {address}"
            )
            assert process.poll() is None, f"it ended with exit code {process.returncode}"

    def _run_program(self, block: Block, command: Sequence[str]) -> None:
        key = tuple(command)
        if key not in self._programs:
            ours, theirs = os.pipe()
            process = self._start(
                ["bash", "-c", f'exec "$@" 3>&{theirs}', "-", *command], subprocess.PIPE, [theirs]
            )
            os.close(theirs)
            self._programs[key] = process, os.fdopen(ours, "rb")
        process, answers = self._programs[key]
        request = {
            "text": self._translated(block.text),
            "place": block.place,
            "folder": str(self._working_folder),
            "environment": self._environment,
        }
        assert process.stdin is not None
        process.stdin.write(json.dumps(request).encode() + b"\n")
        process.stdin.flush()
        seconds = BLOCK_SECONDS * PATIENCE
        readable, _, _ = select.select([answers], [], [], seconds)
        assert readable, f"not done after {seconds} s"
        answer: Mapping[str, str | None] = json.loads(answers.readline() or b'{"error": "the program ended"}')
        if block.fails:
            assert answer["error"] is not None, f"it was expected to fail: {block.fails}"
        else:
            assert answer["error"] is None, answer["error"]


def _answers(address: str) -> bool:
    try:
        response = httpx.get(address, timeout=2)
    except httpx.HTTPError:
        return False
    return response.is_success or response.status_code in NO_GET
