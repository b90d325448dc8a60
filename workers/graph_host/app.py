"""A project's own ASGI app (`http.app`): loaded with its graphs."""

from __future__ import annotations

import inspect
from typing import Any

from .loader import LoadFailed, Modules, load_object

KEY = "http.app"


def load(location: str, modules: Modules) -> Any:
    """The project's app; raises LoadFailed."""
    found = load_object(KEY, location, modules)
    if not _takes_three(found):
        raise LoadFailed(
            f"{KEY}: {location} is no ASGI app, called with scope, receive and send: {type(found).__name__}"
        )
    return found


def _takes_three(value: Any) -> bool:
    if not callable(value):
        return False
    try:
        inspect.signature(value).bind(None, None, None)
    except TypeError:
        return False
    except ValueError:  # of C: it cannot be told
        return True
    return True
