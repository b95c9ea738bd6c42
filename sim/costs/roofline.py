"""The roofline: every work takes the longer of its arithmetic and its memory traffic."""

from dataclasses import replace
from typing import Any, get_args

import numpy as np

from kvferry.machine.ops import Number, Op
from kvferry.sim.cost import Cost
from kvferry.sim.costs.arithmetic import Work
from kvferry.sim.costs.op_rules import Arithmetic, OpRule, rule_of
from kvferry.sim.costs.peaks import flop_per_s, share_of
from kvferry.sim.costs.unpacking import unpacking_s_per_byte
from kvferry.specs.device import ProcessorSpec
from kvferry.specs.engine import Kernel
from kvferry.specs.model import ModelSpec


class Roofline:
    """Duration = fixed cost of the layers + sum over works of max(flop / rate, bytes / bandwidth); what the host does
    meanwhile, where that takes longer.

    Rates are the processor's peaks (sim/costs/peaks.py) times the efficiency of the work's kernel kind. The queue, not
    the roofline, adds ``dispatch_s`` and the effect of background load. On a processor with compiled shapes, prefill
    runs the next larger shape, or several of the largest.
    """

    def __init__(self, processor: ProcessorSpec, model: ModelSpec) -> None:
        self.arithmetic = Arithmetic(model)
        self._processor = processor
        self._layer_s = processor.layer_s
        self._shapes = np.sort(np.asarray(processor.compiled_tokens, dtype=np.int64))
        self._s_per_flop: dict[Kernel, float] = {}
        self._s_per_byte: dict[Kernel, float] = {}
        for kernel in get_args(Kernel):
            self._s_per_flop[kernel] = 1 / flop_per_s(processor, model, kernel)
            self._s_per_byte[kernel] = 1 / (processor.bytes_per_s * share_of(processor, kernel))
        unpacking_s = unpacking_s_per_byte(processor, model) / share_of(processor, "gemv")
        self._s_per_byte["gemv"] = max(self._s_per_byte["gemv"], unpacking_s)

    def cost(self, op: Op) -> Cost:
        """Seconds on an idle processor, and bytes of memory traffic, of one op with plain numbers."""
        op, rule = self.compiled(op), rule_of(type(op))
        seconds, n_bytes = self.price(rule.works(self.arithmetic, op))
        beside_s = rule.beside_s(self._processor, op)
        return Cost(max(self._fixed_s(rule, op) + self._launched_s(rule, op, seconds), beside_s), n_bytes)

    def durations_s(self, op: Op, *, load: Number = 0.0) -> np.ndarray:
        """Seconds of each op that the arrays in `op` describe, broadcast; equal to ``cost`` one by one.

        The roofline knows neither where active blocks lie nor the load.
        """
        op, rule = self.compiled(op), rule_of(type(op))
        beside_s, kernels_s = rule.beside_s(self._processor, op), self.price_arrays(rule.works(self.arithmetic, op))
        return np.maximum(self._fixed_s(rule, op) + self._launched_s(rule, op, kernels_s), beside_s)

    def _launched_s(self, rule: OpRule, op: Op, kernels_s: Any) -> Any:
        """Returns what kernels take that would take so long in a captured step: launched one by one, no less than
        that."""
        if not rule.eager(op):
            return kernels_s
        kernels_s = self._processor.eager_slowdown * kernels_s
        floor_s = self._processor.eager_floor_s * rule.passes(self.arithmetic)
        return np.maximum(kernels_s, floor_s) if isinstance(kernels_s, np.ndarray) else max(kernels_s, floor_s)

    def fixed_s(self, op: Op) -> Any:
        """Time outside of kernels: the fixed cost of each layer that the op runs through, launched kernel by kernel or
        not, and the host's work."""
        return self._fixed_s(rule_of(type(op)), op)

    def _fixed_s(self, rule: OpRule, op: Op) -> Any:
        layer_s = self._layer_s
        if rule.eager(op):
            layer_s += self._processor.eager_layer_s or 0.0
        return rule.fixed_s(self._processor, op) + layer_s * rule.passes(self.arithmetic)

    def price(self, works: list[Work]) -> tuple[float, float]:
        """Seconds and bytes of works with plain numbers."""
        seconds = total_bytes = 0.0
        for kernel, flop, n_bytes in works:
            compute_s = flop * self._s_per_flop[kernel]
            memory_s = n_bytes * self._s_per_byte[kernel]
            seconds += compute_s if compute_s > memory_s else memory_s
            total_bytes += n_bytes
        return seconds, total_bytes

    def price_arrays(self, works: list[Work]) -> np.ndarray:
        """Seconds of works with arrays, or arrays and numbers."""
        seconds = np.asarray(0.0)
        for kernel, flop, n_bytes in works:
            compute_s = np.multiply(flop, self._s_per_flop[kernel])
            seconds = seconds + np.maximum(compute_s, np.multiply(n_bytes, self._s_per_byte[kernel]))
        return seconds

    def compiled(self, op: Op) -> Op:
        """The op with its tokens rounded up to compiled shapes; the op itself on a processor that has none."""
        if not self._shapes.size or not rule_of(type(op)).compiled:
            return op
        sized: Any = op
        changed: Op = replace(sized, tokens=round_up(sized.tokens, self._shapes))
        return changed


def round_up(tokens: Number, shapes: np.ndarray) -> Number:
    """`tokens` rounded up to compiled shapes (ascending): full ones of the largest, then one that fits the rest."""
    whole, rest = np.divmod(tokens, shapes[-1])
    rounded = whole * shapes[-1] + np.where(rest > 0, shapes[np.searchsorted(shapes, rest)], 0)
    return rounded if rounded.ndim else int(rounded)
