"""What becomes of measurements: fits, tables, journal, power; by hand, and without torch."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvferry.calibration.fit import Timed, fit_roofline, fixed_and_rate, non_negative
from kvferry.calibration.journal import NAME, Journal
from kvferry.calibration.measurement import Measurement, repeated
from kvferry.calibration.tables import errors_off_grid, tables, timed_ops
from kvferry.machine.ops import Advance, DecodeStep, Prefill, Project
from kvferry.scenarios.loader import load_device, load_model
from kvferry.sim.costs.roofline import Roofline
from kvferry.sim.costs.table import MeasuredTable
from kvferry.specs.device import ProcessorSpec
from kvferry.specs.errors import InputError
from kvferry.traces.chunks import causal_blocks

TINY = load_model("tiny")


def seconds(*values: float, what: str = "prefill", **at: float) -> Measurement:
    return Measurement(what=what, unit="s", values=values, at=at)


# --- fits ------------------------------------------------------------------------------------------------------


def test_one_kernel_by_hand() -> None:
    # K and V of one layer of tiny: 2 x 64 x 32 weights, 8,192 flop a token. 1,000 tokens at 1 Gflop/s: 8.192 ms
    # (their 2,048 bytes at 1 GB/s are nothing beside that). It took twice, then four times as long: 1/e of 2 and 4,
    # of which the relative error is least at x: sum (x/2 - 1)^2 + (x/4 - 1)^2, x (1/4 + 1/16) = 1/2 + 1/4, x = 2.4.
    timed = [Timed(Project(1000), 2 * 8.192e-3), Timed(Project(1000), 4 * 8.192e-3)]
    fit = fit_roofline(TINY, timed, 1e9, 1e9)
    assert fit.efficiency == {"gemm": pytest.approx(1 / 2.4)}
    assert (fit.layer_s, fit.raised) == (0.0, 1.0)
    assert fit.errors["Project"] == pytest.approx((0.3, 0.4, 2))


def test_peaks_are_raised_where_an_op_is_faster() -> None:
    # twice as fast as the peak: the peak was wrong
    fit = fit_roofline(TINY, [Timed(Project(1000), 4.096e-3)], 1e9, 1e9)
    assert (fit.efficiency, fit.raised) == ({"gemm": 1.0}, pytest.approx(2.0))


def test_kinds_of_ops_count_alike_however_many_points_they_have() -> None:
    # Projections took twice the peak's time, an advance four times: 2.4 as above, though there are two of the former.
    peak = Roofline(ProcessorSpec(kind="cpu", flop_per_s=1e9, bytes_per_s=1e12, default_efficiency=1.0), TINY)
    project, advance = Project(1000), Advance(1000, 0, 0)
    timed = [Timed(project, 2 * peak.cost(project).duration_s)] * 2
    timed.append(Timed(advance, 4 * peak.cost(advance).duration_s))
    fit = fit_roofline(TINY, timed, 1e9, 1e12, fixed=False)
    assert fit.efficiency["gemm"] == pytest.approx(1 / 2.4)


@settings(max_examples=25, deadline=None)
@given(st.tuples(*[st.floats(0.05, 1.0)] * 4), st.floats(0, 1e-3))
def test_a_roofline_is_found_again(shares: tuple[float, ...], layer_s: float) -> None:
    names = ("gemm", "gemv", "attention", "decode_attention")
    spec = ProcessorSpec(
        kind="cpu",
        flop_per_s=1e9,
        bytes_per_s=1e8,
        efficiency=dict(zip(names, shares, strict=True)),  # type: ignore[arg-type]
        layer_s=layer_s,
    )
    roofline = Roofline(spec, TINY)
    ops = [Project(n) for n in (10, 1000)] + [Prefill(n, c) for n in (50, 600) for c in (0, 3000)]
    ops += [DecodeStep(1, c) for c in (10, 4000)]
    fit = fit_roofline(TINY, [Timed(op, roofline.cost(op).duration_s) for op in ops], 1e9, 1e8)
    again = ProcessorSpec(
        kind="cpu",
        flop_per_s=1e9 * fit.raised,
        bytes_per_s=1e8 * fit.raised,
        efficiency=fit.efficiency,  # type: ignore[arg-type]
        layer_s=fit.layer_s,
    )
    for op in ops:
        assert Roofline(again, TINY).cost(op).duration_s == pytest.approx(roofline.cost(op).duration_s, rel=1e-6)


def test_kernels_that_cannot_be_told_apart_share_an_efficiency() -> None:
    roofline = Roofline(ProcessorSpec(kind="cpu", flop_per_s=1e9, bytes_per_s=1e8, default_efficiency=0.25), TINY)
    timed = [Timed(op, roofline.cost(op).duration_s) for op in (Prefill(64, 0), Prefill(512, 0), DecodeStep(1, 32))]
    alike = {"attention": "gemm", "decode_attention": "gemv"}
    fit = fit_roofline(TINY, timed, 1e9, 1e8, alike, fixed=False)
    assert fit.efficiency == pytest.approx(dict.fromkeys(("attention", "decode_attention", "gemm", "gemv"), 0.25))


@given(st.lists(st.tuples(*[st.floats(-3, 3)] * 4), min_size=4, max_size=8))
def test_non_negative_least_squares_meets_its_conditions(rows: list[tuple[float, ...]]) -> None:
    # The gradient is 0 where an entry is above 0, and pushes below 0 where it is 0 (Karush, Kuhn and Tucker); or the
    # parabola along that entry has next to nothing to gain.
    columns, target = np.array(rows)[:, :3], np.array(rows)[:, 3]
    found = non_negative(columns, target, np.ones(len(rows)))
    gradient = columns.T @ (columns @ found - target)
    assert (found >= 0).all()
    downhill = np.where(found > 0, gradient, np.minimum(gradient, 0))
    gain = downhill**2 / np.maximum(2 * (columns**2).sum(axis=0), 1e-30)
    assert (gain <= 1e-7 * (target @ target)).all()


def test_a_fixed_time_and_a_rate() -> None:
    # 1 s and 10 a second: 2 s for 10, 6 s for 50
    assert fixed_and_rate([(10, 2.0), (50, 6.0)]) == pytest.approx((1.0, 10.0))
    # less takes longer: noise, and nothing but a rate is left
    fixed_s, rate = fixed_and_rate([(10, 6.0), (50, 5.0)])
    assert fixed_s >= 0 and rate > 0


# --- tables ----------------------------------------------------------------------------------------------------


def grid() -> list[Measurement]:
    """Dense ops of a made-up device: seconds from their place in the grid, three repetitions around the mean."""
    measured = []
    for n, context in enumerate((0.0, 1024.0, 4096.0), 1):
        for m, tokens in enumerate((256.0, 1024.0), 1):
            mean = n * 0.01 + m * 0.001
            at = {"context": context, "density": 1.0, "tokens": tokens}
            measured.append(seconds(mean * 0.5, mean, mean * 1.5, what="advance", **at))
            measured.append(seconds(m * 1e-3 * n, what="project", **at))
            measured.append(seconds(mean, what="prefill", context=context, tokens=tokens))
        measured.append(seconds(n * 0.1, what="decode_step", context=context))
    return measured


def test_the_written_table_gives_what_was_measured(tmp_path: Path) -> None:
    for file, content in tables(grid()).items():
        (tmp_path / file).write_bytes(content)
    costs = MeasuredTable.read(tmp_path, Roofline(load_device("tiny").processors["gpu"], TINY))
    for n, context in enumerate((0, 1024, 4096), 1):
        for m, tokens in enumerate((256, 1024), 1):
            blocks = causal_blocks(tokens, context) * TINY.kv_heads
            wanted = pytest.approx(n * 0.01 + m * 0.001, rel=1e-12)
            # dense: however many blocks matter
            assert costs.cost(Advance(tokens, blocks, context)).duration_s == wanted
            assert costs.cost(Advance(tokens, blocks // 4, context)).duration_s == wanted
            assert costs.cost(Prefill(tokens, context)).duration_s == wanted
            # pooled over contexts: the mean of 1, 2 and 3 times m ms
            assert costs.cost(Project(tokens)).duration_s == pytest.approx(2e-3 * m)
        assert costs.cost(DecodeStep(1, context)).duration_s == pytest.approx(n * 0.1)
    assert costs.warnings == ()


def test_densities_are_an_axis_where_they_were_measured(tmp_path: Path) -> None:
    measured = [
        seconds(context + density, what="advance", context=context, density=density, tokens=tokens)
        for context in (0.0, 1024.0)
        for density in (0.25, 1.0)
        for tokens in (128.0, 1024.0)
    ]
    (tmp_path / "advance.csv").write_bytes(tables(measured)["advance.csv"])
    costs = MeasuredTable.read(tmp_path, Roofline(load_device("tiny").processors["gpu"], TINY))
    blocks = 0.25 * causal_blocks(1024, 1024) * TINY.kv_heads
    assert costs.cost(Advance(1024, blocks, 1024)).duration_s == pytest.approx(1024.25)


def test_half_a_grid_and_a_single_point_are_no_table() -> None:
    corner = [seconds(1.0, context=0.0, tokens=16.0), seconds(1.0, context=1024.0, tokens=16.0)]
    assert tables(corner) == {}
    assert tables([*corner, seconds(1.0, context=0.0, tokens=64.0)]) == {}
    assert list(tables([*corner, *(seconds(1.0, context=c, tokens=64.0) for c in (0.0, 1024.0))])) == ["prefill.csv"]


def test_tables_are_checked_between_their_points() -> None:
    # Between 1,024 and 4,096, and 256 and 1,024 tokens, the table says 0.025 + 0.0015; it took a tenth more.
    middle = seconds(0.0265 * 1.1, what="check advance", context=2560.0, density=1.0, tokens=640.0)
    processor = load_device("tiny").processors["gpu"]
    assert errors_off_grid([*grid(), middle], TINY, processor) == pytest.approx([1 - 1 / 1.1])
    assert errors_off_grid([middle], TINY, processor) == []


def test_points_become_ops() -> None:
    ops = {type(each.op): each for each in timed_ops(grid(), TINY)}
    assert ops[Prefill] == Timed(Prefill(1024, 4096), pytest.approx(0.032))  # type: ignore[arg-type]
    assert ops[Advance].op == Advance(1024, causal_blocks(1024, 4096) * TINY.kv_heads, 4096)


# --- repetitions -----------------------------------------------------------------------------------------------


class Clock:
    """Every look takes a second, every sample five."""

    def __init__(self, sample_s: float) -> None:
        self.now, self.sample_s, self.calls = 0.0, sample_s, 0

    def __call__(self) -> float:
        return self.now

    def sample(self) -> list[float]:
        self.now += self.sample_s
        self.calls += 1
        return [float(self.calls)]


def test_the_first_repetition_warms_up() -> None:
    # 20 s in all: 5 to warm up, then until 10 s and at least twice
    clock = Clock(5.0)
    assert repeated(clock.sample, least=2, seconds=20.0, clock=clock) == (2.0, 3.0)


def test_what_takes_long_is_not_done_again() -> None:
    # 30 s: the warm-up counts, and nothing more fits
    clock = Clock(30.0)
    assert repeated(clock.sample, least=3, seconds=20.0, clock=clock) == (1.0, 2.0)


def test_spread_lies_between_the_quartiles() -> None:
    # quartiles of 1..5 are 2 and 4, the median is 3
    assert seconds(5, 1, 4, 2, 3).spread == pytest.approx(2 / 3)


# --- journal ---------------------------------------------------------------------------------------------------

HERE = {"model": "tiny", "threads": 1}


def test_a_journal_goes_on_where_it_was(tmp_path: Path) -> None:
    Journal(tmp_path, HERE).add("a", [seconds(1.0, 2.0, context=3.0)])
    again = Journal(tmp_path, HERE)
    assert again.done == {"a": [seconds(1.0, 2.0, context=3.0)]}
    again.add("b", [])
    assert list(Journal(tmp_path, HERE).done) == ["a", "b"]
    assert Journal(tmp_path, HERE, fresh=True).done == {}


def test_a_line_that_was_being_written_does_not_count(tmp_path: Path) -> None:
    Journal(tmp_path, HERE).add("a", [seconds(1.0)])
    with (tmp_path / NAME).open("a") as file:
        file.write('{"task": "b", "measu')
    again = Journal(tmp_path, HERE)
    assert list(again.done) == ["a"]
    again.add("c", [seconds(2.0)])
    assert list(Journal(tmp_path, HERE).done) == ["a", "c"]


def test_a_journal_of_other_settings_is_refused(tmp_path: Path) -> None:
    Journal(tmp_path, HERE)
    with pytest.raises(InputError, match=r"other settings \(threads: 1, now 2\).*--fresh"):
        Journal(tmp_path, {**HERE, "threads": 2})


@pytest.mark.parametrize(
    "content",
    [
        "[1]\n",
        "nonsense\n",
        '{"format": "other", "settings": {}}\n',
        json.dumps({"format": "kvferry-calibration 2", "settings": HERE}) + '\n{"task": "a"}\n',
        json.dumps({"format": "kvferry-calibration 2", "settings": HERE})
        + '\n{"task": "a", "measured": [{"what": "x", "at": {}, "unit": "s", "values": ["?"]}]}\n',
    ],
)
def test_what_is_no_journal_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / NAME).write_text(content)
    with pytest.raises(InputError, match=r"journal.jsonl:[12]: .*--fresh"):
        Journal(tmp_path, HERE)


def test_a_folder_that_cannot_be_written_is_the_users_to_mend(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="another --output"):
        Journal(tmp_path / "file", HERE)
