"""Resolved sets: what of a lock file may come from the shared cache, and what has to go through the sandbox."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from shared.errors import BuildFailed
from workers.builder.requirements import (
    BUILT_HERE,
    Requirements,
    from_lock,
    has_options,
    names_files,
)

PROJECT = Path("/r/project")
HASH = "sha256 = 'aa'"
LOCK = f"""
[[packages]]
name = "wheel"
version = "1.0"
sdist = {{ url = "https://x/wheel.tar.gz", hashes = {{ sha256 = "00" }} }}
wheels = [
    {{ url = "https://x/wheel-b.whl", hashes = {{ sha256 = "bb" }} }},
    {{ url = "https://x/wheel-a.whl", hashes = {{ {HASH} }} }},
]
[[packages]]
name = "source-only"
version = "2.0"
sdist = {{ url = "https://x/s.tar.gz", hashes = {{ sha256 = "cc" }} }}
[[packages]]
name = "repository"
version = "3.0"
vcs = {{ type = "git", url = "https://x/r.git", commit-id = "dd", subdirectory = "sub" }}
[[packages]]
name = "address"
archive = {{ url = "https://x/a.whl", hashes = {{ {HASH} }} }}
[[packages]]
name = "near"
directory = {{ path = "/r/project/libs/near" }}
[[packages]]
name = "edited"
directory = {{ path = "libs/edited", editable = true }}
[[packages]]
name = "own"
directory = {{ path = "/r/project/own", editable = true }}
[[packages]]
name = "no-hash"
version = "4.0"
wheels = [{{ url = "https://x/n.whl" }}]
[[packages]]
name = "from-a-folder"
version = "5.0"
wheels = [{{ path = "/wheels/f.whl", hashes = {{ {HASH} }} }}]
"""
BUILT = (
    "source-only==2.0 --hash=sha256:cc",
    "repository @ git+https://x/r.git@dd#subdirectory=sub",
    "address @ https://x/a.whl",
    "near @ file://${PROJECT_ROOT}/libs/near",
    "-e file://${PROJECT_ROOT}/libs/edited",
    "no-hash==4.0",
    "from-a-folder==5.0 --hash=sha256:aa",
)
WHEEL = "wheel==1.0 --hash=sha256:aa --hash=sha256:bb"


def test_only_pinned_wheels_of_the_operator_s_index_are_shared() -> None:
    found = from_lock(LOCK, PROJECT, [PROJECT / "own"], is_ours=True)
    assert found.wheels == (WHEEL,)
    assert found.built == BUILT

    assert tomllib.loads(found.lock)["packages"] == [
        {
            "name": "wheel",
            "version": "1.0",
            "wheels": [
                {"url": "https://x/wheel-b.whl", "hashes": {"sha256": "bb"}},
                {"url": "https://x/wheel-a.whl", "hashes": {"sha256": "aa"}},
            ],
        }
    ]

    foreign = from_lock(LOCK, PROJECT, [PROJECT / "own"], is_ours=False)
    assert foreign.wheels == ()
    assert set(foreign.built) == {WHEEL, *BUILT}


def test_a_set_is_the_same_after_it_was_stored() -> None:
    found = from_lock(LOCK, PROJECT, [], is_ours=True)
    assert Requirements.parse(str(found)) == found
    assert Requirements.parse(str(found)).key == found.key
    assert Requirements.parse("") == Requirements()
    assert BUILT_HERE not in str(Requirements(wheels=(WHEEL,)))


def test_a_set_without_hashes_goes_through_the_sandbox() -> None:
    assert Requirements.parse("a==1\nb==2\n") == Requirements(built=("a==1", "b==2"))


@pytest.mark.parametrize(
    "lock", ["[", "packages = 7", "[[packages]]\nversion = '1'", "[[packages]]\nname = 'a'", "x = 1"]
)
def test_a_lock_that_says_nothing_is_refused(lock: str) -> None:
    with pytest.raises(BuildFailed, match="their list cannot be read"):
        from_lock(lock, PROJECT, [], is_ours=True)


def test_what_lies_elsewhere_is_refused() -> None:
    with pytest.raises(BuildFailed, match="outside the project"):
        from_lock("[[packages]]\nname = 'a'\ndirectory = { path = '/etc' }", PROJECT, [], is_ours=True)


@pytest.mark.parametrize(
    ("content", "options", "files"),
    [
        (b"httpx\n# -r other\nlangchain>=1\n", False, False),
        (b"x @ git+https://example.com/x.git\n", False, False),
        (b"httpx\n-r base.txt\n", True, True),
        (b"  --index-url https://x\n", True, True),
        (b"-e ./lib\n", True, True),
        (b"./lib\n", False, True),
        (b"lib @ file:///lib\n", False, True),
        (b"lib @ ${PROJECT_ROOT}/lib\n", False, True),
    ],
)
def test_it_is_seen_what_requirements_lead_to(content: bytes, options: Any, files: Any) -> None:
    assert (has_options(content), names_files(content)) == (options, files)
