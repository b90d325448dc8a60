"""API keys: their format, what is stored of them, and when they stop working."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select, text, update

from shared.access import api_keys
from shared.errors import Invalid
from shared.infra.postgres import connection
from shared.models import API_KEY
from tests.support import factories
from tests.support.waiting import wait_until


@pytest.fixture(autouse=True)
def nothing_cached(db: Any) -> Iterator[None]:
    api_keys.forget()
    with connection() as conn:
        api_keys.ensure_default_organization(conn)
    yield
    api_keys.forget()


def make(**options: Any) -> str:
    with connection() as conn:
        return api_keys.create(conn, api_keys.DEFAULT_ORGANIZATION_ID, name="ci", **options)


def row() -> Any:
    with connection() as conn:
        return conn.execute(select(API_KEY)).one()


def test_a_key_has_an_id_and_256_random_bits_that_are_not_kept() -> None:
    key = make()
    assert re.fullmatch(r"ryd_[A-Za-z0-9]{8}_[A-Za-z0-9_-]{43}", key)
    secret = key.split("_", 2)[2].encode()
    stored = row()
    assert stored.id in key
    assert len(stored.secret_hash) == 32
    assert secret not in stored.secret_hash


def test_a_key_has_a_role_that_there_is() -> None:
    with pytest.raises(Invalid):
        make(role="king")


@pytest.mark.parametrize(
    "change",
    [
        lambda key: key[:-1] + ("A" if key[-1] != "A" else "B"),
        lambda key: "ryd_" + "0" * 8 + key[12:],
        lambda key: key[:-1],
        lambda key: key + "A",
        lambda key: key.replace("ryd_", "xyz_"),
        lambda key: "",
        lambda key: "ryd_\x00" + "0" * 7 + key[12:],
        lambda key: "ryd_é" + "0" * 7 + key[12:],
    ],
)
def test_it_knows_no_other_key(change: Any) -> None:
    assert api_keys.authenticate(change(make())) is None


def test_a_revoked_key_stops_working_and_revoking_again_changes_nothing() -> None:
    key = make()
    assert api_keys.authenticate(key)
    with connection() as conn:
        api_keys.revoke(conn, api_keys.DEFAULT_ORGANIZATION_ID, row().id)
    assert api_keys.authenticate(key) is None

    id = row().id
    for _ in range(2):
        with connection() as conn:
            api_keys.revoke(conn, api_keys.DEFAULT_ORGANIZATION_ID, id)
        first = row().revoked_at
    assert row().revoked_at == first


def test_a_key_expires() -> None:
    assert api_keys.authenticate(make(lifetime=timedelta(hours=1)))
    with connection() as conn:
        conn.execute(update(API_KEY).values(expires_at=API_KEY.c.created_at))
    api_keys.forget()
    assert api_keys.authenticate("ryd_" + row().id + "_" + "A" * 43) is None
    assert api_keys.authenticate(make(lifetime=timedelta(seconds=-1))) is None


def test_its_use_is_noted_and_a_known_key_is_believed_without_asking_again() -> None:
    key = make()
    assert row().last_used_at is None
    api_keys.authenticate(key)
    assert row().last_used_at is not None

    first = api_keys.authenticate(key)
    with connection() as conn:
        conn.execute(update(API_KEY).values(role="read"))
    assert api_keys.authenticate(key) == first
    api_keys.forget()
    again = api_keys.authenticate(key)
    assert again is not None
    assert again.role == "read"


def test_the_operators_key_needs_no_row_and_one_with_a_row_is_of_the_default_organization() -> None:
    caller = api_keys.authenticate("as given", bootstrap="as given")
    assert caller is not None
    assert (caller.role, caller.organization_id) == ("operator", api_keys.DEFAULT_ORGANIZATION_ID)
    assert api_keys.authenticate("as giveN", bootstrap="as given") is None
    assert api_keys.authenticate("as given", bootstrap=None) is None

    other = factories.organization()
    with pytest.raises(Invalid), connection() as conn:
        api_keys.create(conn, other, name="too much", role="operator")
    stored = api_keys.authenticate(make(role="operator"))
    assert stored is not None
    assert stored.may("operator")


def test_a_key_stays_alive_until_it_is_revoked() -> None:
    make()
    id = row().id
    assert api_keys.is_alive(id)
    assert api_keys.is_alive("bootstrap")
    assert not api_keys.is_alive("00000000")
    with connection() as conn:
        api_keys.revoke(conn, api_keys.DEFAULT_ORGANIZATION_ID, id)
    assert not api_keys.is_alive(id)


@pytest.mark.parametrize(
    ("column", "days", "left"), [("revoked_at", 91, 0), ("expires_at", 91, 0), ("revoked_at", 89, 1)]
)
def test_a_key_that_ended_long_ago_is_removed(column: str, days: int, left: int) -> None:
    make()
    with connection() as conn:
        conn.execute(text(f"UPDATE api_key SET {column} = now() - make_interval(days => {days})"))
        api_keys.purge_ended(conn)
        assert len(api_keys.list_of(conn, api_keys.DEFAULT_ORGANIZATION_ID, limit=10, offset=0)) == left


def test_what_another_process_revoked_is_noticed_when_the_cached_caller_expires() -> None:
    assert api_keys.CACHE_SECONDS <= 5
    key = make()
    caller = api_keys.authenticate(key)
    assert caller is not None
    assert api_keys.is_alive(caller.key_id)
    with connection() as conn:
        conn.execute(update(API_KEY).values(revoked_at=API_KEY.c.created_at))
    wait_until(lambda: api_keys.authenticate(key) is None, timeout=60)
    wait_until(lambda: not api_keys.is_alive(caller.key_id), timeout=60)
