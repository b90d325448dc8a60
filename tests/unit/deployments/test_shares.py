"""Assignment of threads to revisions when traffic is split."""

from __future__ import annotations

from collections import Counter
from uuid import UUID, uuid5

from shared.deployments import shares
from shared.deployments.shares import Share

OLD, NEW, NEWER = (UUID(int=number) for number in (1, 2, 3))
THREADS = [uuid5(UUID(int=0), str(number)) for number in range(10_000)]


def _revisions(*split: tuple[UUID, int]) -> list[UUID]:
    traffic = [Share(*share) for share in split]
    return [shares.choose(traffic, thread_id, serving=OLD, having=(OLD, NEW, NEWER)) for thread_id in THREADS]


def test_each_revision_gets_its_share_of_the_threads() -> None:
    found = Counter(_revisions((OLD, 70), (NEW, 29), (NEWER, 1)))
    for revision_id, percent in ((OLD, 70), (NEW, 29), (NEWER, 1)):
        assert abs(found[revision_id] / len(THREADS) * 100 - percent) < 1.5, found


def test_a_thread_has_the_same_part_in_every_process_and_release() -> None:
    assert [shares.part_of(thread_id) for thread_id in THREADS[:8]] == [55, 28, 84, 22, 56, 66, 89, 36]


def test_a_thread_stays_unless_its_share_is_taken_away() -> None:
    before = _revisions((OLD, 90), (NEW, 10))
    after = _revisions((OLD, 70), (NEW, 30))
    assert before == _revisions((OLD, 90), (NEW, 10))
    assert set(zip(before, after, strict=True)) == {(OLD, OLD), (OLD, NEW), (NEW, NEW)}
    assert set(_revisions((NEW, 100))) == {NEW}


def test_a_graph_that_a_share_lacks_is_run_by_what_serves_or_by_who_has_it() -> None:
    traffic = [Share(OLD, 50), Share(NEW, 50)]
    for having, expected in (((OLD,), OLD), ((NEW,), NEW), ((), OLD)):
        found = {shares.choose(traffic, id, serving=OLD, having=having) for id in THREADS[:200]}
        assert found == {expected}, having


def test_what_is_not_split_is_stored_as_nothing() -> None:
    assert shares.from_stored(None) == ()
    assert shares.from_stored([{"revision_id": str(NEW), "percent": 5}]) == (Share(NEW, 5),)
