"""Python lists as PostgreSQL's binary arrays, packed by the declared item type.

The driver infers a list's type by looking at each item. A list of small numbers, or of None only, gets another type
than the next list, and PostgreSQL prepares and plans the statement again. A value of another type than the declared one
raises `DataError`, as the database would.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from psycopg import Connection, DataError
from psycopg.adapt import Dumper
from psycopg.pq import Format

_HEAD = struct.Struct(">iiIii")  # dimensions, null flag, item type, length, lower bound
_EMPTY = struct.Struct(">iiI")
_LENGTH = struct.Struct(">i")
_NULL = _LENGTH.pack(-1)
# Raised while an item of another type is packed.
WRONG_TYPE = (AttributeError, TypeError, ValueError, struct.error)


class Packed(bytes):
    """An array in wire format. Each array type has its own subclass."""


class _PackedDumper(Dumper):
    format = Format.BINARY

    def dump(self, obj: Packed) -> Packed:
        return obj


Pack = Callable[[Sequence[Any]], Packed]


def _type(
    array_oid: int, item_oid: int, pack: Callable[[Any], bytes]
) -> tuple[Pack, type[Packed], type[Dumper]]:
    """Return the pack function of an array type, the class of its packed arrays, and their dumper."""
    array_class = type("Packed", (Packed,), {})
    dumper = type("PackedDumper", (_PackedDumper,), {"oid": array_oid})
    empty = array_class(_EMPTY.pack(0, 0, item_oid))

    def packed(items: Sequence[Any]) -> Packed:
        if not items:
            return empty
        try:
            return joined(items)
        except WRONG_TYPE as error:
            raise DataError(f"the value does not fit its database type: {error}") from error

    def joined(items: Sequence[Any]) -> Packed:
        parts = [_HEAD.pack(1, 1, item_oid, len(items), 1)]
        for item in items:
            if item is None:
                parts.append(_NULL)
            else:
                data = pack(item)
                parts += (_LENGTH.pack(len(data)), data)
        return array_class(b"".join(parts))

    return packed, array_class, dumper


_TYPES = {
    "uuid[]": _type(2951, 2950, lambda item: item.bytes),
    "text[]": _type(1009, 25, str.encode),
    "bytea[]": _type(1001, 17, lambda item: memoryview(item).tobytes()),
    "bigint[]": _type(1016, 20, struct.Struct(">q").pack),
    "float8[]": _type(1022, 701, struct.Struct(">d").pack),
}
PACK: Mapping[str, Pack] = {name: packed for name, (packed, _, _) in _TYPES.items()}
uuids, texts, blobs, bigints, doubles = PACK.values()  # in the order of _TYPES


def register(connection: Connection[Any]) -> None:
    """Register the dumpers of the packed arrays with a connection."""
    for _, array_class, dumper in _TYPES.values():
        connection.adapters.register_dumper(array_class, dumper)
