"""What `http` in langgraph.json may say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shared.errors import BuildFailed
from workers.builder.config import http
from workers.builder.config.source_tree import SourceTree


@pytest.fixture
def tree(tmp_path: Path) -> SourceTree:
    (tmp_path / "app.py").touch()
    return SourceTree(tmp_path)


def test_only_what_is_said_is_kept(tree: SourceTree) -> None:
    assert http.read(tree, None) == http.read(tree, {}) == {}
    assert http.read(tree, {"app": None, "disable_mcp": None, "cors": None, "mount_prefix": "/"}) == {}
    assert http.read(tree, {"disable_mcp": False, "disable_a2a": True}) == {
        "disable_mcp": False,
        "disable_a2a": True,
    }


def test_everything_there_is_is_kept(tree: SourceTree) -> None:
    told = {
        **dict.fromkeys(http.SWITCHES, True),
        "app": "./app.py:app",
        "middleware_order": "auth_first",
        "middleware_scope": "custom_routes",
        "mount_prefix": "/my-api/v1",
        "configurable_headers": {"includes": ["x-team-*"], "excludes": ["*token*"]},
        "logging_headers": {"includes": ["user-agent"]},
        "cors": {
            "allow_origins": ["https://a.example", "*"],
            "allow_methods": ["GET"],
            "allow_headers": ["x-team"],
            "allow_credentials": True,
            "allow_origin_regex": r"https://[a-z]+\.example",
            "expose_headers": ["x-total"],
            "max_age": 60,
        },
    }
    assert set(told) == set(http.KNOWN["http"])
    assert set(told["cors"]) == set(http.KNOWN["http.cors"])

    assert http.read(tree, told) == told


def test_headers_are_named_in_small_letters_and_a_prefix_ends_with_no_slash(tree: SourceTree) -> None:
    found = http.read(
        tree, {"configurable_headers": {"includes": ["X-Team"], "excludes": None}, "mount_prefix": "/api/"}
    )

    assert found == {"configurable_headers": {"includes": ["x-team"]}, "mount_prefix": "/api"}


@pytest.mark.parametrize(
    ("told", "match"),
    [
        ([1], "^http: must be an object"),
        ([], "^http: must be an object"),
        *(({name: "yes"}, f"^http.{name}: must be true or false") for name in http.SWITCHES),
        ({"app": "app.py:app"}, "^http.app: write './app.py:app' for a file"),
        ({"app": "./none.py:app"}, "^http.app: the file './none.py' is not in the archive"),
        ({"app": {"path": "./app.py:app"}}, "^http.app: .* must have the form"),
        ({"middleware_order": "last"}, "^http.middleware_order: must be middleware_first or auth_first"),
        ({"middleware_scope": "all"}, "^http.middleware_scope: must be custom_routes"),
        ({"middleware_scope": ["custom_routes"]}, "^http.middleware_scope: must be custom_routes"),
        *(
            ({"mount_prefix": prefix}, "^http.mount_prefix: must be a path like")
            for prefix in ("api", "/a b", "/a//b", "/a/../b", "/./b", "/{x}", "/ä", 5, "/" + "a" * 300)
        ),
        ({"configurable_headers": ["x-team"]}, "^http.configurable_headers: must be an object"),
        ({"logging_headers": {"includes": "x"}}, "^http.logging_headers.includes: must be an array"),
        ({"configurable_headers": {"excludes": ["a b"]}}, "^http.configurable_headers.excludes: must be"),
        ({"cors": "*"}, "^http.cors: must be an object"),
        ({"cors": {"allow_origins": "*"}}, "^http.cors.allow_origins: must be an array"),
        ({"cors": {"allow_headers": ["a\r\nb"]}}, "^http.cors.allow_headers: must be an array"),
        ({"cors": {"allow_credentials": 1}}, "^http.cors.allow_credentials: must be true or false"),
        ({"cors": {"allow_origin_regex": "("}}, "^http.cors.allow_origin_regex: is no regular expression"),
        ({"cors": {"allow_origin_regex": 7}}, "^http.cors.allow_origin_regex: must be a regular expression"),
        ({"cors": {"allow_origin_regex": "a" * 501}}, "^http.cors.allow_origin_regex: must be a regular"),
        ({"cors": {"max_age": -1}}, "^http.cors.max_age: must be a whole number"),
        ({"cors": {"max_age": True}}, "^http.cors.max_age: must be a whole number"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(tree: SourceTree, told: Any, match: str) -> None:
    with pytest.raises(BuildFailed, match=match):
        http.read(tree, told)


@pytest.mark.parametrize(
    "regex",
    [
        r"https://.*\.example\.com",
        r"^https?://(localhost|127\.0\.0\.1)(:\d+)?$",
        r"https://(?:[a-z0-9-]+\.)?example\.(com|org)",
        r"(?i)https://[a-z]{1,63}-[0-9]+\.[^.]+\.example",
        r"http://(\d{1,3}\.){3}\d{1,3}(?=:80)",
        r".*",
    ],
)
def test_origins_are_matched_by_a_regular_expression_that_is_soon_matched(
    tree: SourceTree, regex: str
) -> None:
    assert http.read(tree, {"cors": {"allow_origin_regex": regex}})["cors"]["allow_origin_regex"] == regex


@pytest.mark.parametrize(
    ("regex", "reason"),
    [
        (r"(a+)+b", "it repeats a group that repeats or chooses"),
        (r"(a|aa)*b", "it repeats a group that repeats or chooses"),
        (r"(?:[a-z-]+\.)*example", "it repeats a group that repeats or chooses"),
        (r"((a?){4}){4}b", "it repeats a group that repeats or chooses"),
        (r".*.*.*.*b", "it has more than 3 repetitions"),
        (r"(?=.*a)(?=.*b).*.*c", "it has more than 3 repetitions"),
        (r"(a*)\1\1b", "it refers to a group"),
        (r"((a)?)?(?(2)b|c)", "it refers to a group"),
    ],
)
def test_one_that_could_hold_up_everybody_is_refused(tree: SourceTree, regex: str, reason: str) -> None:
    with pytest.raises(BuildFailed, match=f"^http.cors.allow_origin_regex: {reason}"):
        http.read(tree, {"cors": {"allow_origin_regex": regex}})
