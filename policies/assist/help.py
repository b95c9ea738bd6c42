"""What a device asks of a cloud."""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from kvferry.policies.assist.assistance import MaskComes, Smoothing

# A cloud that is as busy as planned for is not given up.
_AT_LEAST_EXPECTED = 2.0
# Longer than any queue that a user would wait in.
_LONG_S = 60.0
# Longer than what other requests hold up a token.
_SILENT_S = 10.0
# Behind its promised pace a token is late when it comes later by this: assumed, more than the jitter of links and a
# piece of another's prompt.
_JITTER_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Patience:
    """Seconds without a word: until the first token, and from one to the next. None: as long as it takes."""

    answer_s: float | None = None
    token_s: float | None = None


def patience_of(*, own_prefill_s: float, cloud_ttft_s: float, planned: bool = False) -> Patience:
    """As long as the device's own prefill of the whole prompt takes: its first token is then at most twice as late as
    if it had never asked, and no other bound promises more while nothing is known of the cloud (as with skis that one
    rents or buys). At least twice what is expected of the cloud. A silence between tokens is no jitter when it lasts as
    long. `planned`: a minute at least for the first token, so that a queue of the cloud's is waited in, and ten seconds
    between tokens, where there is none."""
    # A cloud behind a link that has ended is waited for no longer than the device takes by itself.
    least_s = own_prefill_s if cloud_ttft_s == math.inf else max(own_prefill_s, _AT_LEAST_EXPECTED * cloud_ttft_s)
    if not planned:
        return Patience(answer_s=least_s, token_s=least_s)
    return Patience(answer_s=max(least_s, _LONG_S), token_s=max(least_s, _SILENT_S))


def late_s(patience_s: float | None, promised_s: float) -> float | None:
    """How long a device that can go on by itself waits for what the cloud has promised within so long; never beyond its
    patience, and for ever without any."""
    return None if patience_s is None else min(patience_s, promised_s + _JITTER_S)


# Refiners that go by the observation window, or by nothing.
Refining = Literal["snapkv-sentences", "weighted-sentences", "snapkv", "streaming-llm"]
# How a device gets behind the cloud's tokens, where all are there when it has prefilled: one by one (procedure 2), or
# in one pass, as a prompt.
CatchUp = Literal["decode", "prefill"]


@dataclass(frozen=True, kw_only=True)
class Help:
    """``tokens``: L, the first included. ``ratio``: r, of the prompt that it then prefills itself. auto: as problem P
    has it. ``draft``: tokens that a device drafts before the cloud looks at them,
    and ``accepted``: the share of them that stands, in the mean, where the two answer in turns. ``patience_s``: time
    without a word from the cloud after which the device goes on by itself; auto, planned: as
    `patience_of` has them; None: it waits as long as it takes. ``refiner``: what chooses, where there is
    real attention; votes count by the attention behind them, as the paper does not say how heads agree and equal votes
    lose the prompt's facts (docs/validation/quality.md). ``mask``: whether the first token waits for it, as in the
    paper, where a faster device may have it later; or no token does. ``catch_up``: how the device gets behind the
    cloud's tokens."""

    tokens: Annotated[int, Field(ge=1)] | Literal["auto"] = "auto"
    ratio: Annotated[float, Field(gt=0, le=1)] | Literal["auto"] = "auto"
    smoothing: Smoothing = "causal"
    draft: Annotated[int, Field(ge=1, le=100)] = 5
    accepted: Annotated[float, Field(gt=0, le=1)] = 0.6
    patience_s: Annotated[float, Field(gt=0)] | Literal["auto", "planned"] | None = "planned"
    refiner: Refining = "weighted-sentences"
    mask: MaskComes = "behind-token"
    catch_up: CatchUp = "decode"
