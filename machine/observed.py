"""What a machine with queues observes of itself, in every world."""

from typing import Protocol

from kvferry.machine.machine import Facts


class Computing(Protocol):
    """The queue of a machine's main processor."""

    queued: int

    def utilisation(self, window_s: float) -> float: ...
    def speed(self, window_s: float) -> float | None: ...


class Receiving(Protocol):
    """What a machine fetches over."""

    queued: int

    def observe(self, window_s: float) -> tuple[float | None, float]:
        """Bytes per second while it was busy, None when it was idle throughout; and the share of time that it was."""
        ...


def observed(
    now_s: float, window_s: float, main: Computing, link: Receiving | None, free_bytes: float, starting_s: float = 0.0
) -> Facts:
    """Facts of the last `window_s`. Without a link it is idle."""
    goodput_bytes_per_s, link_utilisation = (None, 0.0) if link is None else link.observe(window_s)
    return Facts(
        now_s=now_s,
        window_s=window_s,
        goodput_bytes_per_s=goodput_bytes_per_s,
        link_utilisation=link_utilisation,
        compute_utilisation=main.utilisation(window_s),
        compute_speed=main.speed(window_s),
        compute_queue=main.queued,
        link_queue=0 if link is None else link.queued,
        free_bytes=free_bytes,
        starting_s=starting_s,
    )
