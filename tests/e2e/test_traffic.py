"""A revision from its preview over a share of the threads to all of them, and back, while clients use the deployment."""

from __future__ import annotations

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.e2e.test_revisions import App
from tests.e2e.test_switching import SECONDS, Load, version
from tests.support.stack import Stack
from tests.support.waiting import wait_until

THREADS = 200


def said_on(sdk: Any, thread_id: str) -> str:
    said: list[str] = sdk.runs.wait(thread_id, "agent", input={})["said"]
    assert said[-1] == said[-2]
    return said[-1]


def in_threads(sdk: Any, thread_ids: list[str]) -> list[str]:
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(lambda thread_id: said_on(sdk, thread_id), thread_ids))


def hosts_of(app: App, revision_id: str) -> int:
    workers = app.call("GET", "/v2/workers")["workers"]
    return sum(host["revision_id"] == revision_id for worker in workers for host in worker["hosts"])


def test_a_revision_goes_from_its_preview_to_all_runs_and_back(stack: Stack) -> None:
    app = App(stack)
    old = app.deployed(version("v1"))
    sdk, previewed = stack.sdk(app.name), stack.sdk(f"{app.name}--pr-1")
    traffic = f"/v2/deployments/{app.id}/traffic"

    # A preview runs at its own address, and nowhere else.
    new = app.push(version("v2"), preview="pr-1")
    assert app.ended(new)["status"] == "DEPLOYED", app.build_log(new)
    thread_id = previewed.threads.create()["thread_id"]
    assert said_on(previewed, thread_id) == "v2"
    assert said_on(sdk, thread_id) == "v1", "the thread is the deployment's"
    (listed,) = app.call("GET", f"/v2/deployments/{app.id}/previews")["resources"]
    assert (listed["revision_id"], listed["url"]) == (new, f"{stack.url}/d/{app.name}--pr-1")
    assert app.record()["active_revision_id"] == old

    # A split is by threads, and they stay where they are.
    shares = [{"revision_id": old, "percent": 70}, {"revision_id": new, "percent": 30}]
    app.call("PATCH", f"/v2/deployments/{app.id}", json={"traffic": shares})
    thread_ids = [sdk.threads.create()["thread_id"] for _ in range(THREADS)]
    said = in_threads(sdk, thread_ids)
    found = Counter(said)
    assert 0.15 * THREADS < found["v2"] < 0.45 * THREADS, found  # four and a half standard deviations
    assert in_threads(sdk, thread_ids[:40]) == said[:40]
    run = sdk.runs.list(thread_ids[0])[0]
    assert run["revision_id"] == {"v1": old, "v2": new}[said[0]]

    # Promoted, gone back and aborted under load, nothing is lost or refused.
    load = Load(app)
    with load.clients():
        record = app.call("POST", f"{traffic}/promote", json={"revision_id": new})
        promoted = time.monotonic()
        assert (record["active_revision_id"], len(record["traffic"])) == (new, 1)
        wait_until(lambda: len(load.since(promoted)) > 10, SECONDS, what="answers of the new one")
        until = time.monotonic()
        assert hosts_of(app, old), "whoever goes back finds its hosts"
        app.call("POST", f"{traffic}/promote", json={"revision_id": old})
        back = time.monotonic()
        wait_until(lambda: len(load.since(back)) > 10, SECONDS, what="answers of the old one")
        aborted_from = time.monotonic()
        app.call("PATCH", f"/v2/deployments/{app.id}", json={"traffic": shares})
        app.call("POST", f"{traffic}/abort")
        aborted = time.monotonic()
        wait_until(lambda: len(load.since(aborted)) > 10, SECONDS, what="answers after the abort")
    assert {tuple(said) for _, said in load.done} == {("v1", "v1"), ("v2", "v2")}
    for begin, end, expected in ((promoted, until, "v2"), (back, aborted_from, "v1"), (aborted, None, "v1")):
        assert {tuple(said) for said in load.since(begin, end or float("inf"))} == {(expected, expected)}

    # A rollback has a process of its own before it serves, and a preview that is deleted has no address.
    again = app.call("POST", f"/v2/deployments/{app.id}/revisions/{new}/redeploy")["latest_revision_id"]
    assert app.ended(again)["status"] == "DEPLOYED"
    wait_until(lambda: hosts_of(app, again) > 0, SECONDS, what="a host of what serves again")
    assert said_on(sdk, thread_ids[0]) == "v2"
    app.call("DELETE", f"/v2/deployments/{app.id}/previews/pr-1")
    wait_until(
        lambda: stack.client.get(f"/d/{app.name}--pr-1/info").status_code == 404, SECONDS, what="no preview"
    )
