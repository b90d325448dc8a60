"""Sources of revisions: uploaded archives, and the URLs and refs of git repositories.

Archives are stored in PostgreSQL under their SHA-256 so that any builder or runner can fetch them. An upload accepts one
archive. Its URL contains a token, which is the only authorization. An archive is kept as long as a revision or an
unexpired upload refers to it.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from sqlalchemy import Connection, text

from shared.errors import AddressRefused, Conflict, Invalid, NotFound
from shared.infra import egress
from shared.infra.postgres import patience
from shared.infra.tokens import new_token, token_hash
from shared.sql import statement

CHUNK_BYTES = 1024 * 1024
UPLOAD_SECONDS = 3600
# Longest wait for an upload of the same bytes. Exceeds the statement_timeout of `store_archive`.
SAME_UPLOAD_SECONDS = 66.0
KEPT_SECONDS = 3600  # for archives without a reference: a PATCH may soon name one
REMOVED_AT_ONCE = 5
_REMOVE_UNUSED = statement("deployments.remove_unused_archives")

BRANCHES, TAGS = "refs/heads/", "refs/tags/"
COMMIT = re.compile(r"[0-9a-f]{40}")
# Names that git allows and that have no special meaning to a shell, an option parser or git's revision syntax.
REF = re.compile(r"(?!.*(\.\.|//|@\{|/\.|\.lock(/|$)))[A-Za-z0-9_][A-Za-z0-9_./@+#=,-]{0,254}(?<![/.])")
URL_LOC = ("body", "source_config", "repo_url")
REF_LOC = ("body", "source_revision_config", "repo_ref")


@dataclass(frozen=True, slots=True)
class UploadTarget:
    """The token that authorizes an upload, and the path that names the archive afterwards."""

    token: str
    object_path: str


def open_upload(conn: Connection, deployment_id: UUID) -> UploadTarget:
    """Insert an upload for one archive of the deployment."""
    token = new_token()
    object_path = f"{deployment_id}/{secrets.token_hex(16)}.tar.gz"
    conn.execute(
        text(
            "INSERT INTO upload (object_path, deployment_id, token_hash, expires_at)"
            " VALUES (:path, :id, :hash, now() + make_interval(secs => :seconds))"
        ),
        {"path": object_path, "id": deployment_id, "hash": token_hash(token), "seconds": UPLOAD_SECONDS},
    )
    return UploadTarget(token, object_path)


def find_upload(conn: Connection, token: str) -> str:
    """Return the object path of an upload token. Raises NotFound, or Conflict if the token was used."""
    query = text(
        "SELECT u.object_path, u.digest FROM upload u JOIN deployment d ON d.id = u.deployment_id"
        " WHERE u.token_hash = :hash AND u.expires_at > now() AND d.deleted_at IS NULL"
    )
    row = conn.execute(query, {"hash": token_hash(token)}).one_or_none()
    if row is None:
        raise NotFound("This upload URL is not valid, or has expired. Create a new one.")
    if row.digest is not None:
        raise Conflict("This upload URL has been used. Create a new one.")
    return str(row.object_path)


def store_upload(conn: Connection, object_path: str, path: Path, digest: str) -> None:
    """Store the file's bytes under their digest and mark the upload as used. Raises Conflict if it was used before."""
    store_archive(conn, path, digest)
    filled = text("UPDATE upload SET digest = :digest WHERE object_path = :path AND digest IS NULL")
    if conn.execute(filled, {"digest": digest, "path": object_path}).rowcount != 1:
        raise Conflict("This upload URL has been used. Create a new one.")


def store_archive(conn: Connection, path: Path, digest: str) -> None:
    """Store the file's bytes under their digest. The caller must insert its reference in the same transaction."""
    # Another upload of the same bytes may be in progress. Waiting for it may take longer than for other locks.
    conn.execute(
        text("SELECT set_config('lock_timeout', '60s', true), set_config('statement_timeout', '65s', true)")
    )
    query = text(
        "INSERT INTO archive (digest, size) VALUES (:digest, :size)"
        " ON CONFLICT (digest) DO UPDATE SET created_at = now() RETURNING (xmax = 0) AS is_new"
    )
    with patience(SAME_UPLOAD_SECONDS):
        is_new = conn.execute(query, {"digest": digest, "size": path.stat().st_size}).scalar_one()
    if is_new:
        insert = text("INSERT INTO archive_chunk (digest, n, data) VALUES (:digest, :n, :data)")
        with path.open("rb") as file:
            for n, data in enumerate(iter(lambda: file.read(CHUNK_BYTES), b"")):
                conn.execute(insert, {"digest": digest, "n": n, "data": data})


def archive_chunks(conn: Connection, digest: str) -> Iterator[bytes]:
    """Yield an archive's bytes in chunks of CHUNK_BYTES. Raises NotFound."""
    query = text("SELECT data FROM archive_chunk WHERE digest = :digest AND n = :n")
    n = 0
    while (data := conn.execute(query, {"digest": digest, "n": n}).scalar()) is not None:
        yield bytes(data)
        n += 1
    if n == 0:
        raise NotFound("the source archive does not exist any longer")


def archive_exists(conn: Connection, digest: str) -> bool:
    """Whether the archive's bytes are stored."""
    query = text("SELECT EXISTS (SELECT FROM archive_chunk WHERE digest = :digest)")
    return bool(conn.execute(query, {"digest": digest}).scalar_one())


def remove_unused_archives(conn: Connection) -> int:
    """Remove expired uploads and some unreferenced archives. Returns the number of removed archives."""
    conn.execute(text("DELETE FROM upload WHERE expires_at < now()"))
    return _REMOVE_UNUSED.count(conn, kept_seconds=KEPT_SECONDS, limit=REMOVED_AT_ONCE)


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
