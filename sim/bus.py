"""The bandwidth of a unified memory, shared by all ops that run at the same time."""

from collections.abc import Callable


class Share:
    """One op's share of the bandwidth: the op advances at `speed`, a fraction (0..1] of its speed alone."""

    __slots__ = ("changed", "demand_bytes_per_s", "speed")

    def __init__(self, demand_bytes_per_s: float, changed: Callable[[float], None]) -> None:
        self.demand_bytes_per_s = demand_bytes_per_s
        self.changed = changed
        self.speed = 1.0


class MemoryBus:
    """Max-min fair: an op that wants less than an equal share gets all it wants; the others share the rest equally.

    An op's demand is its bytes over its duration alone, and counts from dispatch to end; so an op on its own
    is never slowed. A processor's background load does not lower the demand: the background work is assumed to
    use its part of the processor with the same demand. No event is scheduled while the demands fit.
    """

    def __init__(self, bytes_per_s: float) -> None:
        self.bytes_per_s = bytes_per_s
        self._shares: list[Share] = []  # in the order they joined

    def join(self, demand_bytes_per_s: float, changed: Callable[[float], None]) -> Share:
        """Take part until `leave`. The returned share has the first speed; `changed` is called with each later one."""
        assert demand_bytes_per_s > 0
        share = Share(min(demand_bytes_per_s, self.bytes_per_s), changed)
        self._shares.append(share)
        self._allocate(newcomer=share)
        return share

    def leave(self, share: Share) -> None:
        self._shares.remove(share)
        self._allocate()

    def _allocate(self, newcomer: Share | None = None) -> None:
        if len(self._shares) == 1 and self._shares[0].speed == 1.0:
            # It gets all that it wants.
            return
        left, sharers = self.bytes_per_s, len(self._shares)
        for share in sorted(self._shares, key=lambda share: share.demand_bytes_per_s):
            granted = min(share.demand_bytes_per_s, left / sharers)
            left, sharers = left - granted, sharers - 1
            speed = granted / share.demand_bytes_per_s
            if speed != share.speed:
                share.speed = speed
                if share is not newcomer:
                    share.changed(speed)

    def check(self) -> None:
        used = sum(share.demand_bytes_per_s * share.speed for share in self._shares)
        assert used <= self.bytes_per_s * (1 + 1e-9), used
