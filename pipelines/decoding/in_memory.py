"""The flow of decoding with all KV in memory: requests that share a pool of pages, and what they leave behind."""

from collections.abc import Callable, Iterator, Sequence

from kvferry.backends.needs import KvInPages, Needs
from kvferry.backends.world import World
from kvferry.machine.machine import Machine, Refused
from kvferry.pipelines.decoding.budget import asked_batch, free_bytes, held, hold_workspace, stopped_at_the_most
from kvferry.pipelines.decoding.continuous import ContinuousDecode
from kvferry.pipelines.decoding.offloaded import said_of
from kvferry.pipelines.decoding.passes import passes_of
from kvferry.pipelines.decoding.peak import Peak
from kvferry.pipelines.decoding.quality import attention_mass_of
from kvferry.pipelines.record import Decoded, RequestRecord
from kvferry.pipelines.tally import Totals
from kvferry.pipelines.workload import Left, Process, Progress
from kvferry.policies.decode.attention_mass import AttentionMass
from kvferry.policies.decode.batcher import Batcher
from kvferry.policies.decode.roles import Roles
from kvferry.policies.engine_memory import offload_of
from kvferry.specs.errors import InputError, OutOfMemory
from kvferry.specs.machine import DEVICE
from kvferry.specs.runtime import RuntimeSpec
from kvferry.specs.scenario import Scenario
from kvferry.specs.units import shown_size
from kvferry.specs.workload import MOST_TOKENS_PER_RUN
from kvferry.traces.request import Request
from kvferry.traces.request_log import RequestLog
from kvferry.traces.requests import as_they_came, decode_log

# Progress is reported every this many turns.
_PROGRESS_TURNS = 16


class InMemoryFlow:
    """A Flow of requests whose KV is in memory while they decode."""

    def __init__(
        self,
        scenario: Scenario,
        roles: Roles,
        progress: Progress,
        arrivals: Sequence[Request] | None = None,
        runtime: RuntimeSpec | None = None,
    ) -> None:
        self._scenario, self._progress, self._roles, self._runtime = scenario, progress, roles, runtime
        self._offload = offload = offload_of(scenario)
        self._peak = peak = Peak(roles, scenario.model if offload is None else offload.near_model)
        pool_bytes = scenario.decode.budget.in_memory_kv_bytes or free_bytes(scenario, roles)
        log = _requests(scenario, peak, pool_bytes)
        self._requests, self._log_notes = as_they_came(log.requests, arrivals), log.notes
        self._longest = max(self._requests, key=lambda one: (one.context + one.output, one.context))
        slots = asked_batch(scenario)
        if roles.attention.needs_memory:
            # The longest requests that fit, with what their attention takes besides.
            slots = min(slots, max(1, peak.sequences_within(pool_bytes, self._longest)))
        self._pool_bytes, self._page_bytes = pool_bytes, peak.pages.page_bytes
        # Each request at its end; no more are taken than the longest together need.
        kept = roles.selector.kept_tokens
        self._pages = sorted((peak.pages.of(kept(one.context + one.output)) for one in self._requests), reverse=True)
        pool = min(int(pool_bytes // self._page_bytes), sum(self._pages[:slots]))
        self._batcher = Batcher(pool, slots, roles.batching, kept, peak.pages.of)
        self._decode: ContinuousDecode | None = None
        self._turns = 0

    @property
    def needs(self) -> Needs:
        prompts = tuple(one.context for one in self._requests)
        output = max(one.output for one in self._requests)
        tokens = self._longest.context + self._longest.output
        evicts = self._roles.selector.kept_tokens(tokens) < tokens
        pages = self._batcher.pages.pages
        need = KvInPages(prompts=prompts, output=output, pages=pages, evicts=evicts, runtime=self._runtime)
        return {DEVICE: need}

    def run(self, world: World, totals: Callable[[], Totals]) -> Process:
        """Raises OutOfMemory when the longest request does not fit."""
        machine, batcher = world.machine, self._batcher
        hold_workspace(machine, self._scenario, self._roles)
        # At the peak, what attention needs for one sequence is there besides its KV.
        longest_bytes = max(self._pages[0] * self._page_bytes, self._peak.batch_bytes(1, self._longest))
        if longest_bytes > self._pool_bytes:
            besides = "" if longest_bytes == self._pages[0] * self._page_bytes else " with what its attention needs"
            what = f"the KV of {'the longest' if len(self._pages) > 1 else 'one'} sequence{besides}"
            there = f"{shown_size(self._pool_bytes)} are there for it"
            largest = held(self._scenario, self._roles).largest(0)
            would = "a shorter context, fewer bits of weights or KV, or a system with KV on storage would do"
            raise OutOfMemory(f"{what} takes {shown_size(longest_bytes, up=True)}, {there} ({largest}); {would}")
        wanted_bytes, left_bytes = batcher.pages.pages * self._page_bytes, machine.observe(1.0).free_bytes
        if wanted_bytes > left_bytes:
            raise OutOfMemory(str(Refused("kv", wanted_bytes, left_bytes)))
        self._hold_elsewhere(machine)
        self._decode = ContinuousDecode(
            machine,
            passes_of(machine, self._scenario.model, self._roles.attention, self._offload),
            self._requests,
            batcher,
            page_bytes=self._page_bytes,
            workspace_bytes=self._peak.turn_bytes,
            on_turn=self._on_turn,
            on_arrival=world.content.arrived.append,
        )
        yield from self._decode.run()

    def _hold_elsewhere(self, machine: Machine) -> None:
        """Holds the weights that lie elsewhere, with the KV that goes with them. Raises OutOfMemory."""
        if self._offload is None:
            return
        tier, near = self._offload.spec.tier, self._peak.model.kv_bytes_per_token
        tokens = self._batcher.pages.pages * self._page_bytes / near
        kv_bytes = tokens * (self._scenario.model.kv_bytes_per_token - near)
        for tag, n_bytes in {"weights": self._offload.away_bytes, "kv": kv_bytes}.items():
            if isinstance(refused := machine.memory_of(tier).reserve(n_bytes, tag), Refused):
                raise OutOfMemory(f"budget.offload: {tier}: {refused}")

    def left(self, world: World, end: Totals) -> Left:
        decode = self._decode
        records = [] if decode is None else _records(decode)
        decoded = Decoded(
            batch=asked_batch(self._scenario),
            layers=self._scenario.model.layers,
            output=self._scenario.decode.workload.output,
            token_times_s=(),
            steps=() if decode is None else tuple(decode.steps),
            preemptions=self._batcher.preemptions,
            end=end,
            end_counts={} if decode is None else _attention(decode),
            attention_mass=self._attention_mass,
        )
        together = max((n for n, _ in decoded.steps), default=0)
        notes = (
            *self._log_notes,
            *stopped_at_the_most(self._scenario, together),
            *self._in_waves(together),
            *([] if self._offload is None else [said_of(self._offload)]),
        )
        return Left(requests=records, decoded=decoded, notes=notes)

    def kept(self) -> str:
        n = len(self._requests)
        return f"{self._done:,} of {self._wanted:,} tokens of {n:,} sequence{'s' if n > 1 else ''}"

    def _in_waves(self, together: int) -> Iterator[str]:
        """Says so where a batch that comes at once did not fit at once: its mean size and rate are of several waves."""
        wanted = min(asked_batch(self._scenario), len(self._requests))
        at_once = len({one.arrival_s for one in self._requests}) == 1
        if at_once and self._done == self._wanted and 0 < together < wanted:
            fit = f"{together:,} of {wanted:,} sequences fit at once; the others decoded after them"
            yield f"{fit} (none waits with workload.batch={together})"

    @property
    def _attention_mass(self) -> AttentionMass | None:
        counts = {} if self._decode is None else _attention(self._decode)
        if not counts.get("attendable"):
            return None
        return attention_mass_of(self._roles, counts["attended"] / counts["attendable"], 1)

    @property
    def _done(self) -> int:
        return 0 if self._decode is None else sum(map(len, self._decode.token_times_s))

    @property
    def _wanted(self) -> int:
        return sum(one.output for one in self._requests)

    def _on_turn(self) -> None:
        self._turns += 1
        if self._turns % _PROGRESS_TURNS == 0:
            self._progress(self._done, self._wanted)


def _requests(scenario: Scenario, peak: Peak, pool_bytes: float) -> RequestLog:
    """Returns the requests of a run: as many as the workload, its lengths or its trace say, or one per sequence of its
    batch; with `max`, as many as fit, or one that does not. Raises InputError."""
    workload = scenario.decode.workload
    n = workload.requests
    if n is None and workload.lengths is None and workload.trace is None:
        n = asked_batch(scenario)
        if workload.batch == "max":
            n = max(1, peak.sequences_within(pool_bytes, Request(0.0, workload.context, workload.output)))
    log = decode_log(workload, n, scenario.seed)
    tokens = sum(one.output for one in log.requests)
    if tokens > MOST_TOKENS_PER_RUN:
        what = f"its requests ask for {tokens:,} tokens; at most {MOST_TOKENS_PER_RUN:,} will do"
        raise InputError(f"workload.trace: {what}: say with workload.requests how many to take")
    return log


def _attention(decode: ContinuousDecode) -> dict[str, float]:
    """Returns the tokens that attention took in and the tokens stored, over all sequences of all steps."""
    sequences = sum(n for n, _ in decode.steps)
    return {"attended": decode.attended, "attendable": decode.attendable, "attentions": sequences}


def _records(decode: ContinuousDecode) -> list[RequestRecord]:
    """Returns the records of the requests that have their first token."""
    return [
        RequestRecord(
            request=n,
            arrival_s=request.arrival_s,
            context_tokens=request.context,
            began_s=decode.began_s[n],
            loaded_s=times_s[0],
            first_token_s=times_s[0],
            token_times_s=tuple(times_s),
        )
        for n, (request, times_s) in enumerate(zip(decode.requests, decode.token_times_s, strict=True))
        if times_s
    ]
