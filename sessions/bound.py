"""How soon the first token of a turn could be there at best: a bound on what keeping, loading and order can save."""

from collections.abc import Callable, Collection, Sequence
from math import inf
from typing import Any

import numpy as np

from kvferry.backends.world import World
from kvferry.machine.ops import Op, OutputHead, PrefillLayer
from kvferry.pipelines.loading.stage import LoadingStage, price_s
from kvferry.policies.decode.attention_kernel import AttentionKernel
from kvferry.policies.loading.bound import first_enough_s
from kvferry.sessions.answering import AnswerStage, InMemory
from kvferry.sessions.room import memory_room
from kvferry.sessions.systems import SessionSystem
from kvferry.sim.storage_curve import StorageCurves
from kvferry.specs.link import NoLink
from kvferry.specs.scenario import Scenario
from kvferry.specs.storage import StorageSpec
from kvferry.specs.windows import LayersAlike
from kvferry.traces.rate import RateTrace
from kvferry.traces.stored import StoredContext
from kvferry.traces.turn import Turn, Turns

# The bound is known this closely.
_CLOSE = 1e-6
# Commands under way, and their sizes, among which the fastest are a storage's ceiling.
_MOST_READS, _READ_BYTES = 256, [2**power for power in range(12, 27)]


class PathsOfBlocks:
    """What link, processor and storage can bring of blocks that memory has no room for, within a wait.

    `stored` gives what a turn's prompt is encoded as; `flash_bytes`: of a block on storage.
    """

    def __init__(
        self,
        loading: LoadingStage,
        truth_s: Callable[[Op], Any],
        stored: Callable[[int], StoredContext],
        link: RateTrace | None,
        rtt_s: float,
        storage: StorageSpec | None,
        flash_bytes: float,
    ) -> None:
        self._loading, self._truth_s, self._stored = loading, truth_s, stored
        # None: no link.
        self._link, self._rtt_s = link, rtt_s
        self._blocks_per_s = 0.0 if storage is None else _fastest_bytes_per_s(storage) / flash_bytes

    def least_s(self, number: int, arrival_s: float, known: list[int], lacking: int, question_s: float) -> float:
        """Returns when `lacking` of the `known` blocks of a prompt can have come, the question being read, too.

        Proof. In the first s seconds behind its arrival the processor computes no more units than one of each column
        (that of the layer that takes least, taken to be free) and (s - question) / (what one of any other layer
        takes); the link brings no more than the smallest unit goes into its bytes; storage no more than by its fastest
        commands. Together that has to be all that is lacking. Queues, order, races and dependencies are left out.
        """
        context = self._loading.context(self._stored(number), number, np.array(known))
        problem = context.problem(self._truth_s)
        columns, layers = problem.columns_per_chunk, problem.layers
        each_s = np.sort(problem.compute_s.min(axis=(0, 2)))
        compute_s = float(each_s[min(1, len(each_s) - 1)])
        least_bytes = float(problem.stream_bytes.min()) * min(problem.level_scale)
        read_per_s = self._blocks_per_s * layers * columns

        def enough(elapsed_s: float) -> bool:
            if elapsed_s < question_s:
                return False
            computed = len(known) * columns + (elapsed_s - question_s) / compute_s
            from_s, until_s = arrival_s + self._rtt_s / 2, arrival_s + elapsed_s - self._rtt_s / 2
            came = 0.0 if self._link is None or until_s <= from_s else self._link.amount(from_s, until_s)
            return computed + came / least_bytes + read_per_s * elapsed_s >= lacking * layers * columns

        return first_enough_s(enough, question_s, _CLOSE)


def _fastest_bytes_per_s(storage: StorageSpec) -> float:
    curves = StorageCurves(storage)
    return max(_MOST_READS * size / curves.equal_s(_MOST_READS, size) for size in _READ_BYTES)


class WaitBound:
    """The least wait for each turn's first token on an idle device, whatever is kept, loaded and foreseen.

    What existed before a turn came may be in memory by then, as far as `room` blocks of it may be kept there; `paths`
    bring the rest, or None: that is free. What is new of its prompt is read once it has come, at the price `truth_s`.
    """

    def __init__(
        self,
        spans: Sequence[LayersAlike],
        kernel: AttentionKernel,
        truth_s: Callable[[Op], Any],
        block: int,
        room: float = inf,
        paths: PathsOfBlocks | None = None,
    ) -> None:
        self._spans, self._kernel, self._truth_s = spans, kernel, truth_s
        self._block, self._room, self._paths = block, room, paths
        # By what is new and what is known.
        self._question_s: dict[tuple[int, int], float] = {}

    def least_s(self, turn: Turn, number: int, arrival_s: float, existing: Collection[int]) -> float:
        """Returns it for a turn that came when these blocks existed somewhere."""
        useful = turn.blocks[: (turn.prompt - 1) // self._block]
        known = [n for n, block in enumerate(useful) if block in existing]
        tokens = len(known) * self._block
        question_s = self._read_s(turn.prompt - tokens, tokens)
        lacking = len(known) - self._room
        if self._paths is None or lacking <= 0:
            return question_s
        return max(question_s, self._paths.least_s(number, arrival_s, known, int(lacking), question_s))

    def _read_s(self, tokens: int, known: int) -> float:
        if (tokens, known) not in self._question_s:
            seconds = sum(n * self._layer_s(tokens, known, window) for n, window in self._spans)
            self._question_s[tokens, known] = seconds + float(self._truth_s(OutputHead(1)))
        return self._question_s[tokens, known]

    def _layer_s(self, tokens: int, known: int, window: int | None) -> float:
        layer = PrefillLayer(1, tokens, 0, kernel=self._kernel, context_tokens=known, window_tokens=window)
        return float(self._truth_s(layer))


def wait_bound(
    world: World,
    scenario: Scenario,
    system: SessionSystem,
    stage: AnswerStage,
    turns: Turns,
    loading: LoadingStage,
    uses_cloud: bool,
) -> WaitBound | None:
    """Returns the bound of a session, by the costs that its world obeys; None: a cloud helps, which reads as well.
    What memory has no room for costs nothing where turns decode from elsewhere, or no sizes are stored."""
    if system.assisting is not None:
        return None
    truth_s, paths, room = price_s(scenario, scenario.costs.truth), None, memory_room(scenario, turns)
    if isinstance(stage, InMemory) and uses_cloud:
        link = None if isinstance(scenario.link, NoLink) else world.rates.link
        rtt_s, storage = scenario.link.rtt_s, scenario.device.storage
        flash_bytes = stage.flash_bytes(turns.block)
        paths = PathsOfBlocks(loading, truth_s, world.content.stored, link, rtt_s, storage, flash_bytes)
    kernel = system.decoding.roles.attention
    return WaitBound(scenario.model.spans, kernel, truth_s, turns.block, room, paths)
