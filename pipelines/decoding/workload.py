"""The decode workload: one long-context batch, its KV on storage or in memory, and what it leaves behind."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

from kvferry.backends.needs import KvOnStorage, Needs
from kvferry.backends.world import NO_INPUTS, Inputs, World
from kvferry.machine.machine import Machine, Refused
from kvferry.pipelines.decoding.budget import (
    ALIGNMENT_BYTES,
    GOOD_READ_BYTES,
    asked_batch,
    fits,
    fitting_batch,
    free_bytes,
    held,
    hold_workspace,
    left_bytes,
    most_kv,
    over_bytes,
    sequence_bytes,
)
from kvferry.pipelines.decoding.decode import LockStepDecode
from kvferry.pipelines.decoding.faults import NoRoomFlow, faults_of
from kvferry.pipelines.decoding.in_memory import InMemoryFlow
from kvferry.pipelines.decoding.noted import Noted
from kvferry.pipelines.decoding.notes import larger_budget, notes_on
from kvferry.pipelines.decoding.passage import Passage
from kvferry.pipelines.decoding.paying import with_paying_slots, with_read_ahead
from kvferry.pipelines.decoding.peak import Peak
from kvferry.pipelines.decoding.plan import DecodePlan
from kvferry.pipelines.decoding.quality import SampledRecall, attention_mass_in
from kvferry.pipelines.decoding.runtimes import runtime_spec
from kvferry.pipelines.decoding.sizing import NoRoom, plan_of
from kvferry.pipelines.decoding.spread import Spread, Told, Window, tokens_of, windows_of
from kvferry.pipelines.decoding.systems import DECODE_SYSTEMS, DecodeSystem
from kvferry.pipelines.decoding.tuned import tuned
from kvferry.pipelines.decoding.warming import ALL_DECODED, check_whole, warms_up
from kvferry.pipelines.decoding.would_fit import would_fit
from kvferry.pipelines.record import Decoded, RequestRecord
from kvferry.pipelines.tally import Totals
from kvferry.pipelines.workload import Flow, Infeasible, Left, Process, Progress, System
from kvferry.policies.decode.attention_mass import AttentionMass
from kvferry.policies.decode.roles import Roles
from kvferry.policies.ledger import METADATA, largest
from kvferry.scenarios.resolve import Complaint
from kvferry.specs.errors import InputError, OutOfMemory
from kvferry.specs.machine import DEVICE
from kvferry.specs.runtime import RuntimeSpec
from kvferry.specs.scenario import Scenario
from kvferry.specs.tier import Tier
from kvferry.specs.units import shown_size
from kvferry.traces.request import Request


class Decode:
    """A WorkloadKind."""

    headline = "throughput_tokens_per_s"

    def of_many_machines(self, scenario: Scenario) -> bool:
        return False

    @property
    def systems(self) -> Mapping[str, System]:
        return DECODE_SYSTEMS

    def faults(self, scenario: Scenario, system: System) -> Iterator[Complaint]:
        """Yields complaints: where KV lies on storage, one batch of one length decodes in lock step."""
        assert isinstance(system, DecodeSystem)
        yield from faults_of(scenario, system)

    def medium(self, scenario: Scenario) -> str:
        storage = scenario.device.storage
        return f"batch {scenario.decode.workload.batch}, storage {storage.name if storage else 'none'}"

    def remark(self, scenario: Scenario) -> str | None:
        if not scenario.decode.live.paced or scenario.device.storage is None:
            return None
        system = DECODE_SYSTEMS[scenario.system].with_policies(scenario.policy_values)
        if _stays_in_memory(scenario, system.roles) or "storage" not in plan_for(scenario, system).last_tiers:
            return None
        return (
            "storage is paced by the simulator's own curve: its error is not in this figure (live.paced: false has it)"
        )

    def flow(self, scenario: Scenario, system: System, progress: Progress, inputs: Inputs = NO_INPUTS) -> Flow:
        assert isinstance(system, DecodeSystem)
        if _stays_in_memory(scenario, system.roles):
            return InMemoryFlow(scenario, system.roles, progress, inputs.arrivals, runtime_spec(scenario, system))
        try:
            plan = plan_for(scenario, system)
        except NoRoom as error:
            if scenario.decode.budget.limits_kv:
                raise
            # Nothing but the device limits it.
            left, why = left_bytes(scenario, system.roles), str(error)
            if left < 0:
                why = f"weights and workspace take more memory than there is: it lacks {shown_size(-left, up=True)}"
            would = _would_do(scenario, system.roles, asked_batch(scenario))
            return NoRoomFlow(scenario, system.roles, f"{why} ({held(scenario, system.roles).largest(0)}){would}")
        if system.roles.placement.mapped:
            mapped_bytes = plan.sequences * sequence_bytes(scenario, plan.roles, plan.sequences)
            plan = replace(plan, staying=replace(plan.staying, mapped_bytes=mapped_bytes))
        whole = warms_up(scenario) and inputs == NO_INPUTS
        return LockStepFlow(scenario, plan, progress, runtime_spec(scenario, system), whole=whole)


class LockStepFlow:
    """A Flow of a batch whose KV lies on storage. Where only a part of the output is decoded, it is the part that
    the workload asks for, if the world can skip what comes before; else the beginning. `whole`: all is decoded, as each
    token depends on those before, whatever part the workload asks for. Raises InputError where that is too much."""

    def __init__(
        self,
        scenario: Scenario,
        plan: DecodePlan,
        progress: Progress,
        runtime: RuntimeSpec | None = None,
        *,
        whole: bool = False,
    ) -> None:
        self._scenario, self._plan, self._runtime = scenario, plan, runtime
        self._passage = Passage(progress, scenario.decode.workload.output)
        workload = scenario.decode.workload
        output, part = workload.output, workload.part
        self._whole_instead = whole and workload.decoded is not None and workload.decoded < output
        if self._whole_instead:
            check_whole(scenario)
        # Tokens per sequence that are really decoded.
        self._steps = output if whole else min(output, workload.decoded or output)
        # Tokens before them, where these may be skipped.
        self._before = output - self._steps if part == "end" else middle_of(output - 1, self._steps - 1)
        self._decode: LockStepDecode | None = None
        self._noted: Noted | None = None
        self._half: Totals | None = None
        self._end: Totals | None = None
        self._half_counts: dict[str, float] = {}
        # Runs that carry out windows all over the output have this.
        self._spread: Spread | None = None
        self._recall = SampledRecall(plan, self._steps)
        self._wants_spread = part == "spread" and self._steps < output

    @property
    def needs(self) -> Needs:
        return {DEVICE: KvOnStorage(sizes=self._plan, sequences=self._plan.sequences, runtime=self._runtime)}

    def run(self, world: World, totals: Callable[[], Totals]) -> Process:
        self._check_room()
        hold_workspace(world.machine, self._scenario, self._plan.roles)
        _check_attention(world.machine, self._plan)
        _check_memory(world.machine, self._scenario, self._plan)
        output = self._scenario.decode.workload.output
        if self._wants_spread and world.shortcuts.may_skip:
            self._spread = Spread(windows_of(output - 1, self._steps - 1))

        def on_token(tokens: int) -> None:
            if self._spread is not None:
                told = Told(totals=totals(), counts=self._counts()) if self._spread.wants(tokens) else None
                self._spread.on_token(tokens, world.machine.env.now, told)
            elif self._steps < output and tokens == half_of(self._steps) + 1:
                self._half, self._half_counts = totals(), self._counts()
            self._end = totals() if tokens == self._steps else None
            assert self._decode is not None
            self._recall.at(tokens, self._decode.now.tokens_stored, keys)
            passage.decoded(tokens)

        spread = self._spread

        def on_move(moved: bool) -> None:
            assert spread is not None
            spread.on_move(Told(totals=totals(), counts=self._counts()))

        foresight, keys, passage = world.shortcuts.foresight, world.shortcuts.keys, self._passage
        passage.watch(keys)
        moving = None if spread is None else on_move
        # A real run is not slowed down by notes.
        self._noted = Noted() if world.shortcuts.may_skip else None
        self._decode = LockStepDecode(
            world.machine, self._plan, on_token, foresight, keys, moving, passage.skipped, self._noted
        )
        if spread is None:
            yield from self._decode.run(self._steps, self._before if world.shortcuts.may_skip else 0)
        else:
            parts = [(one.skipped, one.warming + one.counted) for one in spread.windows]
            # To the last step, before which layers may move and where memory is fullest.
            rest = output - 1 - sum(map(sum, parts))
            yield from self._decode.run_parts([*parts, (max(0, rest - 1), 0)])

    def left(self, world: World, end: Totals) -> Left:
        plan, times_s, output = self._plan, self._times_s, self._scenario.decode.workload.output
        half, half_step, end = self._half, half_of(self._steps), self._end or end
        half_counts, end_counts = self._half_counts, self._counts()
        windows = [Window(self._before, 0, self._steps - 1)] if self._spread is None else self._spread.windows
        carried_out = tokens_of(windows) if self._steps < output and world.shortcuts.may_skip else None
        if (spread := self._spread) is not None and spread.prefill is not None and spread.end is not None:
            # Counted as if that were all that was decoded; it follows again as often as the output is longer.
            begun, done = spread.with_moves(spread.prefill), spread.with_moves(spread.end)
            half, half_step, half_counts = begun.totals, 0, dict(begun.counts)
            times_s, end, end_counts = tuple(spread.token_times_s), done.totals, dict(done.counts)
        decoded = Decoded(
            batch=plan.sequences,
            layers=self._scenario.model.layers,
            output=output,
            token_times_s=times_s,
            carried_out_s=self._times_s,
            carried_out=None if carried_out is None else tuple(carried_out[: len(self._times_s)]),
            moves_s=0.0 if spread is None else spread.moves.totals.now_s,
            half=half,
            half_step=half_step,
            end=end,
            half_counts=half_counts,
            end_counts=end_counts,
            step_blocks=() if self._decode is None else tuple(self._decode.record.step_blocks),
            metadata_bytes=plan.memory.ledger.of(*METADATA).n_bytes(plan.most_tokens),
            buffer_bytes=plan.memory.ledger.without("kv", *METADATA).n_bytes(plan.most_tokens),
            reuses=plan.roles.selective and plan.roles.residency.keeps,
            longest_access=0 if self._decode is None else self._decode.record.longest_access,
            space_overhead=None if self._decode is None else self._decode.now.blocks.space_overhead,
            attention_mass=_attention_mass(plan, end_counts),
            recall=self._recall.mean,
            noted=self._noted,
        )
        prefill_s = None if self._decode is None else self._decode.record.prefill_s
        notes = (
            *notes_on(self._scenario, plan, self._runtime, world.shortcuts, _filled(plan, self._decode)),
            *([ALL_DECODED] if self._whole_instead else []),
        )
        return Left(requests=_records(plan, prefill_s, times_s), decoded=decoded, notes=notes)

    def kept(self) -> str:
        batch = self._plan.sequences
        tokens = f"{len(self._times_s):,} of {self._scenario.decode.workload.output:,} tokens"
        return f"{tokens} of {_sequences(batch)}{' each' if batch > 1 else ''}"

    @property
    def _times_s(self) -> tuple[float, ...]:
        return () if self._decode is None else tuple(self._decode.record.token_times_s)

    def _counts(self) -> dict[str, float]:
        if self._decode is None:
            return {}
        record, blocks = self._decode.record, self._decode.now.blocks
        entry_bytes = self._plan.model.kv_entry_bytes / self._plan.choice.heads
        counts: dict[str, float] = {"wanted": record.blocks_wanted, "reused": record.blocks_reused}
        counts["brought_bytes"] = record.brought_entries * entry_bytes
        counts |= {"attended": record.attended, "attendable": record.attendable, "attentions": record.attentions}
        if blocks.counted is not None:
            counts |= {"accesses": record.accesses, "accessed": record.accessed, **vars(blocks.counted)}
            counts["cut_read_bytes"] = record.cut_entries * entry_bytes
        return counts

    def _check_room(self) -> None:
        storage, file_bytes = self._scenario.device.storage, self._plan.file_bytes
        if storage is not None and storage.capacity_bytes is not None and file_bytes > storage.capacity_bytes:
            what = f"the KV takes {file_bytes / 2**30:,.2f} GiB of storage"
            raise Infeasible(f"{what}, {storage.name} holds {storage.capacity_bytes / 2**30:,.2f} GiB")


def _check_attention(machine: Machine, plan: DecodePlan) -> None:
    """Raises OutOfMemory where there is no room for scores of the prompts, or copies of a layer's KV."""
    peak = Peak(plan.roles, plan.model)
    at_end_bytes = peak.decode_bytes(plan.sequences * plan.most_tokens)
    wanted_bytes = max(peak.prefill_bytes(plan.sequences, plan.context), at_end_bytes)
    lease = machine.memory.reserve(wanted_bytes, "workspace: attention")
    if isinstance(lease, Refused):
        raise OutOfMemory(f"attention: {lease}")
    # Beside the KV that is there with it, less than at the end of the output.
    lease.release()


def _filled(plan: DecodePlan, decode: LockStepDecode | None) -> float:
    """Returns the share of the slots of reuse buffers that were ever given to a block."""
    slots = plan.model.layers * plan.rows * plan.staying.slots
    if decode is None or not slots or "device" in plan.tiers:
        return 1.0
    return min(1.0, (decode.record.blocks_wanted - decode.record.blocks_reused) / slots)


def _attention_mass(plan: DecodePlan, counts: Mapping[str, float]) -> AttentionMass | None:
    if not counts.get("attendable"):
        return None
    return attention_mass_in(plan, counts["attended"] / counts["attendable"])


def half_of(tokens: int) -> int:
    """Returns the step with which the second half of the steps of `tokens` tokens begins."""
    return (tokens - 1) // 2


def middle_of(all_steps: int, steps: int) -> int:
    """Returns how many steps to skip, so that the steps carried out, and the pace of their second half for the rest,
    stand for all: where each step takes longer than the one before by the same time, the sum is exact."""
    return max(0, round(all_steps / 2 - 0.75 * steps + 0.25 * steps**2 / all_steps)) if all_steps else 0


def plan_for(scenario: Scenario, system: DecodeSystem) -> DecodePlan:
    """Returns what a system would do in a scenario. Raises InputError."""
    workload, budget, _ = scenario.decode
    system, tuned_bytes = tuned(system, scenario)
    storage, batch = scenario.device.storage, asked_batch(scenario)
    # A sequence takes as much however many there are: this many decode as the whole budget holds.
    by_sequence = budget.kv_share is not None or (system.roles.fixed and workload.batch == "max")
    if workload.batch == "max" and not by_sequence and not tuned_bytes:
        raise InputError("workload.batch: max needs budget.kv_share, which says what one sequence may take")
    capped = by_sequence and (workload.batch == "max" or budget.kv_bytes is not None)
    each_bytes = tuned_bytes or sequence_bytes(scenario, system.roles, batch)
    if capped and system.roles.fixed:
        each_bytes = math.inf
    budget_key = "budget.kv" if budget.kv_share is None and budget.kv_bytes is not None else "budget.kv_share"
    if not budget.limits_kv:
        budget_key = "budget.memory"
    sized = partial(
        plan_of,
        model=scenario.model,
        sequences=batch,
        context=workload.context,
        output=workload.output,
        budget_bytes=each_bytes,
        good_read_bytes=GOOD_READ_BYTES if storage is None else storage.good_read_bytes,
        alignment_bytes=ALIGNMENT_BYTES if storage is None else int(storage.block_bytes),
        budget_key="policies.tuned" if tuned_bytes else budget_key,
    )
    plan = with_read_ahead(with_paying_slots(system.roles, scenario, sized), scenario)
    if not capped:
        return plan
    whole_bytes, key = (
        (free_bytes(scenario, system.roles), "budget.memory")
        if budget.kv_bytes is None
        else (budget.kv_bytes, "budget.kv")
    )
    together = fitting_batch(scenario, plan.memory.least_bytes, whole_bytes, key)
    while True:
        # Beside what manages it, a placement puts KV where the budget has room for it.
        each_bytes = min(tuned_bytes or sequence_bytes(scenario, system.roles, together), whole_bytes / together)
        fitting = plan.together(together).within(each_bytes)
        if workload.batch != "max" or together == 1 or fits(scenario, fitting):
            return fitting
        together -= 1


def _records(plan: DecodePlan, prefill_s: float | None, times_s: tuple[float, ...]) -> list[RequestRecord]:
    """Returns a record for each sequence of a lock-step batch: all have their tokens at the same times."""
    if not times_s:
        return []
    one = RequestRecord(request=0, arrival_s=0.0, context_tokens=plan.context, began_s=0.0, loaded_s=prefill_s)
    one = replace(one, first_token_s=times_s[0], token_times_s=times_s)
    return [replace(one, request=n) for n in range(plan.sequences)]


def _sequences(n: int) -> str:
    return f"{n} sequence{'s' if n > 1 else ''}"


def _stays_in_memory(scenario: Scenario, roles: Roles) -> bool:
    """All KV lies in the processor's memory from beginning to end: in whole pages, with what attention needs, where it
    may lie elsewhere as well."""
    size, workload = most_kv(scenario, roles), scenario.decode.workload
    if not roles.stays_in_memory(size) or roles.placement.away is None:
        return roles.stays_in_memory(size)
    peak = Peak(roles, scenario.model)
    request = Request(0.0, workload.context, workload.output)
    return peak.batch_bytes(asked_batch(scenario), request) <= size.memory_bytes


def _check_memory(machine: Machine, scenario: Scenario, plan: DecodePlan) -> None:
    """Raises OutOfMemory where the KV of the whole output will not fit, even if only a part of it is decoded: with the
    largest holdings, and what would do."""
    ledger, tokens = plan.memory.ledger, plan.most_tokens
    batch = f"the KV of {_sequences(plan.sequences)} of {tokens:,} tokens"
    memories: dict[Tier, str] = {"device": "the processor's memory", "host": "the host's memory"}
    for tier, what in memories.items():
        pool, counted = machine.memory_of(tier), ledger.at(tokens, tier)
        if tier == "device":
            counted |= held(scenario, plan.roles).at(0)
            if pool is machine.memory_of("host"):
                counted |= {f"{name} (host)": n for name, n in ledger.at(tokens, "host").items()}
        lacking_bytes = sum(counted.values()) - pool.capacity_bytes
        if lacking_bytes > 0:
            lacks = f"{what} lacks {shown_size(lacking_bytes, up=True)} for {batch}"
            raise OutOfMemory(f"{lacks}: {largest(counted)}{_would_do(scenario, plan.roles, plan.sequences)}")
    over = over_bytes(scenario, plan)
    if over:
        counted = ledger.at(tokens)
        if scenario.device.memory.unified:
            counted |= {f"{name} (host, the same memory)": n for name, n in ledger.at(tokens, "host").items()}
        would = _would_do(scenario, plan.roles, plan.sequences)
        if scenario.decode.budget.limits_kv:
            would = f"; {larger_budget(scenario, plan, plan.managed.budget_bytes + over / plan.sequences)}"
        raise OutOfMemory(f"the budget lacks {shown_size(over, up=True)} for {batch}: {largest(counted)}{would}")


def _would_do(scenario: Scenario, roles: Roles, batch: int) -> str:
    """Returns what would do instead, as a message ends with it."""
    system = replace(DECODE_SYSTEMS[scenario.system], roles=roles)
    return f"; {would_fit(scenario, roles, batch, lambda other: fits(other, plan_for(other, system)))} would do"
