"""One turn on a device: get its context, read what is new, answer, and keep what it leaves."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import simpy

from kvferry.backends.world import World
from kvferry.machine.machine import Lease, Refused
from kvferry.machine.ops import Prefill
from kvferry.pipelines.loading.stage import LoadingStage, price_s
from kvferry.pipelines.record import TurnRecord
from kvferry.pipelines.workload import Infeasible
from kvferry.policies.decode.spans import Spans
from kvferry.policies.keep.eviction import Block, eviction
from kvferry.policies.keep.kept import Kept, Room
from kvferry.sessions.answering import Answered, AnswerStage, Ask
from kvferry.sessions.bound import wait_bound
from kvferry.sessions.bringing import Bringing
from kvferry.sessions.forecast import Forecast
from kvferry.sessions.found import Found
from kvferry.sessions.keeping import Keeping
from kvferry.sessions.room import block_bytes_of
from kvferry.sessions.systems import SessionSystem
from kvferry.specs.errors import OutOfMemory
from kvferry.specs.scenario import Scenario
from kvferry.specs.units import shown_size
from kvferry.traces.turn import Turn, Turns


@dataclass(frozen=True)
class Told:
    """What a turn leaves behind: its record, and when each token was there."""

    record: TurnRecord
    token_times_s: tuple[float, ...]


class SessionDevice:
    """A device with the KV that it keeps between turns. `stage` decodes on it."""

    def __init__(
        self,
        world: World,
        scenario: Scenario,
        system: SessionSystem,
        stage: AnswerStage,
        turns: Turns,
        room: Room,
        link_bytes_per_s: float,
        uses_cloud: bool,
    ) -> None:
        self._world, self._scenario = world, scenario
        self.machine, self._stage, self._block = world.machine, stage, turns.block
        self._forecast = Forecast(turns)
        self._estimate_s = price_s(scenario, scenario.costs.estimate)
        available = world.rates.available.rate_at
        loading = LoadingStage(scenario, system.loading, link_bytes_per_s, self._estimate_s, available)
        self._bound = wait_bound(world, scenario, system, stage, turns, loading, uses_cloud)
        # By place, what computing a block takes.
        self._computed_s: dict[int, float] = {}
        flash_bytes = stage.flash_bytes(turns.block)
        policy = eviction(system.evict, regain_s=self._regain_s, next_use=self._forecast.next_use)
        stored = {block for turn in turns.numbered for block in turn.blocks[: turn.stored]}
        kept = Kept(room, policy, stage.works_on, stored)
        # Blocks that turns so far have left, wherever they are now, or that were there before.
        self._existing = set(stored)
        between_turns, block_bytes = world.content.between_turns, block_bytes_of(scenario, turns)
        self.keeping = Keeping(self.machine, between_turns, kept, block_bytes, flash_bytes)
        to_memory, reads, storage = stage.works_on == "memory", system.loading.reads, scenario.device.storage
        self._bringing = Bringing(world, loading, self.keeping, storage, turns.block, to_memory=to_memory, reads=reads)

    def _regain_s(self, block: Block) -> float:
        """What it takes to have a block again that is nowhere on the device."""
        if block.place not in self._computed_s:
            op = Prefill(self._block, block.place * self._block)
            self._computed_s[block.place] = float(self._estimate_s(op))
        computed_s = self._computed_s[block.place]
        load_s = self._bringing.load_s if "cloud" in self.keeping.kept.places(block.id) else None
        return computed_s if load_s is None else min(computed_s, load_s)

    @property
    def notes(self) -> tuple[str, ...]:
        """Returns what a reader of the turns' figures should know."""
        full, cut = self.keeping.full, self.keeping.cut
        found = [] if full is None else [f"what had no room on flash was not kept: {full}"]
        return (*found, *([] if cut is None else [f"what did not reach the cloud was not kept there: {cut}"]))

    # --- a turn --------------------------------------------------------------------------------------------------

    def turn(self, turn: Turn, number: int, arrival_s: float) -> Generator[simpy.Event, Any, Told]:
        """A SimPy process. Raises OutOfMemory."""
        env, keeping = self.machine.env, self.keeping
        began_s, written_bytes = env.now, keeping.written_bytes
        yield from keeping.all_sent()
        keeping.adopt(turn.blocks, number)
        found = Found.of(keeping.kept, turn.blocks, self._block, turn.prompt)
        ask = self._asked(turn, found, number)
        self._check_storage(turn, ask)
        lease = yield from self._room_for(turn, ask)
        pages = self._pages(turn, found)
        load = yield from self._bringing.bring(turn, found, number, pages)
        got_s, answered = env.now, Answered()
        lease.release()
        yield from self._stage.run(self._world, ask, answered)
        end_s = env.now
        # Behind the answer: on a real device it takes time.
        bound_s = self._bound_s(turn, found, number, arrival_s)
        self._forecast.over(turn)
        keeping.adopt(turn.leaves, number)
        yield from keeping.keep(self._stage.leaves(turn), number)
        times_s = tuple(answered.token_times_s)
        record = TurnRecord(
            request=number,
            conversation=turn.conversation,
            number=turn.number,
            prompt=turn.prompt,
            output=turn.output,
            arrival_s=arrival_s,
            began_s=began_s,
            got_s=got_s,
            first_token_s=times_s[0],
            bound_s=bound_s,
            end_s=end_s,
            from_memory=self._block * len(found.comes_from("memory")),
            from_flash=self._block * len(found.comes_from("flash")),
            from_cloud=self._block * len(found.comes_from("cloud")),
            computed=found.computed,
            units_streamed=0 if load is None else load.arrivals.units_streamed,
            units_computed=0 if load is None else load.arrivals.units_computed,
            units_read=0 if load is None else load.arrivals.units_read,
            attention=answered.attention,
            said_by_cloud=answered.came,
            **self._bringing.tokens(found, load),
            streamed_bytes=0.0 if load is None else load.arrivals.streamed_bytes,
            written_bytes=keeping.written_bytes - written_bytes,
            kept_memory_bytes=keeping.memory_bytes,
            kept_flash_bytes=keeping.kept.on_flash * keeping.flash_bytes,
        )
        return Told(record, times_s)

    def _bound_s(self, turn: Turn, found: Found, number: int, arrival_s: float) -> float | None:
        self._existing.update(turn.blocks[n] for n, places in enumerate(found.blocks) if places)
        least_s = None if self._bound is None else self._bound.least_s(turn, number, arrival_s, self._existing)
        self._existing.update(turn.leaves)
        return least_s

    def _asked(self, turn: Turn, found: Found, number: int) -> Ask:
        known, tokens = turn.prompt - found.computed, self._block
        stored = near = found.lies_in("memory")
        if self._stage.works_on == "flash":
            stored = found.lies_in("flash")
            near = [n for n in stored if "memory" in found.blocks[n]]
        return Ask(
            number=number,
            prompt=turn.prompt,
            output=turn.output,
            known=known,
            stored=Spans.of(stored, tokens),
            near=Spans.of(near, tokens),
            there=tokens * found.beginning_in("cloud"),
        )

    def _check_storage(self, turn: Turn, ask: Ask) -> None:
        """Raises Infeasible for a turn that the storage does not hold."""
        storage, wanted_bytes = self._scenario.device.storage, self._stage.file_bytes(ask)
        if storage is not None and storage.capacity_bytes is not None and wanted_bytes > storage.capacity_bytes:
            takes = f"take {shown_size(wanted_bytes, up=True)} of storage, {storage.name or 'which'} holds"
            would = "a shorter prompt, fewer bits of KV, or a decode system with KV in memory would do"
            raise Infeasible(f"{_named(turn)} {takes} {shown_size(storage.capacity_bytes)}; {would}")

    def _room_for(self, turn: Turn, ask: Ask) -> Generator[simpy.Event, Any, Lease]:
        """Memory for the turn while its context comes: what it takes is there then. Raises OutOfMemory."""
        wanted_bytes = self._stage.memory_bytes(ask)
        yield from self.keeping.make_room(wanted_bytes, turn.blocks)
        lease = self.machine.memory.reserve(wanted_bytes, "kv")
        if isinstance(lease, Refused):
            lacks = f"take {shown_size(wanted_bytes, up=True)} of memory, {shown_size(lease.free_bytes)} are free"
            would = "a shorter prompt, fewer bits of weights or KV, or a decode system with KV on storage would do"
            raise OutOfMemory(f"{_named(turn)} {lacks}; {would}")
        return lease

    def _pages(self, turn: Turn, found: Found) -> Sequence[int]:
        """Places on flash for a turn that decodes there."""
        if self._stage.works_on != "flash":
            return ()
        there = [turn.blocks[n] if "flash" in places else None for n, places in enumerate(found.blocks)]
        return self.keeping.lay_out([*there, *[None] * (pages_of(turn, self._block) - len(there))])


def pages_of(turn: Turn, block: int) -> int:
    """Returns how many blocks of tokens a turn has to do with, whole or not."""
    return -(-(turn.prompt + turn.output) // block)


def _named(turn: Turn) -> str:
    where = f"turn {turn.number + 1} of conversation {turn.conversation + 1}"
    return f"{where}: {turn.prompt + turn.output:,} tokens"
