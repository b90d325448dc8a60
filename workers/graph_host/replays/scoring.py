"""The project's scorer: `(inputs, reference_output, output, run) -> {name: number}`, sync or async.

Each call has a thread of its own, with an event loop for an async function, so a scorer that blocks holds up no run.
Python cannot end a thread: a call that does not return in time is given up, and its thread stays. The process counts
as damaged then, so that the runner replaces it.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import threading
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from ..loader import LoadFailed, load_object, parameters_of
from ..output import short_traceback
from ..serialization import error_record, text_of

KEY = "replay.score"
SCORE_SECONDS = 20.0
MAX_SCORES = 100
MAX_NAME = 100
MAX_NUMBER = 1e100  # so that sums of all cases are finite
NEEDED = f"a number from -{MAX_NUMBER:g} to {MAX_NUMBER:g} is needed"
PARAMETERS = 4


class NotScores(Exception):
    """The scorer's result is not an object of numbers."""


class Scorer:
    """The scorer of a project."""

    def __init__(self, function: Callable[..., Any], seconds: float = SCORE_SECONDS) -> None:
        self._function = function
        self._seconds = seconds
        self._stuck = 0

    @property
    def damage(self) -> str | None:
        """A description of the damage to the process; None if there is none."""
        return "a call of the scorer has not returned" if self._stuck else None

    async def answer(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """Return {"scores": {name: number}}, or {"error", "traceback"} if the scorer fails."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[dict[str, Any]] = loop.create_future()

        def settle(result: dict[str, Any]) -> None:
            if done.done():
                self._stuck -= 1  # the call was given up, and has returned after all
            else:
                done.set_result(result)

        def work() -> None:
            result = self._score(document)
            loop.call_soon_threadsafe(settle, result)

        threading.Thread(target=work, name="score", daemon=True).start()
        try:
            return await asyncio.wait_for(done, self._seconds)
        except TimeoutError:
            self._stuck += 1
            return _failure(f"the scorer did not return within {self._seconds:g} s")

    def _score(self, document: Mapping[str, Any]) -> dict[str, Any]:
        values = [document.get(name) for name in ("input", "reference", "output", "run")]
        try:
            result = self._function(*values)
            if inspect.isawaitable(result):
                result = asyncio.run(_awaited(result))
            return {"scores": _numbers(result)}
        except NotScores as error:
            return _failure(str(error))
        except BaseException as error:  # any error of the project's function
            record = error_record(error)
            return _failure(f"{record['error']}: {record['message']}", short_traceback(error))


def load(location: str, modules: dict[str, ModuleType]) -> Scorer:
    """Return the scorer that langgraph.json names. Raises LoadFailed."""
    function = load_object(KEY, location, modules)
    if not callable(function) or isinstance(function, type):
        raise LoadFailed(f"{KEY}: {location} is no function: {type(function).__name__}")
    required = [
        p for p in parameters_of(KEY, function) if p.default is p.empty and p.kind is not p.KEYWORD_ONLY
    ]
    try:
        inspect.signature(function).bind(*[None] * PARAMETERS)
    except TypeError as error:
        raise LoadFailed(
            f"{KEY}: {location} takes {len(required)} values:"
            " it is called with (inputs, reference_output, output, run)"
        ) from error
    return Scorer(function)


async def _awaited(result: Any) -> Any:
    return await result


def _numbers(result: Any) -> dict[str, float]:
    if not isinstance(result, Mapping):
        raise NotScores(f"the scorer returned {type(result).__name__}: an object of numbers is needed")
    if len(result) > MAX_SCORES:
        raise NotScores(f"the scorer returned {len(result)} scores: the limit is {MAX_SCORES}")
    scores = {}
    for name, value in result.items():
        if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME:
            raise NotScores(f"the scorer returned a score named {text_of(name, repr):.{MAX_NAME}}")
        try:
            number = float(value) if not isinstance(value, str | bytes) else math.nan
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not abs(number) <= MAX_NUMBER:  # NaN is not
            raise NotScores(f"the score {name!r} is {text_of(value, repr):.100}: {NEEDED}")
        scores[name] = number
    return scores


def _failure(error: str, traceback: str | None = None) -> dict[str, Any]:
    return {"error": error, "traceback": traceback}
