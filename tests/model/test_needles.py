"""Prompts with a needle are as long as asked, and their question has its answer in the content."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("tokenizers")
from kvferry.model.needles import (
    needle_prompt,
    sentence_numbers,
)
from kvferry.model.tokens import ByteTokens, bundled_bpe

pytestmark = pytest.mark.torch
TEXT = "Some text, of which there is enough. " * 40


@given(
    beginning=st.integers(0, 100), content=st.integers(60, 400), question=st.integers(40, 100), number=st.integers(0, 9)
)
def test_parts_and_the_fact(beginning: int, content: int, question: int, number: int) -> None:
    tokens = ByteTokens()
    prompt = needle_prompt(tokens, tokens.encode(TEXT), beginning, content, question, seed=3, number=number)
    assert [len(part) for part in (prompt.beginning, prompt.content, prompt.question)] == [beginning, content, question]
    assert prompt.value is not None
    key = prompt.question.split()[-2]
    assert f"The secret code of {key} is {prompt.value}.\n" in prompt.content
    again = needle_prompt(tokens, tokens.encode(TEXT), beginning, content, question, seed=3, number=number)
    assert again == prompt


def test_a_short_prompt_has_none() -> None:
    tokens = ByteTokens()
    assert needle_prompt(tokens, tokens.encode(TEXT), 0, 20, 10, seed=1, number=0).value is None


def test_sentences() -> None:
    text = "One. Two is 3.5!\nThree\n\nFour"
    numbers = sentence_numbers(text, range(len(text)))
    words = {word: {int(numbers[text.index(word) + n]) for n in range(len(word))} for word in ("One.", "Two is 3.5!")}
    assert words == {"One.": {0}, "Two is 3.5!": {1}}
    assert numbers[text.index("Three")] == 2
    assert numbers[-1] == 3


@given(text=st.text(max_size=60))
def test_where_tokens_begin(text: str) -> None:
    for tokens in (ByteTokens(), bundled_bpe()):
        begins = tokens.begins(text)
        assert len(begins) == len(tokens.encode(text))
        assert begins == sorted(begins)
        assert all(0 <= begin < len(text) for begin in begins)
