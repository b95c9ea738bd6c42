"""Masks travel exactly, and only to their prompt."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.policies.assist.prompt_mask import BadMask, mask_of_text, packed, text_of_mask, unpacked


@given(kept=st.lists(st.booleans(), max_size=200), prompt=st.text(max_size=50))
def test_any_mask_of_any_prompt_comes_back(kept: list[bool], prompt: str) -> None:
    mask = np.array(kept, np.bool_)
    assert unpacked(packed(mask, prompt), prompt).tolist() == kept


def test_a_mask_of_8k_tokens_is_small() -> None:
    # Sentences of 20 tokens, a quarter of them kept.
    kept = np.repeat(np.random.default_rng(1).random(400) < 0.25, 20)
    assert len(packed(kept, "prompt")) < 400
    assert packed(kept, "prompt") == packed(kept, "prompt")


@given(at=st.integers(0, 200), change=st.integers(1, 255))
def test_a_damaged_mask_is_refused(at: int, change: int) -> None:
    kept = np.arange(1000) % 7 < 3
    whole = bytearray(packed(kept, "prompt"))
    at %= len(whole)
    whole[at] ^= change
    try:
        came = unpacked(bytes(whole), "prompt")
    except BadMask:
        return
    # A name, a time or a system in gzip's head says nothing of the bits.
    assert at < 10
    assert came.tolist() == kept.tolist()


@pytest.mark.parametrize("cut", [0, 5, -1])
def test_a_mask_that_ends_early_is_refused(cut: int) -> None:
    with pytest.raises(BadMask, match="damaged"):
        unpacked(packed(np.ones(100, np.bool_), "prompt")[:cut], "prompt")


def test_a_mask_of_another_prompt_is_refused() -> None:
    with pytest.raises(BadMask, match="another prompt"):
        unpacked(packed(np.ones(3, np.bool_), "prompt"), "other prompt")


@given(text=st.tuples(st.text(), st.text(min_size=1), st.text()), data=st.data())
def test_a_mask_of_tokens_cuts_the_text(text: tuple[str, str, str], data: st.DataObject) -> None:
    # Any tokens that the text is made of.
    begins = sorted({0, *data.draw(st.lists(st.integers(0, len(text[1]) - 1)))})
    kept = np.array(data.draw(st.lists(st.booleans(), min_size=len(begins), max_size=len(begins))), np.bool_)
    edges = [*begins, len(text[1])]
    stays = "".join(text[1][a:b] for a, b, keep in zip(edges, edges[1:], kept, strict=False) if keep)
    assert text_of_mask(mask_of_text(kept, begins, text), text) == stays


def test_bytes_of_one_character_stay_together() -> None:
    # Two bytes of é: kept where either is.
    mask = mask_of_text(np.array([False, True, False, False]), [0, 0, 1, 2], ("", "éab", ""))
    assert text_of_mask(mask, ("", "éab", "")) == "é"


@pytest.mark.parametrize("mask", ["damaged", "", "é", "AAAA"])
def test_text_that_is_no_mask(mask: str) -> None:
    with pytest.raises(BadMask):
        text_of_mask(mask, ("a", "b", "c"))


def test_a_mask_of_another_text() -> None:
    mask = mask_of_text(np.ones(1, np.bool_), [0], ("a", "b", "c"))
    with pytest.raises(BadMask, match="another prompt"):
        text_of_mask(mask, ("a", "d", "c"))


def test_what_follows_a_mask_is_damage() -> None:
    with pytest.raises(BadMask, match="goes on where it should end"):
        unpacked(packed(np.ones(8, np.bool_), "a prompt") + b"more", "a prompt")
