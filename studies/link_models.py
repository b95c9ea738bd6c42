"""Generated links beside what they were not fitted to: a model of each recording's first half, and the second half.

    KVFERRY_TRACES=traces-folder python studies/link_models.py

Each line: how far the correlation of one step is off, and how many per cent the 95th percentiles of the time that 2 s
and 10 s of data take are, for the model and for the first half itself, which says how much the recording changes.
"""

from collections.abc import Sequence

import numpy as np

from kvferry.specs.errors import InputError
from kvferry.traces.catalogue import catalogue, recorded_trace
from kvferry.traces.derived import trimmed
from kvferry.traces.fit import fit_bandwidth
from kvferry.traces.generate import generate
from kvferry.traces.rate import RateTrace
from kvferry.traces.statistics import statistics_of

SHORTEST_S = 120.0
SEEDS = range(8)


def main() -> None:
    rows = []
    print(f"{'':44s} {'model':>22s} {'first half':>22s}")
    for name in catalogue():
        trace = recorded_trace(name)
        if trace.duration_s < SHORTEST_S:
            continue
        first, second = (trimmed(trace, at, at + trace.duration_s / 2) for at in (0.0, trace.duration_s / 2))
        try:
            model = fit_bandwidth(first, "first-half")
        except InputError as error:
            print(f"{name:44s} {error}")
            continue
        drawn = np.median([_figures(generate(model, seed)) for seed in SEEDS], axis=0)
        rows.append((*_off(drawn, _figures(second)), *_off(_figures(first), _figures(second))))
        print(f"{name:44s} {_shown(rows[-1])}")
    for what, level in (("median of the absolute", 0.5), ("90 % of the absolute", 0.9)):
        print(f"{what:44s} {_shown(np.quantile(np.abs(rows), level, axis=0))}")


def _figures(trace: RateTrace) -> np.ndarray:
    found = statistics_of(trace)
    return np.array([found.autocorrelation_step or 0.0, *(times_s[1] for times_s in found.transfers_s if times_s)])


def _off(found: np.ndarray, wanted: np.ndarray) -> list[float]:
    return [found[0] - wanted[0], *(100 * (found[1:] / wanted[1:] - 1)).tolist()]


def _shown(row: Sequence[float]) -> str:
    return " ".join(f"{value:+6.2f}" if place % 3 == 0 else f"{value:+6.0f} %" for place, value in enumerate(row))


if __name__ == "__main__":
    main()
