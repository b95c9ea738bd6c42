"""Studies: which points they make, what is drawn of them, and the lines that say what is wrong with one."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from tiny import DECODING, LOADING, STREAMED, as_yaml

import kvferry
from kvferry.analysis import study_plots
from kvferry.analysis.study import load_study, study_names
from kvferry.analysis.study_plots import axis_of, devices_of, draw_plots, marked
from kvferry.analysis.study_spec import PlotSpec
from kvferry.scenarios.loader import load_scenario
from kvferry.specs.errors import InputError


@pytest.fixture(autouse=True)
def base(here: Path) -> None:
    Path("small.yaml").write_text(as_yaml(STREAMED | {"seed": 7}))


def written(text: str) -> str:
    Path("study.yaml").write_text(text)
    return "study.yaml"


def test_axes_groups_and_seeds_in_their_order() -> None:
    study = load_study(
        written("""\
base: small.yaml
axes:
  workload.context: [4Ki, 8Ki tokens]
zip:
  - link.rtt: [4 ms, 20 ms]
    link.rate: [800 Mbit/s, 80 Mbit/s]
seeds: 2
""")
    )
    found = [(p.workload.context, p.link.rtt_s, p.link.rate_bytes_per_s, p.seed) for p in study.points]
    assert found == [
        (4096, 0.004, 1e8, 0),
        (4096, 0.004, 1e8, 1),
        (4096, 0.02, 1e7, 0),
        (4096, 0.02, 1e7, 1),
        (8192, 0.004, 1e8, 0),
        (8192, 0.004, 1e8, 1),
        (8192, 0.02, 1e7, 0),
        (8192, 0.02, 1e7, 1),
    ]
    assert study.axes == ("workload.context", "link.rtt", "link.rate", "seed")
    assert (study.name, study.output) == ("study", Path("runs/study"))


def test_without_axes_it_is_the_base_and_its_seed() -> None:
    (point,) = load_study(written("base: small.yaml")).points
    assert (point.seed, point.name) == (7, "small")


def test_axes_may_complete_the_base_and_name_devices() -> None:
    study = load_study(
        written("""\
name: devices
output: results/devices
base: {extends: small.yaml, link: {rate: null}}
axes:
  device: [rtx-5080-laptop, jetson-agx-orin-sparkv]
  link: [{rate: 1 Gbit/s}, {rate: 2 Gbit/s, rtt: 8 ms}]
seeds: [3]
""")
    )
    found = [(p.device.name, p.link.rate_bytes_per_s, p.link.rtt_s) for p in study.points]
    assert found == [
        ("rtx-5080-laptop", 1.25e8, 0.0),
        ("rtx-5080-laptop", 2.5e8, 0.008),
        ("jetson-agx-orin-sparkv", 1.25e8, 0.0),
        ("jetson-agx-orin-sparkv", 2.5e8, 0.008),
    ]
    assert (study.name, study.output) == ("devices", Path("results/devices"))


def test_ranges_samples_and_conditions() -> None:
    study = load_study(
        written("""\
base: small.yaml
axes:
  workload.context: {from: 1Ki, to: 4Ki, points: 3, log: true}
  link.rtt: {from: 1 ms, to: 2 ms, step: 0.5 ms}
samples:
  - points: 4
    seed: 1
    keys:
      link.rate: {from: 10 Mbit/s, to: 1 Gbit/s, log: true}
where:
  - workload.context < 4Ki or link.rtt == 1 ms
seeds: 2
""")
    )
    found = [(p.workload.context, p.link.rtt_s) for p in study.points[::8]]
    assert found == [(1024, 0.001), (1024, 0.0015), (1024, 0.002), (2048, 0.001), (2048, 0.0015), (2048, 0.002),
                     (4096, 0.001)]  # fmt: skip
    assert len(study.points) == 7 * 4 * 2
    rates = [point.link.rate_bytes_per_s for point in study.points[:8:2]]
    # One of each quarter of the logarithmic scale: from 10 to 31.6 Mbit/s, ...
    quarters = sorted(int(2 * math.log10(rate / 1.25e6)) for rate in rates if rate is not None)
    assert quarters == [0, 1, 2, 3]
    assert study.axes == ("workload.context", "link.rtt", "link.rate", "seed")


def test_what_a_condition_leaves_out_need_not_be_a_good_point() -> None:
    text = "base: small.yaml\naxes: {workload.context: [4Ki, 0], seed: [1, 2]}\nwhere: [workload.context > 0]"
    assert [point.workload.context for point in load_study(written(text)).points] == [4096, 4096]


def test_another_key_in_a_sample_changes_nothing_for_the_first() -> None:
    first = "  - points: 5\n    keys:\n      link.rtt: {from: 1 ms, to: 9 ms}\n"
    more = first + "      workload.context: [1Ki, 2Ki]\n"
    rtts = [
        [point.link.rtt_s for point in load_study(written(f"base: small.yaml\nsamples:\n{text}")).points]
        for text in (first, more)
    ]
    assert rtts[0] == rtts[1]
    assert len(set(rtts[0])) == 5


def test_overrides_apply_to_the_base() -> None:
    path = written("base: small.yaml\naxes: {workload.context: [4Ki, 8Ki]}")
    points = load_study(path, ["link.rtt=8 ms", "workload.requests=3"]).points
    assert [(p.link.rtt_s, p.workload.requests, p.workload.context) for p in points] == [
        (0.008, 3, 4096),
        (0.008, 3, 8192),
    ]
    for override in ("workload.context=1Ki", "workload={}"):
        with pytest.raises(InputError, match="workload.context is an axis of this study"):
            load_study(path, [override])


@pytest.mark.parametrize("name", study_names())
def test_the_bundled_studies_are_good(name: str) -> None:
    study = load_study(name)
    # Decoding for real takes seconds a point: as many as differ in what matters.
    least = {"decode-fidelity": 8, "specontext-fidelity": 4, "offload": 12, "quality": 17}
    assert len(study.points) >= least.get(name, 51)
    assert study.plots


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("axes: {seed: [1]}", "study.yaml:1: base: is missing"),
        ("base: 5", "study.yaml:1: base: 5 is not a scenario: its name, its path, or a mapping (key: value)"),
        ("base: quickstrat", "study.yaml:1: base: unknown scenario 'quickstrat'"),
        ("base: small.yaml\nbase: x", "study.yaml:2: base stands twice"),
        ("base: small.yaml\naxis: {}", "study.yaml:2: axis: unknown key; known here: axes, base"),
        ("base: small.yaml\naxes: {seed: 3}", "study.yaml:2: axes.seed: 3 is neither a list nor a range"),
        ("base: small.yaml\naxes: {seed: []}", "study.yaml:2: axes.seed: a list: entries needed: at least 1"),
        (
            "base: small.yaml\naxes:\n  seed: [1, 2]\n  link.rt: [4 ms]",
            "study.yaml:4: link.rt: unknown key; known here: ",
        ),
        (
            "base: small.yaml\naxes:\n  link.rtt:\n    - 4 ms\n    - 4\n    - 20 Mbit/s",
            "study.yaml:5: link.rtt: 4 has no unit; write it like '4 ms'\n"
            "study.yaml:6: link.rtt: '20 Mbit/s' is a rate, not a time; write it like '4 ms'",
        ),
        ("base: small.yaml\naxes: {device: [rtx-5080-latop]}", "Did you mean 'rtx-5080-laptop'?"),
        ("base: small.yaml\naxes: {link: [{trace: wifi-850x}]}", "study.yaml:2: link.trace: no trace is called"),
        ("base: small.yaml\naxes: {system.name: [a]}", "study.yaml:2: 'name' leads nowhere"),
        ("base: {extends: small.yaml, modell: x}\naxes: {seed: [1, 2, 3]}", "study.yaml:1: modell: unknown key"),
        (
            "base: small.yaml\nzip:\n  - link.rtt: [1 ms, 2 ms]\n    seed: [1, 2, 3]",
            "study.yaml:4: zip.0.seed: 3 values beside 2 of link.rtt; keys that go together need as many",
        ),
        ("base: small.yaml\naxes: {seed: [1]}\nseeds: 4", "study.yaml:3: seeds: sets what the axis seed varies"),
        (
            "base: small.yaml\naxes:\n  link.rtt: [1 ms]\n  link: [{rate: 1 Mbit/s}]",
            "study.yaml:4: axes.link: sets what the axis link.rtt varies; keep one of them",
        ),
        (
            "base: small.yaml\naxes:\n  link.rtt:\n    from: 4 ms\n    to: 2 Mbit/s\n    points: 3",
            "study.yaml:5: axes.link.rtt.to: '2 Mbit/s' is a rate, and '4 ms' a time",
        ),
        ("base: small.yaml\naxes: {seed: {from: 1, to: 5}}", "axes.seed.points: is missing, or step"),
        ("base: small.yaml\naxes: {seed: {from: 5, to: 1, step: 1}}", "axes.seed.to: 1 is not above 5"),
        ("base: small.yaml\naxes: {seed: {from: 1, to: 9, by: 2}}", "axes.seed.by: unknown key; known here: from, log"),
        ("base: small.yaml\naxes: {seed: {from: 0, to: 8, points: 3, log: true}}", "axes.seed.from: 0 is not above 0"),
        ("base: small.yaml\naxes: {seed: {from: 0, to: 8, points: 3, step: 1}}", "axes.seed.step: goes neither with"),
        ("base: small.yaml\naxes: {seed: {from: 0, to: 1e6, step: 1}}", "axes.seed.step: makes 1,000,001 values"),
        ("base: small.yaml\naxes: {system: {from: ferry, to: kivi, points: 2}}", "system.from: 'ferry' is no number"),
        ("base: small.yaml\naxes: {link.rtt: {from: 1 ms, to: 5 ms, step: 2}}", "link.rtt.step: 2 is a whole number"),
        ("base: small.yaml\nsamples: [{points: 3}]", "study.yaml:2: samples.0.keys: is missing"),
        (
            "base: small.yaml\nsamples:\n  - points: 3\n    keys:\n      seed: {from: 1, to: 5, points: 2}",
            "study.yaml:5: samples.0.keys.seed.points: is of no use to a sample",
        ),
        ("base: small.yaml\nsamples: [{points: 3, method: sobol, keys: {seed: [1]}}]", "method: 'sobol' is none of"),
        ("base: small.yaml\nwhere:\n  - seed <", "study.yaml:3: where.0: 'seed <': 'nothing' stands where a value"),
        ("base: small.yaml\nwhere: [link.rt > 4 ms]", "study.yaml:2: where.0: a scenario has no key 'link.rt'; did"),
        ("base: small.yaml\nwhere: [link.rtt > 4]", "study.yaml:2: where.0: link.rtt is a time, and is compared"),
        ("base: small.yaml\nwhere: [system > 4]", "study.yaml:2: where.0: > compares numbers, and system is"),
        ("base: small.yaml\nwhere: [link == 4]", "study.yaml:2: where.0: link is a mapping; name a key in it"),
        ("base: small.yaml\nwhere: [seed == 8]", "study.yaml:2: where: leaves out every point"),
        ("base: small.yaml\nseeds: 0", "study.yaml:2: seeds: 0 is neither a list of seeds nor how many"),
        ("base: small.yaml\nseeds: [1.5]", "study.yaml:2: seed: 1.5 is not a whole number"),
        (
            "base: small.yaml\nzip: [{link.scale: [1.0, 2.0]}]\nseeds: 40000",
            "study.yaml:3: seeds: 40,000 values; the axes make 80,000 points, at most 50,000 will do",
        ),
        ("base: small.yaml\noutput: /etc", "study.yaml:2: output: '/etc' leads out of the current folder"),
        ("base: small.yaml\noutput: runs/../../x", "leads out of the current folder; use --output for that"),
        ("base: small.yaml\nname: ../x", "study.yaml:2: name: '../x' is not a name"),
        (
            "base: small.yaml\nplots:\n  - {kind: lien, x: seed, y: ttft_s}",
            "study.yaml:3: plots.0.kind: 'lien' is none of line, cdf, heat_map, bar, stack, pareto; did you mean",
        ),
        (
            "base: small.yaml\nplots:\n  - {kind: line, x: seed, y: ttft_z}",
            "study.yaml:3: plots.0.y: 'ttft_z' is neither a setting nor a metric; did you mean 'ttft_s'?",
        ),
        (
            "base: small.yaml\nplots:\n  - {kind: stack, x: seed, parts: [ttft_s, energy_j]}",
            "study.yaml:3: plots.0.parts: are of several units (ttft_s, energy_j), whose sum says nothing;",
        ),
        ("base: small.yaml\nplots: [{kind: line, x: link, y: ttft_s}]", "plots.0.x: 'link' is neither a setting nor"),
        ("base: small.yaml\nplots: [{kind: line, x: seed}]", "plots.0.y: is missing; a line needs x and y"),
        (
            "base: small.yaml\nplots: [{kind: cdf, x: ttft_s, y: seed}]",
            "study.yaml:2: plots.0.y: is of no use to a cdf, which takes x, by",
        ),
        ("base: small.yaml\nplots: [{kind: cdf, x: ttft_s, name: ../x}]", "study.yaml:2: plots.0.name: '../x' is not"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_study(text: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        load_study(written(text))
    assert message in str(error.value)


def test_a_fault_of_many_points_is_reported_once() -> None:
    with pytest.raises(InputError) as error:
        load_study(written("base: small.yaml\naxes: {workload.context: [1, 2, x]}\nseeds: 50"))
    assert str(error.value).count("\n") == 0


def test_a_study_that_is_not_there() -> None:
    with pytest.raises(InputError, match="unknown study 'contxts'.*Did you mean 'contexts'"):
        load_study("contxts")
    with pytest.raises(InputError, match="'contxts.yaml' is not there; did you mean 'contexts'"):
        load_study("contxts.yaml")


FRAME = pd.DataFrame(
    {
        "outcome": ["done"] * 4,
        "system": ["ferry", "ferry", "kivi", "kivi"],
        "workload.context": [10240, 20480, 10240, 20480],
        "ttft_s": [1.0, 2.0, 3.0, 4.0],
    }
)


def test_plots_are_written_and_the_undrawable_told(tmp_path: Path) -> None:
    plots = [
        PlotSpec(kind="line", x="workload.context", y="ttft_s", by="system", log=("y",)),
        PlotSpec(kind="cdf", x="ttft_s", by="system", name="how-long"),
        PlotSpec(kind="heat_map", x="workload.context", y="system", value="ttft_s"),
        PlotSpec(kind="cdf", x="energy_j"),
        PlotSpec(kind="cdf", x="ttft_s", name="how-long"),
    ]
    drawn = draw_plots(FRAME, plots, tmp_path)
    assert {path.name for path in drawn.files} == {
        f"{stem}.{format}"
        for stem in (
            "line-workload.context-ttft_s-system",
            "how-long",
            "heat_map-workload.context-system-ttft_s",
            "how-long-5",
        )
        for format in ("png", "svg")
    }
    assert drawn.not_drawn == {"cdf-energy_j": "no point has energy_j"}


def test_what_a_failing_link_let_through_is_not_drawn(tmp_path: Path) -> None:
    drawn = draw_plots(FRAME.assign(outcome="infeasible"), [PlotSpec(kind="cdf", x="ttft_s")], tmp_path)
    assert drawn.files == []
    assert drawn.not_drawn == {"cdf-ttft_s": "nothing to draw: no row has ttft_s"}


MANY = pd.DataFrame(
    [
        {"outcome": "done", "system": system, "workload.context": context, "link.trace": trace, "seed": seed,
         "link.offset_s": 10.0 * seed, "ttft_s": factor * context / 1024}
        for system, factor in (("ferry", 1.0), ("kivi", 3.0))
        for context in (1024, 2048)
        for trace in ("/data/4g/bus.csv", "/data/5g/bus.csv", None)
        for seed in (0, 1)
    ]
)  # fmt: skip
AXES = ("system", "workload.context", "link.trace", "seed", "link.offset")


def panels_of(monkeypatch: pytest.MonkeyPatch, plot: PlotSpec, folder: Path, frame: pd.DataFrame = MANY) -> Any:
    """The titles of a plot's panels, and what became of it."""
    figures: list[Any] = []

    def keep(draw: Callable[[], Any], how: object) -> dict[str, bytes]:
        figures.append(draw())
        return {}

    monkeypatch.setattr(study_plots, "render", keep)
    drawn = draw_plots(frame, [plot], folder, AXES)
    return [axis.get_title() for figure in figures for axis in figure.axes], drawn, figures


def test_an_axis_that_a_plot_does_not_name_has_a_panel_per_value(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    frame = MANY.dropna()
    heat = PlotSpec(kind="heat_map", x="workload.context", y="link.trace", value="ttft_s", name="heat")
    titles, drawn, (figure,) = panels_of(monkeypatch, heat, tmp_path, frame)
    assert titles[:2] == ["system ferry", "system kivi"]
    # A cell of kivi is kivi's own, and not in the middle of both.
    assert [text.get_text() for text in figure.axes[1].texts] == ["3", "6", "3", "6"]
    # Offsets go with the seeds, which a median is made of.
    assert drawn.behind == {"heat": "each cell: 2 points, 2 seeds"}
    line = PlotSpec(kind="line", x="workload.context", y="ttft_s", by="system", name="line")
    assert panels_of(monkeypatch, line, tmp_path, frame)[0] == ["link.trace 4g/bus", "link.trace 5g/bus"]
    bare = PlotSpec(kind="line", x="workload.context", y="ttft_s", pool=("link.trace",), name="bare")
    _, _, (figure,) = panels_of(monkeypatch, bare, tmp_path, frame)
    assert all(axis.get_ylim()[1] > 6 for axis in figure.axes), "panels have room for the largest of all"


def test_pooling_is_asked_for_and_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    frame = MANY.dropna()
    line = PlotSpec(kind="line", x="workload.context", y="ttft_s", pool=("system", "link.trace"), name="line")
    titles, drawn, _ = panels_of(monkeypatch, line, tmp_path, frame)
    assert len(titles) == 1
    assert drawn.behind == {"line": "each mark: 8 points, 2 seeds; pooled: system, link.trace"}


def test_points_that_are_in_no_mark_are_counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    frame = pd.concat([MANY, MANY.dropna()[:1].assign(outcome="infeasible")])
    heat = PlotSpec(kind="heat_map", x="link.trace", y="system", value="ttft_s", pool=("workload.context",), name="h")
    _, drawn, (figure,) = panels_of(monkeypatch, heat, tmp_path, frame)
    assert drawn.behind["h"].endswith("; 9 of 25 points not drawn: 8 without link.trace, 1 not done")
    assert drawn.behind["h"] in figure.get_supxlabel()
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["4g/bus", "5g/bus"]


def test_what_would_need_too_many_panels_is_refused(tmp_path: Path) -> None:
    frame = pd.concat([MANY.dropna().assign(**{"link.rtt_s": rtt_s}) for rtt_s in (0.01, 0.02, 0.03)])
    plot = PlotSpec(kind="line", x="workload.context", y="ttft_s", name="all")
    drawn = draw_plots(frame, [plot], tmp_path, (*AXES, "link.rtt"))
    assert drawn.files == []
    assert "its marks would mix 12 values of system, link.trace, link.rtt" in drawn.not_drawn["all"]


def test_the_study_in_the_docs_is_one() -> None:
    text = (Path(__file__).parents[2] / "docs" / "sweeps.md").read_text()
    study = load_study(written(text.split("```yaml\n")[1].split("```")[0]))
    assert len(study.points) == 3 * 3 * 3 * 5
    assert (study.name, study.output) == ("contexts", Path("runs/contexts"))


def test_a_study_changes_sources_too(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text("base: quickstart\naxes: {device.memory.bytes_per_s: [1 GB/s, 2 GB/s]}\n")
    for point in load_study(str(tmp_path / "study.yaml")).points:
        assert point.device.sources["memory.bytes_per_s"] == "given in study.yaml"


def test_titles_say_what_and_on_which_devices(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    figures: list[Any] = []
    monkeypatch.setattr(study_plots, "render", lambda draw, how: figures.append(draw()) or {})
    plots = [PlotSpec(kind="cdf", x="ttft_s"), PlotSpec(kind="cdf", x="ttft_s", title="mine", name="mine")]
    nano = load_scenario({**LOADING, "device": "jetson-orin-nano-8gb"})
    for devices, told in (
        ([load_scenario(LOADING)], f" ({load_scenario(LOADING).device.name}: not measured)"),
        ([load_scenario(LOADING), nano], " (2 devices, 2 of them not measured)"),
    ):
        figures.clear()
        assert devices_of(devices) == told
        draw_plots(MANY, plots, tmp_path, AXES, ("study", devices_of(devices)))
        titles = [figure.get_suptitle() or figure.axes[0].get_title().replace("\n", " ") for figure in figures]
        assert titles == [f"study{told}", f"mine{told}"]


@pytest.mark.parametrize(
    ("of_devices", "label"), [(True, "devices' energy/request (J)"), (False, "energy/request (J)")]
)
def test_an_axis_says_whose_energy_it_is(of_devices: bool, label: str) -> None:
    assert axis_of("energy_j", "energy_j", log=False, of_devices=of_devices).label == label


@pytest.mark.parametrize(
    ("decoding", "label"), [(3.0, "tokens/s, decoding"), (9.0, "tokens/s, with prefill"), (7.0, "tokens/s")]
)
def test_an_axis_says_which_rate_it_is(
    decoding: float, label: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whichever of both rates each scenario measures; where points differ in that, it is neither."""
    measured = {"throughput_tokens_per_s": 3.0 if decoding < 7 else 2.0, "end_to_end_tokens_per_s": 2.0}
    frame = FRAME.assign(**measured, decode_tokens_per_s=decoding)
    if decoding == 7.0:
        frame["throughput_tokens_per_s"] = [7.0, 2.0, 2.0, 2.0]
    plot = PlotSpec(kind="line", x="workload.context", y="throughput_tokens_per_s")
    _, drawn, figures = panels_of(monkeypatch, plot, tmp_path, frame)
    assert not drawn.not_drawn
    assert {axis.get_ylabel() for figure in figures for axis in figure.axes} - {""} == {label}


def test_systems_that_streamed_coarser_kv_are_marked() -> None:
    """By the error of what was streamed: 0.1 of all, and 0.1 of a quarter, which is 0.2; by bits where one has none."""
    four = {"system": ["a", "a", "b", "b"], "streamed_bits_per_value": [3.0, 3.0, 2.0, 2.0]}
    errors = {"kv_relative_error": [0.1] * 4, "streamed_share": [1.0, 1.0, 0.25, 0.25]}
    rows, mark = marked(FRAME.assign(**four, **errors))
    assert rows["system"].tolist() == ["a", "a", "b *", "b *"]
    assert mark == "* streamed coarser KV than others"
    assert marked(FRAME.assign(**four, **errors | {"streamed_share": 1.0}))[1] == ""
    unknown = errors | {"streamed_share": 1.0, "kv_relative_error": [0.1, 0.1, 0.1, None]}
    assert marked(FRAME.assign(**four, **unknown))[0]["system"].tolist() == ["a", "a", "b *", "b *"]
    both = marked(FRAME.assign(**four, attended_share=[0.5, 0.5, 1.0, 1.0]))
    assert both[0]["system"].tolist() == ["a *", "a *", "b *", "b *"]
    assert both[1] == "* attends to a part of the tokens; * streamed coarser KV than others"


def test_the_table_of_a_sweep_marks_them_too(tmp_path: Path) -> None:
    study = tmp_path / "study.yaml"
    study.write_text(yaml.safe_dump({"base": DECODING, "axes": {"system": ["kvswap", "vllm"]}}))
    shown = kvferry.sweep(study, output=tmp_path / "out", jobs=1)._repr_html_()
    assert "kvswap *" in shown and "vllm *" not in shown
    assert "* attends to a part of the tokens" in shown


def test_systems_that_attend_to_a_part_are_marked(tmp_path: Path) -> None:
    frame = FRAME.assign(system=["vllm", "vllm", "kvswap", "kvswap"], attended_share=[1.0, 1.0, 0.5, 0.5])
    rows, mark = marked(frame)
    assert rows["system"].tolist() == ["vllm", "vllm", "kvswap *", "kvswap *"]
    assert mark == "* attends to a part of the tokens"
    assert marked(FRAME)[1] == ""
    (behind,) = draw_plots(
        frame, [PlotSpec(kind="line", x="workload.context", y="ttft_s", by="system")], tmp_path
    ).behind.values()
    assert behind.endswith(mark)
