"""The request that a project's `authenticate` receives, by the parameter names that the function may declare."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from functools import cache, cached_property
from http.cookies import SimpleCookie
from typing import Any, NamedTuple, NoReturn
from urllib.parse import parse_qsl, urlsplit

# Names of parameters that `authenticate` may declare.
NAMES = frozenset(
    ("headers", "authorization", "method", "path", "query_params", "path_params", "body", "request", "scopes")
)


class Address(NamedTuple):
    """The address of a request's client."""

    host: str
    port: int


class Arguments:
    """The values of `authenticate`'s parameters for one request, each computed on first use."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        self._request = request

    def value(self, name: str) -> Any:
        """Return the argument for the parameter of this name."""
        match name:
            case "path_params":
                return {}
            case "scopes":
                return []
            case "body":
                return None
            case "request":
                return self.request
            case _:
                return getattr(self, name)

    @property
    def method(self) -> str:
        return self._request["method"]

    @property
    def path(self) -> str:
        return self._request["path"]

    @cached_property
    def headers(self) -> dict[bytes, bytes]:
        return dict(self._pairs)

    @property
    def authorization(self) -> str | None:
        value = self.headers.get(b"authorization")
        return None if value is None else value.decode("latin-1")

    @cached_property
    def query_params(self) -> Mapping[str, str]:
        datastructures = _starlette("datastructures")
        query = self._request.get("query") or ""
        return (
            datastructures.QueryParams(query)
            if datastructures
            else MultiDict(parse_qsl(query, keep_blank_values=True))
        )

    @cached_property
    def request(self) -> Any:
        requests = _starlette("requests")
        return _starlette_request(requests, self) if requests else Request(self)

    @property
    def url(self) -> str:
        return self._request.get("url") or self.path

    @property
    def _pairs(self) -> list[tuple[bytes, bytes]]:
        return [
            (name.lower().encode("latin-1"), value.encode("latin-1"))
            for name, value in self._request.get("headers") or ()
        ]

    @property
    def scope(self) -> dict[str, Any]:
        """The ASGI scope of the request."""
        url = urlsplit(self.url)
        client = self._request.get("client")
        server = (url.hostname or "localhost", url.port or (443 if url.scheme == "https" else 80))
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": self.method,
            "scheme": url.scheme or "http",
            "path": self.path,
            "raw_path": self.path.encode(),
            "root_path": "",
            "query_string": (self._request.get("query") or "").encode(),
            "headers": self._pairs,
            "client": Address(*client) if client else None,
            "server": server,
            "path_params": {},
            "state": {},
        }


class MultiDict(Mapping[str, str]):
    """A mapping of names that may have several values. Indexing returns the last value, `getlist` returns all."""

    def __init__(self, pairs: list[tuple[str, str]]) -> None:
        self._pairs = pairs
        self._last = dict(pairs)

    def __getitem__(self, name: str) -> str:
        return self._last[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._last)

    def __len__(self) -> int:
        return len(self._last)

    def getlist(self, name: str) -> list[str]:
        return [value for header, value in self._pairs if header == name]

    def multi_items(self) -> list[tuple[str, str]]:
        return list(self._pairs)


class Headers(MultiDict):
    """Headers by case-insensitive name."""

    def __getitem__(self, name: str) -> str:
        return super().__getitem__(name.lower())

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.lower() in self._last

    def getlist(self, name: str) -> list[str]:
        return super().getlist(name.lower())


class Url(str):
    """A URL as text, with its parts as attributes."""

    def __getattr__(self, name: str) -> Any:
        return getattr(urlsplit(self), name)


async def _no_body(*_: Any) -> NoReturn:
    raise RuntimeError("authenticate is called before the body of the request is read")


class Request:
    """The request for projects without Starlette. Has the most used attributes of Starlette's Request."""

    path_params: Mapping[str, str] = {}
    body = json = form = stream = _no_body

    def __init__(self, arguments: Arguments) -> None:
        self.scope = arguments.scope
        self.method = arguments.method
        self.url = Url(arguments.url)
        self.query_params = arguments.query_params
        self.client = self.scope["client"]
        self.headers = Headers(
            [(name.decode(), value.decode("latin-1")) for name, value in self.scope["headers"]]
        )

    @property
    def cookies(self) -> dict[str, str]:
        cookies = SimpleCookie(self.headers.get("cookie", ""))
        return {name: morsel.value for name, morsel in cookies.items()}


def _starlette_request(requests: Any, arguments: Arguments) -> Any:
    request = _request_class(requests)(arguments.scope, receive=_no_body)
    request.arguments = arguments
    return request


@cache
def _request_class(requests: Any) -> Any:
    datastructures = _starlette("datastructures")

    class CallerRequest(requests.Request):
        """Starlette's request with the URL that the caller requested. A scope contains only its path."""

        arguments: Arguments

        @property
        def url(self) -> Any:
            return datastructures.URL(self.arguments.url)

    return CallerRequest


def _starlette(name: str) -> Any:
    """Return Starlette's module of this name; None if Starlette is not installed."""
    try:
        return importlib.import_module(f"starlette.{name}")
    except ImportError:
        return None
