"""`runyard keys`: API keys, made where the database is: who can reach it needs no key to make one."""

from __future__ import annotations

from uuid import UUID

from sqlalchemy import select

from cli import embedded
from cli.errors import CommandFailed
from shared import api_keys, database
from shared.database import transaction
from shared.errors import RunyardError
from shared.models import Organization
from shared.settings import Settings


def create(settings: Settings, *, name: str, organization: str, role: str) -> str:
    """A new key's text. Raises CommandFailed."""
    database.connect(settings.database_url or _embedded_url(settings), pool_size=1)
    try:
        with transaction() as session:
            found = session.execute(select(Organization.id).where(Organization.name == organization)).scalar()
            return api_keys.create(session, _known(found, organization), name=name, role=role)
    except RunyardError as error:
        raise CommandFailed(error.message) from error


def _known(organization_id: UUID | None, name: str) -> UUID:
    if organization_id is None:
        raise CommandFailed(f"There is no organization {name!r}.")
    return organization_id


def _embedded_url(settings: Settings) -> str:
    if not (settings.data_dir / "postgres" / "postmaster.pid").exists():
        raise CommandFailed(
            f"No database runs in {settings.data_dir}. Start the service with `runyard up` first, name its folder"
            " with RUNYARD_DATA_DIR, or set DATABASE_URL."
        )
    return embedded.postgres_url(settings.data_dir)
