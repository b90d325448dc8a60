"""A builder that is killed at one function: `python -m tests.fault.killed_builder REVISION_ID MODULE FUNCTION`.

Settings, database and Redis come from the environment, as for a real builder.
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


def die(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main(revision_id: str, module: str, function: str) -> None:
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


if __name__ == "__main__":
    main(*sys.argv[1:])
