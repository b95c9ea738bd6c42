"""Checksums are zlib's, whichever library computes them."""

import zlib

from hypothesis import given
from hypothesis import strategies as st

from kvferry.system.checksum import crc32


@given(st.binary(max_size=5000), st.integers(0, 70), st.integers(0, 2**32 - 1))
def test_checksums_are_zlibs(data: bytes, skip: int, before: int) -> None:
    part = memoryview(data)[skip:]
    assert crc32(part) == zlib.crc32(part)
    assert crc32(part, before) == zlib.crc32(part, before)
