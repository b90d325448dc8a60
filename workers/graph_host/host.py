"""The graph host's process: load the graphs, report READY, execute the runs that the runner sends.

The configuration is JSON in the variable GRAPH_HOST_CONFIG, which is removed from the environment before user code
runs. Its keys:

    graphs                   graph id → "path:attribute" or {"path", "description"}
    paths                    import directories after the working directory
    inspect                  true: describe the graphs and exit
    allowed_msgpack_modules  [[module, class] …] that checkpoints may contain besides the project's classes; true: any
    store                    the project's `store` configuration: `ttl`, `index`
    limits                   size limits in bytes (`execution.ByteLimits`)
    auth                     {"path"} of the project's `Auth` object
    http                     the project's `http` configuration: `app`, `apps` (Node), `mount_prefix`
    debug                    {"port", "waits"} of `runyard dev`, for a debugger of Node
    replay                   {"score"} of the project: the function that scores outputs
    secrets                  names of the variables whose values are masked in errors
"""

from __future__ import annotations

import _thread
import argparse
import asyncio
import ctypes
import gc
import os
import platform
import re
import select
import signal
import socket
import sys
import threading
from _thread import start_new_thread
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from json import dumps as json_dumps
from json import loads as json_loads
from time import sleep
from types import ModuleType
from typing import Any, NoReturn

from . import frames, masking
from .connection import Connection
from .loop import DamageWatch, Loop, LoopWatch, NodeThreads
from .output import Limiter, capture, short_traceback

CONFIG_VARIABLE = "GRAPH_HOST_CONFIG"
# The oldest versions that the tests of this package pass with.
OLDEST = {"langgraph": (1, 0, 10), "langgraph-checkpoint": (4, 1, 0)}
DEFAULT_THREADS = 64
STARVED_SECONDS = 5.0  # a run whose nodes have waited this long for a thread should move to another host
WATCH_PAUSE_SECONDS = 0.05
# Objects that may be created between two collections. Python's default of 700 is for programs with few objects: the
# full scans that it causes delay all runs. A project may set another number.
COLLECT_AFTER_OBJECTS = 5_000
SWITCH_SECONDS = 0.001  # switch interval: a computing thread yields to the loop this soon
PR_SET_PDEATHSIG = 1
REPLACED_THREADS = (
    "importing the project replaced the threads of Python, as gevent's monkey.patch_all() does: graphs are"
    " executed by asyncio and real threads. Patch without them (thread=False), or not at all"
)

EXIT_UNUSABLE = 3


class Host:
    """The loaded graphs and the runs in progress."""

    def __init__(self, sock: socket.socket, config: dict[str, Any], threads: int) -> None:
        self._config = config
        self._loop = Loop()
        asyncio.set_event_loop(self._loop)
        self._threads = NodeThreads(threads)
        self._loop.set_default_executor(self._threads)
        self._entries: dict[str, Any] = {}
        self._runs: dict[bytes, Any] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        # Modules that import langgraph, whose version is checked first.
        self._execution: Any = None
        self._queries: Any = None
        self._connect_loopback: Any = None
        self._checker = ThreadPoolExecutor(1, thread_name_prefix="check")
        self._index: Any = None  # the store's index, if configured
        self._auth: Any = None  # the project's authorization, if configured
        self._app: Any = None  # the project's ASGI app, if configured
        self._scorer: Any = None  # the project's scorer, if configured
        self._exchanges: Any = None
        self._is_stopping = False
        self._limits: Any = None
        self._damage = DamageWatch()
        self._connection = Connection(sock, self._loop, self._on_frame)
        self._limiter: Limiter = capture(self._connection)
        self._versions = {"python": platform.python_version(), "langgraph": _version("langgraph")}

    def serve(self) -> None:
        """Load the project, report READY, and work until STOP. Does not return."""
        self._load()
        if self._config.get("inspect"):
            self._report_inspection()
        self._start_app()
        self._connection.send(
            frames.READY, frames.NOBODY, _json({"graphs": list(self._entries), "versions": self._versions})
        )
        mount_prefix = (self._config.get("http") or {}).get("mount_prefix") or ""
        self._connect_loopback(self._exchanges, mount_prefix)
        self._damage = DamageWatch()  # new: changes made while loading are the project's choice
        LoopWatch(self._loop, self._connection)
        gc.collect()
        gc.freeze()  # loaded modules are never freed, so the collector need not scan them again
        while True:
            try:
                self._loop.run_forever()
            except (SystemExit, KeyboardInterrupt):
                # A node called sys.exit(). asyncio sets it as the task's result and then raises it here, so
                # only that run fails. The other runs continue.
                continue

    def _load(self) -> None:
        for package, oldest in OLDEST.items():
            installed = _version(package)
            if _numbers(installed) < oldest:
                needed = ".".join(map(str, oldest))
                message = f"{package} {needed} or newer is needed: the project has {installed or 'none'}"
                self._exit_unusable("environment", message)
        try:  # imported here because they import langgraph, whose version must be checked first
            from . import execution, loader, queries
            from .checkpoints import saver, serializer
            from .project import exchanges, loopback
        except ImportError as error:
            message = f"langgraph cannot be imported: {error}. Has the project a module of the same name?"
            self._exit_unusable("environment", message)
        gc.freeze()
        gc.set_threshold(COLLECT_AFTER_OBJECTS)
        gc.enable()  # the project's modules run with the collector on, as in any other process

        self._execution, self._queries = execution, queries
        self._connect_loopback = loopback.connect
        self._limits = execution.ByteLimits(**(self._config.get("limits") or {}))
        allowed = self._config.get("allowed_msgpack_modules") or ()
        if allowed is not True:
            allowed = [tuple(item) for item in allowed]
        checkpoint_saver = saver.HostSaver(allowed, max_bytes=self._limits.checkpoint_bytes)
        loopback.install()
        self._exchanges = exchanges.Exchanges(self._connection)
        try:
            graph_store = self._make_store()
            modules: dict[str, ModuleType] = {}
            self._entries = loader.load_all(self._config["graphs"], checkpoint_saver, graph_store, modules)
            self._load_user_code(modules)
        except loader.LoadFailed as error:
            self._exit_unusable("load", str(error))
        if _thread.start_new_thread is not start_new_thread:
            self._exit_unusable("load", REPLACED_THREADS)
        checkpoint_saver.with_allowlist(
            serializer.project_types([os.getcwd(), *self._config.get("paths", ())])
        )

    def _load_user_code(self, modules: dict[str, ModuleType]) -> None:
        """Load the project's authorization, app and scorer. Raises LoadFailed. Imports only what the project uses."""
        if auth_config := self._config.get("auth"):
            from .project import auth

            self._auth = auth.load(auth_config["path"], modules)
        if location := (self._config.get("http") or {}).get("app"):
            from .project import app

            self._app = app.App(app.load(location, modules), self._exchanges)
        if location := (self._config.get("replay") or {}).get("score"):
            from .replays import scoring

            self._scorer = scoring.load(location, modules)

    def _start_app(self) -> None:
        if self._app is None:
            return
        from .project import app

        try:
            self._loop.run_until_complete(self._app.start())
        except app.LifespanFailed as error:
            self._exit_unusable("load", str(error))

    def _make_store(self) -> Any:
        """Return the store for graphs. Raises LoadFailed if its embeddings cannot be loaded."""
        from . import store  # imported here, as in `_load`

        config = self._config.get("store") or {}
        self._index = store.load_index(config["index"]) if config.get("index") else None
        return store.HostStore(self._connection, config.get("ttl"), self._index)

    def _report_inspection(self) -> None:
        from . import inspection  # imported here: hosts of runs do without it

        try:
            graphs = self._loop.run_until_complete(inspection.describe_all(self._entries))
            user_code = {
                "auth": self._auth and self._auth.describe(),
                "app": self._app and inspection.describe_app(self._app.app),
            }
        except Exception as error:  # any error of a graph factory
            self._exit_unusable("inspect", short_traceback(error))
        self._limiter.finish()
        ready = {"graphs": graphs, "versions": self._versions, "user_code": user_code}
        self._connection.send(frames.READY, frames.NOBODY, _json(ready))
        self._connection.flush_and_exit(0)

    def _exit_unusable(self, step: str, message: str) -> NoReturn:
        body = _json({"error": {"step": step, "message": masking.masked(message)}})
        self._limiter.finish()
        self._connection.send(frames.READY, frames.NOBODY, body)
        self._connection.flush_and_exit(EXIT_UNUSABLE)

    def _on_frame(self, kind: int, id: bytes, body: bytes) -> None:
        if kind == frames.RUN:
            self._on_run(id, body)
        elif kind == frames.CANCEL:
            if id in self._runs:
                self._runs[id].cancel()
        elif kind == frames.WIDEN:
            if id in self._runs:
                self._runs[id].widen(json_loads(body)["stream_mode"])
        elif kind == frames.PING:
            self._connection.send(frames.PONG, id, self._condition())
        elif kind == frames.STOP:
            self._start_task(self._stop())
        elif kind == frames.QUERY:
            self._on_query(id, body)
        elif kind == frames.PART:
            self._exchanges.receive(id, body)
        elif kind == frames.OPEN:
            self._on_open(id, body)
        elif kind == frames.CHECK:
            self._start_task(self._check(body))

    def _condition(self) -> bytes:
        """Return the body of a PONG: the waiting calls, starved runs and damage, or nothing if there are none."""
        queued, damage = self._threads.queued, self._described_damage()
        if not queued and damage is None:
            return b""
        starved = self._threads.starved(STARVED_SECONDS) if queued else ()
        movable = [id.hex() for id, run in self._runs.items() if id in starved and run.is_movable]
        return _json({"queued": queued, "starved": movable, "damage": damage})

    async def _check(self, body: bytes) -> None:
        """Answer a CHECK: which of these runs are in progress.

        Uses what a run needs, too: the decoder, a thread and the encoder. The thread is separate from those of nodes,
        since a host whose node threads are all busy is not at fault.
        """
        ids = self._execution.loads(body)
        started = await self._loop.run_in_executor(self._checker, self._in_progress, ids)
        self._connection.send(frames.CHECKED, frames.NOBODY, self._execution.dumps(started))

    def _in_progress(self, ids: list[str]) -> list[str]:
        return [id for id in ids if bytes.fromhex(id) in self._runs]

    def _on_run(self, id: bytes, body: bytes) -> None:
        document, input, *stored = frames.unpack(body)
        spec = json_loads(document)
        entry = self._entries.get(spec["graph_id"])
        if entry is None:
            names = ", ".join(self._entries)
            error = {"error": "GraphNotFound", "message": f"no graph '{spec['graph_id']}': there are {names}"}
            self._refuse(id, error)
            return
        execution = self._execution.Execution(
            self._connection,
            entry,
            id,
            spec,
            input,
            stored,
            limits=self._limits,
            limiter=self._limiter,
            versions=self._versions,
        )
        self._runs[id] = execution
        execution.start().add_done_callback(lambda _: self._ended(id))

    def _ended(self, id: bytes) -> None:
        self._runs.pop(id, None)
        self._report_damage()

    def _report_damage(self) -> None:
        """Send the damage to the process at once, without waiting for the next ping."""
        if self._described_damage() is not None:
            self._connection.send(frames.PONG, frames.NOBODY, self._condition())

    def _described_damage(self) -> str | None:
        return self._damage.describe() or (None if self._scorer is None else self._scorer.damage)

    def _refuse(self, id: bytes, error: dict[str, str]) -> None:
        document = {
            "status": "error",
            "error": error,
            "thread_status": "error",
            "interrupts": {},
            "state": None,
            "unchanged": True,
        }
        self._connection.send(frames.EVENT, id, b"error\n" + _json(error))
        parts = [_json(document), b"null", _json({"__error__": error})]
        self._connection.send(frames.DONE, id, frames.pack(parts))

    def _on_query(self, id: bytes, body: bytes) -> None:
        document = json_loads(body)
        if document["op"] == "embed":
            self._start_task(self._queries.answer_embed(self._connection, self._index, id, document))
            return
        if document["op"] == "score":
            self._start_task(self._answer_score(id, document))
            return
        if document["op"] in ("authenticate", "authorize"):
            self._start_task(self._answer_auth(id, document))
            return
        entry = self._entries.get(document["graph_id"])
        if entry is None:
            error = {"error": "GraphNotFound", "message": f"no graph '{document['graph_id']}'"}
            refusal = self._queries.refusal(error, "invalid")
            self._connection.send(frames.ANSWER, id, frames.pack([refusal]))
            return
        self._start_task(self._queries.Query(self._connection, entry, id, document, self._versions).run())

    def _on_open(self, id: bytes, body: bytes) -> None:
        if self._app is not None:
            self._app.open(id, json_loads(body))
            return
        missing = {"message": "this revision has no app"}
        self._exchanges.begin(id).finish(frames.FAILED, missing)

    async def _stop(self) -> None:
        """Shut down the app and exit."""
        if self._is_stopping:
            return
        self._is_stopping = True
        if self._app is not None:
            await self._app.stop()
        self._limiter.finish()
        self._connection.flush_and_exit(0)

    async def _answer_auth(self, id: bytes, document: dict[str, Any]) -> None:
        """Answer an authorization call. Without an authorization of the project every call is refused."""
        answer = {"failed": "this revision has no auth"}
        if self._auth is not None:
            answer = await self._auth.answer(document)
        self._connection.send(frames.ANSWER, id, frames.pack([self._execution.dumps(answer)]))

    async def _answer_score(self, id: bytes, document: dict[str, Any]) -> None:
        answer = {"error": "this revision has no replay.score", "traceback": None}
        if self._scorer is not None:
            answer = await self._scorer.answer(document)
            self._report_damage()
        self._connection.send(frames.ANSWER, id, frames.pack([self._execution.dumps(answer)]))

    def _start_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def main(arguments: list[str]) -> None:
    """Run the process with these command-line arguments."""
    parser = argparse.ArgumentParser(prog="graph_host")
    parser.add_argument("--socket", type=int, required=True)
    parser.add_argument("--threads", type=int, default=DEFAULT_THREADS)
    options = parser.parse_args(arguments)
    config = json_loads(os.environ.pop(CONFIG_VARIABLE))
    masking.configure(os.environ[name] for name in config.get("secrets", ()) if name in os.environ)
    sock = socket.socket(fileno=options.socket)
    sock.set_inheritable(False)
    _die_with_the_runner(sock)
    sys.setswitchinterval(SWITCH_SECONDS)
    sys.argv = ["graph_host"]
    sys.path[:0] = [os.getcwd(), *config.get("paths", ())]
    Host(sock, config, options.threads).serve()


def _die_with_the_runner(sock: socket.socket) -> None:
    """End this process when the runner ends, by a parent-death signal and when the socket closes.

    Otherwise runs would continue although nothing receives their events. A separate thread watches the socket, so that
    the process also ends if a graph blocks the event loop.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    poll = select.poll()
    poll.register(sock, getattr(select, "POLLRDHUP", 0) | select.POLLHUP)

    def wait() -> None:
        while not poll.poll():  # macOS also returns when data can be read
            sleep(WATCH_PAUSE_SECONDS)
        os._exit(1)

    threading.Thread(target=wait, name="runner-watch", daemon=True).start()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text)[:3])


def _json(value: Any) -> bytes:
    return json_dumps(value).encode()
