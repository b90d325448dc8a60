"""Git repositories as a source: which addresses and refs a deployment may name."""

from __future__ import annotations

import re

from shared.errors import AddressRefused, Invalid
from shared.infra import egress

BRANCHES, TAGS = "refs/heads/", "refs/tags/"
COMMIT = re.compile(r"[0-9a-f]{40}")
# What git allows in a name and no shell, option parser or revision syntax gives a meaning to.
REF = re.compile(r"(?!.*(\.\.|//|@\{|/\.|\.lock(/|$)))[A-Za-z0-9_][A-Za-z0-9_./@+#=,-]{0,254}(?<![/.])")
URL_LOC = ("body", "source_config", "repo_url")
REF_LOC = ("body", "source_revision_config", "repo_ref")


def check_url(url: str) -> None:
    """Raises Invalid (400) for an address no source is fetched from."""
    try:
        egress.check_url(url)
    except AddressRefused as error:
        raise Invalid(f"repo_url: {error.message}", loc=URL_LOC, status=400) from error


def check_ref(ref: str) -> None:
    """Raises Invalid (400) for what is no branch, `refs/tags/…` or commit."""
    if not REF.fullmatch(ref):
        raise Invalid("repo_ref must be a branch, refs/tags/<tag> or a commit", loc=REF_LOC, status=400)


def full_ref(ref: str | None) -> str:
    """What to ask a repository for."""
    if not ref:
        return "HEAD"
    return ref if COMMIT.fullmatch(ref) or ref.startswith("refs/") else f"{BRANCHES}{ref}"
