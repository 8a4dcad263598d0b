"""Rows out of a database file page by page, without believing anything above the page.

When an inner page, the schema or the header is gone, SQLite reads nothing behind it; the rows are still in
their leaf pages. Every record found is held against the sums of our tables: a row that fits is genuine,
though possibly an earlier state of it. Source: https://www.sqlite.org/fileformat2.html#b_tree_pages
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from fleetsim.caller.ledger.rows import SUMMED, row_sum
from fleetsim.model.limits import ROW_BYTES_MAX

Row: TypeAlias = dict[str, Any]

PAGE_BYTES = 4096
_LEAF = 0x0D
_INTEGER_BYTES = (0, 1, 2, 3, 4, 6, 8)


def carve(data: bytes, layout: Mapping[str, tuple[str, ...]]) -> Iterator[tuple[str, Row]]:
    """(table, row) of every row in any leaf page whose sum fits. ``layout`` names the columns of each table."""
    for start in range(0, len(data) - PAGE_BYTES + 1, PAGE_BYTES):
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
    head = start + (100 if start == 0 else 0)
    if data[head] != _LEAF:
        return
    count = int.from_bytes(data[head + 3 : head + 5])
    for n in range(min(count, PAGE_BYTES // 2)):
        pointer = head + 8 + 2 * n
        try:
            yield _cell(data, start, int.from_bytes(data[pointer : pointer + 2]))
        except (IndexError, ValueError):
            continue


def _cell(data: bytes, start: int, offset: int) -> tuple[int, list[Any]]:
    size, at = _varint(data, start + offset)
    number, at = _varint(data, at)
    if not 0 < size <= ROW_BYTES_MAX:
        raise ValueError(size)
    local = _local_bytes(size)
    payload = data[at : at + local]
    if local < size:
        payload += _overflow(data, int.from_bytes(data[at + local : at + local + 4]), size - local)
    if len(payload) != size:
        raise ValueError(size)
    return number, _values(payload)


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
        if page < 1 or at + PAGE_BYTES > len(data):
            raise ValueError(page)
        parts.append(data[at + 4 : at + 4 + min(left, PAGE_BYTES - 4)])
        left -= len(parts[-1])
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
    if kind < len(_INTEGER_BYTES):
        end = at + _INTEGER_BYTES[kind]
        return int.from_bytes(payload[at:end], signed=True), end
    if kind < 12:
        raise ValueError(kind)
    end = at + (kind - 12) // 2
    if end > len(payload):
        raise ValueError(kind)
    return (payload[at:end].decode() if kind % 2 else payload[at:end]), end


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for n in range(8):
        byte = data[at + n]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at + n + 1
    return value << 8 | data[at + 8], at + 9
