"""The cache of recently authenticated users."""

from __future__ import annotations

from threading import Thread
from typing import Any

import pytest

from shared.errors import Denied, Unavailable
from shared.user_code.users import KnownUsers, User, user_of
from tests.support import user_code
from tests.support.waiting import wait_until

KEY = b"the credentials"
ANN = user_of(user_code.user("ann"))


def together(users: KnownUsers, first: Any) -> list[Any]:
    """Look up the same key twice concurrently. Returns what the second caller gets, and any error of the first."""
    got: list[Any] = []

    def second() -> None:
        try:
            got.append(users.find(KEY, pytest.fail))
        except Exception as error:
            got.append(error)

    thread = Thread(target=second)

    def ask() -> User:
        thread.start()
        asked: Any = users._asked[KEY]
        wait_until(lambda: bool(asked._condition._waiters), 20)
        return first()

    try:
        users.find(KEY, ask)
    except BaseException as error:
        got.append(error)
    thread.join()
    return got


def test_equal_questions_on_their_way_are_asked_once() -> None:
    assert together(KnownUsers(0, 10), lambda: ANN) == [ANN]


def test_a_refusal_is_that_of_all_who_wait_for_it_and_then_forgotten() -> None:
    users, refusal = KnownUsers(60, 10), Denied(401)

    def refuse() -> User:
        raise refusal

    assert together(users, refuse) == [refusal, refusal]
    assert users.find(KEY, lambda: ANN) is ANN


def test_who_waits_for_one_that_is_stopped_may_try_again() -> None:
    def stop() -> User:
        raise SystemExit

    got = together(KnownUsers(60, 10), stop)
    assert {type(one) for one in got} == {SystemExit, Unavailable}


def test_large_users_are_asked_about_each_time() -> None:
    users, large = KnownUsers(60, 10), user_of(user_code.user("ann", more="x" * 5_000))
    assert users.find(KEY, lambda: large) is large
    assert users.find(KEY, lambda: ANN) is ANN
