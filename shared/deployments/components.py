"""The bundles of a revision's components of generative UI: a script for each set, and its styles if it has any."""

from __future__ import annotations

import gzip
import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar
from uuid import UUID

from sqlalchemy import Connection
from sqlalchemy.dialects.postgresql import insert

from shared.deployments.deployments import PREVIEW_SIGN
from shared.models import COMPONENT_BUNDLE
from shared.sql import statement

DIGEST_LENGTH = 32  # hex digits of a bundle's SHA-256 in its address

_OF_BUILD = statement("builds.components")
_OF_SET = statement("deployments.components")
_BUNDLE = statement("deployments.component_bundle")


@dataclass(frozen=True)
class Bundle:
    """One file of a set of components."""

    KINDS: ClassVar = {"js": "text/javascript", "css": "text/css"}

    name: str  # of the set
    kind: str
    content: bytes


def global_name(name: str) -> str:
    """Return the global variable of a page in which the script of a set stores its function `render`."""
    return f"__LGUI_{re.sub('[^a-zA-Z0-9]', '_', name)}"


def store(conn: Connection, revision_id: UUID, bundles: Iterable[Bundle]) -> None:
    """Store the bundles of a revision, compressed."""
    for bundle in bundles:
        values = {
            "digest": hashlib.sha256(bundle.content).hexdigest()[:DIGEST_LENGTH],
            "content": gzip.compress(bundle.content, mtime=0),
        }
        key = {"revision_id": revision_id, "name": bundle.name, "kind": bundle.kind}
        conn.execute(
            insert(COMPONENT_BUNDLE)
            .values(**key, **values)
            .on_conflict_do_update(index_elements=list(key), set_=values)
        )


def of_build(conn: Connection, deployment_id: UUID, build_id: UUID) -> list[Bundle]:
    """Return the bundles that a deployed revision has stored for the same build; empty if there is none."""
    rows = _OF_BUILD.rows(conn, deployment_id=deployment_id, build_id=build_id)
    return [Bundle(row["name"], row["kind"], gzip.decompress(row["content"])) for row in rows]


def files(
    conn: Connection, deployment_id: UUID, revision_id: UUID | None, name: str
) -> dict[str, tuple[str, str]]:
    """Return `(set, digest)` of a set's files by kind; empty if the revision has no such set.

    `name` is that of the set, or the id of an assistant whose graph has its name.
    """
    try:
        assistant_id = UUID(name)
    except ValueError:
        assistant_id = None
    rows = _OF_SET.rows(
        conn, deployment_id=deployment_id, revision_id=revision_id, name=name, assistant_id=assistant_id
    )
    return {row["kind"]: (row["name"], row["digest"]) for row in rows}


def compressed(conn: Connection, address_name: str, set_name: str, kind: str, digest: str) -> bytes | None:
    """Return a file of any revision of a deployment, compressed with gzip; None if there is none.

    `address_name` is the deployment's or a preview's name in addresses.
    """
    name, _, _ = address_name.rpartition(PREVIEW_SIGN)
    row = _BUNDLE.row(conn, name=address_name, previewed=name, set_name=set_name, kind=kind, digest=digest)
    return None if row is None else row["content"]
