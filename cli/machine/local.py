"""Direct database access for commands. They run on the machine of the service and need no API key."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from sqlalchemy import text

from cli.errors import CommandFailed
from cli.machine import embedded
from shared import audit
from shared.access import api_keys
from shared.audit import Action, Actor
from shared.errors import RunyardError
from shared.infra import encryption, key_rotation, postgres
from shared.infra.postgres import connection
from shared.settings import Settings

AT_MACHINE = Actor("local", "command line at the machine of the service")


@contextmanager
def connected(settings: Settings) -> Iterator[None]:
    """Connect to the service's database within the block. Raises CommandFailed in place of a RunyardError."""
    url = settings.database_url or _embedded_url(settings)
    postgres.connect(url, pool_size=2, pooler=settings.database_pooler)
    try:
        yield
    except RunyardError as error:
        raise CommandFailed(error.message) from error


def create_key(
    settings: Settings, *, name: str, organization: str, role: str, lifetime: timedelta | None
) -> str:
    """Create an API key and return its text. Raises CommandFailed if the organization does not exist."""
    with connected(settings), connection() as conn:
        query = text("SELECT id FROM organization WHERE name = :name AND deleted_at IS NULL")
        organization_id = conn.execute(query, {"name": organization}).scalar()
        if organization_id is None:
            raise CommandFailed(
                f"There is no organization {organization!r}. `runyard orgs create` makes one."
            )
        key = api_keys.create(conn, organization_id, name=name, role=role, lifetime=lifetime)
        of_key = api_keys.id_of(key)
        audit.add(conn, organization_id, Action.KEY_CREATED, name, by=AT_MACHINE, of_key=of_key, role=role)
        return key


def rotate(
    settings: Settings, print_counts: Callable[[str, Counter[str]], None] = lambda column, counts: None
) -> Counter[str]:
    """Re-encrypt all stored secrets with the first key. Returns counts by outcome.

    `print_counts` is called after each column. Raises CommandFailed and BadSetting.
    """
    encryption.configure(encryption_keys(settings))
    with connected(settings):
        return key_rotation.rotate(print_counts)


def encryption_keys(settings: Settings) -> tuple[str, ...]:
    """Return the keys of RUNYARD_ENCRYPTION_KEYS, else those in the data directory. Raises CommandFailed."""
    if settings.encryption_keys:
        return settings.encryption_keys
    path = embedded.key_file(settings.data_dir)
    if not path.is_file():
        raise CommandFailed(
            f"There is no {path}. Set RUNYARD_ENCRYPTION_KEYS as the service has it, or RUNYARD_DATA_DIR."
        )
    return embedded.read_keys(path)


def keep_keys(settings: Settings, keys: Sequence[str]) -> Path:
    """Write these keys to the data directory. Returns the file, which is replaced atomically."""
    path = embedded.key_file(settings.data_dir)
    draft = path.with_name(path.name + ".new")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft.unlink(missing_ok=True)
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(",".join(keys) + "\n")
            file.flush()
            os.fsync(file.fileno())
        draft.rename(path)
    except OSError as error:
        raise CommandFailed(f"{path} cannot be written: {error.strerror}.") from error
    return path


def _embedded_url(settings: Settings) -> str:
    if not (settings.data_dir / "postgres" / "postmaster.pid").exists():
        raise CommandFailed(
            f"No database runs in {settings.data_dir}. Start the service with `runyard up` first, name its folder"
            " with RUNYARD_DATA_DIR, or set DATABASE_URL."
        )
    return embedded.postgres_url(settings.data_dir)
