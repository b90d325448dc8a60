"""The manifest of a backup: its fields and their types.

A manifest is parsed before it is authenticated, because it names the key that signs it. Every field therefore has a
strict form: a hostile manifest must not print arbitrary text or cause a large allocation.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

KIND = "runyard backup"
MAX_COUNT = 2**63 - 1

IsValid = Callable[[Any], bool]


@dataclass(frozen=True)
class Table:
    """One part of the file: the rows of a table."""

    name: str
    columns: tuple[str, ...]
    rows: int
    text_bytes: int  # uncompressed
    size: int  # in the file
    sha256: str  # of the compressed bytes


def parse(text: bytes) -> dict[str, Any]:
    """Return the manifest, with its tables as a tuple of Table. Raises ValueError with the names of invalid fields."""
    try:
        manifest = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError("JSON") from error
    if invalid := _invalid_fields(manifest, MANIFEST):
        raise ValueError(", ".join(invalid))
    tables = tuple(Table(**{**table, "columns": tuple(table["columns"])}) for table in manifest["tables"])
    return {**manifest, "tables": tables}


def _invalid_fields(value: Any, fields: Mapping[str, IsValid]) -> list[str]:
    if not isinstance(value, dict) or value.keys() != fields.keys():
        return ["fields"]
    return [name for name, is_valid in fields.items() if not is_valid(value[name])]


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_COUNT  # bool is a subclass of int


def _matches(pattern: str) -> IsValid:
    compiled = re.compile(pattern)
    return lambda value: isinstance(value, str) and compiled.fullmatch(value) is not None


def _is_list(is_valid: IsValid, *, min_length: int = 1) -> IsValid:
    return lambda value: isinstance(value, list) and len(value) >= min_length and all(map(is_valid, value))


def _is_object(fields: Mapping[str, IsValid]) -> IsValid:
    return lambda value: not _invalid_fields(value, fields)


def _are_identities(value: Any) -> bool:
    return isinstance(value, dict) and all(
        last is None or (_is_count(last) and last > 0) for last in value.values()
    )


_is_name = _matches("[a-z][a-z0-9_]{0,62}")
_is_fingerprint = _matches("[0-9a-f]{16}")
# The cost of deriving a key from the passphrase is not a field but a constant (cli/backups/keys.py): a file could
# otherwise request gigabytes of memory.
_are_sealed_keys = _is_object(
    {"salt": _matches("[0-9a-f]{32}"), "sealed": _matches("[A-Za-z0-9_=-]{1,100000}")}
)
TABLE: Mapping[str, IsValid] = {
    "name": _is_name,
    "columns": _is_list(_is_name),
    "rows": _is_count,
    "text_bytes": _is_count,
    "size": _is_count,
    "sha256": _matches("[0-9a-f]{64}"),
}
MANIFEST: Mapping[str, IsValid] = {
    "kind": lambda value: value == KIND,
    "version": _matches("[0-9A-Za-z.+-]{1,60}"),
    "migration": _matches("[0-9]{4}"),
    "made_at": _matches("[0-9T:+-]{10,40}"),
    "postgres": _is_count,
    "tables": _is_list(_is_object(TABLE), min_length=0),
    "identities": _are_identities,  # last number of each identity column, by `table.column`; null before the first
    "live_runs": _is_count,
    "encrypted": _is_count,
    "unreadable": _is_count,
    "keys": _is_list(_is_fingerprint),  # fingerprints of the encryption keys; the first one signs
    "sealed_keys": lambda value: value is None or _are_sealed_keys(value),
}
