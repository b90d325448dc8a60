"""Fetching of sources: packs a ref of a git repository into an archive like an uploaded one, stored by digest.

git runs in the sandbox, without the machine's configuration, hooks, filters, prompts, submodules and redirects. It may
use only HTTP(S) and the addresses that were checked. The credentials are secrets of the deployment. Only git receives
them, in its environment.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from sqlalchemy import Connection

from shared.deployments import logs, next_revision, revisions, sources
from shared.deployments.revisions import ClaimedRevision
from shared.errors import BuildFailed, OutsideFailed
from shared.infra import egress
from shared.infra.postgres import connection
from shared.settings import Settings
from shared.sql import statement
from workers.builder import steps, workspaces
from workers.builder.steps import StepSandbox, WriteLine
from workers.builder.workspaces import Workspace
from workers.isolation import disk, sandbox

STEP = "source"
LONGEST_SUBJECT = 200
TOKEN = "GIT_TOKEN"  # the secret with a repository's credentials
USERNAME = "GIT_USERNAME"
ANY_USERNAME = "x-access-token"  # servers that accept a token as the password usually ignore the name
CREDENTIALS = frozenset({TOKEN, USERNAME})
# Restrict git to fetching.
GIT_RULES = (
    "protocol.allow=never", "protocol.https.allow=always", "protocol.http.allow=always",
    "core.hooksPath=/dev/null", "core.fsmonitor=false", "core.symlinks=false", "fetch.recurseSubmodules=false",
    "submodule.recurse=false", "http.followRedirects=false", "gc.auto=0", "maintenance.auto=false",
    "advice.detachedHead=false", "http.lowSpeedLimit=1000", "http.lowSpeedTime=60",
)  # fmt: skip
NO_REF = re.compile(r"couldn't find remote ref|not our ref|unadvertised object")
NO_ACCESS = re.compile(r"could not read (Username|Password)|Authentication failed|returned error: 40[13]")
NO_REPOSITORY = re.compile(r"[Rr]epository .*not found|returned error: 404")
PORTS = {"http": 80, "https": 443}
# The credential helper reads its environment, so that no secret appears in an argument.
HELPER = '!f() { echo "username=$GIT_USERNAME"; echo "password=$GIT_TOKEN"; }; f'
_ORIGIN = statement("builds.origin")


@dataclass(frozen=True)
class Origin:
    """The repository and ref of a revision's source."""

    url: str
    ref: str | None


def origin_of(conn: Connection, revision_id: object) -> Origin | None:
    """Return the repository of a revision whose source must be fetched; None for an uploaded source."""
    row = _ORIGIN.row(conn, id=revision_id)
    return Origin(**row) if row and row["url"] else None


def without_credentials(secrets: Mapping[str, str]) -> dict[str, str]:
    """Return the secrets without the git credentials, which user code must not see."""
    return {name: value for name, value in secrets.items() if name not in CREDENTIALS}


def fetch(
    settings: Settings,
    claimed: ClaimedRevision,
    origin: Origin,
    secrets: Mapping[str, str],
    write_line: WriteLine,
) -> ClaimedRevision:
    """Fetch the source and store its archive. Returns the revision with the archive's digest. Raises BuildFailed."""
    workspace = workspaces.workspace_of(settings, claimed.build_id)
    with workspaces.exclusive(workspace):
        disk.remove(workspace.root)
        try:
            workspace.root.mkdir(parents=True, mode=0o700)
            workspace.home.mkdir()
            sandbox.give(workspace.root)
            repository = _Repository(settings, workspace, origin, secrets, write_line)
            commit, archive = repository.packed()
            return _keep(claimed, archive, commit, repository.subject(commit))
        except OSError as error:
            raise BuildFailed(STEP, f"cannot write the source: {error.strerror}") from error
        finally:
            disk.remove(workspace.root)


def _keep(claimed: ClaimedRevision, archive: Path, commit: str, subject: str) -> ClaimedRevision:
    with archive.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    with connection() as conn:
        sources.store_archive(conn, archive, digest)
        kept = revisions.keep_source(conn, claimed, digest=digest, commit=commit)
        next_revision.record_commit_message(conn, claimed.revision_id, subject)
        return kept


class _Repository:
    """One ref, fetched into its own temporary repository."""

    def __init__(
        self,
        settings: Settings,
        workspace: Workspace,
        origin: Origin,
        secrets: Mapping[str, str],
        write_line: WriteLine,
    ) -> None:
        program = shutil.which("git")
        if program is None:
            raise BuildFailed(STEP, "git is not installed on this server")
        self._git = program
        self._settings = settings
        self._workspace = workspace
        self._origin = origin
        self._secrets = secrets
        self._write_line = write_line
        self._folder = workspace.root / "repository"
        self._sandbox = StepSandbox(settings, folder=workspace.root, cache=workspace.home)

    def packed(self) -> tuple[str, Path]:
        """Fetch the ref and pack it. Returns the commit id and the archive's path. Raises BuildFailed."""
        ref = sources.full_ref(self._origin.ref)
        self._write_line("INFO", f"fetching {self._origin.ref or 'the default branch'} of {self._origin.url}")
        # Without the machine's templates.
        self._run([self._git, "init", "--quiet", "--bare", "--template=", str(self._folder)])
        options = (
            "--quiet", "--depth=1", "--no-tags", "--no-recurse-submodules", "--no-write-commit-graph", "--",
        )  # fmt: skip
        addresses = f"http.curloptResolve={self._resolved()}"
        self._run(self._restricted("fetch", *options, self._origin.url, ref, rules=[addresses]))
        commit = self._commit()
        self._write_line("INFO", f"the commit is {commit}")
        archive = self._workspace.root / "source.tar.gz"
        packing = (sys.executable, "-P", "-X", "utf8", "-m", "workers.builder.git_archive")
        self._run([*packing, str(self._folder), commit, str(archive)], PYTHONPATH=steps.module_path())
        if archive.lstat().st_size > self._settings.max_archive_bytes:
            raise BuildFailed(STEP, f"the source packs to more than {self._settings.max_archive_bytes} bytes")
        return commit, archive

    def _resolved(self) -> str:
        """Return `host:port:addresses` with checked addresses, so that git does not resolve the name again."""
        url = urlsplit(self._origin.url)
        port = url.port or PORTS.get(url.scheme, 0)
        try:
            egress.check_url(self._origin.url)
            addresses = egress.check_host(url.hostname or "", port)
        except OutsideFailed as error:
            raise BuildFailed(STEP, f"the repository cannot be reached: {error.message}") from error
        shown = [f"[{address}]" if ":" in address else address for address in addresses]
        return f"{url.hostname}:{port}:{','.join(shown)}"

    def _commit(self) -> str:
        """Return the id of the fetched commit. Validates it, because it was written inside the sandbox."""
        lines = self._output("rev-parse", "--verify", "--quiet", "FETCH_HEAD^{commit}")
        if len(lines) != 1 or not sources.COMMIT.fullmatch(lines[0]):
            raise BuildFailed(STEP, "the ref is no commit")
        return lines[0]

    def subject(self, commit: str) -> str:
        """Return the first line of a commit's message, which may be empty."""
        lines = self._output("show", "--no-patch", "--no-color", "--format=%s", commit)
        return logs.clean(lines[0])[:LONGEST_SUBJECT] if lines else ""

    def _restricted(self, *arguments: str, rules: Sequence[str] = ()) -> list[str]:
        """Return a git command to which no setting, hook or redirect of the repository or server applies."""
        settings = [word for rule in (*GIT_RULES, *rules) for word in ("-c", rule)]
        return [self._git, "-C", str(self._folder), *settings, *arguments]

    def _output(self, *arguments: str) -> list[str]:
        """Run git. Returns the lines of its output."""
        lines: list[str] = []
        self._execute(self._restricted(*arguments), lambda level, message: lines.append(message))
        return lines

    def _run(self, argv: list[str], **variables: str) -> None:
        try:
            self._execute(argv, self._write_line, **variables)
        except BuildFailed as error:
            has_token = bool(self._secrets.get(TOKEN))
            reason = _explained(error.message, self._origin.ref, has_token=has_token)
            raise BuildFailed(error.step, reason) from error

    def _execute(self, argv: list[str], write_line: WriteLine, **variables: str) -> None:
        variables = {**self._variables(), **variables}
        self._sandbox.run(STEP, argv, write_line, readonly=[Path(self._git)], variables=variables)

    def _variables(self) -> dict[str, str]:
        """Return git's environment variables: no configuration of the machine, and no prompts."""
        credentials = {}
        if self._secrets.get(TOKEN):
            credentials = {TOKEN: self._secrets[TOKEN], USERNAME: self._secrets.get(USERNAME) or ANY_USERNAME}
        certificates = self._settings.passed_on.get("SSL_CERT_FILE")
        return {
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_ASKPASS": "/bin/false",
            "GIT_CONFIG_COUNT": "2",
            "GIT_CONFIG_KEY_0": "credential.helper",
            "GIT_CONFIG_VALUE_0": "",  # clears all other helpers
            "GIT_CONFIG_KEY_1": "credential.helper",
            "GIT_CONFIG_VALUE_1": HELPER if credentials else "",
            **({"GIT_SSL_CAINFO": certificates} if certificates else {}),
            **credentials,
        }


def _explained(reason: str, ref: str | None, *, has_token: bool) -> str:
    """Return git's reason, with what the person who deployed can do about it."""
    if NO_REF.search(reason):
        return f"the repository has no {ref or 'default branch'!r}: {reason}"
    if NO_ACCESS.search(reason):
        if has_token:
            return f"the repository refuses the token in the secret {TOKEN}: {reason}"
        return f"the repository asks for credentials: put a token into the secret {TOKEN}"
    if NO_REPOSITORY.search(reason) and not has_token:
        return f"{reason}: if it is private, put a token into the secret {TOKEN}"
    return reason
