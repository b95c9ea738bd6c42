"""What a device and a cloud tell each other, and what it weighs."""

from base64 import b64encode
from functools import lru_cache
from typing import Any

import numpy as np

from kvferry.cloud.story import NOTHING, Story
from kvferry.policies.assist.help import Help
from kvferry.policies.assist.prompt_mask import MOST_PROMPT_TOKENS, packed
from kvferry.policies.assist.refiner import content_tokens
from kvferry.specs.assist import AssistSpec, CloudFaultSpec
from kvferry.specs.errors import KvferryError
from kvferry.traces.assisted import drawn_mask

# Masks are made for lengths, and tokens kept of them, rounded up to this many: a few hundred for any number of
# requests.
_MASK_STEP, _KEPT_STEP = 256, 64

# A time per token above a minute is no pace: a device that is slower asks for this one.
MOST_PACE_S = 60.0
# The most characters of an error that a cloud sends to its device.
_MOST_SAID = 300

# A message: plain values, so that it may go through any channel.
Message = dict[str, Any]


def refined_tokens(workload: AssistSpec, prompt: int, ratio: float) -> int:
    """Tokens of a prompt that the device prefills: its fixed parts and, where it is refined, some of its content."""
    if ratio >= 1:
        return prompt
    return workload.fixed + content_tokens(prompt, workload.fixed, ratio)


def ask(
    workload: AssistSpec, story: Story, *, wanted: Help, pace_s: float | None = None, drafts: bool = False
) -> tuple[Message, float]:
    """What a device sends, and its bytes: the prompt as text, without what is private. `pace_s`: it will show tokens no
    faster; None: as they come. `drafts`: it drafts tokens that the cloud is to look at, of which such a share
    stands. ``known``: tokens before the prompt whose KV the cloud has, of a conversation that goes on. ``mask``:
    how it comes; with the first token where nothing is said. ``moved``: the first token waits until the prompt's KV is
    where the others are decoded; as soon as it can where nothing is said."""
    message: Message = {
        "request": story.request,
        "prompt": story.prompt,
        "text": story.text,
        "answer": story.output,
        "scene": story.scene,
        "tokens": story.tokens,
        "ratio": story.ratio,
        "pace_s": None if pace_s is None else min(pace_s, MOST_PACE_S),
        "drafts": drafts,
        "accepted": wanted.accepted,
        "refiner": wanted.refiner,
    }
    if mask_apart(wanted, story.ratio):
        message["mask"] = "behind-token"
    if _answers_alone(wanted, story) and pace_s is None and not drafts:
        message["moved"] = True
    if story.behind != NOTHING:
        message["prompt"] += story.behind.here - story.behind.there
        message["known"] = story.behind.there
    return message, message["prompt"] * workload.handling.prompt_token_bytes


def first_answer(
    workload: AssistSpec,
    asked: Message,
    prompt: int,
    token: str | None,
    mask: str | None,
    tokenizer: str | None,
    kept_s: float,
) -> Message:
    """The cloud's first response: token, mask and L, what made its tokens of text, and the time per token that it
    keeps. What is None is so in the modelled world, or comes in a message of its own."""
    return {
        "request": asked["request"],
        "tokens": asked["tokens"],
        "bytes": response_bytes(workload, prompt, 1.0 if comes_apart(asked) else asked["ratio"], mask),
        "token": token,
        "mask": mask,
        "tokenizer": tokenizer,
        "tpot_s": kept_s,
    }


def mask_behind(workload: AssistSpec, asked: Message, prompt: int, mask: str | None) -> Message:
    """The mask in a message of its own, behind the first response."""
    return {"request": asked["request"], "bytes": mask_bytes(workload, prompt, asked["ratio"], mask), "mask": mask}


def mask_apart(wanted: Help, ratio: float) -> bool:
    """Whether a device gets its mask in a message of its own, where it prefills such a part of its prompt."""
    return wanted.mask == "behind-token" and ratio < 1


def _answers_alone(wanted: Help, story: Story) -> bool:
    """Whether a cloud that was to help answers by itself, and its first token is to come no sooner than that of one
    which helps, so that a faster device, which is helped, has its own no later. In the paper it does not wait."""
    return story.beyond is not None and wanted.mask == "behind-token"


def comes_apart(asked: Message) -> bool:
    """Whether a request is for a mask in a message of its own."""
    return asked.get("mask") == "behind-token" and asked["ratio"] < 1


def spoil(message: Message, fault: CloudFaultSpec | None, *, has_mask: bool) -> None:
    """Make the tokenizer, and the mask, in a message what a fault makes of them, where it has them."""
    what = None if fault is None else fault.what
    if what == "other-tokenizer" and "tokenizer" in message:
        message["tokenizer"] = "another"
    elif what == "damaged-mask" and has_mask:
        message["mask"] = "damaged"
    elif what == "other-mask" and has_mask:
        message["mask"] = b64encode(packed(np.ones(1, np.bool_), "another prompt")).decode()


def failure(asked: Any, error: Exception) -> Message:
    """What a cloud says of a request that came to nothing."""
    request = asked.get("request") if isinstance(asked, dict) else None
    what = str(error) if isinstance(error, KvferryError) else f"{type(error).__name__}: {error}"
    return {"request": request if type(request) is int else -1, "failed": one_line(what)}


def failed_of(message: Any, request: int) -> str | None:
    """Why the cloud could not serve a request; None: it has not said so."""
    if isinstance(message, dict) and message.get("request") in (request, -1):
        why = message.get("failed")
        if isinstance(why, str):
            return f"the cloud could not go on: {one_line(why)}"
    return None


def one_line(text: str) -> str:
    """Of another machine's words, which may be any, what a line can hold."""
    return " ".join("".join(one if one.isprintable() else " " for one in text[:_MOST_SAID]).split())


class BadMessage(KvferryError):
    """A peer's message is not what it should be."""


def counts(value: Any, least: int = 0) -> bool:
    """Whether a peer's value is a number of tokens."""
    return type(value) is int and least <= value <= MOST_PROMPT_TOKENS


def sound(text: str) -> bool:
    """Whether a text has no half of a character."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def response_bytes(workload: AssistSpec, prompt: int, ratio: float, mask: str | None = None) -> float:
    """The cloud's first response: "token#mask#L" in JSON, the mask as text (P/D-Device 3.3). `mask` None: one like
    the ones that are made of such prompts."""
    frame = workload.handling.response_bytes + workload.handling.answer_token_bytes
    return frame + _mask_as_text_bytes(workload, prompt, ratio, mask)


def mask_bytes(workload: AssistSpec, prompt: int, ratio: float, mask: str | None = None) -> float:
    """A mask in a message of its own, in the frame of an event stream."""
    return workload.handling.answer_token_bytes + _mask_as_text_bytes(workload, prompt, ratio, mask)


def _mask_as_text_bytes(workload: AssistSpec, prompt: int, ratio: float, mask: str | None) -> int:
    if mask is not None:
        return len(mask)
    if ratio >= 1:
        return 0
    length = min(MOST_PROMPT_TOKENS, -(-prompt // _MASK_STEP) * _MASK_STEP)
    kept = -(-refined_tokens(workload, prompt, ratio) // _KEPT_STEP) * _KEPT_STEP
    return _mask_text_bytes(length, workload.beginning, workload.question, kept)


@lru_cache(maxsize=65_536)
def _mask_text_bytes(tokens: int, beginning: int, question: int, kept: int) -> int:
    # Base64: four characters for three bytes.
    return 4 * -(-len(packed(drawn_mask(tokens, beginning, question, kept), "")) // 3)
