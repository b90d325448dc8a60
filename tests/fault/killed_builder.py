"""Builders that are killed at one function: `python -m tests.fault.killed_builder`.

Reads lines with a revision's id, a module and one of its functions. Forks a builder for each, as its imports take longer
than most builds, and writes its exit code. Settings, database and Redis come from the environment, as for a real builder.
"""

from __future__ import annotations

# ruff: noqa: E402
from gevent import monkey

monkey.patch_all()

import importlib
import os
import signal
import sys
from typing import Any
from uuid import UUID

from shared.infra import encryption, postgres, redis
from shared.settings import Settings
from workers.builder.builder import Builder

# The forking process has no event loop, which gevent's functions would start and every builder would inherit.
fork, waitpid = monkey.get_original("os", ("fork", "waitpid"))


def die(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def build(revision_id: str, module: str, function: str) -> None:
    settings = Settings.from_env(os.environ)
    postgres.connect(settings.database_url or "")
    redis.connect(settings.redis_url or "")
    encryption.configure(settings.encryption_keys)
    place: Any = importlib.import_module(module)
    *classes, name = function.split(".")
    for part in classes:
        place = getattr(place, part)
    setattr(place, name, die)
    Builder(settings).build(UUID(revision_id))


def main() -> None:
    for line in sys.stdin:
        pid = fork()
        if not pid:
            build(*line.split())
            return
        print(os.waitstatus_to_exitcode(waitpid(pid, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
