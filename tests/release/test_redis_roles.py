"""Redis split by role: an id keeps its server when servers are added, and a failed server affects only its own ids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from redis.exceptions import RedisError

from cli.machine import embedded
from shared import thread_stream
from shared.eventlog import events
from shared.eventlog.events import END, OK, Batch, WakeChannel
from shared.eventlog.hub import Hub, Hubs, _make
from shared.infra import redis
from shared.runs import end_event
from tests.support.servers import running, valkey_url
from tests.support.waiting import wait_until

NAMES = ("one", "two", "three")
URLS = [f"redis://user:{name}@{name}.example/0" for name in NAMES]


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = redis._client, redis._broker, redis._events
    yield
    redis._client, redis._broker, redis._events = before


def homes(urls: list[str], ids: list[UUID]) -> list[int]:
    redis.connect("redis://all.example/0", events_urls=urls)
    servers = redis.event_servers()
    return [servers.index(redis.events(id)) for id in ids]


def test_one_server_does_everything_without_a_setting() -> None:
    client = redis.connect("redis://all.example/0")

    assert redis.broker() is client
    assert redis.events(uuid4()) is client
    assert redis.event_servers() == [client]
    assert not redis.has_several()
    assert type(_make()) is Hub


def test_ids_are_spread_evenly_and_alike_in_every_process() -> None:
    ids = [UUID(int=number << 96) for number in range(3000)]

    found = homes(URLS, ids)

    assert all(count > 900 for count in Counter(found).values())
    assert homes(URLS[::-1], ids) == [2 - home for home in found]  # independent of their order
    rotated = [url.replace("user:", "user:new-") for url in URLS]
    assert homes(rotated, ids) == found  # … and of their passwords


def test_one_server_more_takes_over_its_share_and_moves_nothing_else() -> None:
    ids = [uuid4() for _ in range(3000)]
    before = homes(URLS, ids)

    after = homes([*URLS, "redis://four.example/0"], ids)

    moved = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    assert {new for _, new in moved} == {3}
    assert 600 < len(moved) < 900


@pytest.fixture
def shards(tmp_path: Path) -> Iterator[dict[str, object]]:
    """Three servers that share the event logs, by name."""
    with ExitStack() as started:
        processes = {name: started.enter_context(running(embedded.valkey(tmp_path / name))) for name in NAMES}
        urls = [valkey_url(tmp_path / name) for name in NAMES]
        redis.connect(urls[0], events_urls=urls, timeout_seconds=1.0)
        yield dict(processes)


def ids_by_server() -> list[UUID]:
    """Return one id for each server, in the servers' order."""
    found: dict[int, UUID] = {}
    while len(found) < len(NAMES):
        id = uuid4()
        found.setdefault(redis.event_servers().index(redis.events(id)), id)
    return [found[at] for at in range(len(NAMES))]


def ended(id: UUID) -> Batch:
    return Batch(id, 1, "owner", 1, [events.payload(END, b"{}")], floor=0, final=True)


def test_followers_of_any_log_see_its_end_and_one_server_away_harms_no_other(
    shards: dict[str, object],
) -> None:
    ids = ids_by_server()
    hub = _make()
    assert isinstance(hub, Hubs)
    with ExitStack() as readers:
        first, second, third = (readers.enter_context(hub.reader(id)) for id in ids)
        wait_until(lambda: all(reader.confirmed for reader in (first, second, third)))
        for reader in (first, second, third):
            reader.take(0)
        events.append_all([ended(id) for id in ids[:2]], retention_seconds=60)
        for reader in (first, second):
            assert [event.name for event in reader.take(10)[0]] == [END]

        process = shards["one"]
        process.kill()  # type: ignore[attr-defined]
        process.wait()  # type: ignore[attr-defined]

        with pytest.raises(RedisError):
            events.append_all([ended(uuid) for uuid in (ids[0], ids[2])], retention_seconds=60)
        assert [event.name for event in third.take(10)[0]] == [END]
        assert end_event.extent(ids[2]) == (1, True)
        assert end_event.extent(ids[0]) == (0, False)
        hub.close()


def test_a_wake_up_goes_where_its_readers_are(shards: dict[str, object]) -> None:
    run, thread, _ = ids_by_server()
    opened = Batch(
        run,
        1,
        "owner",
        1,
        [b"a\n{}"],
        floor=0,
        wake_channel=WakeChannel(thread, thread_stream.channel(thread)),
    )
    hub = _make()
    with hub.reader(thread, at=thread_stream.channel(thread)) as reader:
        wait_until(lambda: reader.confirmed)
        reader.take(0)

        own = redis.events(run)
        assert events.append(own, [opened], retention_seconds=60) == [OK]
        assert opened.wakes is not None
        assert events.is_elsewhere(opened.wakes, own)
        assert reader.take(0) == (
            [],
            False,
        )  # the thread's server is another one, which the writer notifies separately
        thread_stream.notify(thread)

        woken, _ = reader.take(10)
    assert [event.name for event in woken] == ["wake-up"]
    hub.close()
