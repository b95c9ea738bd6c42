"""Fit engines on public measurements of decoding, each over all devices that have rows.

python fits/engines.py show         # every row with the engines as they are
python fits/engines.py fit          # the best numbers of each engine
python fits/left_out.py             # fits without one device after the other, errors on the device left out

Free are, of an engine on a kind of processor: the share of the memory bandwidth that reading weights and KV reaches,
the fixed cost of a layer and of a step. What unpacking a weight takes is counted (fits/unpacking.py), not fitted. A
step is priced by the roofline that runs use. Rows whose `fitted` is empty are left out of the fits; `show` has them.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from kvferry.analysis.reproduction.measured_rates import MeasuredRate, measured_rates
from kvferry.machine.ops import DecodeStep
from kvferry.scenarios.loader import load_scenario
from kvferry.sim.costs.roofline import Roofline
from kvferry.specs.device import ProcessorSpec
from kvferry.specs.model import ModelSpec

SHARES = np.arange(0.5, 0.96, 0.01)
LAYER_S = np.arange(0, 305e-6, 10e-6)
STEP_S = np.arange(0, 2.1e-3, 1e-4)
Numbers = tuple[float, float, float]


@dataclass(frozen=True)
class Row:
    rate: MeasuredRate
    processor: ProcessorSpec
    model: ModelSpec

    def with_numbers(self, share: float, layer_s: float, step_s: float) -> ProcessorSpec:
        """The processor with these numbers of the engine."""
        numbers = {
            "efficiency": {**self.processor.efficiency, "gemv": share, "decode_attention": share},
            "layer_s": layer_s,
            "step_s": step_s,
        }
        return self.processor.model_copy(update=numbers)

    def seconds(self, share: float, layer_s: float, step_s: float) -> float:
        """A decode step's time with these numbers of the engine."""
        roofline = Roofline(self.with_numbers(share, layer_s, step_s), self.model)
        return roofline.cost(DecodeStep(1, self.rate.context_tokens)).duration_s + self.processor.dispatch_s


def rows() -> Iterator[Row]:
    for rate in measured_rates():
        if rate.metric == "decode":
            scenario = load_scenario("decode", rate.overrides())
            yield Row(rate, scenario.device.processors[scenario.device.main], scenario.model)


def as_they_are(row: Row) -> Numbers:
    own = row.processor
    return own.efficiency["gemv"], own.layer_s, own.step_s


def errors(chosen: Sequence[Row], numbers: Numbers) -> np.ndarray:
    """Ours over the measured rate, minus 1, of each row."""
    return np.array([1 / (row.seconds(*numbers) * row.rate.per_s) - 1 for row in chosen])


def fitted(chosen: Sequence[Row]) -> Numbers:
    """The numbers with the least mean square of the logarithm of ours over measured."""
    # Times are sums: a price at the whole bandwidth gives every row's reading and unpacking.
    layers = np.array([row.model.layers for row in chosen])
    measured_s = np.array([1 / row.rate.per_s for row in chosen])
    fixed_s = np.array([row.processor.dispatch_s for row in chosen])
    work_s = np.array([row.seconds(1.0, 0.0, 0.0) for row in chosen]) - fixed_s
    shares, layer_s, step_s = np.meshgrid(SHARES, LAYER_S, STEP_S, indexing="ij")
    loss = np.zeros(shares.shape)
    for n in range(len(chosen)):
        seconds = work_s[n] / shares + layers[n] * layer_s + step_s + fixed_s[n]
        loss += np.log(seconds / measured_s[n]) ** 2
    at = np.unravel_index(np.argmin(loss), loss.shape)
    return float(shares[at]), float(layer_s[at]), float(step_s[at])


def by_engine(all_rows: Sequence[Row]) -> dict[tuple[str, str], list[Row]]:
    found: dict[tuple[str, str], list[Row]] = {}
    for row in all_rows:
        found.setdefault((row.rate.engine, row.processor.kind), []).append(row)
    return found


def told(errors: np.ndarray) -> str:
    size = np.abs(errors)
    return f"median {np.median(size):.1%}, p90 {np.quantile(size, 0.9):.1%}, worst {size.max():.1%} of {size.size}"


def said(numbers: Numbers) -> str:
    share, layer_s, step_s = numbers
    return f"share {share:.2f}, layer {layer_s * 1e6:.0f} us, step {step_s * 1e3:.1f} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("show", "fit"))
    what = parser.parse_args().what
    every: list[float] = []
    for (engine, kind), chosen in by_engine([row for row in rows() if row.rate.fitted or what == "show"]).items():
        if what == "show":
            found = np.concatenate([errors([row], as_they_are(row)) for row in chosen])
            for row, error in zip(chosen, found):
                print(f"  {row.rate.device:22} {row.rate.model:14} {row.rate.per_s:7.1f} tokens/s {error:+7.1%}")
        else:
            numbers = fitted(chosen)
            found = errors(chosen, numbers)
            print(f"  {said(numbers)}")
        print(f"{engine} on a {kind}: {told(found)}")
        every += list(found)
    print(f"all: {told(np.array(every))}")


if __name__ == "__main__":
    main()
