"""Sources from git repositories: fetched files, credentials, and refusals.

The server is git's own HTTP server, and git runs in the sandbox as in a build.
"""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Mapping

import pytest

from shared.deployments import revisions
from shared.deployments import sources as revision_sources
from shared.deployments.revisions import ClaimedRevision
from shared.errors import BuildFailed, Invalid
from shared.infra import egress
from shared.infra.postgres import connection
from shared.models import RevisionStatus
from shared.settings import Settings
from tests.support import factories
from tests.support.git_server import Repository, Server, serving
from tests.support.greened import World, greened
from workers.builder import sources, workspaces
from workers.builder.sources import Origin

TOKEN = "ghp_0123456789abcdef"
FILES = {"langgraph.json": "{}", "apps/one/agent.py": "graph = None\n"}


@pytest.fixture(autouse=True)
def _unconfigured() -> None:
    egress.configure()


class Case:
    """A revision to fetch, and the log lines of the fetch."""

    def __init__(self, world: World) -> None:
        egress.configure(("127.0.0.1",), allow_http=True)
        self.settings = Settings.from_env({**os.environ, "RUNYARD_DATA_DIR": str(world.tmp_path / "data")})
        self.repository = Repository(world.tmp_path / "repositories" / "project.git")
        self.said: list[str] = []

    def claim(self) -> ClaimedRevision:
        deployment = factories.deployment()
        made = factories.revision(deployment.id, number=2, status=RevisionStatus.AWAITING_BUILD)
        with connection() as conn:
            claimed = revisions.claim(conn, made, owner="me", lease_seconds=60)
        assert claimed is not None
        return claimed

    def fetch(
        self, url: str, ref: str | None = None, secrets: Mapping[str, str] | None = None
    ) -> ClaimedRevision:
        claimed = self.claim()
        try:
            return sources.fetch(
                self.settings,
                claimed,
                Origin(url, ref),
                secrets or {},
                lambda _, text: self.said.append(text),
            )
        finally:
            assert not workspaces.workspace_of(self.settings, claimed.build_id).root.exists()

    def refused(self, url: str, ref: str | None = None, secrets: Mapping[str, str] | None = None) -> str:
        with pytest.raises(BuildFailed) as caught:
            self.fetch(url, ref, secrets)
        assert caught.value.step == "source"
        return caught.value.message


def names(claimed: ClaimedRevision) -> dict[str, int]:
    """Return the files of a revision's archive with their modes."""
    assert claimed.archive_digest is not None
    with connection() as conn:
        data = b"".join(revision_sources.archive_chunks(conn, claimed.archive_digest))
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return {member.name: member.mode for member in tar}


@greened
def test_a_ref_becomes_an_archive(world: World) -> None:
    case = Case(world)
    first = case.repository.commit(FILES)
    case.repository.git("tag", "v1")
    case.repository.git("checkout", "--quiet", "-b", "work/next")
    (case.repository.folder / "run.sh").write_text("#!/bin/sh\n")
    (case.repository.folder / "run.sh").chmod(0o755)
    (case.repository.folder / "link").symlink_to("/etc/passwd")
    # These attributes would change or omit files if the source were checked out or exported.
    second = case.repository.commit({".gitattributes": "*.py export-ignore filter=evil\n", "Ünï.txt": "x"})
    case.repository.git("checkout", "--quiet", "main")
    with serving(Server(case.repository.folder.parent)) as address:
        url = f"{address}/project.git"
        found = {ref: case.fetch(url, ref) for ref in (None, "main", "refs/tags/v1", first)}
        newer = case.fetch(url, "work/next")

    assert {claimed.config["repo_commit_sha"] for claimed in found.values()} == {first}
    assert len({claimed.archive_digest for claimed in found.values()}) == 1, "a commit is one archive"
    assert names(found[None]) == dict.fromkeys(FILES, 0o644)
    assert newer.config["repo_commit_sha"] == second
    assert names(newer) == {
        **dict.fromkeys([*FILES, ".gitattributes", "Ünï.txt"], 0o644),
        "run.sh": 0o755,
    }
    assert "left out 1 links and submodules: link" in case.said
    with connection() as conn:
        kept = revisions.get(conn, newer.deployment_id, newer.revision_id)
    assert kept["archive_digest"] == newer.archive_digest
    assert kept["source_revision_config"]["repo_commit_sha"] == second
    assert kept["changes"]["commit_message"] == "more"


@greened
def test_credentials_are_given_to_the_server_and_to_nobody_else(world: World) -> None:
    case = Case(world)
    case.repository.commit(FILES)
    server = Server(case.repository.folder.parent, password=TOKEN)
    with serving(server) as address:
        url = f"{address}/project.git"
        assert "asks for credentials: put a token into the secret GIT_TOKEN" in case.refused(url)
        assert "refuses the token" in case.refused(url, None, {"GIT_TOKEN": "wrong"})
        case.fetch(url, None, {"GIT_TOKEN": TOKEN})
        case.fetch(url, None, {"GIT_TOKEN": TOKEN, "GIT_USERNAME": "robot"})

    assert {"x-access-token", "robot"} == set(server.users)
    assert not [text for text in (*case.said, *server.asked) if TOKEN in text]


@greened
def test_what_cannot_be_fetched_says_why(world: World) -> None:
    case = Case(world)
    case.repository.commit(FILES)
    with serving(Server(case.repository.folder.parent)) as address:
        url = f"{address}/project.git"
        assert "the repository has no 'nowhere'" in case.refused(url, "nowhere")
        assert "the repository has no 'refs/tags/v9'" in case.refused(url, "refs/tags/v9")
        assert "the repository has no" in case.refused(url, "0" * 40)
        assert "not found: if it is private, put a token" in case.refused(f"{address}/other.git")
    assert "Failed to connect" in case.refused(url)

    egress.configure(allow_http=True)
    assert "127.0.0.1 is not an address this service may call" in case.refused(url)
    egress.configure()
    assert "must be a URL that begins with https://" in case.refused(url)


ODD_ADDRESSES = (
    *("git@github.com:a/b.git", "ssh://git@github.com/a/b", "file:///etc", "/etc", "ext::sh -c id", ""),
    *("http://github.com/a/b", "https://user:pass@github.com/a/b", "https://token@github.com/a/b"),
    *("https://127.0.0.1/a", "https://[::1]/a", "https://10.0.0.1/a", "https://localhost/a"),
    *("https://github.com:22/a", "https://github.com/a b", "--upload-pack=id"),
)


def test_an_address_that_is_no_public_repository_is_refused() -> None:
    for url in ODD_ADDRESSES:
        with pytest.raises(Invalid) as caught:
            revision_sources.check_url(url)
        assert (caught.value.status, caught.value.loc) == (400, ("body", "source_config", "repo_url")), url


def test_a_ref_is_a_branch_a_tag_or_a_commit() -> None:
    for ref in ("main", "feature/x-1", "refs/tags/v1.0", "refs/heads/main", "a" * 40, "release_2", "x@y"):
        revision_sources.check_ref(ref)
    odd = ("", "-x", "--upload-pack=id", "a..b", "a b", "a:b", "a^", "a~1", "@{1}", "a/", "/a", "a.lock")
    for ref in odd:
        with pytest.raises(Invalid):
            revision_sources.check_ref(ref)
    assert revision_sources.full_ref(None) == "HEAD"
    assert revision_sources.full_ref("main") == "refs/heads/main"
    assert revision_sources.full_ref("refs/tags/v1") == "refs/tags/v1"
    assert revision_sources.full_ref("a" * 40) == "a" * 40
