"""One request as it went: what the roles leave behind."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True, slots=True)
class Behind:
    """Tokens before a prompt whose KV the device has (``here``), and of prompt and these the first ones whose KV the
    cloud has (``there``)."""

    here: int = 0
    there: int = 0


NOTHING = Behind()


@dataclass(slots=True)
class Story:
    """Times are on the run's clock, None: never reached. ``tokens``: L, the ones that came from the cloud; 0: none.
    ``ratio``: r, of the prompt that the device prefilled. ``behind``: what the prompt goes on from."""

    request: int
    device: int
    prompt: int
    output: int
    scene: int
    arrival_s: float
    # When its device turned to it: later, where that was still busy with another.
    began_s: float = 0.0
    behind: Behind = NOTHING
    tokens: int = 0
    # L as planned, whatever the answer's length, which no device knows beforehand.
    planned: int = 0
    ratio: float = 1.0
    # On the device: what it asked has left; the cloud's first token is there; the mask is unpacked; its own first token
    # is there; its last one.
    asked_s: float | None = None
    first_s: float | None = None
    unpacked_s: float | None = None
    own_first_s: float | None = None
    end_s: float | None = None
    # In the cloud: seconds until a slot was free, of prefill, waiting for an instance included, and of refinement.
    waited_s: float = 0.0
    cloud_prefill_s: float = 0.0
    refine_s: float = 0.0
    # The pace that was promised for tokens from the cloud (Eq. 4); None: none.
    pace_s: float | None = None
    response_bytes: float = 0.0
    # When each token was shown.
    shown_s: np.ndarray = field(default_factory=lambda: np.zeros(0))
    # Why the cloud did not help, where it should have, or otherwise than problem P allows.
    alone: str | None = None
    beyond: str | None = None
    # The prompt's text in three parts, and what made tokens of it on the device; None in the modelled world.
    text: tuple[str, str, str] | None = None
    tokenizer: str | None = None
    # Ids of tokens on the device are below this; None in the modelled world.
    vocabulary: int | None = None
    # What went wrong with the cloud, so that the device went on without it.
    happened: str | None = None
    # Tokens that came from the cloud; of these, where the device would have said another (None: not known). What the
    # answer says; None in the modelled world.
    came: int = 0
    corrected: int | None = None
    answer: str | None = None
    # What a right answer begins with, where that is known.
    wanted: str | None = None
    # Breaks off what is under way with the cloud; None: nothing is.
    hang_up: Callable[[], None] | None = None
    is_offline: bool = False

    def go_offline(self) -> None:
        self.is_offline = True
        if self.hang_up is not None:
            self.hang_up()
