"""Which tokens of a prompt are kept: a compressed stream of bits that travels with the first token (P/D-Device 3.2)."""

import gzip
import struct
import zlib

import numpy as np

from kvferry.specs.errors import KvferryError

# Tokens of a prompt, and a checksum of its text: a mask is of use for no other.
_HEAD = struct.Struct("<II")
# More than any model takes; bounds what a damaged mask can make a device allocate.
MOST_PROMPT_TOKENS = 10_000_000


class BadMask(KvferryError):
    """A mask that is damaged, or belongs to another prompt."""


def packed(kept: np.ndarray, prompt: str) -> bytes:
    """`kept`: bool[tokens of the prompt, by the cloud's tokenizer]. The same mask gives the same bytes."""
    if kept.ndim != 1 or kept.dtype != np.bool_ or len(kept) > MOST_PROMPT_TOKENS:
        raise ValueError(
            f"a mask is bool[tokens], at most {MOST_PROMPT_TOKENS:,} of them; got {kept.dtype} {kept.shape}"
        )
    return gzip.compress(_HEAD.pack(len(kept), _sum(prompt)) + np.packbits(kept).tobytes(), mtime=0)


def unpacked(mask: bytes, prompt: str) -> np.ndarray:
    """bool[tokens of the prompt]. Raises BadMask."""
    inflate = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    try:
        raw = inflate.decompress(mask, _HEAD.size + MOST_PROMPT_TOKENS // 8)
    except zlib.error as error:
        raise BadMask(f"the mask is damaged: {error}") from None
    if not inflate.eof or len(raw) < _HEAD.size:
        raise BadMask("the mask is damaged: it ends early, or goes on where it should end")
    tokens, of_prompt = _HEAD.unpack_from(raw)
    if of_prompt != _sum(prompt):
        raise BadMask("the mask belongs to another prompt")
    bits = np.frombuffer(raw, np.uint8, offset=_HEAD.size)
    if len(bits) != -(-tokens // 8):
        raise BadMask(f"the mask is damaged: {len(bits):,} bytes for {tokens:,} tokens")
    return np.unpackbits(bits, count=tokens).astype(np.bool_)


def _sum(prompt: str) -> int:
    return zlib.crc32(prompt.encode("utf-8", "surrogatepass"))
