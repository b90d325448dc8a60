"""Users: conversion of `authenticate`'s result to a JSON document, and of the document to the user that code sees."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any
from uuid import UUID

import orjson

log = logging.getLogger("runyard")

Document = dict[str, Any]
# Identity and kind of a user who comes from the platform's own tools.
STUDIO_IDENTITY, STUDIO_KIND = "langgraph-studio-user", "StudioUser"
AUTH_USER = "langgraph_auth_user"  # key in `configurable`
HIDDEN = ("_", "model_")  # prefixes of ignored attributes: private ones, and pydantic's


class NoUser(Exception):
    """authenticate returned no user"""

    def __init__(self, why: str) -> None:
        super().__init__(f"{type(self).__doc__}: {why}")


class User(Mapping[str, Any]):
    """The user that handlers, graphs and routes see. Read-only; its keys are both attributes and items."""

    _document: Document

    def __init__(self, document: Mapping[str, Any]) -> None:
        object.__setattr__(self, "_document", {**document})

    @property
    def identity(self) -> str:
        return self._document["identity"]

    @property
    def display_name(self) -> str:
        return self._document["display_name"]

    @property
    def is_authenticated(self) -> bool:
        return self._document["is_authenticated"]

    @property
    def permissions(self) -> list[str]:
        return list(self._document["permissions"])

    def __getitem__(self, name: str) -> Any:
        return self._document[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._document)

    def __len__(self) -> int:
        return len(self._document)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._document:
            raise AttributeError(f"the user has no '{name}'")
        return _with_attributes(self._document[name])

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("a user is read-only")

    def __delattr__(self, name: str) -> None:
        raise AttributeError("a user is read-only")

    def __hash__(self) -> int:
        return hash(self.identity)

    def __reduce__(self) -> tuple[Any, ...]:
        return user_of, (self._document,)

    def __repr__(self) -> str:
        return f"User({self.identity!r})"  # other keys may contain secrets, which must not be logged

    def dict(self) -> Document:
        """Return the user's document."""
        return {**self._document}

    def model_dump(self, **_options: Any) -> Document:
        """Return the user's document, for code that expects a pydantic model."""
        return self.dict()


class Part(dict[str, Any]):
    """A mapping inside a user's document, whose keys are also attributes."""

    def __getattr__(self, name: str) -> Any:
        if name not in self:
            raise AttributeError(f"the user has no '{name}' there")
        return _with_attributes(self[name])


def _with_attributes(value: Any) -> Any:
    return Part(value) if isinstance(value, dict) else value


def user_of(document: Mapping[str, Any], base: type | None = None) -> Any:
    """Return the user of a document. It is also an instance of `base`, or of the SDK's StudioUser for such a user."""
    is_studio = document.get("kind") == STUDIO_KIND and document["identity"] == STUDIO_IDENTITY
    base = _studio_class() if is_studio else base
    return (_with_base(base) if base else User)({**_defaults(document["identity"]), **document})


@cache
def _with_base(base: type) -> type:
    return type(base.__name__, (User, base), {})


def configurable_of(document: Mapping[str, Any]) -> Document:
    """Return the `configurable` in the document of a run or query."""
    return (document.get("config") or {}).get("configurable") or {}


def with_user(configurable: Document) -> Document:
    """Return the `configurable` of a run or query, with the user's document replaced by a User."""
    document = configurable.get(AUTH_USER)
    if not isinstance(document, dict) or "identity" not in document:
        return configurable
    return {**configurable, AUTH_USER: user_of(document)}


def _studio_class() -> type:
    from langgraph_sdk import Auth  # imported here: most projects have no users, and the import takes long

    return Auth.types.StudioUser


def document_of(returned: Any) -> Document:
    """Convert the result of `authenticate` to a user's JSON document. Raises NoUser."""
    permissions: Any = None
    if isinstance(returned, tuple) and len(returned) == 2 and not hasattr(returned, "identity"):
        permissions, returned = returned
    entries = _entries(returned)
    if permissions is not None:
        entries["permissions"] = permissions
    identity = _identity(entries.pop("identity", None))
    if identity == STUDIO_IDENTITY and entries.get("kind") == STUDIO_KIND:
        del entries["kind"]  # a project's claims must not turn a user into one of the platform's tools
    entries["permissions"] = _permissions(entries.get("permissions"))
    entries["display_name"] = str(entries.get("display_name") or identity)
    entries["is_authenticated"] = bool(entries.get("is_authenticated", True))
    return {
        **_defaults(identity),
        **{name: value for name, value in entries.items() if _is_json(name, value)},
    }


def _defaults(identity: str) -> Document:
    return {"identity": identity, "is_authenticated": True, "display_name": identity, "permissions": []}


def _entries(returned: Any) -> Document:
    if isinstance(returned, str):
        return {"identity": returned}
    if isinstance(returned, Mapping):
        return {name: value for name, value in returned.items() if isinstance(name, str)}
    return dict(_attributes(returned))


def _attributes(user: Any) -> Iterator[tuple[str, Any]]:
    """Yield the public attributes of an object, without methods and unreadable properties."""
    for name in _attribute_names(user):
        try:
            value = getattr(user, name)
        except Exception:  # any error of the project's own property
            continue
        if not callable(value):
            yield name, value


def _attribute_names(user: Any) -> list[str]:
    names: list[Any] = list(getattr(user, "__dict__", ()))
    for cls in type(user).__mro__:
        # Slots, properties and class-level defaults.
        names += (name for name, value in vars(cls).items() if not callable(value))
    return [name for name in dict.fromkeys(names) if isinstance(name, str) and not name.startswith(HIDDEN)]


def _identity(value: Any) -> str:
    """Return the identity as non-empty text. Raises NoUser.

    All users with an empty identity would otherwise be the same user.
    """
    identity = str(value) if isinstance(value, int | UUID) and not isinstance(value, bool) else value
    if not isinstance(identity, str):
        raise NoUser(f"its identity is {type(value).__name__}, not text")
    if not identity or "\0" in identity or not _is_encodable(identity):
        raise NoUser("its identity is empty, or no text that can be stored")
    return str(identity)


def _permissions(value: Any) -> list[Any]:
    if isinstance(value, str):
        return [value]
    return list(value) if isinstance(value, Iterable) else []


def _is_json(name: str, value: Any) -> bool:
    try:
        orjson.dumps({name: value})
    except TypeError:
        _warn_of(name)
        return False
    return True


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


@cache
def _warn_of(name: str) -> None:
    """Warn once per key, since every request has the same keys."""
    log.warning("the user's %r is no JSON: graphs and handlers do not see it", name)
