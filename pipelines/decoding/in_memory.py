"""Decoding with all KV in memory: what fits decodes together, the rest waits for its turn (vLLM)."""

from kvferry.machine.machine import Machine, Refused
from kvferry.machine.ops import Batch, DecodeStep, OutputHead, PrefillLayer
from kvferry.machine.ticket import Ticket
from kvferry.pipelines.decoding.decode import DecodeRecord, Process, Told
from kvferry.pipelines.workload import OutOfMemory
from kvferry.policies.decode.pages import PAGE_TOKENS, pages_of
from kvferry.specs.model import ModelSpec


def paged_bytes(model: ModelSpec, context: int, output: int) -> float:
    """The KV of one sequence in whole pages."""
    return pages_of(context + output) * PAGE_TOKENS * model.kv_bytes_per_token


class InMemoryDecode:
    """A batch decoded in waves: as many sequences at once as the pool has pages for, to their last token.

    Left out: that a waiting sequence takes over pages in the middle of a wave, which lock-step sequences of one length
    never allow; and preemption, as pages for all tokens are set aside at the start.
    """

    def __init__(
        self,
        machine: Machine,
        model: ModelSpec,
        *,
        sequences: int,
        context: int,
        output: int,
        pool_bytes: float | None,
        told: Told = lambda tokens: None,
    ) -> None:
        self.machine, self._model, self._told = machine, model, told
        self._sequences, self._context, self._output = sequences, context, output
        self._pool_bytes = pool_bytes
        self.record = DecodeRecord()
        # Sequences that decoded together, and seconds of every step, wave after wave.
        self.waves: list[tuple[int, list[float]]] = []

    def run(self) -> Process:
        """Raises OutOfMemory when not even one sequence fits."""
        machine, left = self.machine, self._sequences
        each_bytes = paged_bytes(self._model, self._context, self._output)
        pool_bytes = machine.observe(1.0).free_bytes if self._pool_bytes is None else self._pool_bytes
        together = int(pool_bytes // each_bytes)
        if not together:
            what = f"the KV of one sequence takes {each_bytes / 2**20:,.0f} MiB"
            raise OutOfMemory(f"{what}, {pool_bytes / 2**20:,.0f} MiB are there for it")
        lease = machine.memory.reserve(min(left, together) * each_bytes, "kv")
        if isinstance(lease, Refused):
            raise OutOfMemory(str(lease))
        while left:
            wave = min(left, together)
            first = self._sequences - left
            left -= wave
            yield from self._wave(range(first, first + wave))
        lease.release()

    def _wave(self, wave: range) -> Process:
        """The wave before has ended: its pages are free."""
        machine, sequences, of = self.machine, len(wave), Batch(tuple(wave))
        admitted = Batch(of.sequences, released=tuple(range(wave.start)))
        done: tuple[Ticket, ...] = ()
        for layer in range(self._model.layers):
            prefill = PrefillLayer(sequences, self._context, layer, admitted if not layer else of)
            done = (machine.submit(prefill, after=done),)
        yield machine.submit(OutputHead(sequences, of=of), after=done)
        if self.record.prefill_s is None:
            self.record.prefill_s = machine.env.now
        steps_s: list[float] = []
        self.waves.append((sequences, steps_s))
        self.record.token_times_s.append(machine.env.now)
        for step in range(1, self._output):
            began_s = machine.env.now
            yield machine.submit(DecodeStep(sequences, self._context + step, of))
            steps_s.append(machine.env.now - began_s)
            self.record.token_times_s.append(machine.env.now)
            self._told(len(self.record.token_times_s))
