"""The module that gunicorn loads. Patches with gevent first, then sets up settings, logs, connections and the app."""

from __future__ import annotations

from gevent import monkey

monkey.patch_all()

import os  # noqa: E402  the patch comes before every other import

from shared.figures import usage  # noqa: E402
from shared.infra import egress, encryption, logs, postgres, redis, replica, tracing  # noqa: E402
from shared.infra.system import close_memory  # noqa: E402
from shared.setting_values import BadSetting  # noqa: E402
from shared.settings import Settings  # noqa: E402
from web.app import create_app  # noqa: E402
from web.schemas.operations import STATEMENT_SECONDS  # noqa: E402

STATEMENT_TIMEOUT_SECONDS = 10  # for operations marked `slow`; STATEMENT_SECONDS ends others earlier
LOCK_TIMEOUT_SECONDS = 2.5  # before STATEMENT_SECONDS, so that the error names the lock as the cause
BUS_TIMEOUT_SECONDS = 1.0  # a request must not wait for an unreachable Redis


def connect(settings: Settings) -> None:
    """Configure this process's connections, which open on first use. Raises BadSetting."""
    if settings.database_url is None or settings.redis_url is None:
        raise BadSetting("web needs DATABASE_URL and REDIS_URL: start it with `runyard up`, or set them")
    if not settings.encryption_keys:
        raise BadSetting("web needs RUNYARD_ENCRYPTION_KEYS: `runyard encryption new-key` makes one")
    postgres.connect(
        settings.database_url,
        statement_timeout_seconds=STATEMENT_TIMEOUT_SECONDS,
        application="runyard web",
        pooler=settings.database_pooler,
        lock_timeout_seconds=LOCK_TIMEOUT_SECONDS,
        silence_seconds=STATEMENT_SECONDS,
    )
    replica.connect(
        settings.database_read_url,
        statement_timeout_seconds=STATEMENT_TIMEOUT_SECONDS,
        pooler=settings.database_pooler,
    )
    redis.connect(
        settings.redis_url,
        broker_url=settings.redis_broker_url,
        events_urls=settings.redis_events_urls,
        timeout_seconds=BUS_TIMEOUT_SECONDS,
    )


close_memory()
settings = Settings.from_env(os.environ)
logs.configure(settings)
encryption.configure(settings.encryption_keys)
egress.configure(settings.allowed_addresses, allow_http=settings.allow_http)
usage.configure_prices(settings.model_prices)
connect(settings)
tracing.configure(settings, "web")
app = create_app(settings)
