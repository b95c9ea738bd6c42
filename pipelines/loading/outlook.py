"""What a load can count on: its share of both paths, and how fast the device takes in what arrives."""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from kvferry.machine.machine import Facts
from kvferry.policies.loading.loader import LoadFacts
from kvferry.specs.device import DecompressorSpec, MemorySpec


def intake_values_per_s(decompressor: DecompressorSpec | None, memory: MemorySpec, value_bytes: float) -> float:
    """How many key and value numbers the device decodes and copies per second, at most; None: nothing is decoded."""
    decoded = copied = inf
    if decompressor is not None:
        rates = [decompressor.values_per_s, *(piece.values / piece.seconds for piece in decompressor.pieces)]
        decoded = decompressor.workers * max(rates)
    if memory.copy_bytes_per_s is not None:
        copied = memory.copy_bytes_per_s / value_bytes
    return min(decoded, copied)


def placing_s(decompressor: DecompressorSpec | None, memory: MemorySpec, value_bytes: float, values: float) -> float:
    """What the last transfer into the device takes at least, once its bytes have come: one worker decodes it and it is
    copied. It holds `values` key and value numbers or more; None: nothing is decoded."""
    decoded_s = copied_s = 0.0
    if decompressor is not None:
        larger = [piece.seconds for piece in decompressor.pieces if piece.values > values]
        decoded_s = min([decompressor.seconds(values), *larger])
    if memory.copy_bytes_per_s is not None:
        copied_s = memory.copy_latency_s + values * value_bytes / memory.copy_bytes_per_s
    return decoded_s + copied_s


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """What is known of both paths when a load is planned.

    ``bytes_per_s``: of the link. ``intake_bytes_per_s``: encoded bytes that the device can decode and copy.
    ``available(now_s)``: the share of the main processor that background load leaves, as a utilisation counter tells it
    (SparKV's U_edge). The main processor begins no op before `processor_from_s`. ``read_bytes_per_s`` is local
    storage's.
    """

    bytes_per_s: float
    rtt_s: float
    intake_bytes_per_s: float = inf
    available: Callable[[float], float] = lambda now_s: 1.0
    processor_from_s: float = 0.0
    read_bytes_per_s: float = 0.0

    def at_start(self, now_s: float, loads: int) -> LoadFacts:
        """The facts when a load begins as one of this many `loads` under way."""
        return LoadFacts(
            now_s=now_s,
            planned_bytes_per_s=min(self.bytes_per_s, self.intake_bytes_per_s) / loads,
            rtt_s=self.rtt_s,
            planned_speed=max(self.available(now_s), 1e-3) / loads,
            processor_from_s=self.processor_from_s,
            planned_read_bytes_per_s=self.read_bytes_per_s / loads,
        )

    def later(self, start: LoadFacts, seen: Facts, loads: int) -> LoadFacts:
        """The facts after the machine has observed itself. Loads under way share both paths equally."""
        goodput, speed = seen.goodput_bytes_per_s, seen.compute_speed
        return LoadFacts(
            now_s=seen.now_s,
            planned_bytes_per_s=start.planned_bytes_per_s,
            rtt_s=start.rtt_s,
            goodput_bytes_per_s=None if goodput is None else min(goodput, self.intake_bytes_per_s) / loads,
            compute_speed=None if speed is None else speed / loads,
            planned_speed=start.planned_speed,
            processor_from_s=start.processor_from_s,
            planned_read_bytes_per_s=start.planned_read_bytes_per_s,
        )
