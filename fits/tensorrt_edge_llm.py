"""Fit TensorRT-Edge-LLM on its page's rows of three Orin boards together, and say how far each is off.

python fits/tensorrt_edge_llm.py

The boards' own profiles were fitted on the same rows, each by itself; this is what the engine takes on all of them.
"""

import csv
from pathlib import Path
from typing import NamedTuple

import numpy as np

from kvferry.machine.ops import DecodeStep, Prefill
from kvferry.scenarios.loader import load_device, load_model
from kvferry.sim.costs.roofline import Roofline

ROWS = Path(__file__).resolve().parents[1] / "tests/data/tensorrt_edge_llm.csv"
TOKENS = 2048
SHARES = np.arange(0.4, 0.96, 0.01)
LAYER_S = np.arange(0, 155e-6, 10e-6)


class Row(NamedTuple):
    device: str
    model: str
    prefill_s: float
    step_s: float

    def costs(self, share: float, layer_s: float, gemm: float) -> Roofline:
        """The board's roofline with these numbers of the engine."""
        processor = load_device(self.device).processors["gpu"]
        numbers = {"gemv": share, "decode_attention": share, "gemm": gemm, "attention": gemm}
        efficiency = {**processor.efficiency, **numbers}
        changed = processor.model_copy(update={"efficiency": efficiency, "layer_s": layer_s})
        return Roofline(changed, load_model(self.model))

    def errors(self, share: float, layer_s: float, gemm: float) -> tuple[float, float]:
        """Logarithms of our prefill and decode step over the measured ones."""
        costs = self.costs(share, layer_s, gemm)
        ours_s = costs.cost(Prefill(TOKENS, 0)).duration_s, costs.cost(DecodeStep(1, TOKENS)).duration_s
        return float(np.log(ours_s[0] / self.prefill_s)), float(np.log(ours_s[1] / self.step_s))


def rows() -> list[Row]:
    with ROWS.open(newline="") as file:
        return [
            Row(row["device"], row["model"], float(row["prefill_ms"]) / 1e3, 1 / float(row["decode_tokens_per_s"]))
            for row in csv.DictReader(file)
        ]


def main() -> None:
    all_rows = rows()

    def loss(task: int, share: float, layer_s: float, gemm: float) -> float:
        return sum(row.errors(share, layer_s, gemm)[task] ** 2 for row in all_rows)

    share, layer_s = min(((a, b) for a in SHARES for b in LAYER_S), key=lambda found: loss(1, *found, 0.5))
    gemm = min(SHARES, key=lambda found: loss(0, share, layer_s, found))
    print(f"share {share:.2f}, layer {layer_s * 1e6:.0f} us, gemm and attention {gemm:.2f}")
    for row in all_rows:
        prefill, decoding = np.expm1(row.errors(share, layer_s, gemm))
        print(f"  {row.device:22} {row.model:12} prefill {prefill:+6.1%}, decode step {decoding:+6.1%}")


if __name__ == "__main__":
    main()
