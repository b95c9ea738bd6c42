"""What software does for a request beside a processor's ops: it takes its time in the modelled world and is really done
in the real one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Handling:
    """``seconds``: what it takes in the modelled world. ``expects``: what it answers there; a real machine answers what
    it found."""

    seconds: float = 0.0
    expects: Any = None


@dataclass(frozen=True, slots=True)
class Prepared:
    """A prompt's text in three parts: beginning, content, question; its tokens, and what makes tokens of text. None:
    the modelled world has no text. ``wanted``: what a right answer begins with, where that is known.
    ``vocabulary``: how many ids of tokens there are."""

    text: tuple[str, str, str] | None
    tokens: int
    tokenizer: str | None
    wanted: str | None = None
    vocabulary: int | None = None


@dataclass(frozen=True, slots=True)
class TakenIn:
    """Tokens of a prompt that a cloud has taken in, and what made them of text."""

    tokens: int
    tokenizer: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepare(Handling):
    """A prompt is made ready on its device; answers with a Prepared. ``tokens``: all of it, and the fixed parts;
    ``answer``: of the longest answer."""

    tokens: int
    beginning: int
    question: int
    answer: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeIn(Handling):
    """The cloud reads a prompt that a device has sent, in three parts; answers with a TakenIn. ``answer``: tokens of
    the longest answer; ``refined``: its attention is kept, as it will be refined."""

    text: Sequence[str] | None
    answer: int
    refined: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Refine(Handling):
    """A prompt that was prefilled is refined by the attention that its prefill has shown; at most ``tokens`` of its
    content stay, as a refiner by that name chooses. Answers with the packed mask as text; None: the modelled world
    makes none."""

    tokens: int
    refiner: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpack(Handling):
    """A device cuts its prompt as a mask says; answers with the tokens that it then has to prefill, those included that
    it has prefilled already. ``mask`` None: the modelled world has none. Raises BadMask; the prompt stays whole."""

    mask: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Forget(Handling):
    """The request is over: its KV is given up, and where the model is not resident, the model too."""


# It says nothing but that, so one does for all requests.
FORGET = Forget()
