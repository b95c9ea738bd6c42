"""Text to token ids and back: bytes, and a tokenizer that cuts elsewhere."""

from pathlib import Path

import pytest

pytest.importorskip("tokenizers")

from hypothesis import given, settings
from hypothesis import strategies as st

from kvferry.model import tokens as tokens_module
from kvferry.model.prompts import Prompts
from kvferry.model.tokens import BEGINNING, BYTE_VOCABULARY, END, ByteTokens, FileTokens, bundled_bpe
from kvferry.specs.errors import InputError

pytestmark = pytest.mark.torch

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)


def test_a_byte_is_a_token() -> None:
    tokens = ByteTokens()
    assert tokens.encode("né") == [110, 0xC3, 0xA9]
    assert tokens.decode([BEGINNING, 110, 0xC3, 0xA9, END]) == "né"
    assert tokens.decode([110, 0xC3]) == "n\N{REPLACEMENT CHARACTER}"
    assert tokens.vocabulary == BYTE_VOCABULARY == END + 2


@pytest.mark.parametrize("tokens", [ByteTokens(), bundled_bpe()], ids=["bytes", "bpe"])
@given(text=TEXT)
@settings(deadline=None)
def test_text_comes_back(tokens: ByteTokens | FileTokens, text: str) -> None:
    ids = tokens.encode(text)
    assert tokens.decode(ids) == text
    assert all(0 <= one < tokens.vocabulary for one in ids)


def test_the_two_cut_text_differently() -> None:
    text = "import sys\n\n\ndef main() -> None:\n    return the_value_of(self, name)\n"
    in_bytes, in_pairs = ByteTokens().encode(text), bundled_bpe().encode(text)
    assert bundled_bpe().vocabulary == 1024
    assert 1.5 * len(in_pairs) < len(in_bytes)
    # A place where the one may stop and the other may not: half a token of the pairs is no token at all.
    longest = max(in_pairs, key=lambda one: len(bundled_bpe().decode([one])))
    assert len(ByteTokens().encode(bundled_bpe().decode([longest]))) > 3


@pytest.mark.parametrize("ids", [[-1], [1024]])
def test_ids_of_no_token(ids: list[int]) -> None:
    for tokens in (ByteTokens(), bundled_bpe()):
        with pytest.raises(InputError, match="must lie in"):
            tokens.decode(ids)


def test_no_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(InputError, match=r"tokenizer\.json: no tokenizer"):
        FileTokens(tmp_path / "tokenizer.json")


def test_a_tokenizer_of_a_larger_vocabulary_than_the_model_s_is_refused() -> None:
    folder, vocabulary, text = bundled_bpe_folder(), bundled_bpe().vocabulary, Path(__file__)
    assert len(Prompts(folder, vocabulary, text, seed=0).tokens(0, 10, 1)[0]) == 10
    with pytest.raises(InputError, match=r"tokenizer.json: has token ids up to \d+, .* vocabulary has 500: .* another"):
        Prompts(folder, 500, text, seed=0)


def bundled_bpe_folder() -> Path:
    return Path(tokens_module.__file__).parent / "bundled" / "bpe"
