"""Source archives, stored as an upload stores them."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from collections.abc import Mapping

from sqlalchemy import text

from shared.infra.postgres import connection


def keep(files: Mapping[str, str]) -> str:
    """Store an archive of these files as an upload does. Returns its SHA-256 digest."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content.encode()))
    data = gzip.compress(made.getvalue(), mtime=0)
    digest = hashlib.sha256(data).hexdigest()
    with connection() as conn:
        conn.execute(
            text("INSERT INTO archive (digest, size) VALUES (:d, :s) ON CONFLICT DO NOTHING"),
            {"d": digest, "s": len(data)},
        )
        conn.execute(
            text("INSERT INTO archive_chunk (digest, n, data) VALUES (:d, 0, :data) ON CONFLICT DO NOTHING"),
            {"d": digest, "data": data},
        )
    return digest
