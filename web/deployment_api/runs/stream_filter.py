"""Filters for the events that one client of a run receives: by stream mode, by namespace, with or without subgraphs.

A run's log may hold more events than its creator requested. A client that joins a run adds its modes to those that the
run streams, before its start (`shared/runs/create.py`, `widen`) or while it runs (`shared/runs/signals.py`, `widen`).
Every client's stream is therefore filtered.

The log names the namespace of each event. Clients expect partial messages (the text so far) under their bare names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

PARTS = frozenset({"messages/metadata", "messages/partial", "messages/complete"})
ALWAYS = frozenset({"error"})  # every client learns that the run failed
OF_RUN = frozenset({"metadata", "feedback"})  # events of the run itself, in no namespace

Rename = Callable[[str], str | None]  # an event's name in the log → its name for the client; None: not sent


def creator_filter(kwargs: Mapping[str, Any], namespaces: Collection[str] | None) -> Rename:
    """Return the filter for the creator of a run: the events of its modes and of the run itself (OF_RUN)."""
    modes = kwargs["stream_mode"]
    bases = _bases(modes, tuples_only="messages-tuple" in modes) | OF_RUN
    return _rename_by(bases, subgraphs=kwargs["subgraphs"] or bool(namespaces), namespaces=namespaces)


def join_filter(
    run: Mapping[str, Any], modes: Collection[str] | None, namespaces: Collection[str] | None
) -> Rename:
    """Return the filter for a client that joins a run. Without modes it is that of the creator.

    With modes, the events of OF_RUN are sent only if the modes name them.
    """
    kwargs = run["kwargs"]
    if not modes:
        return creator_filter(kwargs, namespaces)
    bases = _bases(modes, tuples_only=not _has_parts(run)) | OF_RUN.intersection(modes)
    return _rename_by(bases, subgraphs=kwargs["subgraphs"] or bool(namespaces), namespaces=namespaces)


def needs_subgraphs(namespaces: Collection[str] | None) -> bool:
    """Return whether events of subgraphs must be streamed to serve these namespaces."""
    return any(namespaces or ())


def _bases(modes: Collection[str], *, tuples_only: bool) -> frozenset[str]:
    """Return the names of the events that the modes select, without namespace.

    The mode `messages` selects partial messages (PARTS). The mode `messages-tuple` selects message tuples, whose event
    is `messages`. `tuples_only`: both modes together, or `messages` for a run without partial messages, select tuples.
    """
    bases = {mode for mode in modes if mode not in ("messages", "messages-tuple", *OF_RUN)}
    if "messages" in modes and ("messages-tuple" not in modes or not tuples_only):
        bases |= PARTS
    if "messages-tuple" in modes or ("messages" in modes and tuples_only):
        bases.add("messages")
    return frozenset(bases)


def _has_parts(run: Mapping[str, Any]) -> bool:
    """Return whether the run streams partial messages: the text so far."""
    requested = run["kwargs"]["stream_mode"]
    added = run["joined"]["stream_mode"] if run["joined"] else ()
    return ("messages" in requested and "messages-tuple" not in requested) or "messages" in added


def _rename_by(bases: Collection[str], *, subgraphs: bool, namespaces: Collection[str] | None) -> Rename:
    names: dict[str, str | None] = {}  # by the name in the log
    selected = None if namespaces is None else frozenset(namespaces)

    def is_selected(base: str, namespace: str) -> bool:
        if base in ALWAYS or (base in OF_RUN and base in bases):
            return True
        if selected is not None and namespace not in selected and _nodes(namespace) not in selected:
            return False
        return base in bases and (subgraphs or not namespace)

    def rename(name: str) -> str | None:
        if name not in names:
            base, _, namespace = name.partition("|")
            names[name] = (base if base in PARTS else name) if is_selected(base, namespace) else None
        return names[name]

    return rename


def _nodes(namespace: str) -> str:
    """Return a namespace without its task ids, which a client cannot know in advance."""
    return re.sub(r":[^|]*", "", namespace)
