"""Uploads of source archives: issue an upload URL, and store the archive that is PUT there."""

from __future__ import annotations

import base64
import hashlib
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

from flask import Response, jsonify, request

from shared.audit import Action
from shared.deployments import deployments, sources
from shared.errors import Invalid, Unavailable
from shared.infra.postgres import connection
from shared.records import COUNT, TEXT, mapped, record
from web.gate.audit import record_action
from web.gate.context import base_url, caller, settings
from web.gate.idempotency import once
from web.schemas import fields
from web.schemas.operations import RouteGroup

bp = RouteGroup("uploads", section="Deployments")

UPLOAD_PLACE = record(
    "UploadPlace",
    ("upload_headers",),
    upload_url={"type": "string", "format": "uri"},
    object_path=TEXT,
    upload_headers=mapped(TEXT),
)
UPLOADED = record("UploadedArchive", object_path=TEXT, sha256=TEXT, size=COUNT)

UPLOAD_PREFIX = "/v2/uploads/"  # the token in the path authorizes the upload
READ_BYTES = 1024 * 1024
MEDIA_TYPE = "application/gzip"
SHA256 = re.compile(r"sha-256=:([A-Za-z0-9+/=]+):")


class UploadUrl(fields.Schema):
    supports_upload_headers = fields.StrictBoolean(load_default=False)


@bp.operation(
    "POST /v2/deployments/<deployment_id>/upload-url",
    "Create an upload URL for a source archive",
    role="deploy",
    answer=UPLOAD_PLACE,
    body=UploadUrl,
    errors=(404,),
    idempotent=True,
)
def create_upload_url(deployment_id: UUID, body: dict[str, Any]) -> Response:
    """Return an upload URL. PUT a gzip tar to `upload_url` within an hour, without a key.

    Then send `object_path` in a PATCH of the deployment.
    """
    with connection() as conn:
        keep = once(conn)
        deployments.require(conn, caller().organization_id, deployment_id)
        row = deployments.get(conn, caller().organization_id, deployment_id)
        place = sources.open_upload(conn, deployment_id)
        record_action(conn, Action.UPLOAD_OPENED, row["name"], deployment_id=deployment_id)
        answer: dict[str, Any] = {
            "upload_url": f"{base_url()}{UPLOAD_PREFIX}{place.token}",
            "object_path": place.object_path,
        }
        if body["supports_upload_headers"]:
            # Without these headers, clients send those of a storage service.
            answer["upload_headers"] = {"Content-Type": MEDIA_TYPE}
        return keep(jsonify(answer))


@bp.operation(
    f"PUT {UPLOAD_PREFIX}<token>",
    "Upload a source archive",
    role="open",
    answer=UPLOADED,
    errors=(400, 404, 408, 409, 413, 503),
)
def put_archive(token: str) -> Response:
    """Store the body as the archive. Each upload URL accepts one archive.

    If the request has a Content-Digest, the archive must have that SHA-256.
    """
    with connection() as conn:
        object_path = sources.find_upload(conn, token)
    request.max_content_length = settings().max_archive_bytes
    with _body_as_file() as (path, digest):
        _check_digest(digest.digest(), request.headers.get("Content-Digest", ""))
        with connection() as conn:
            sources.store_upload(conn, object_path, path, digest.hexdigest())
        size = path.stat().st_size
    return jsonify(object_path=object_path, sha256=digest.hexdigest(), size=size)


@contextmanager
def _body_as_file() -> Iterator[tuple[Path, hashlib._Hash]]:
    """Write the request's body to a temporary file. Yields its path and digest; the body is never whole in memory."""
    folder = settings().data_dir / "uploads"
    digest = hashlib.sha256()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, suffix=".tar.gz") as file:
            # Reading beyond the length would reject a body of exactly the largest size as too large.
            while file.tell() != request.content_length and (data := request.stream.read(READ_BYTES)):
                digest.update(data)
                file.write(data)
            file.flush()
            if not file.tell():
                raise Invalid("the archive is empty", status=400)
            yield Path(file.name), digest
    except OSError as error:
        raise Unavailable(f"the archive cannot be stored: {error.strerror}") from error


def _check_digest(digest: bytes, sent: str) -> None:
    """Raise Invalid (400) if the client's Content-Digest names another SHA-256 (RFC 9530)."""
    named = SHA256.search(sent)
    if named and named[1] != base64.b64encode(digest).decode():
        raise Invalid("the archive does not match the SHA-256 in Content-Digest: upload it again", status=400)
