"""What a device asks of a cloud: checked, and no more than the cloud serves."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard, get_args

from kvferry.cloud.messages import MOST_PACE_S, BadMessage, Message, counts, sound
from kvferry.policies.assist.assistance import MaskComes
from kvferry.policies.assist.prompt_mask import MOST_PROMPT_TOKENS
from kvferry.policies.assist.refiner import OF_THE_WINDOW

# A cloud takes prompts and answers that are this many times as long as the longest ones of its own scenario.
_OVER_THE_LONGEST = 4
# What a message weighs at most on the wire: its frame; a token of a prompt as text in JSON; a token of an answer that
# is shown in a stream, or drafted, with all that stands before it.
_FRAME_BYTES, _PROMPT_TOKEN_BYTES, _ANSWER_TOKEN_BYTES = 2**16, 32, 256


@dataclass(frozen=True, slots=True)
class Served:
    """The longest prompt and answer that a cloud takes from a device, in tokens. ``goes_on``: whether it has KV of
    conversations that requests go on from."""

    prompt: int = MOST_PROMPT_TOKENS
    answer: int = MOST_PROMPT_TOKENS
    goes_on: bool = False

    @classmethod
    def around(cls, prompt: int, answer: int) -> "Served":
        """What a cloud serves whose own scenario's longest are these."""
        prompt, answer = (min(MOST_PROMPT_TOKENS, _OVER_THE_LONGEST * tokens) for tokens in (prompt, answer))
        return cls(prompt, answer)

    @property
    def message_bytes(self) -> int:
        """The most that one message of a device may have."""
        return _FRAME_BYTES + _PROMPT_TOKEN_BYTES * self.prompt + _ANSWER_TOKEN_BYTES * self.answer

    def check(self, *, prompt: int = 0, answer: int = 0) -> None:
        """Raises BadMessage for a longer prompt or answer."""
        for what, asked, most in (("prompts", prompt, self.prompt), ("answers", answer, self.answer)):
            if asked > most:
                raise BadMessage(
                    f"this cloud serves {what} of at most {most:,} tokens, {_OVER_THE_LONGEST} times the longest of "
                    f"its scenario; one of {asked:,} was asked for"
                )


def asked_of(message: Any, served: Served = Served()) -> Message:
    """A device's request as ``messages.ask`` makes it. Raises BadMessage."""
    if not isinstance(message, dict):
        raise BadMessage("what the device has sent is no request")
    for key, fits in _OF_REQUESTS.items():
        if key not in message or not fits(message[key]):
            raise BadMessage(f"what the device has sent is no request: its {key} is {_shown(message.get(key))}")
    if message["tokens"] > max(1, message["answer"]):
        asked, answer = message["tokens"], message["answer"]
        raise BadMessage(f"what the device has sent is no request: {asked:,} tokens of an answer of {answer:,}")
    if message["ratio"] < 1 and message["text"] is not None and not message["text"][1]:
        raise BadMessage("what the device has sent is no request: its prompt has no content to refine")
    if "mask" in message and not (isinstance(message["mask"], str) and message["mask"] in get_args(MaskComes)):
        raise BadMessage(f"what the device has sent is no request: its mask is {_shown(message['mask'])}")
    if not isinstance(message.get("moved", False), bool):
        raise BadMessage(f"what the device has sent is no request: its moved is {_shown(message['moved'])}")
    served.check(prompt=message["prompt"], answer=message["answer"])
    if "known" in message and not (served.goes_on and counts(message["known"])):
        raise BadMessage("what the device has sent goes on from a conversation, of which this cloud has no KV")
    return message


def drafts_of(message: Any, asked: Message) -> tuple[int, tuple[Any, Any] | None] | None:
    """How many tokens a device has drafted for its answer, and with what before them, where the cloud's model is to
    look at them. None: it drafts no more. Raises BadMessage."""
    if not isinstance(message, dict) or not counts(drafted := message.get("drafted")):
        raise BadMessage("what the device has sent are no drafts")
    if not drafted:
        return None
    before, said = message.get("before"), message.get("said")
    stands = 0
    if said is not None:
        if not (_tokens(before) and _tokens(said) and len(said) == drafted):
            raise BadMessage("what the device has sent are no drafts")
        stands = len(before)
    if stands + drafted > asked["answer"]:
        raise BadMessage(f"what the device has drafted is longer than its answer of {asked['answer']:,} tokens")
    return drafted, None if said is None else (before, said)


def _shown(value: Any) -> str:
    """The beginning of it; also of numbers that are too long to be written."""
    try:
        return f"{value!r:.60}"
    except ValueError:
        return "a number of very many digits"


def _tokens(value: Any) -> TypeGuard[Sequence[Any]]:
    """Ids, each with its text."""
    return isinstance(value, list | tuple) and all(
        isinstance(one, tuple) and len(one) == 2 and counts(one[0]) and isinstance(one[1], str) for one in value
    )


def _share(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value <= 1


def _text(value: Any) -> bool:
    """A prompt's beginning, content and question."""
    return isinstance(value, tuple) and len(value) == 3 and all(isinstance(part, str) and sound(part) for part in value)


# What stands for each key of a request.
_OF_REQUESTS: dict[str, Callable[[Any], bool]] = {
    "request": lambda value: type(value) is int and abs(value) < 2**63,
    "prompt": lambda value: counts(value, 1),
    "text": lambda value: value is None or _text(value),
    "answer": counts,
    "scene": counts,
    "tokens": lambda value: counts(value, 1),
    "ratio": lambda value: _share(value) and value > 0,
    "pace_s": lambda value: value is None or (type(value) in (int, float) and 0 <= value <= MOST_PACE_S),
    "refiner": lambda value: isinstance(value, str) and value in OF_THE_WINDOW,
    "drafts": lambda value: isinstance(value, bool),
    "accepted": _share,
}
