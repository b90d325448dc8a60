"""What `auth` in langgraph.json may say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shared.errors import BuildFailed
from workers.builder.config import auth
from workers.builder.config.source_tree import SourceTree

PATH = "./auth.py:auth"


@pytest.fixture
def tree(tmp_path: Path) -> SourceTree:
    (tmp_path / "auth.py").touch()
    return SourceTree(tmp_path)


def test_an_authorization_needs_no_more_than_its_path(tree: SourceTree) -> None:
    assert auth.read(tree, {"path": PATH}) == {
        "path": PATH,
        "disable_studio_auth": False,
        "openapi": {},
        "cache_keys": [],
        "cache_seconds": None,
        "cache_size": None,
    }
    assert auth.read(tree, {"path": "pkg.security:auth"})["path"] == "pkg.security:auth"


def test_how_its_answers_are_kept_and_described_is_kept(tree: SourceTree) -> None:
    openapi = {"securitySchemes": {"bearer": {"type": "http"}}, "security": [{"bearer": []}], "paths": {}}
    cache = {"cache_keys": ["Authorization", "X-Team", "x-team"], "ttl_seconds": 3600, "max_size": 100}

    found = auth.read(tree, {"path": PATH, "disable_studio_auth": True, "openapi": openapi, "cache": cache})

    assert found["disable_studio_auth"] is True
    assert found["openapi"] == openapi
    assert found["cache_keys"] == ["authorization", "x-team"]
    assert (found["cache_seconds"], found["cache_size"]) == (3600, 100)


@pytest.mark.parametrize("none", [None, {}])
def test_a_project_need_not_have_one(tree: SourceTree, none: Any) -> None:
    assert auth.read(tree, none) == {}


@pytest.mark.parametrize(
    ("told", "match"),
    [
        (PATH, "^auth: must be an object"),
        ([], "^auth: must be an object"),
        ({"disable_studio_auth": True}, "^auth.path: None must have the form"),
        ({"path": "./auth.py"}, "^auth.path: './auth.py' must have the form"),
        ({"path": "auth.py:auth"}, "^auth.path: write './auth.py:auth' for a file"),
        ({"path": "./other.py:auth"}, "^auth.path: the file './other.py' is not in the archive"),
        ({"path": "../auth.py:auth"}, "^auth.path: '../auth.py' leads outside the archive"),
        ({"path": "./auth.ts:auth"}, "^auth.path: './auth.ts' is a JavaScript authorization"),
        ({"path": PATH, "disable_studio_auth": "no"}, "^auth.disable_studio_auth: must be true or false"),
        ({"path": PATH, "cache": 60}, "^auth.cache: must be an object"),
        (
            {"path": PATH, "cache": {"cache_keys": "authorization"}},
            "^auth.cache.cache_keys: must be an array",
        ),
        ({"path": PATH, "cache": {"cache_keys": ["a b"]}}, "^auth.cache.cache_keys: must be an array"),
        (
            {"path": PATH, "cache": {"ttl_seconds": 3601}},
            "^auth.cache.ttl_seconds: must be a number between 0",
        ),
        (
            {"path": PATH, "cache": {"ttl_seconds": True}},
            "^auth.cache.ttl_seconds: must be a number between 0",
        ),
        ({"path": PATH, "cache": {"ttl_seconds": -1}}, "^auth.cache.ttl_seconds: must be a number between 0"),
        ({"path": PATH, "cache": {"max_size": 1.5}}, "^auth.cache.max_size: must be a whole number"),
        ({"path": PATH, "openapi": []}, "^auth.openapi: must be an object"),
        ({"path": PATH, "openapi": {"security": {}}}, "^auth.openapi.security: must be as OpenAPI has it"),
        ({"path": PATH, "openapi": {"paths": {"/a": []}}}, "^auth.openapi.paths: must be as OpenAPI has it"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(tree: SourceTree, told: Any, match: str) -> None:
    with pytest.raises(BuildFailed, match=match):
        auth.read(tree, told)
