"""How far ahead a load hands work over to the machine."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How far ahead of the world the pipeline hands work over, and over what window it looks back."""

    # Ops waiting behind the running one, so that the processor never idles between two.
    compute_ahead: int = 2
    # Of the device. Each has a piece at work and one that waits; with more, a race could not be called off.
    decoders: int = 1
    # Small units go several to a transfer: up to this many, until they are what the link carries in `transfer_s`.
    # Towards the end they go one by one: a transfer has no more than a `transfer_left`th of what is left, and one.
    transfer_units: int = 8
    transfer_s: float = 0.004
    transfer_left: int = 64
    # Units that local storage reads, or that are copied behind it, at once.
    reads_ahead: int = 8
    window_s: float = 0.1
    # A loader that has something under way is asked after every window until nothing has moved for `patience_s`: by
    # then even a rate that it remembers has faded. After that, the waits grow with the time, so that an outage of a
    # day costs hardly more questions than one of a minute.
    patience_s: float = 5.0
