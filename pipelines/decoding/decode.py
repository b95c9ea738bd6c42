"""Decoding with the KV cache on storage: prefill writes it out, every layer brings back what it selects."""

from collections.abc import Callable, Generator, Sequence
from typing import Any

import simpy

from kvferry.machine.machine import Machine
from kvferry.machine.ticket import Ticket
from kvferry.pipelines.decoding.foreseen import ForeseenSteps, foreseeable
from kvferry.pipelines.decoding.foreseen_stages import StagedSteps, foreseeable_by_stages
from kvferry.pipelines.decoding.noted import Noted, Notes, NotingMachine, noted_steps
from kvferry.pipelines.decoding.plan import DecodePlan
from kvferry.pipelines.decoding.skip_memo import SkipMemo
from kvferry.pipelines.decoding.stages import KINDS
from kvferry.pipelines.decoding.state import DecodeRecord, DecodeState
from kvferry.pipelines.decoding.updates import write
from kvferry.policies.decode.kept_clusters import KeptClusters, clusters_of
from kvferry.policies.decode.stages import Key, Stages
from kvferry.policies.decode.upkeep import Ahead
from kvferry.sim.foresight import Foresight
from kvferry.traces.clustered_keys import ClusteredKeys

# Called after every token with how many there are.
OnToken = Callable[[int], None]
# Called before layers move to another tier, and once they have.
OnMove = Callable[[bool], None]
Process = Generator[simpy.Event, Any, None]

# Skipping many tokens takes a while: between these, how far it came is told.
_SKIPPED_AT_ONCE = 1024

__all__ = ["DecodeRecord", "LockStepDecode", "OnMove", "OnToken", "Process"]


class LockStepDecode:
    """A lock-step batch. ``run`` is a SimPy process; ``record`` says what has happened so far. With `foresight`, steps
    are worked out instead of carried out stage by stage, where the plan allows it. `keys` are those of a modelled
    world, by which tokens that are skipped join clusters. With `on_move`, called with False before and True behind,
    layers move to another tier between steps, by themselves, those too that do among tokens that are skipped.
    `on_skip` is called with tokens that have just been skipped. `noted`: gets what prefill and some steps ask for."""

    def __init__(
        self,
        machine: Machine,
        plan: DecodePlan,
        on_token: OnToken = lambda tokens: None,
        foresight: Foresight | None = None,
        keys: Ahead | None = None,
        on_move: OnMove | None = None,
        on_skip: OnToken = lambda tokens: None,
        noted: Noted | None = None,
    ) -> None:
        self.plan, self._on_token, self._foresight, self._keys = plan, on_token, foresight, keys
        self._on_move, self._on_skip, self._noted = on_move, on_skip, noted
        self.now = DecodeState(machine, plan)
        self.record = self.now.record

    def run(self, steps: int, skipped: int = 0) -> Process:
        """Prefill, then `steps` tokens per sequence; the first of them comes from prefill. `skipped` tokens, which take
        no time, come between it and the next. Raises OutOfMemory."""
        yield from self.run_parts([(skipped, steps - 1)])

    def run_parts(self, parts: Sequence[tuple[int, int]]) -> Process:
        """Prefill with the first token, then parts of the output: of each, tokens that are skipped, and steps that are
        carried out behind them. Raises OutOfMemory."""
        env, record = self.now.machine.env, self.record
        self.now.place()
        known = self.plan.known is not None
        self._note(None if self._noted is None else self._noted.prefill)
        under_way = yield from self._walk(self.plan.roles.prefill(self.plan.model.layers, known=known))
        yield env.all_of(under_way.values())
        self._note(None)
        record.prefill_s = env.now
        self._token()
        foreseen, done = None, 0
        all_steps = sum(steps for _, steps in parts)
        last = all_steps - 1 if parts[-1][1] else -1
        noted_from, noted_to = noted_steps(all_steps)
        for skipped, steps in parts:
            self.now.step = done
            yield from self._skip(skipped)
            foreseen = foreseen or self._foreseen()
            for self.now.step in range(done, done + steps):
                self.now.last = self.now.step == last
                yield from self._place()
                if self._noted is not None and self.now.step in (noted_from, noted_to):
                    self._note(self._noted.steps if self.now.step == noted_from else None)
                if foreseen is not None:
                    yield from foreseen.step()
                    self._token()
                    continue
                under_way = yield from self._walk(self.plan.stages)
                yield under_way[self.plan.stages[-1].key]
                self.now.awaits(under_way[self.plan.stages[-1].key])
                self._token()
            done += steps
        self._note(None)
        if self.now.unwritten is not None:
            # Behind the last token, which has been told: no figure has it.
            write(self.now, *self.now.unwritten)

    def _skip(self, tokens: int) -> Process:
        memo = self._memo_of(tokens)
        known = None if memo is None else memo.reached()
        if known is not None:
            self.now.resume(known, tokens)
            self._on_skip(tokens)
            return
        yield from self._go_on(tokens)
        if memo is not None:
            memo.reaches(clusters_of(self.now.kept))

    def _memo_of(self, tokens: int) -> SkipMemo | None:
        """Returns what is known of skipping these; None: nothing can be."""
        now = self.now
        if not tokens or self._on_move is not None:
            return None
        if not (isinstance(now.kept, KeptClusters) and isinstance(self._keys, ClusteredKeys)):
            return None
        return SkipMemo(now.kept, self._keys, tokens, now.tokens_stored, self.plan.roles.selector.wanted_tokens)

    def _go_on(self, tokens: int) -> Process:
        while tokens:
            until = min(tokens, _SKIPPED_AT_ONCE)
            if self._on_move is not None:
                until = self.now.until_move(until)
            self.now.skip(until, self._keys)
            self._on_skip(until)
            tokens -= until
            if self._on_move is not None and (self.now.moves_now or not tokens):
                yield from self._place()

    def _place(self) -> Process:
        """Raises OutOfMemory."""
        if self._on_move is None or not self.now.moves_now:
            self.now.place()
            return
        self._on_move(False)
        yield self.now.machine.env.all_of(self.now.place())
        self._on_move(True)

    def _foreseen(self) -> ForeseenSteps | StagedSteps | None:
        """Returns what works steps out; None: events decide."""
        seen = self._foresight
        if seen is not None and foreseeable(self.plan, seen):
            return ForeseenSteps(self.now, seen)
        if seen is not None and foreseeable_by_stages(self.plan, seen):
            return StagedSteps(self.now, seen, self.plan.model.layers if self._keys is None else self._keys.kinds)
        return None

    def _walk(self, stages: Stages) -> Generator[simpy.Event, Any, dict[Key, Ticket]]:
        """Hand every stage to the machine, in order; their tickets."""
        under_way: dict[Key, Ticket] = {}
        for stage in stages:
            after = tuple(under_way[key] for key in stage.after)
            ticket = KINDS[stage.kind].begin(self.now, stage.layer, after)
            under_way[stage.kind, stage.layer] = ticket
            if stage.awaited:
                self.now.awaits(ticket)
                if not ticket.processed:
                    yield ticket
        return under_way

    def _note(self, notes: Notes | None) -> None:
        """Notes here what is asked for from now on; None: nothing."""
        now = self.now
        if now.notes is not None:
            now.notes.close()
        if isinstance(now.machine, NotingMachine):
            now.machine = now.machine.machine
        now.notes = notes
        if notes is not None:
            now.machine = NotingMachine(now.machine, notes)

    def _token(self) -> None:
        self.record.token(self.now.machine.env.now)
        self._on_token(len(self.record.token_times_s))
