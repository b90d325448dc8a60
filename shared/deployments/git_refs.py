"""Git repositories as a source: which URLs and refs a deployment may name."""

from __future__ import annotations

import re

from shared.errors import AddressRefused, Invalid
from shared.infra import egress

BRANCHES, TAGS = "refs/heads/", "refs/tags/"
COMMIT = re.compile(r"[0-9a-f]{40}")
# Names that git allows and that have no special meaning to a shell, an option parser or git's revision syntax.
REF = re.compile(r"(?!.*(\.\.|//|@\{|/\.|\.lock(/|$)))[A-Za-z0-9_][A-Za-z0-9_./@+#=,-]{0,254}(?<![/.])")
URL_LOC = ("body", "source_config", "repo_url")
REF_LOC = ("body", "source_revision_config", "repo_ref")


def check_url(url: str) -> None:
    """Raise Invalid (400) for a URL that the egress rules do not allow."""
    try:
        egress.check_url(url)
    except AddressRefused as error:
        raise Invalid(f"repo_url: {error.message}", loc=URL_LOC, status=400) from error


def check_ref(ref: str) -> None:
    """Raise Invalid (400) unless the ref is a branch, `refs/tags/…` or a commit."""
    if not REF.fullmatch(ref):
        raise Invalid("repo_ref must be a branch, refs/tags/<tag> or a commit", loc=REF_LOC, status=400)


def full_ref(ref: str | None) -> str:
    """Return the ref to fetch from a repository: HEAD, a full ref or a commit."""
    if not ref:
        return "HEAD"
    return ref if COMMIT.fullmatch(ref) or ref.startswith("refs/") else f"{BRANCHES}{ref}"
