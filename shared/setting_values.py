"""Declaration of settings, and reading their values from environment variables."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from pathlib import Path
from typing import Any

# (model, price of a million input tokens, price of a million output tokens)
Prices = tuple[tuple[str, float, float], ...]
Formation = tuple[tuple[str, int], ...]  # (process name in the Procfile, number of processes)
RoleMap = tuple[tuple[str, str], ...]  # (value of a claim, role)
ROLES = ("read", "run", "deploy", "admin", "operator")  # each includes the rights of those before it
SEVERAL = ("web", "runner", "builder")  # processes that one machine may run several times
MOST_PROCESSES = 64


class BadSetting(ValueError):
    """An environment variable holds a value that cannot be used."""


class Audience(StrEnum):
    """The intended user of a setting."""

    OPERATOR = "operator"
    EXPERT = "expert"  # an operator whose measurements or logs point to this setting
    DEV = "dev"  # set by `runyard dev` for the processes that it starts


def setting(
    variable: str,
    default: object,
    meaning: str,
    *,
    is_secret: bool = False,
    shown: str | None = None,
    old_name: str | None = None,
    audience: Audience = Audience.OPERATOR,
) -> Any:
    """Declare a field that is read from an environment variable, else from its former name `old_name`.

    `docs/reference/settings.md` is generated from these declarations. It prints `meaning`, and `shown` in place of a default
    that depends on another setting.
    """
    described = {
        "variable": variable,
        "meaning": meaning,
        "shown": shown,
        "old_name": old_name,
        "audience": audience,
    }
    return field(default=default, repr=not is_secret, metadata=described)


BOOLEANS = {"true": True, "1": True, "false": False, "0": False}

MAY_BE_EMPTY = ("RUNYARD_BWRAP",)  # an empty value of any other variable counts as not set


def read(env: Mapping[str, str], name: str) -> str | None:
    """Return the variable's value, else the content of the file named by `<NAME>_FILE`. None if neither is set."""
    if env.get(name) or (name in env and name in MAY_BE_EMPTY):
        return env[name]
    path = env.get(f"{name}_FILE")
    if not path:
        return None
    try:
        return Path(path).read_text().strip()
    except OSError as error:
        raise BadSetting(f"{name}_FILE: cannot read {path}: {error.strerror}") from error


def parse(name: str, raw: str, kind: object) -> object:
    """Convert the text of a variable to the type that its field is annotated with. Raises BadSetting."""
    try:
        if kind == "int":
            return int(raw)
        if kind == "float":
            return float(raw)
    except ValueError as error:
        raise BadSetting(f"{name} must be a number, not {raw!r}") from error
    if kind == "bool":
        if raw.lower() not in BOOLEANS:
            raise BadSetting(f"{name} must be true or false, not {raw!r}")
        return BOOLEANS[raw.lower()]
    if kind == "Path":
        return Path(raw)
    if kind == "tuple[str, ...]":
        return tuple(part.strip() for part in raw.split(",") if part.strip())
    if kind == "Prices":
        return _prices(name, raw)
    if kind == "Formation":
        return _formation(name, raw)
    if kind == "RoleMap":
        return _role_map(name, raw)
    return raw


def _formation(name: str, raw: str) -> Formation:
    """Parse `NAME=NUMBER,…`. Raises BadSetting for a malformed value, and for a name that appears twice."""
    numbers: dict[str, int] = {}
    for part in filter(None, (part.strip() for part in raw.split(","))):
        process, _, number = (side.strip() for side in part.partition("="))
        is_number = number.isascii() and number.isdecimal() and len(number) < 4
        if process not in SEVERAL or process in numbers or not is_number:
            raise BadSetting(f"{name} must be like web=2,runner=2, of {', '.join(SEVERAL)}, not {raw!r}")
        if not 1 <= int(number) <= MOST_PROCESSES:
            raise BadSetting(f"{name}: {process} must be between 1 and {MOST_PROCESSES}")
        numbers[process] = int(number)
    return tuple(numbers.items())


def _role_map(name: str, raw: str) -> RoleMap:
    """Parse `VALUE=ROLE,…`. A value may contain `=`, as distinguished names do. Raises BadSetting."""
    roles: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in raw.split(","))):
        value, _, role = (side.strip() for side in part.rpartition("="))
        if not value or role not in ROLES:
            raise BadSetting(
                f"{name} must be like staff=run,platform=admin, with the roles {', '.join(ROLES)}"
            )
        if value in roles:
            raise BadSetting(f"{name} has two roles for {value!r}")
        roles[value] = role
    return tuple(roles.items())


def _prices(name: str, raw: str) -> Prices:
    """Parse a JSON object of model → [input price, output price]. Raises BadSetting, also for a negative price."""
    try:
        models = json.loads(raw)
    except ValueError as error:
        raise BadSetting(f"{name} must be JSON: {error}") from error
    if not isinstance(models, dict):
        raise BadSetting(f"{name} must be a JSON object of prices by model")
    for model, prices in models.items():
        is_pair = isinstance(prices, list) and len(prices) == 2
        if not is_pair or not all(type(price) in (int, float) and 0 <= price < math.inf for price in prices):
            raise BadSetting(
                f"{name}: {model!r} must have two prices, of a million tokens of input and of output"
            )
    return tuple((model, float(first), float(second)) for model, (first, second) in models.items())
