"""Pictures: what they show is checked on their artists, how they are made on their bytes."""

import sys
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from kvferry.analysis import style
from kvferry.analysis.compare import compare_gantt
from kvferry.analysis.compare_bars import compare_bars
from kvferry.analysis.gantt import LANE_SLOTS, gantt, view_of
from kvferry.analysis.plots import PLOTS, Axis, cdf, heat_map, line
from kvferry.analysis.style import KINDS, kind_of, render
from kvferry.machine.span import Span
from kvferry.pipelines.record import RequestRecord, Run
from kvferry.specs.errors import InputError


def run(ttft_s: float = 2.0, arrival_s: float = 0.0, request: int = 0) -> Run:
    """One request: half of its units streamed in its first second, half computed until 0.5 s before the first token."""
    zero = arrival_s
    return Run(
        outcome="done",
        requests=(
            RequestRecord(
                request=request, arrival_s=zero, loaded_s=zero + ttft_s - 0.5, first_token_s=zero + ttft_s,
                token_times_s=(zero + ttft_s, zero + ttft_s + 0.25), units_computed=50, units_streamed=50,
            ),
        ),
        spans=(
            Span("link", "fetch", zero, zero + 1.0, 1e6, request),
            Span("gpu", "Project", zero, zero + ttft_s - 0.5, request=request),
            Span("gpu", "Prefill", zero + ttft_s - 0.5, zero + ttft_s, request=request),
            Span("gpu", "DecodeStep", zero + ttft_s, zero + ttft_s + 0.25, request=request),
        ),
        duration_s=zero + ttft_s + 0.25,
        link_times_s=(zero, zero + 2.0, zero + 4.0),
        link_bytes_per_s=(1e6, 2e6),
    )  # fmt: skip


def together(*runs: Run) -> Run:
    return Run(
        outcome="done",
        requests=tuple(request for each in runs for request in each.requests),
        spans=tuple(span for each in runs for span in each.spans),
        duration_s=max(each.duration_s for each in runs),
        link_times_s=(0.0, 20.0),
        link_bytes_per_s=(1e6,),
    )


def panels(figure: Any) -> Any:
    """The axes, for looking into with no regard to matplotlib's annotations."""
    return figure.axes


def titles(figure: Any) -> list[str]:
    return [axis.get_title(loc="left") for axis in panels(figure)]


def texts(axis: Any) -> list[str]:
    return [text.get_text() for text in axis.texts]


def steps(axis: Any, label: str) -> tuple[np.ndarray, np.ndarray]:
    patch = next(p for p in axis.patches if p.get_label() == label)
    return patch.get_data().values, patch.get_data().edges


@pytest.fixture(autouse=True)
def house_style() -> Any:
    with mpl.rc_context(style.RC):
        yield


@pytest.mark.parametrize(
    ("resource", "label", "kind"),
    [
        ("link", "fetch", "streamed"), ("decompress", "Decompress", "streamed"), ("copy", "", "copied"),
        ("gpu", "PrefillHead", "computed"), ("gpu", "Project", "computed"), ("npu", "Advance(3, 2)", "computed"),
        ("gpu", "Prefill", "prefill"), ("gpu", "prefill of the prompt", "prefill"), ("gpu", "DecodeStep", "decode"),
        ("gpu", "DecodeAttention", "decode"), ("gpu", "", "other"), ("gpu", "7", "other"),
        ("storage", "read", "storage"),
    ],
)  # fmt: skip
def test_kinds(resource: str, label: str, kind: str) -> None:
    assert kind_of(Span(resource, label, 0.0, 1.0)) == kind


def test_kinds_differ_without_colour() -> None:
    assert len({kind.hatch for kind in KINDS.values()}) == len(KINDS)


def test_a_request_by_its_panels() -> None:
    figure = gantt(run(), title="quickstart: ferry")
    assert titles(figure) == ["Link", "Context KV: computed from below, streamed from above", "Paths"]
    rate, context, lanes = panels(figure)
    assert "first token after 2.00 s" in texts(rate)
    # The offered rate ends where the picture does (2.25 s and 2 % of air), the delivered area after a second.
    values, edges = steps(rate, "link rate")
    assert values[[0, -1]] == pytest.approx([8.0, 16.0])
    assert edges[-1] == pytest.approx(2.25 * 1.02)
    values, edges = steps(rate, "delivered")
    assert float((values * np.diff(edges)).sum()) == pytest.approx(8.0, rel=1e-6)
    assert texts(context) == ["50 % streamed", "50 % computed"]
    assert [label.get_text() for label in lanes.get_yticklabels()] == ["gpu", "link"]
    # 1 of 2.25 s, all of it
    assert texts(lanes) == ["busy 100 %", "busy 44 %"]


def test_the_context_fills_up_from_both_ends() -> None:
    below, above = panels(gantt(run()))[1].collections
    # At 0.75 s: half of the computing (until 1.5 s) and three quarters of the streaming are done: 25 % and 37.5 %.
    points = below.get_paths()[0].vertices
    assert np.interp(0.75, *_upper(points, max)) == pytest.approx(25, abs=0.3)
    assert np.interp(0.75, *_upper(above.get_paths()[0].vertices, min)) == pytest.approx(62.5, abs=0.3)


def _upper(points: np.ndarray, pick: Any) -> tuple[np.ndarray, np.ndarray]:
    at = np.unique(points[:, 0])
    return at, np.array([pick(points[points[:, 0] == x, 1]) for x in at])


def test_lanes_show_how_busy_and_stay_sharp() -> None:
    # Busy for every other millisecond: half full. One solid stretch that begins between two slots.
    spans = tuple(Span("gpu", "Project", i * 2e-3, i * 2e-3 + 1e-3) for i in range(500))
    solid = Span("gpu", "Prefill", 1.00123, 1.5)
    lanes = panels(gantt(Run(outcome="done", spans=(*spans, solid))))[0]
    half, full = lanes.patches[0].get_data(), lanes.patches[1].get_data()
    assert np.median(half.values[half.edges[:-1] < 0.99]) == pytest.approx(0.4, abs=0.1)
    assert full.values.max() == pytest.approx(0.8)
    assert np.abs(full.edges - 1.00123).min() < 1e-9


def test_many_spans_make_a_small_picture() -> None:
    spans = tuple(Span("gpu", "Project", i * 1e-4, i * 1e-4 + 5e-5) for i in range(60_000))
    lane = panels(gantt(Run(outcome="done", spans=spans)))[0].patches[0]
    assert len(lane.get_data().values) <= LANE_SLOTS + 2


def test_several_requests_show_what_each_waited_for() -> None:
    figure = gantt(together(run(2.0, 0.0, 0), run(3.0, 5.0, 1)))
    assert titles(figure) == ["Link", "Paths", "Requests: what each waited for"]
    bars = [(bar.get_x(), bar.get_width(), bar.get_y() > 0) for bar in panels(figure)[-1].patches]
    assert bars == [
        (0.0, 1.5, False), (5.0, 2.5, True), (1.5, 0.5, False), (7.5, 0.5, True), (2.0, 0.25, False), (8.0, 0.25, True)
    ]  # fmt: skip


def test_a_view_of_one_request_starts_at_its_arrival() -> None:
    view = view_of(together(run(2.0, 0.0, 0), run(3.0, 1.0, 1)), 1)
    (record,) = view.requests
    assert (record.arrival_s, record.first_token_s, record.token_times_s) == (0.0, 3.0, (3.0, 3.25))
    # Request 0's spans are there from 1 s on, cut at the view's start; its link span ended at 1 s and is not.
    others = [(s.resource, s.start_s, s.end_s) for s in view.spans if s.request == 0]
    assert others == [("gpu", 0.0, 0.5), ("gpu", 0.5, 1.0), ("gpu", 1.0, 1.25)]
    assert view.link_times_s == (-1.0, 19.0)
    with pytest.raises(ValueError, match="no request 9"):
        view_of(view, 9)


def test_systems_on_one_time_axis_fastest_first() -> None:
    failed = Run(outcome="out_of_memory")
    figure = compare_gantt({"slow": run(3.0), "fast": run(1.0), "none": failed})
    assert titles(figure) == ["Link", "fast: 1.00 s", "slow: 3.00 s", "none"]
    assert panels(figure)[-1].get_title(loc="right") == "out of memory"
    assert len({axis.get_xlim() for axis in panels(figure)}) == 1
    with pytest.raises(ValueError, match="nothing to draw"):
        compare_gantt({"none": failed})


def test_the_request_shown_has_the_median_ttft_of_the_fastest() -> None:
    # fast: 1.5, 3, 2 s -> request 2; slow would say request 0.
    fast = together(run(1.5, 0.0, 0), run(3.0, 5.0, 1), run(2.0, 10.0, 2))
    slow = together(run(4.0, 0.0, 0), run(3.5, 5.0, 1), run(5.0, 10.0, 2))
    figure = compare_gantt({"slow": slow, "fast": fast})
    assert titles(figure) == ["Link", "fast: 2.00 s", "slow: 5.00 s"]


def test_a_comparison_says_which_request_it_shows_and_of_how_many() -> None:
    runs = {"a": together(run(1.5, 0.0, 0), run(3.0, 5.0, 1), run(2.0, 10.0, 2))}
    assert compare_gantt(runs, title="quickstart").get_suptitle() == "quickstart, request 2, one of 3"
    assert compare_gantt({"a": run()}, title="quickstart").get_suptitle() == "quickstart"


def test_bars_say_who_answers_at_lower_quality() -> None:
    bits = {"cachegen": 1.14, "sparkv": 2.99}
    left, _ = panels(compare_bars({n: {"ttft_s": 1.0, "streamed_bits_per_value": b} for n, b in bits.items()}))
    assert [label.get_text() for label in left.get_yticklabels()] == ["cachegen * (1.14 bits)", "sparkv"]


def test_requests_that_met_different_links_are_not_compared() -> None:
    # Request 1 came at 5 s in one run and at 6 s in the other: only request 0 saw the same link in both.
    fast, slow = together(run(1.5, 0.0, 0), run(1.0, 5.0, 1)), together(run(4.0, 0.0, 0), run(3.5, 6.0, 1))
    figure = compare_gantt({"slow": slow, "fast": fast})
    assert titles(figure) == ["Link", "fast: 1.50 s", "slow: 4.00 s"]
    assert titles(compare_gantt({"slow": slow, "fast": fast}, request=1)) == ["fast: 1.00 s", "slow: 3.50 s"]


def test_the_axis_ends_before_systems_that_take_several_times_as_long() -> None:
    figure = compare_gantt({"a": run(1.0), "b": run(2.0), "far": run(9.0)})
    # Runs go on a quarter of a second after the first token: the axis ends soon after 2.25 s.
    assert 2.25 < panels(figure)[0].get_xlim()[1] < 2.5
    assert panels(figure)[-1].get_title(loc="right").startswith("goes on to 9.00 s")
    even = compare_gantt({"a": run(1.0), "b": run(2.0), "c": run(3.0)})
    assert panels(even)[0].get_xlim()[1] > 3.25


def test_bars_tell_the_figures() -> None:
    metrics: dict[str, dict[str, float]] = {
        "slow": {"ttft_s": 3.0, "energy_j": 5.0, "energy_gpu_j": 5.0},
        "fast": {"ttft_s": 1.5, "energy_j": 9.0, "energy_gpu_j": 7.0, "energy_base_j": 2.0},
        "none": {},
    }
    left, right = panels(compare_bars(metrics))
    assert [label.get_text() for label in left.get_yticklabels()] == ["fast", "slow", "none"]
    assert texts(left) == ["1.50 s", "3.00 s  (2.00x)", "none"]
    assert texts(right) == ["9.00 J", "5.00 J", "not counted"]
    # base, then gpu behind it
    assert [bar.get_width() for bar in right.patches] == [2.0, 0, 0, 7.0, 5.0, 0]
    assert [bar.get_x() for bar in right.patches] == [0, 0, 0, 2.0, 0, 0]


TABLE = pd.DataFrame(
    [
        {"system": system, "rate": rate, "seed": seed, "ttft_s": factor * (1 + seed) / rate}
        for system, factor in (("ferry", 1.0), ("sparkv", 2.0))
        for rate in (200.0, 100.0)
        for seed in (0, 1, 2)
    ]
)


def test_a_line_has_the_median_and_its_band() -> None:
    figure = line(TABLE, Axis("rate", "link (Mbit/s)"), Axis("ttft_s", "TTFT (ms)", 1e3), by="system", band="min-max")
    (axis,) = panels(figure)
    assert (axis.get_xlabel(), axis.get_ylabel()) == ("link (Mbit/s)", "TTFT (ms)")
    assert [text.get_text() for text in axis.get_legend().get_texts()] == ["ferry", "sparkv"]
    # seeds give 1, 2 and 3 hundredths of a second at 100
    assert axis.lines[0].get_xydata().tolist() == [[100.0, 20.0], [200.0, 10.0]]
    at_100 = [y for x, y in axis.collections[0].get_paths()[0].vertices if x == 100.0]
    assert (min(at_100), max(at_100)) == (10.0, 30.0)


def test_words_on_the_x_axis_keep_the_order_of_the_table() -> None:
    axis = panels(line(TABLE.iloc[::-1], Axis("system", "system"), Axis("ttft_s", "TTFT (s)")))[0]
    assert [label.get_text() for label in axis.get_xticklabels()] == ["sparkv", "ferry"]
    # ferry: 5, 10, 15 ms at 200 and 10, 20, 30 ms at 100; sparkv twice that
    assert axis.containers[0].lines[0].get_ydata().tolist() == pytest.approx([0.025, 0.0125])


def test_a_cumulative_distribution() -> None:
    frame = pd.DataFrame({"ttft_s": [3.0, 1.0, None, 2.0, 2.0]})
    (step, *_) = panels(cdf(frame, Axis("ttft_s", "TTFT (s)")))[0].lines
    assert step.get_xydata().tolist() == [[1.0, 0.0], [1.0, 25.0], [2.0, 50.0], [2.0, 75.0], [3.0, 100.0]]


def test_a_heat_map_has_a_cell_for_each_pair() -> None:
    frame = TABLE[(TABLE.system == "ferry") | (TABLE.rate == 100.0)]
    figure = heat_map(frame, Axis("rate", "link"), Axis("system", ""), Axis("ttft_s", "TTFT (ms)", 1e3))
    axis, bar = panels(figure)
    cells = axis.collections[0].get_array()
    assert np.asarray(cells.filled(np.nan)).ravel().tolist() == pytest.approx([20.0, 10.0, 40.0, np.nan], nan_ok=True)
    assert [label.get_text() for label in axis.get_xticklabels()] == ["100", "200"]
    assert texts(axis) == ["20", "10", "40"]
    assert bar.get_ylabel() == "TTFT (ms)"


def test_a_heat_map_writes_figures_as_people_do() -> None:
    frame = pd.DataFrame({"x": [1, 2, 3], "y": [1, 1, 1], "value": [1020.4, 999.7, 0.1234]})
    axis, _ = panels(heat_map(frame, Axis("x", ""), Axis("y", ""), Axis("value", "")))
    assert texts(axis) == ["1,020", "1,000", "0.123"]


def test_a_column_that_is_not_there() -> None:
    for draw in (
        lambda: PLOTS["line"](TABLE, Axis("rate", ""), Axis("ttft", "")),
        lambda: PLOTS["cdf"](TABLE, Axis("ttft", "")),
        lambda: PLOTS["heat_map"](TABLE, Axis("rate", ""), Axis("system", ""), Axis("ttft", "")),
    ):
        with pytest.raises(InputError, match="unknown column 'ttft'.*Did you mean 'ttft_s'"):
            draw()
    with pytest.raises(ValueError, match="nothing to draw"):
        cdf(TABLE[:0], Axis("ttft_s", ""))


def test_pictures_are_the_same_bytes_whatever_the_user_set() -> None:
    def draw() -> Any:
        return gantt(run(), title="quickstart")

    first = render(draw)
    with mpl.rc_context({"font.size": 30, "axes.grid": True, "xtick.major.size": 20}):
        assert render(draw) == first
        assert mpl.rcParams["font.size"] == 30
    assert first["png"].startswith(b"\x89PNG")
    assert b"tEXt" not in first["png"]
    assert b"<dc:date>" not in first["svg"]
    assert b"matplotlib.org" not in first["svg"].split(b"<defs>")[0]


def test_names_are_neither_formulas_nor_markup() -> None:
    """Pairs of dollar signs would make a formula, one that cannot be parsed end the drawing."""
    hostile = "$\\frac{$ <script>alert(1)</script>"
    table = pd.DataFrame(
        [{"system": name, "rate": rate, "ttft_s": rate} for name in (hostile, "$x$") for rate in (1.0, 9.0)]
    )

    def by_rate() -> Any:
        return line(table, Axis("rate", hostile, log=True), Axis("ttft_s", "$y$"), by="system", title=hostile)

    def by_name() -> Any:
        return line(table, Axis("system", hostile), Axis("ttft_s", "TTFT (s)", log=True), title=hostile)

    for draw in (by_rate, by_name):
        pictures = render(draw)
        assert b"<script" not in pictures["svg"]
        assert pictures["png"].startswith(b"\x89PNG")
    figures: list[Any] = []
    render(lambda: figures.append(by_name()) or figures[0])
    shown = [label.get_text() for label in panels(figures[0])[0].get_xticklabels()]
    assert shown == [hostile, "$x$"]


def test_drawing_leaves_no_figure_behind() -> None:
    pyplot = sys.modules.get("matplotlib.pyplot")
    before = pyplot.get_fignums() if pyplot else []
    render(lambda: gantt(run()))
    assert (pyplot.get_fignums() if pyplot else []) == before


def test_bars_of_a_decoding_comparison_are_tokens_per_second_the_fastest_on_top() -> None:
    metrics = {"flexgen": {"ttft_s": 1.0, "throughput_tokens_per_s": 0.5}, "kvswap": {"throughput_tokens_per_s": 4.0}}
    left, _ = panels(compare_bars(metrics, ranked_by="throughput_tokens_per_s"))
    assert [label.get_text() for label in left.get_yticklabels()] == ["kvswap", "flexgen"]
    assert [bar.get_width() for bar in left.patches] == [4.0, 0.5]
    assert left.get_xlabel() == "tokens/s"
    assert len(left.lines) == 0 and left.get_title(loc="right") == ""


def test_a_system_without_a_bar_has_its_outcome() -> None:
    metrics, outcomes = {"vllm": {"throughput_tokens_per_s": 4.0}, "quest": {}}, {"quest": "out_of_memory"}
    left, _ = panels(compare_bars(metrics, ranked_by="throughput_tokens_per_s", outcomes=outcomes))
    assert [text.get_text() for text in left.texts] == ["4.00", "out of memory"]


def said_below(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.texts if text.get_position()[1] < 0.1]


def test_what_lines_are_stands_clear_of_titles_beside_long_names() -> None:
    metrics = {f"a system with a rather long name, {n}": {"ttft_s": 2.0 + n} for n in range(4)}
    ranges = {name: {"ttft_s": (1.0, 9.0)} for name in metrics}
    figure = compare_bars(metrics, title="title", ranges=ranges, line="80 % interval", unclear=set(metrics))
    figure.draw_without_rendering()
    (said,) = (text for text in figure.texts if text.get_text() == "line: 80 % interval; ~: unsure")
    others = [text for axis in figure.axes for text in axis.findobj(Text) if text.get_text() and text.get_visible()]
    assert len(others) > 8
    assert not [text for text in others if said.get_window_extent().overlaps(text.get_window_extent())]


@pytest.mark.parametrize("metric", ["throughput_tokens_per_s", "ttft_s"])
def test_bars_have_the_ranges_of_the_table(metric: str) -> None:
    metrics = {"flexgen": {metric: 2.0}, "kvswap": {metric: 4.0}, "vllm": {metric: 3.0}}
    ranges = {"flexgen": {metric: (1.0, 6.0)}, "kvswap": {metric: (3.0, 4.0)}, "vllm": {metric: (3.0, 3.0)}}
    figure = compare_bars(metrics, ranked_by=metric, ranges=ranges)
    left, _ = panels(figure)
    rows = {label.get_text(): n for n, label in enumerate(left.get_yticklabels())}
    lines = {int(line.get_ydata()[0]): tuple(line.get_xdata()) for line in left.lines}
    assert lines == {rows["flexgen"]: (1.0, 6.0), rows["kvswap"]: (3.0, 4.0)}
    assert said_below(figure) == ["line: range"]
    # Figures stand behind the line, and have room there.
    assert sorted(text.xy[0] for text in left.texts) == [3.0, 4.0, 6.0] and left.get_xlim()[1] > 7


@pytest.mark.parametrize(("metric", "slower"), [("throughput_tokens_per_s", " slower"), ("ttft_s", "")])
def test_a_system_that_cannot_be_told_from_a_better_one_is_marked_as_in_the_table(metric: str, slower: str) -> None:
    metrics = {"kvswap": {metric: 4.0}, "vllm": {metric: 3.9}, "flexgen": {metric: 2.0}}
    figure = compare_bars(metrics, ranked_by=metric, unclear={"vllm"})
    left, _ = panels(figure)
    marked = [text.get_text().partition("  ")[2] for text in left.texts]
    assert marked == (["", f"(~ 1.03x{slower})", f"(2.00x{slower})"] if slower else ["", "(~ 1.95x)", "(2.00x)"])
    assert said_below(figure) == ["~: unsure"]
    assert said_below(compare_bars(metrics, ranked_by=metric)) == []


def test_a_95th_percentile_far_beyond_the_mean_lies_on_the_axis_with_its_figure() -> None:
    left, _ = panels(compare_bars({"flash": {"ttft_s": 1.0, "ttft_p95_s": 9.0, "requests": 20}}))
    assert max(left.texts[-1].xy[0], *(max(line.get_xdata()) for line in left.lines)) == 9.0
    assert left.get_xlim()[1] > 12


def test_a_system_that_did_not_run_has_its_outcome_in_place_of_bars() -> None:
    found = {"fast": {"ttft_s": 1.0, "energy_j": 2.0}, "real": {"ttft_s": 2.0}, "large": {}}
    left, right = panels(compare_bars(found, outcomes={"large": "out_of_memory"}))
    assert [text.get_text() for text in left.texts] == ["1.00 s", "2.00 s  (2.00x)", "out of memory"]
    assert [text.get_text() for text in right.texts] == ["2.00 J", "not counted", ""]
