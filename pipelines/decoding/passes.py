"""Turns of requests through the layers, where all KV is in memory: with all weights there, or some elsewhere."""

from collections.abc import Callable
from itertools import groupby
from operator import itemgetter

from kvferry.machine.handles import Batch, Extents
from kvferry.machine.machine import Machine
from kvferry.machine.ops import DecodeAttention, DecodeStep, FeedForward, KvRef, OutputHead, PrefillLayer, RoutedExperts
from kvferry.machine.ticket import Ticket
from kvferry.policies.decode.attention_kernel import AttentionKernel
from kvferry.policies.decode.batcher import Turn
from kvferry.policies.engine_memory import value_bytes
from kvferry.policies.offload import ON_THEIR_WAY, Offload
from kvferry.specs.model import ModelSpec
from kvferry.specs.offload import CPU
from kvferry.specs.windows import seen

After = tuple[Ticket, ...]


class Passes:
    """Turns on the main processor, which attends as `attention` says, in each layer to as many of the newest tokens as
    `window_of` says (None: to all); all weights are in its memory."""

    def __init__(
        self,
        machine: Machine,
        layers: int,
        attention: AttentionKernel | None = None,
        window_of: Callable[[int], int | None] = lambda layer: None,
    ) -> None:
        self._machine, self._layers, self._attention = machine, layers, attention or AttentionKernel()
        self._window_of = window_of

    def submit(self, turn: Turn) -> Ticket:
        """Returns the ticket of the turn's tokens."""
        return self._decode(turn) if turn.kind == "decode" else self._prefill(turn)

    def _decode(self, turn: Turn) -> Ticket:
        n = len(turn.sequences)
        step = DecodeStep(n, sum(turn.tokens) / n, Batch(turn.sequences, turn.released), self._attention)
        return self._machine.submit(step)

    def _prefill(self, turn: Turn) -> Ticket:
        done: After = ()
        released = turn.released
        for layer in range(self._layers):
            ready = (*done, *self._before(layer))
            # Prompts of one length pass a layer in one op.
            for tokens, group in groupby(zip(turn.tokens, turn.sequences, strict=True), key=itemgetter(0)):
                sequences = tuple(sequence for _, sequence in group)
                together = Batch(sequences, released)
                window = self._window_of(layer)
                prefill = PrefillLayer(
                    len(sequences), tokens, layer, together, kernel=self._attention, window_tokens=window
                )
                ready, released = (self._machine.submit(prefill, after=ready),), ()
            done = ready
            self._behind(layer, sum(turn.tokens), done)
        return self._machine.submit(OutputHead(len(turn.sequences), of=Batch(turn.sequences)), after=done)

    def _before(self, layer: int) -> After:
        """Returns what a prompt waits for besides, before a layer."""
        return ()

    def _behind(self, layer: int, tokens: int, done: After) -> None:
        """Does what follows a layer of prompts of `tokens` together."""


class BroughtWeights(Passes):
    """The same where the weights of some layers are brought before each: over the copy path or from storage, in the
    order of layers, each as soon as there is room for it."""

    def __init__(self, machine: Machine, offload: Offload, attention: AttentionKernel) -> None:
        super().__init__(machine, offload.model.layers, attention, offload.model.window_of)
        self._offload = offload
        self._numbers = {layer: n for n, layer in enumerate(offload.away)}
        # Weights of each layer away, as they come in the pass under way.
        self._brought: list[Ticket] = []

    def _decode(self, turn: Turn) -> Ticket:
        n = len(turn.sequences)
        done: After = ()
        for layer in range(self._layers):
            window = self._window_of(layer)
            attended = sum(seen(tokens, window) for tokens in turn.tokens)
            attend = DecodeAttention(n, attended / n, kernel=self._attention)
            done = (self._token(layer, attend, done),)
        head = OutputHead(n, of=Batch(turn.sequences), paged=self._attention.paged)
        return self._machine.submit(head, after=done)

    def _token(self, layer: int, attend: DecodeAttention, done: After) -> Ticket:
        """Returns the ticket of a layer of one new token per sequence."""
        done = (self._layer(layer, attend, (*done, *self._before(layer))),)
        self._behind(layer, 0, done)
        return done[0]

    def _layer(self, layer: int, attend: DecodeAttention, after: After, *, routed: bool = True) -> Ticket:
        """Returns the ticket of a layer on the main processor, with a mixture's experts or without."""
        attended = self._machine.submit(attend, after=after)
        rest = FeedForward(attend.batch, layer, bool(self._attention.captured), routed)
        return self._machine.submit(rest, after=(attended,))

    def _before(self, layer: int) -> After:
        n = self._numbers.get(layer)
        if n is None:
            return ()
        if n == 0:
            self._brought = [self._bring(first, ()) for first in range(min(ON_THEIR_WAY, len(self._numbers)))]
        return (self._brought[n],)

    def _bring(self, n: int, after: After) -> Ticket:
        size = round(self._offload.layer_bytes)
        return self._machine.move(Extents((n * size,), (size,)), self._offload.spec.tier, "device", after=after)

    def _behind(self, layer: int, tokens: int, done: After) -> None:
        # There is room for others, in place of these weights.
        following = self._numbers.get(layer, len(self._numbers)) + ON_THEIR_WAY
        if following < len(self._numbers):
            self._brought.append(self._bring(following, done))


class OnCpu(BroughtWeights):
    """The same where the CPU computes new tokens with the weights that are away. Prompts are computed by the main
    processor, to which the weights are brought for them, once for each turn.

    Left out: that a runtime brings them once for every batch of a prompt's tokens (llama.cpp's `-ub`), and lets the CPU
    compute prompts of fewer than 32 tokens.
    """

    def __init__(self, machine: Machine, offload: Offload, attention: AttentionKernel, cpu: str) -> None:
        super().__init__(machine, offload, attention)
        self._cpu = cpu

    def _crossed(self, attend: DecodeAttention, after: After) -> Ticket:
        """Returns the ticket of hidden states that cross between the processors."""
        model = self._offload.model
        states = KvRef(0, 0, 0, None, attend.batch * model.hidden * value_bytes(model))
        return self._machine.move(states, "device", "host", after=after)


class LayersOnCpu(OnCpu):
    """Whole layers, the first ones, with attention and KV."""

    def _token(self, layer: int, attend: DecodeAttention, done: After) -> Ticket:
        if layer not in self._numbers:
            return self._layer(layer, attend, done)
        attended = self._machine.submit(attend, on=self._cpu, after=done)
        computed = self._machine.submit(FeedForward(attend.batch, layer), on=self._cpu, after=(attended,))
        return computed if layer + 1 in self._numbers else self._crossed(attend, (computed,))

    def _behind(self, layer: int, tokens: int, done: After) -> None:
        super()._behind(layer, tokens, done)
        if layer in self._numbers:
            kv = KvRef(0, 0, layer, None, tokens * self._offload.model.kv_entry_bytes)
            self._machine.move(kv, "device", "host", after=done)


class ExpertsOnCpu(OnCpu):
    """The experts that tokens are routed to; hidden states cross before and behind them."""

    def _token(self, layer: int, attend: DecodeAttention, done: After) -> Ticket:
        if layer not in self._numbers:
            return self._layer(layer, attend, done)
        before = self._crossed(attend, (self._layer(layer, attend, done, routed=False),))
        routed = self._machine.submit(RoutedExperts(attend.batch), on=self._cpu, after=(before,))
        return self._crossed(attend, (routed,))


def passes_of(machine: Machine, model: ModelSpec, attention: AttentionKernel, offload: Offload | None) -> Passes:
    """Returns how turns go through the layers of a model whose weights are all there (None), or lie as `offload` says.
    `machine`: its device has a CPU where the CPU computes."""
    if offload is None or not offload.layers:
        return Passes(machine, model.layers, attention, model.window_of)
    if offload.spec.to != "cpu":
        return BroughtWeights(machine, offload, attention)
    return (LayersOnCpu if offload.moves_kv else ExpertsOnCpu)(machine, offload, attention, CPU)
