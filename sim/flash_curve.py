"""The curve of a flash device: bandwidth of random commands by the parts that they pass, and by simulation."""

import numpy as np

from kvferry.sim.flash import Flash
from kvferry.specs.storage import FlashSpec
from kvferry.traces.chance import Source, generator

# The commands lie anywhere in this, as a benchmark's file does.
FILE_BYTES = 4 << 30
# How sharply bandwidth bends where commands begin to wait for each other.
_BEND = 8


class FlashCurve:
    """Seconds per command in a steady stream of random commands, by arithmetic: what `random_rate` finds by events.

    With `depth` commands under way each takes its latency alone over the depth, or as long as the busiest part takes
    for it. Dies and channels that commands meet at random are idle at times, as in a closed network of as many queues:
    of M of them, N customers keep N / (N + M - 1) at work.
    """

    def __init__(self, spec: FlashSpec, half_duplex: bool, writes: bool = False) -> None:
        self._spec, self._writes = spec, writes
        self._on_bus = half_duplex or spec.commands_hold_bus

    def command_s(self, lengths: np.ndarray, depth: int) -> np.ndarray:
        """Seconds per command of each length (bytes, aligned), with this many commands under way."""
        spec, lengths = self._spec, np.asarray(lengths, float)
        pages, sectors = np.ceil(lengths / spec.page_bytes), np.ceil(lengths / spec.sector_bytes)
        dies = spec.channels * spec.dies
        whole_s = spec.command_s
        if self._writes and spec.write_command_s is not None:
            whole_s = spec.write_command_s
        command_s = whole_s + np.where(lengths % spec.sector_bytes > 0, spec.partial_s, 0.0)
        host_s = spec.host_s + (lengths / spec.host_bytes_per_s if spec.host_bytes_per_s else 0.0)
        bus_s = lengths / spec.bus_bytes_per_s
        # Of what leaves or enters the first page.
        page_sectors = np.minimum(sectors * spec.sector_bytes, spec.page_bytes)
        page_s = page_sectors / spec.channel_bytes_per_s
        if self._writes:
            program_s = spec.page_program_s * page_sectors / spec.page_bytes
            inside_s = np.maximum(0.0, page_s + program_s * np.ceil(pages / dies) - spec.buffer_s)
            dies_s = spec.page_program_s * sectors * spec.sector_bytes / spec.page_bytes / dies
        else:
            inside_s = spec.page_read_s + page_s
            # Behind a write buffer commands need not find a die that is free.
            dies_s = pages * spec.page_read_s / dies * _idle(dies / np.minimum(pages, dies), depth)
        channels = spec.channels / np.minimum(pages, spec.channels)
        channels_s = sectors * spec.sector_bytes / spec.channels / spec.channel_bytes_per_s * _idle(channels, depth)
        on_bus_s = bus_s + command_s if self._on_bus else np.maximum(bus_s, command_s)
        busiest_s = np.maximum(np.maximum(on_bus_s, dies_s), channels_s)
        alone_s = (host_s + command_s + bus_s + inside_s) / depth
        seconds: np.ndarray = (alone_s**_BEND + busiest_s**_BEND) ** (1 / _BEND)
        return seconds


def _idle(stations: np.ndarray, depth: int) -> np.ndarray:
    """How much longer work takes at stations that are met at random than if all of them were always busy."""
    longer: np.ndarray = (depth + stations - 1) / depth
    return longer


def random_rate(spec: FlashSpec, block_bytes: int, depth: int, half_duplex: bool, writes: bool = False) -> float:
    """Bytes per second of aligned random commands of one size, with `depth` of them always under way, by events."""
    flash = Flash(spec, depth, half_duplex)
    rng = generator(Source.FLASH_COMMANDS, 0)
    # Enough that neither chance nor the start matter by more than a percent or so.
    counted = max(8 * depth, min(1000, (4 << 20) // block_bytes), 16)
    # A write buffer fills only slowly, as programming keeps up with most of what comes.
    before = depth + (max(counted, (16 << 20) // block_bytes) if writes and spec.buffer_s else counted // 4)
    blocks = rng.integers(0, FILE_BYTES // block_bytes, before + counted + depth)
    # Each is a batch of its own, so that its end is reported.
    for number, offset in enumerate((blocks * block_bytes).tolist()):
        flash.feed(number, writes, (offset,), (block_bytes,), 0.0)
    ends_s = [end_s for end_s, _, _ in flash.advance(np.inf)]
    return counted * block_bytes / (ends_s[before + counted] - ends_s[before])
