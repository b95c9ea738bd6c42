"""What requests read on a real model: token ids of text, or drawn ones where there is no tokenizer."""

import hashlib
import sysconfig
from functools import lru_cache
from pathlib import Path

import numpy as np

from kvferry.model.tokens import BYTE_VOCABULARY, ByteTokens, FileTokens, Tokens
from kvferry.specs.errors import InputError
from kvferry.traces.chance import Source, generator

# Of a text; a context of 100K tokens takes well under 1 MB.
MOST_TEXT_BYTES = 2**26


def tokenizer_of(folder: Path | None, vocabulary: int) -> str:
    """Returns how text becomes tokens for the model of a folder, None: of random weights; another name, other
    tokens."""
    described = None if folder is None else folder / "tokenizer.json"
    if described is not None and described.is_file():
        return f"tokenizer.json {hashlib.sha256(described.read_bytes()).hexdigest()[:16]}"
    return "bytes" if folder is not None and vocabulary == BYTE_VOCABULARY else "drawn token ids"


class Prompts:
    """Contexts and questions, cut one after the other from a text; from its beginning again where it ends.

    `tokenizer` names how text becomes tokens: another name, other tokens. Raises InputError for a text that cannot be
    read, or given where nothing makes tokens of it.
    """

    def __init__(self, folder: Path | None, vocabulary: int, text: Path | None, seed: int) -> None:
        self._vocabulary, self._seed = vocabulary, seed
        self.tokenizer = tokenizer_of(folder, vocabulary)
        described = None if folder is None else folder / "tokenizer.json"
        # None: token ids are drawn.
        self.by: Tokens | None = None
        self._ids: np.ndarray | None = None
        if described is not None and described.is_file():
            self.by = FileTokens(described)
            self._ids = np.array(self.by.encode(_text(text)))
            if self._ids.max(initial=0) >= vocabulary:
                raise InputError(
                    f"{described}: has token ids up to {self._ids.max()}, and the model's vocabulary has {vocabulary}:"
                    " it is another model's; give that model's tokenizer.json, or none, and token ids are drawn"
                )
        elif folder is not None and vocabulary == BYTE_VOCABULARY:
            self.by = of_bytes = ByteTokens()
            self._ids = of_bytes.array(_text(text))
        else:
            if text is not None:
                what = "this model has no tokenizer.json" if folder else "random weights have no tokenizer"
                raise InputError(f"live.text: {what}; leave it out, and token ids are drawn")

    @property
    def sha256(self) -> str | None:
        """Returns the hash of the text's token ids; None: they are drawn."""
        return None if self._ids is None else hashlib.sha256(self._ids.astype("<i8").tobytes()).hexdigest()

    def tokens(
        self, sequence: int, context: int, question: int, apart: int | None = None
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Token ids of a sequence's context and of the question behind it. In a text, sequences begin `apart` tokens
        from each other; None: one where the one before ends, if all are of this length."""
        n, apart = context + question, apart or context + question
        if self._ids is None:
            drawn = generator(Source.PROMPTS, self._seed, sequence).integers(0, self._vocabulary, n)
        else:
            drawn = np.take(self._ids, np.arange(sequence * apart, sequence * apart + n), mode="wrap")
        ids = tuple(drawn.tolist())
        return ids[:context], ids[context:]


def _text(path: Path | None) -> str:
    if path is None:
        return _library_text()
    try:
        if path.stat().st_size > MOST_TEXT_BYTES:
            raise InputError(f"{path}: {path.stat().st_size:,} bytes of text; {MOST_TEXT_BYTES:,} will do")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text: {error}") from None
    if not text:
        raise InputError(f"{path}: is empty; contexts need text")
    return text


@lru_cache(maxsize=1)
def _library_text() -> str:
    """Some megabytes that every Python has: the modules of its standard library."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    return "".join(path.read_text(encoding="utf-8", errors="ignore") for path in sorted(folder.glob("*.py")))
