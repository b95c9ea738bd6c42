"""Which tokens of a prompt are kept: a compressed stream of bits that travels with the first token (P/D-Device 3.2)."""

import base64
import gzip
import struct
import zlib
from collections.abc import Sequence

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
    if not inflate.eof or inflate.unused_data or len(raw) < _HEAD.size:
        raise BadMask("the mask is damaged: it ends early, or goes on where it should end")
    tokens, of_prompt = _HEAD.unpack_from(raw)
    if of_prompt != _sum(prompt):
        raise BadMask("the mask belongs to another prompt")
    bits = np.frombuffer(raw, np.uint8, offset=_HEAD.size)
    if len(bits) != -(-tokens // 8):
        raise BadMask(f"the mask is damaged: {len(bits):,} bytes for {tokens:,} tokens")
    return np.unpackbits(bits, count=tokens).astype(np.bool_)


def mask_of_text(kept: np.ndarray, begins: Sequence[int], text: Sequence[str]) -> str:
    """A mask of characters as text: base64 of what is packed. `text`: beginning, content and question, of which the
    first and the last are whole. `kept`: bool[tokens of the content]; `begins`: where in it each token begins, in
    characters. A character stays with the token that it begins or is part of, so that any tokenizer can cut by it."""
    beginning, content, question = text
    of_content = np.zeros(len(content), np.bool_)
    edges = [*begins, len(content)]
    for keep, begin, end in zip(kept.tolist(), begins, edges[1:], strict=True):
        # Tokens of a part of a character begin where it does, and end there.
        of_content[begin : max(end, begin + 1)] |= keep
    whole = [np.ones(len(part), np.bool_) for part in (beginning, question)]
    mask = np.concatenate([whole[0], of_content, whole[1]])
    return base64.b64encode(packed(mask, "".join(text))).decode()


def text_of_mask(mask: str, text: Sequence[str]) -> str:
    """What stays of the content. Raises BadMask."""
    whole = "".join(text)
    try:
        raw = base64.b64decode(mask, validate=True)
    except ValueError as error:
        raise BadMask(f"the mask is damaged: {error}") from None
    kept = unpacked(raw, whole)
    if len(kept) != len(whole):
        raise BadMask(f"the mask is of {len(kept):,} characters, the prompt has {len(whole):,}")
    beginning, content, _ = text
    of_content = kept[len(beginning) : len(beginning) + len(content)]
    return "".join(one for one, stays in zip(content, of_content.tolist(), strict=True) if stays)


def _sum(prompt: str) -> int:
    return zlib.crc32(prompt.encode("utf-8", "surrogatepass"))
