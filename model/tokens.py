"""How text becomes token ids: byte by byte, as the bundled models read it, or by a tokenizer.json.

Two tokenizers of different kinds cut the same text at different places: what a draft or a device's model says in its
own tokens must reach a model with another tokenizer as text. ``bundled_bpe`` is there for tests of that.
"""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Protocol

import numpy as np
from tokenizers import Tokenizer

from kvferry.specs.errors import InputError

# Behind the 256 bytes, in this order.
PADDING, BEGINNING, END, UNUSED = range(256, 260)
BYTE_VOCABULARY = 260
_BPE = Path(__file__).resolve().parent / "bundled" / "bpe" / "tokenizer.json"


class Tokens(Protocol):
    @property
    def vocabulary(self) -> int:
        """Ids lie below it."""
        ...

    def encode(self, text: str) -> list[int]:
        """Ids of the text, without specials."""
        ...

    def begins(self, text: str) -> list[int]:
        """Where in the text each of its tokens begins, in characters."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, specials left out; what is not UTF-8 becomes U+FFFD. Raises InputError for other ids."""
        ...


class ByteTokens:
    """A token is a byte of UTF-8; decode(encode(text)) is the text."""

    vocabulary = BYTE_VOCABULARY

    def encode(self, text: str) -> list[int]:
        return list(text.encode("utf-8"))

    def array(self, text: str) -> np.ndarray:
        """The same ids as uint8, without a Python number for each of a text's millions of bytes."""
        return np.frombuffer(text.encode("utf-8"), np.uint8)

    def begins(self, text: str) -> list[int]:
        return [n for n, character in enumerate(text) for _ in character.encode("utf-8")]

    def decode(self, ids: Sequence[int]) -> str:
        _check(ids, self.vocabulary)
        return bytes(one for one in ids if one < PADDING).decode("utf-8", errors="replace")


class FileTokens:
    """What a tokenizer.json describes."""

    def __init__(self, path: Path) -> None:
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exceptions
            raise InputError(f"{path}: no tokenizer: {error}") from None
        self.vocabulary: int = self._tokenizer.get_vocab_size()

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def begins(self, text: str) -> list[int]:
        return [begin for begin, _ in self._tokenizer.encode(text, add_special_tokens=False).offsets]

    def decode(self, ids: Sequence[int]) -> str:
        _check(ids, self.vocabulary)
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=True)
        return text


@lru_cache(maxsize=1)
def bundled_bpe() -> FileTokens:
    """Byte-pair encoding of 1,024 entries, learnt from the text that the bundled models are trained on."""
    return FileTokens(_BPE)


def _check(ids: Sequence[int], vocabulary: int) -> None:
    if any(not 0 <= one < vocabulary for one in ids):
        raise InputError(f"token ids must lie in 0..{vocabulary - 1}")
