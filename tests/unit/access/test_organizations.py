"""Organizations: names, deletion and its effects, and removal by upkeep."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import text

from shared.access import api_keys, organizations
from shared.access.api_keys import DEFAULT_ORGANIZATION_ID, Caller
from shared.errors import Conflict, Forbidden, NotFound
from shared.infra.postgres import connection
from shared.settings import Settings
from tests.support import factories
from workers.upkeep.upkeep import Upkeep


@pytest.fixture(autouse=True)
def nothing_cached(db: Any) -> Iterator[None]:
    api_keys.forget()
    organizations.forget()
    with connection() as conn:
        api_keys.ensure_default_organization(conn)
    yield
    api_keys.forget()
    organizations.forget()


def create(name: str = "acme") -> UUID:
    with connection() as conn:
        id: UUID = organizations.create(conn, name)["id"]
        return id


def delete(organization_id: UUID) -> None:
    with connection() as conn:
        organizations.delete(conn, organization_id)


def key_of(organization_id: UUID, role: str = "admin") -> str:
    with connection() as conn:
        return api_keys.create(conn, organization_id, name="one", role=role)


def count(table: str) -> int:
    with connection() as conn:
        return int(conn.execute(text(f"SELECT count(*) FROM {table}")).scalar_one())


def test_a_name_is_taken_until_its_organization_is_deleted() -> None:
    first, other = create("acme"), create("other")
    with pytest.raises(Conflict), connection() as conn:
        organizations.rename(conn, other, "acme")
    delete(first)
    assert create("acme") != first


def test_deleting_ends_its_keys_and_hides_its_deployments() -> None:
    id = create()
    key = key_of(id)
    deployment = factories.deployment(organization_id=id)
    found = api_keys.authenticate(key)
    assert found is not None
    assert api_keys.is_alive(found.key_id)

    delete(id)
    api_keys.forget()

    assert api_keys.authenticate(key) is None
    assert not api_keys.is_alive(found.key_id)
    with connection() as conn:
        hidden = conn.execute(
            text("SELECT deleted_at IS NOT NULL FROM deployment WHERE id = :id"), {"id": deployment.id}
        ).scalar_one()
        assert hidden
        with pytest.raises(NotFound):
            organizations.delete(conn, id)


def test_upkeep_removes_it_once_nothing_is_left(settings: Settings) -> None:
    id = create()
    key_of(id)
    delete(id)
    late = factories.deployment(organization_id=id)  # created with a key that was still cached
    before = count("organization")

    upkeep = Upkeep(settings)
    upkeep.tick()
    assert count("organization") == before, "its keys may still be believed"

    with connection() as conn:
        conn.execute(text("UPDATE organization SET deleted_at = deleted_at - interval '1 hour'"))
    for _ in range(2):
        upkeep._organizations()
        upkeep._removals.deleted_deployments()
    upkeep._organizations()

    with connection() as conn:
        assert not conn.execute(text("SELECT 1 FROM deployment WHERE id = :id"), {"id": late.id}).first()
    assert count("organization") == before - 1
    assert count("api_key") == 0


def test_an_operator_speaks_for_any_organization_until_it_is_deleted_and_others_for_their_own() -> None:
    id = create("acme")
    operator = Caller(DEFAULT_ORGANIZATION_ID, "default", "bootstrap", "operator")
    admin = Caller(id, "acme", "abcdefgh", "admin")

    for tenant in ("acme", str(id), str(id).upper()):
        acting = organizations.acting_for(operator, tenant)
        assert (acting.organization_id, acting.organization_name, acting.role) == (id, "acme", "operator")
        assert organizations.acting_for(admin, tenant) == admin
    for caller, tenant in ((operator, "nobody"), (admin, "default"), (admin, str(DEFAULT_ORGANIZATION_ID))):
        with pytest.raises(Forbidden):
            organizations.acting_for(caller, tenant)

    assert organizations.acting_for(operator, "acme").organization_id == id
    delete(id)
    with pytest.raises(Forbidden):
        organizations.acting_for(operator, "acme")
