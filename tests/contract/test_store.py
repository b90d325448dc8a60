"""The store over HTTP."""

from __future__ import annotations

from typing import Any

from tests.contract.conftest import Api


def put(api: Api, namespace: list[str], key: str, value: Any = None, **more: Any) -> None:
    body = {"namespace": namespace, "key": key, "value": value or {}, **more}
    response = api.call("PUT", "/store/items", body)
    assert (response.status_code, response.data) == (204, b""), response.text


def search(api: Api, **body: Any) -> list[str]:
    response = api.post("/store/items/search", body)
    assert response.status_code == 200, response.text
    return [item["key"] for item in response.json["items"]]


def test_an_item_is_put_read_and_deleted(api: Api) -> None:
    put(api, ["users", "42"], "likes", {"tea": True})

    item = api.get("/store/items?namespace=users.42&key=likes").json

    assert {name: item[name] for name in ("namespace", "key", "value")} == {
        "namespace": ["users", "42"], "key": "likes", "value": {"tea": True},
    }  # fmt: skip
    assert item["created_at"] == item["updated_at"]
    gone = {"namespace": ["users", "42"], "key": "likes"}
    assert api.call("DELETE", "/store/items", gone).status_code == 204
    assert api.call("DELETE", "/store/items", gone).status_code == 204, "also when it is not there"
    missing = api.get("/store/items?namespace=users.42&key=likes")
    assert (missing.status_code, missing.data) == (200, b"null")


def test_search_is_below_whole_labels_and_newest_first(api: Api) -> None:
    put(api, ["a"], "1", {"n": 1})
    put(api, ["a", "b"], "2", {"n": 2, "deep": {"x": [1]}})
    put(api, ["ab"], "3", {"n": 3})

    assert (
        search(api)
        == search(api, namespace_prefix=None)
        == search(api, namespace_prefix=[])
        == ["3", "2", "1"]
    )
    assert search(api, namespace_prefix=["a"]) == ["2", "1"]
    assert search(api, namespace_prefix=["a", "b"]) == ["2"]
    assert search(api, limit=1, offset=1) == ["2"]
    assert search(api, filter={"n": {"$gt": 1, "$ne": 3}}) == ["2"]
    assert search(api, filter={"deep": {"x": [1]}}) == ["2"]
    [item] = api.post("/store/items/search", {"namespace_prefix": ["ab"]}).json["items"]
    assert item["score"] is None


def test_namespaces_are_listed_cut_and_matched(api: Api) -> None:
    for namespace in (["a", "b", "c"], ["a", "b", "d"], ["a", "x"], ["z"]):
        put(api, namespace, "k")

    def found(**body: Any) -> list[list[str]]:
        return api.post("/store/namespaces", body).json["namespaces"]

    assert found() == [["a", "b", "c"], ["a", "b", "d"], ["a", "x"], ["z"]]
    assert found(max_depth=2) == [["a", "b"], ["a", "x"], ["z"]]
    assert found(prefix=["a", "*"], suffix=["d"]) == [["a", "b", "d"]]
    assert found(prefix=["*", "x"]) == [["a", "x"]]
    assert found(limit=1, offset=1) == [["a", "b", "d"]]


def test_an_item_says_when_it_expires_and_reading_it_may_prolong_it(api: Api) -> None:
    put(api, ["a"], "short", ttl=0)
    put(api, ["a"], "long", ttl=5)
    put(api, ["a"], "forever", ttl=None)
    assert search(api) == ["forever", "long"]

    def expiry(refresh: str) -> str:
        return api.get(f"/store/items?namespace=a&key=long&refresh_ttl={refresh}").json["expires_at"]

    first = expiry("false")
    assert expiry("false") == first
    assert expiry("true") > first
    forever, long = api.post("/store/items/search", {"refresh_ttl": False}).json["items"]
    assert forever["expires_at"] is None
    assert long["expires_at"] == expiry("false")
