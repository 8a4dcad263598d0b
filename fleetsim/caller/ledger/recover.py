"""Rows out of a database file page by page, without believing anything above the page.

When an inner page, the schema or the header is gone, SQLite reads nothing behind it; the rows are still in
their leaf pages. Every record found is held against the sums of our tables: a row that fits is genuine,
though possibly an earlier state of it. Source: https://www.sqlite.org/fileformat2.html#b_tree_pages
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from fleetsim.caller.ledger.rows import SUMMED, row_sum

Row: TypeAlias = dict[str, Any]

PAGE_BYTES = 4096
_LEAF = 0x0D
_INTEGER_BYTES = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}
"""How long a whole number is, by its serial type."""


def carve(data: bytes, layout: Mapping[str, tuple[str, ...]]) -> Iterator[tuple[str, Row]]:
    """(table, row) of every row in any leaf page whose sum fits. ``layout`` names the columns of each table.

    The first page is passed over: it is the schema's.
    """
    for start in range(PAGE_BYTES, len(data), PAGE_BYTES):
        for number, values in _cells(data, start):
            found = _recognise(number, values, layout)
            if found:
                yield found


def _recognise(number: int, values: list[Any], layout: Mapping[str, tuple[str, ...]]) -> tuple[str, Row] | None:
    for table, columns in layout.items():
        if len(columns) != len(values):
            continue
        row = dict(zip(columns, values, strict=True))
        if "seq" in row:
            row["seq"] = number
        if row["sum"] == row_sum(table, *(row[name] for name in SUMMED[table].split(", "))):
            return table, row
    return None


def _cells(data: bytes, start: int) -> Iterator[tuple[int, list[Any]]]:
    """(rowid, values) of each cell of the page that can be read; damaged ones are passed over."""
    if data[start] != _LEAF:
        return
    for n in range(int.from_bytes(data[start + 3 : start + 5])):
        pointer = start + 8 + 2 * n
        try:
            yield _cell(data, start, int.from_bytes(data[pointer : pointer + 2]))
        except (IndexError, ValueError):
            continue


def _cell(data: bytes, start: int, offset: int) -> tuple[int, list[Any]]:
    size, at = _varint(data, start + offset)
    number, at = _varint(data, at)
    if size > len(data):
        raise ValueError(size)  # its overflow pages may lead in a circle
    end = at + _local_bytes(size)
    behind = _overflow(data, int.from_bytes(data[end : end + 4]), size - (end - at))
    return number, _values(data[at:end] + behind)


def _local_bytes(size: int) -> int:
    """How much of a record is in the leaf itself."""
    most, least = PAGE_BYTES - 35, (PAGE_BYTES - 12) * 32 // 255 - 23
    if size <= most:
        return size
    fitting = least + (size - least) % (PAGE_BYTES - 4)
    return fitting if fitting <= most else least


def _overflow(data: bytes, page: int, size: int) -> bytes:
    parts: list[bytes] = []
    left = size
    while left > 0:
        at = (page - 1) * PAGE_BYTES
        part = data[at + 4 : at + 4 + min(left, PAGE_BYTES - 4)]
        if not page or not part:
            raise ValueError(page)
        parts.append(part)
        left -= len(part)
        page = int.from_bytes(data[at : at + 4])
    return b"".join(parts)


def _values(payload: bytes) -> list[Any]:
    end, at = _varint(payload, 0)
    body = end
    values: list[Any] = []
    while at < end:
        kind, at = _varint(payload, at)
        value, body = _value(payload, kind, body)
        values.append(value)
    return values


def _value(payload: bytes, kind: int, at: int) -> tuple[Any, int]:
    """A column by its serial type. Our tables hold no floating point numbers."""
    if kind == 0:
        return None, at
    if kind in {8, 9}:
        return kind - 8, at
    size = _INTEGER_BYTES.get(kind, (kind - 12) // 2)
    end = at + size
    value = payload[at:end]
    if len(value) != size:  # cut short, or of one of the kinds below 12, whose size is less than nothing
        raise ValueError(kind)
    if kind in _INTEGER_BYTES:
        return int.from_bytes(value, signed=True), end
    return (value.decode() if kind % 2 else value), end


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for n in range(8):
        byte = data[at + n]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at + n + 1
    return value << 8 | data[at + 8], at + 9
