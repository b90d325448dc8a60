"""Run tests in one child process that gevent has patched, as it patches runners.

    @greened
    def test_it(world): ...

The body runs in the child, on an empty database and an empty Valkey. An exception there fails the test. All tests of a
session share the child, so each must leave modules unchanged: see `constants`.
"""

from __future__ import annotations

import faulthandler
import functools
import importlib.util
import inspect
import json
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import pytest

ROOT = Path(__file__).parents[2]
Scene = TypeVar("Scene")
SHOWING_SECONDS = 2.0  # time for a hanging process to print its stacks
BOOT = "from gevent import monkey; monkey.patch_all(); from tests.support import greened; greened.serve()"


@dataclass(frozen=True)
class World:
    """Addresses and folder that a test in the child works with."""

    database_url: str
    redis_url: str
    tmp_path: Path


def _start() -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", BOOT], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


class Child:
    """The patched process, as seen by the tests."""

    def __init__(self) -> None:
        self._process = _start()

    def run(self, path: Path, name: str, world: World) -> None:
        """Run a test of a module in the child. Raises AssertionError with the child's traceback if it fails."""
        asked = [str(path), name, world.database_url, world.redis_url, str(world.tmp_path)]
        answer = None
        try:
            answer = self._answer(json.dumps(asked))
        finally:
            if answer is None:  # timed out: a late answer would be read as the next test's
                self._show_where_it_stands()
                self._restart()
        error = json.loads(answer)
        assert error is None, error

    def _show_where_it_stands(self) -> None:
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            self._process.send_signal(number)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(SHOWING_SECONDS)

    def _restart(self) -> None:
        self._process.kill()
        self._process.wait()
        self._process = _start()

    def _answer(self, line: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, f"the patched process ended with {self._process.wait()}"
        return answer

    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=20)


@pytest.fixture(scope="session")
def child() -> Iterator[Child]:
    child = Child()
    yield child
    child.stop()


def greened(test: Callable[[World], None]) -> Callable[..., None]:
    """Run this test in the session's patched process."""

    def run_in_child(
        child: Child, db: object, redis: object, database: str, redis_url: str, tmp_path: Path
    ) -> None:
        path = Path(inspect.unwrap(test).__code__.co_filename)
        child.run(path, test.__name__, World(database, redis_url, tmp_path))

    functools.update_wrapper(run_in_child, test, assigned=("__name__", "__doc__", "__module__"), updated=())
    del run_in_child.__wrapped__  # otherwise pytest would read fixtures from the test's own signature
    run_in_child.body = test  # type: ignore[attr-defined]
    return run_in_child


def within(
    scene: Callable[..., AbstractContextManager[Scene]], **settings: Any
) -> Callable[[Callable[[Scene], None]], Callable[..., None]]:
    """Run this test in the patched process with a scene built from its world: `@within(bench, runner_slots=2)`."""

    def on_scene(test: Callable[[Scene], None]) -> Callable[..., None]:
        @functools.wraps(test)
        def run(world: World) -> None:
            with scene(world, **settings) as made:
                test(made)

        return greened(run)

    return on_scene


@contextmanager
def constants(module: ModuleType, **values: Any) -> Iterator[None]:
    """Replace constants of a module while the block runs, for example to shorten timeouts."""
    before = {name: getattr(module, name) for name in values}
    vars(module).update(values)
    try:
        yield
    finally:
        vars(module).update(before)


def serve() -> None:
    """Run tests by name until stdin ends. SIGUSR1 prints the stack of each greenlet."""
    import gevent.util

    gevent.signal_handler(signal.SIGUSR1, gevent.util.print_run_info)
    faulthandler.register(signal.SIGUSR2, all_threads=True)  # works even if the event loop is blocked
    answers, sys.stdout = sys.stdout, sys.stderr
    modules: dict[str, Any] = {}
    connected: tuple[str, str] | None = None
    for line in sys.stdin:
        path, name, database_url, redis_url, tmp_path = json.loads(line)
        if connected != (database_url, redis_url):
            _connect(database_url, redis_url)
            connected = (database_url, redis_url)
        error = None
        try:
            if path not in modules:
                modules[path] = _load(path)
            getattr(modules[path], name).body(World(database_url, redis_url, Path(tmp_path)))
        except BaseException:  # every exception is reported to the parent
            error = traceback.format_exc()
        answers.write(json.dumps(error) + "\n")
        answers.flush()


def _connect(database_url: str, redis_url: str) -> None:
    from shared.infra import postgres
    from shared.infra import redis as shared_redis

    postgres.connect(database_url)
    shared_redis.connect(redis_url)


def _load(path: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"greened_{Path(path).stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
