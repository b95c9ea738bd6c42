"""Brings the KV of a turn's prompt that lies on the device's flash or in the cloud."""

from collections.abc import Generator, Sequence
from typing import Any

import numpy as np
import simpy

from kvferry.backends.world import World
from kvferry.pipelines.loading.context import Context
from kvferry.pipelines.loading.load import ContextLoad
from kvferry.pipelines.loading.stage import LoadingStage, OnStorage
from kvferry.sessions.found import Found
from kvferry.sessions.keeping import Keeping
from kvferry.sim.storage_curve import StorageCurves
from kvferry.specs.storage import StorageSpec
from kvferry.traces.turn import Turn


class Bringing:
    """Brings KV to where turns work on it, memory or flash, and knows how long loads took. `reads`: whether the loader
    reads flash, too."""

    def __init__(
        self,
        world: World,
        loading: LoadingStage,
        keeping: Keeping,
        storage: StorageSpec | None,
        block_tokens: int,
        *,
        to_memory: bool,
        reads: bool,
    ) -> None:
        self._world, self._loading, self._keeping, self._storage = world, loading, keeping, storage
        self._block, self._to_memory, self._reads = block_tokens, to_memory, reads and to_memory
        self._loads_s, self._loaded = 0.0, 0

    @property
    def load_s(self) -> float | None:
        """Returns the seconds per block of loads so far; None: nothing was loaded."""
        return self._loads_s / self._loaded if self._loaded else None

    def bring(
        self, turn: Turn, found: Found, number: int, pages: Sequence[int]
    ) -> Generator[simpy.Event, Any, ContextLoad | None]:
        """What lies in the cloud alone is loaded, and beside it comes from flash what is to be in memory: as a whole,
        or, where the loader reads, as a part of the load."""
        machine, waits, load = self._world.machine, list[simpy.Event](), None
        env = machine.env
        began_s = env.now
        in_parts = self._read_in_parts(found)
        from_flash = found.comes_from("flash") if self._to_memory else []
        whole = [turn.blocks[n] for n in from_flash if n not in in_parts]
        loaded = sorted({*found.comes_from("cloud"), *in_parts})
        self._world.content.between_turns.begin(number, whole, pages)
        if whole:
            waits.append(self._keeping.read(whole, number))
        if loaded:
            stored = self._world.content.stored(number)
            context = self._loading.context(stored, number, np.array(loaded))
            self._loading.processor_from_s = env.now + machine.observe(self._loading.pace.window_s).starting_s
            load = self._loading.begin(
                self._world.machine, context, number, self._on_storage(turn, found, loaded, context)
            )
            waits.append(load.done)
        if waits:
            yield env.all_of(waits)
        if load is not None:
            self._loads_s, self._loaded = self._loads_s + env.now - began_s, self._loaded + len(loaded)
        return load

    def _read_in_parts(self, found: Found) -> set[int]:
        """Returns the blocks on flash that are a part of the load. Behind one that is nowhere they can only be read."""
        if not self._reads:
            return set()
        return {n for n in found.comes_from("flash") if n < found.gap}

    def _on_storage(self, turn: Turn, found: Found, blocks: list[int], context: Context) -> OnStorage | None:
        """What a loader that reads finds on flash of these blocks of a prompt; None: nothing, or it does not read."""
        lies = self._read_in_parts(found)
        if lies.isdisjoint(blocks):
            return None
        storage, in_cloud = self._storage, set(found.lies_in("cloud"))
        assert storage is not None
        parts = self._keeping.parts([turn.blocks[n] for n in blocks], context.stream_bytes.shape)
        reads, each_bytes = self._loading.pace.reads_ahead, parts.longest_bytes
        return OnStorage(
            read_bytes=parts.n_bytes,
            extents=parts.extents,
            bytes_per_s=reads * each_bytes / StorageCurves(storage).equal_s(reads, each_bytes),
            in_cloud=np.array([n in in_cloud for n in blocks]),
        )

    def tokens(self, found: Found, load: ContextLoad | None) -> dict[str, float]:
        """Tokens by the path over which their KV came."""
        whole = len(found.comes_from("flash")) - len(self._read_in_parts(found))
        if load is None:
            return {"read": self._block * whole}
        token = self._block / (load.progress.problem.layers * load.progress.problem.columns_per_chunk)
        return {
            "read": self._block * whole + token * load.arrivals.units_read,
            "streamed": token * load.arrivals.units_streamed,
        }
