"""A class name means one thing: what is defined twice needs a reason."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

PROJECT = Path(__file__).parents[2]
PACKAGES = ("shared", "web", "workers", "cli")
OF_A_LIBRARY = {"Client", "Connection", "Worker"}  # subclasses of kombu's, gunicorn's …, named as those are
# The service's view of it, and what it is in the child process.
ON_BOTH_SIDES = {"App", "Exchange", "Execution", "Host", "User"}


def defined() -> dict[str, list[str]]:
    """Each class name, and the modules that define it."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for package in PACKAGES:
        for path in sorted((PROJECT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef):
                    found[node.name].append(str(path.relative_to(PROJECT)))
    return found


def test_a_class_name_means_one_thing() -> None:
    assert {name for name, where in defined().items() if len(where) > 1} == OF_A_LIBRARY | ON_BOTH_SIDES
