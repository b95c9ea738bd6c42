"""How fast traces are asked, read and made, each beside its ceiling: python benchmarks/traces.py"""

import tempfile
from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import numpy as np

from kvferry.traces.format import StoredTrace, read_trace, write_trace
from kvferry.traces.generate import generate
from kvferry.traces.logs import Log, mahimahi, stamped
from kvferry.traces.rate import RateTrace
from kvferry.traces.resolve import bundled_model


def seconds_per_call(call: Callable[[], object], least_s: float = 0.2) -> float:
    """The best of five rounds."""
    n, took = 1, 0.0
    while took < least_s / 5:
        n *= 4
        took = _round_s(call, n)
    return min(_round_s(call, n) for _ in range(5)) / n


def _round_s(call: Callable[[], object], n: int) -> float:
    began = perf_counter()
    for _ in range(n):
        call()
    return perf_counter() - began


def row(what: str, took_s: float, ceiling: str, ceiling_s: float) -> None:
    print(f"{what:<52}{_time(took_s):>10}   {ceiling:<44}{_time(ceiling_s):>10}{took_s / ceiling_s:>7.1f}x")


def _time(value_s: float) -> str:
    return f"{value_s * 1e6:.2f} us" if value_s < 1e-3 else f"{value_s * 1e3:.1f} ms"


def main() -> None:
    rng = np.random.default_rng(1)
    trace = RateTrace.from_samples(rng.uniform(0, 1e8, 6000), 0.1)
    edges = trace.edges_s.tolist()
    two_look_ups = seconds_per_call(lambda: (bisect_right(edges, 3.3), bisect_right(edges, 3.3)))
    print(f"{'':<52}{'took':>10}   {'ceiling':<44}{'':>10}{'ratio':>8}")
    for what, call in (
        ("finish_s within a piece", lambda: trace.finish_s(3.31, 1e5)),
        ("finish_s over 100 pieces", lambda: trace.finish_s(3.31, 5e8)),
        ("finish_s in the hundredth loop", lambda: trace.finish_s(60_003.3, 5e8)),
        ("amount over 60 pieces", lambda: trace.amount(3.3, 9.9)),
        ("amount over a hundred loops", lambda: trace.amount(3.3, 60_009.9)),
        ("rate_at", lambda: trace.rate_at(77.7)),
    ):
        row(what, seconds_per_call(call), "two bisections of its edges", two_look_ups)
    model = bundled_model("wifi-850")
    noise_s = seconds_per_call(lambda: rng.standard_normal(6000 * (1 + len(model.memory))))  # type: ignore[union-attr]
    row("generate wifi-850 (6,000 samples)", seconds_per_call(lambda: generate(model)), "its random numbers", noise_s)
    text = [f"{n / 10:.1f} {rate:.3f}" for n, rate in enumerate(rng.uniform(0, 900, 20_000))]
    numbers_s = seconds_per_call(lambda: [[float(cell) for cell in line.split()] for line in text])
    log = Log(Path("log"), text)
    row(
        "import 20,000 stamped rows",
        seconds_per_call(lambda: stamped(log)),
        "splitting and float() of the rows",
        numbers_s,
    )
    stamps = [str(n) for n in np.sort(rng.integers(0, 140_000, 100_000))]
    integers_s = seconds_per_call(lambda: [int(stamp) for stamp in stamps])
    packets = Log(Path("log"), stamps)
    row(
        "import 100,000 mahimahi packets", seconds_per_call(lambda: mahimahi(packets)), "int() of the lines", integers_s
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.csv"
        write_trace(path, StoredTrace("bandwidth", trace))
        plain_s = seconds_per_call(lambda: [line.split(",") for line in path.read_text().splitlines()])
        row(
            "read a trace of 6,000 pieces",
            seconds_per_call(lambda: read_trace(path)),
            "reading and splitting its lines",
            plain_s,
        )


if __name__ == "__main__":
    main()
