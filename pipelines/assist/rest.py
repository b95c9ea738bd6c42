"""What a cloud says behind its first response: tokens as they are decoded, and a mask as soon as it is there."""

import math
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import simpy

from kvferry.machine.channel import Channel
from kvferry.pipelines.assist.in_hand import Down, Turn


@dataclass(frozen=True, slots=True)
class Mask:
    """``made`` fires with it; ``send`` sends it."""

    made: simpy.Event
    send: Callable[[str | None], None]


def say_rest(
    channel: Channel, token_bytes: float, turn: Turn | None, mask: Mask | None, silent_behind: int | None
) -> Generator[simpy.Event, Any, bool]:
    """The host refines while an instance decodes: no token waits for the mask, which goes out between two of them and
    so cuts their stream in two. `turn`, `mask` None: there are no further tokens, or there is no mask.

    Returns whether all was said: nothing more is, once `silent_behind` further tokens were; None: whatever happens."""
    if turn is not None:
        stream = channel.stream(token_bytes)
        sent = turn.into(stream, silent_behind)
        try:
            if mask is not None:
                yield mask.made | sent
                if not sent.triggered:
                    stream.end()
                    mask.send(mask.made.value)
                    mask, stream = None, channel.stream(token_bytes)
                    turn.go_on_into(stream)
            yield sent
        except Exception as error:
            # The device shows what it was sent.
            if isinstance(error, Down) or (mask is not None and not isinstance(error, simpy.Interrupt)):
                stream.end()
            raise
    left = math.inf if silent_behind is None else silent_behind - (0 if turn is None else turn.tokens)
    if left < 0 or (left == 0 and mask is not None):
        return False
    if turn is not None:
        stream.end()
    if mask is not None:
        mask.send((yield mask.made))
    return True
