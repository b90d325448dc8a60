"""Static files of the pages: read once, compressed once, kept in memory, sent in an encoding that the browser accepts.

A file is read again after it has changed on disk. The console's scripts are sent without comments on lines of their
own, which browsers do not need. Only files below `web/static` are kept, so the memory is bounded.
"""

from __future__ import annotations

import gzip
import hashlib
import mimetypes
import os.path
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from flask import Response, request
from werkzeug.exceptions import NotFound
from werkzeug.security import safe_join

STATIC = Path(__file__).parents[1] / "static"
REVALIDATE = "no-cache"  # a page and its script change together, with the service's version
IMMUTABLE = "public, max-age=31536000, immutable"
COMMENT = re.compile(rb"^[ \t]*(?://[^\n]*|/\*\*(?:(?!\*/).)*\*/[ \t]*)$", re.MULTILINE | re.DOTALL)
COMPRESSED = ("text/", "application/json", "image/svg+xml")


@dataclass(frozen=True)
class StaticFile:
    body: bytes
    zipped: bytes | None
    mimetype: str
    etag: str
    stamp: tuple[int, int]  # modification time in ns and size of the file when it was read


_kept: dict[str, StaticFile] = {}


def read(name: str) -> StaticFile:
    """Return a file below `web/static`. Raises NotFound."""
    path = safe_join(str(STATIC), name)
    if path is None or not os.path.isfile(path):  # Path.is_file() raises for a long name
        raise NotFound
    status = Path(path).stat()
    stamp = status.st_mtime_ns, status.st_size
    kept = _kept.get(path)
    if kept is None or kept.stamp != stamp:
        kept = _kept[path] = _read_file(path, stamp)
    return kept


def _read_file(path: str, stamp: tuple[int, int]) -> StaticFile:
    body = Path(path).read_bytes()
    if path.endswith(".js") and Path(path).is_relative_to(STATIC / "console"):
        body = without_comments(body)
    mimetype = mimetypes.guess_type(path)[0] or "application/octet-stream"
    zipped = gzip.compress(body, mtime=0) if mimetype.startswith(COMPRESSED) else None
    return StaticFile(body, zipped, mimetype, hashlib.sha256(body).hexdigest()[:32], stamp)


def without_comments(script: bytes) -> bytes:
    """Return a script without comments on lines of their own. The other lines keep their numbers."""
    return COMMENT.sub(lambda match: b"\n" * match[0].count(b"\n"), script)


def send(name: str, *, cache_control: str = REVALIDATE) -> Response:
    """Send a file below `web/static`, compressed if the client accepts that. Answers 304 if the client has it."""
    file = read(name)
    return respond(file.body, file.zipped, file.mimetype, file.etag, cache_control=cache_control)


def respond(
    body: bytes | None, zipped: bytes | None, mimetype: str, etag: str, *, cache_control: str = REVALIDATE
) -> Response:
    """Send a file. `body` may be None if `zipped` is given: it is then unpacked for a client that does not accept gzip."""
    is_zipped = zipped is not None and request.accept_encodings["gzip"] > 0
    if not is_zipped and body is None:
        assert zipped is not None
        body = gzip.decompress(zipped)
    response = Response(zipped if is_zipped else body, mimetype=mimetype)
    response.headers["Cache-Control"] = cache_control
    response.set_etag(f"{etag}-gzip" if is_zipped else etag)
    if is_zipped:
        response.headers["Content-Encoding"] = "gzip"
    if zipped is not None:
        response.vary.add("Accept-Encoding")
    response.make_conditional(request)
    return response


@cache
def version(*folders: str) -> str:
    """Return a digest of all files in these folders. It is computed once in each process."""
    digest = hashlib.sha256()
    for folder in folders:
        for path in sorted((STATIC / folder).rglob("*")):
            if path.is_file():
                digest.update(f"{path.relative_to(STATIC)}\0".encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
