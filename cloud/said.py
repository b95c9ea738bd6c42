"""What a cloud says of a device's request: each value checked, so that none of them can end the device's run."""

import math
from collections.abc import Callable
from typing import Any

from kvferry.cloud.messages import BadMessage, Message, counts, sound
from kvferry.cloud.story import Story
from kvferry.machine.channel import Streamed

# A time per token above a minute is no pace.
_MOST_TPOT_S = 60.0
# Tokens of tokenizers are words at most.
_MOST_CHARACTERS = 1000


def answer_of(message: Any, story: Story) -> Message | None:
    """A cloud's first response; None: the message is about another request. Raises BadMessage."""
    found = _of_request(message, story, _OF_ANSWERS)
    if found is not None:
        token_of(found["token"], story, found["tokenizer"] != story.tokenizer)
    return found


def mask_of(message: Any, story: Story) -> Message | None:
    """A mask behind a first response; None: the message is about another request. Raises BadMessage."""
    return _of_request(message, story, _OF_MASKS)


def verdict_of(message: Any, story: Story, drafted: int) -> Message | None:
    """What a cloud says of this many drafts; None: the message is about another request. Raises BadMessage."""
    found = _of_request(message, story, _OF_VERDICTS)
    if found is None:
        return None
    stands, said = found["stands"], found["said"]
    # A real model says at least one token, that in place of the first draft that does not stand.
    least = 0 if story.text is None else 1
    if not least <= stands <= drafted or (said is None) != (story.text is None) or len(said or ()) != stands * least:
        raise BadMessage(f"what the cloud has sent is no answer: of {drafted:,} drafts {stands:,} stand")
    for token in said or ():
        token_of(token, story, by_text=False)
    return found


def token_of(token: Any, story: Story, by_text: bool) -> Any:
    """The token as it came. `by_text`: its id is of another vocabulary than the device's. Raises BadMessage."""
    if story.text is None:
        # Modelled tokens say nothing.
        fits = token is None
    else:
        pair = isinstance(token, tuple) and len(token) == 2 and counts(token[0]) and isinstance(token[1], str)
        fits = pair and len(token[1]) <= _MOST_CHARACTERS and sound(token[1])
        fits = fits and (by_text or story.vocabulary is None or token[0] < story.vocabulary)
    if not fits:
        raise BadMessage(f"what the cloud has sent is no answer: its token is {_shown(token)}")
    return token


def _of_request(message: Any, story: Story, known: dict[str, Callable[[Any], bool]]) -> Message | None:
    if isinstance(message, Streamed):
        # The rest of a stream that was left.
        return None
    if not isinstance(message, dict) or type(message.get("request")) is not int:
        raise BadMessage("what the cloud has sent is no answer")
    if message["request"] != story.request:
        return None
    if missing := [key for key in known if key not in message]:
        raise BadMessage(f"what the cloud has sent is no answer: it lacks {', '.join(missing)}")
    for key, fits in known.items():
        if not fits(message[key]):
            raise BadMessage(f"what the cloud has sent is no answer: its {key} is {_shown(message[key])}")
    return message


def _shown(value: Any) -> str:
    """The beginning of it; also of numbers that are too long to be written."""
    try:
        return f"{value!r:.60}"
    except ValueError:
        return "a number of very many digits"


def _number(value: Any, most: float) -> bool:
    return type(value) in (int, float) and 0 <= value <= most


_OF_ANSWERS: dict[str, Callable[[Any], bool]] = {
    "token": lambda value: True,
    "mask": lambda value: value is None or isinstance(value, str),
    "tokenizer": lambda value: value is None or isinstance(value, str),
    "bytes": lambda value: _number(value, math.nextafter(math.inf, 0)),
    "tpot_s": lambda value: _number(value, _MOST_TPOT_S),
}
_OF_MASKS = {key: _OF_ANSWERS[key] for key in ("mask", "bytes")}
_OF_VERDICTS: dict[str, Callable[[Any], bool]] = {
    "stands": counts,
    "said": lambda value: value is None or isinstance(value, list | tuple),
}
