"""Content codings: bodies in any slices, truncated and corrupted."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetsim.model.errors import WireError
from fleetsim.runtime.codings import PIECE_BYTES, DecodedChunks
from tests.runtime.codings import CODINGS, encoded

FORMS = (*CODINGS, "raw deflate")
BODIES = st.tuples(st.binary(max_size=20), st.sampled_from([1, 20_000]))
"""A text, and how often it stands in the body."""


async def decoded(body: bytes, form: str, *, step: int) -> list[bytes]:
    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(body), step):
            yield body[start : start + step]

    return [piece async for piece in DecodedChunks(chunks(), form.rpartition(" ")[2], "h:1")]


@pytest.mark.slow
@given(text=BODIES, form=st.sampled_from(FORMS), step=st.integers(1, 5_000))
async def test_a_body_in_any_slices_is_decoded_in_small_pieces(text: tuple[bytes, int], form: str, step: int) -> None:
    body = text[0] * text[1]
    pieces = await decoded(encoded(body, form), form, step=step)
    assert b"".join(pieces) == body
    assert all(0 < len(piece) <= 2 * PIECE_BYTES for piece in pieces), "brotli may double its bound"


@pytest.mark.slow
@given(texts=st.lists(BODIES, min_size=1, max_size=3), form=st.sampled_from(["gzip", "zstd"]), step=st.integers(1, 999))
async def test_members_and_frames_may_follow_each_other(texts: list[tuple[bytes, int]], form: str, step: int) -> None:
    bodies = [text * count for text, count in texts]
    whole = b"".join(encoded(body, form) for body in bodies)
    assert b"".join(await decoded(whole, form, step=step)) == b"".join(bodies)


@pytest.mark.slow
@given(body=st.binary(min_size=1, max_size=300), form=st.sampled_from(FORMS), data=st.data())
async def test_a_truncated_body_is_an_error_of_the_agent(body: bytes, form: str, data: st.DataObject) -> None:
    whole = encoded(body, form)
    cut = data.draw(st.integers(1, len(whole) - 1))
    with pytest.raises(WireError):
        await decoded(whole[:cut], form, step=7)


@pytest.mark.slow
@given(body=st.binary(max_size=300), form=st.sampled_from(FORMS))
async def test_any_bytes_are_decoded_or_refused(body: bytes, form: str) -> None:
    with suppress(WireError):
        assert all(await decoded(body, form, step=7))
