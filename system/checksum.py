"""CRC-32, equal to zlib's, for everything that is stored or fetched."""

import zlib

try:
    from isal import isal_zlib
except ImportError:
    crc32 = zlib.crc32
else:
    # isal gives the same numbers in a tenth of the time, on processors with carry-less multiplication.
    crc32 = isal_zlib.crc32

__all__ = ["crc32"]
