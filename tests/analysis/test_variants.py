"""Variants of one study or comparison: labels beside the keys that they set."""

from pathlib import Path

import pandas as pd
import pytest
import yaml
from tiny import STREAMED, as_yaml, changed

import kvferry
from kvferry.analysis.dataset import read_points
from kvferry.analysis.paired import paired
from kvferry.analysis.plot_rows import kept_rows
from kvferry.analysis.study import load_study
from kvferry.analysis.study_plots import draw_plots
from kvferry.analysis.study_spec import PlotSpec
from kvferry.analysis.variants import variants_of
from kvferry.specs.errors import InputError

STUDY = """\
base: small.yaml
variants:
  Greedy: {system: sparkv, policies.schedule: greedy}
  Last first: {system: sparkv, policies.schedule: greedy-last-first}
  Plain: {}
axes:
  workload.context: [1Ki, 2Ki]
plots:
  - {kind: bar, x: workload.context, y: ttft_s, by: variant}
  - {kind: line, x: workload.context, y: ttft_s}
"""


@pytest.fixture(autouse=True)
def files(here: Path) -> None:
    base = changed(STREAMED, workload={"context": "2Ki"}, policies={"codec": "kivi"}, seed=7)
    Path("small.yaml").write_text(as_yaml(base))
    Path("study.yaml").write_text(STUDY)


def test_each_variant_is_met_at_every_place_of_the_axes() -> None:
    study = load_study("study.yaml")
    found = [
        (label, point.system, {role: one.name for role, one in point.policies.items()}, point.workload.context)
        for label, point in zip(study.labels, study.points, strict=True)
    ]
    greedy, last = {"schedule": "greedy"}, {"schedule": "greedy-last-first"}
    assert found == [
        ("Greedy", "sparkv", greedy, 1024),
        ("Greedy", "sparkv", greedy, 2048),
        ("Last first", "sparkv", last, 1024),
        ("Last first", "sparkv", last, 2048),
        # The base's policies are those of its own system alone.
        ("Plain", "stream-only", {"codec": "kivi"}, 1024),
        ("Plain", "stream-only", {"codec": "kivi"}, 2048),
    ]
    assert study.axes == ("variant", "workload.context")


def test_they_are_a_column_and_an_axis_of_plots() -> None:
    swept = kvferry.sweep("study.yaml", jobs=1)
    assert list(swept.points["variant"]) == ["Greedy"] * 2 + ["Last first"] * 2 + ["Plain"] * 2
    assert list(read_points(swept.folder).columns[:4]) == ["key", "outcome", "why", "variant"]
    # A plot that does not name them has a panel for each.
    assert {path.suffix for path in swept.plots} == {".png", ".svg"} and len(swept.plots) == 4
    assert swept.summary["marks"]["line-workload.context-ttft_s"] == "each mark: 1 point, 1 seed"
    better = {(one["better"], one["worse"]) for one in swept.summary["paired"]}
    assert {frozenset(pair) for pair in better} == {
        frozenset(pair) for pair in (("Greedy", "Last first"), ("Greedy", "Plain"), ("Last first", "Plain"))
    }


def test_a_label_that_changes_is_changed_in_the_rows_without_a_run() -> None:
    kvferry.sweep("study.yaml", jobs=1, plots=False)
    Path("study.yaml").write_text(STUDY.replace("Plain:", "As it is:"))
    swept = kvferry.sweep("study.yaml", jobs=1, plots=False)
    assert swept.summary["new"] == 0
    assert list(read_points(swept.folder)["variant"].unique()).count("Plain") == 0
    assert set(read_points(swept.folder)["variant"]) == {"Greedy", "Last first", "As it is"}


def test_pairs_are_of_variants_where_there_are_any() -> None:
    rows = [
        {"outcome": "done", "system": "sparkv", "variant": label, "seed": seed, "ttft_s": seconds}
        for label, times in (("A", [1.0, 2.0]), ("B", [2.0, 4.0]))
        for seed, seconds in enumerate(times)
    ]
    (one,) = paired(pd.DataFrame(rows), "ttft_s", ("variant", "seed"))
    assert (one.better, one.worse, one.ahead, one.median) == ("A", "B", 2, pytest.approx(0.5))


@pytest.mark.parametrize(
    ("variants", "said"),
    [
        ("{A: {system: sparkv}, B: {system: sparkv}}", "variants.B: is the same scenario as A"),
        ("{A: {workload.context: 4Ki}}", "axes.workload.context: varies what a variant sets, workload.context"),
        ("{A: {policies: {codec: fp16}, policies.codec: kivi}}", "variants.A.policies.codec: sets what policies sets"),
        ("{'* A': {system: sparkv}}", "variants.* A: '* A' is no label"),
        ("{A: sparkv}", "variants.A: 'sparkv' is not a mapping"),
        ("{A: {policies..codec: kivi}}", "is no key of a scenario"),
        ("{A: {system: sparkw}}", "system: unknown system 'sparkw'"),
    ],
)
def test_what_is_wrong_with_one_is_said(variants: str, said: str) -> None:
    Path("study.yaml").write_text(f"base: small.yaml\nvariants: {variants}\naxes: {{workload.context: [1Ki, 2Ki]}}\n")
    with pytest.raises(InputError) as error:
        load_study("study.yaml", check=kvferry.api.scenario.names_in_use)
    assert said in str(error.value) and str(error.value).startswith("study.yaml:")


def test_a_comparison_takes_the_variants_of_a_study() -> None:
    compared = kvferry.compare("small.yaml", variants="study.yaml")
    assert list(compared.results) == ["Greedy", "Last first", "Plain"]
    assert [one.scenario.system for one in compared.results.values()] == ["sparkv", "sparkv", "stream-only"]
    assert compared.results["Plain"].scenario.policies["codec"].name == "kivi"
    compared.write("compared", plots=False)
    assert Path("compared/Last-first/metrics.json").read_text().count('"variant": "Last first"') == 1


@pytest.mark.parametrize(
    ("variants", "said"),
    [
        ({"A": {"system": "sparkv"}, "B": {"system": "sparkv"}}, "variants: B: it is the same scenario as A"),
        ({"A b": {"system": "sparkv"}, "A-b": {"system": "ferry"}}, "it is called like A b"),
        ({"A": {"link.rt": 3}}, "link.rt: unknown key"),
    ],
)
def test_a_comparison_of_variants_that_cannot_be(variants: dict[str, dict[str, object]], said: str) -> None:
    with pytest.raises(InputError, match=said):
        kvferry.compare("small.yaml", variants=variants)


def test_variants_in_braces() -> None:
    assert {label: list(values) for label, values in variants_of("{A: {system: ferry, link.rtt: 1 ms}}").items()} == {
        "A": ["system", "link.rtt"]
    }


def test_conditions_name_labels() -> None:
    Path("study.yaml").write_text(STUDY + "where: [\"variant != 'Last first' and not (variant == Plain)\"]\n")
    assert load_study("study.yaml").labels == ("Greedy", "Greedy")
    Path("study.yaml").write_text("base: small.yaml\nseeds: 2\nwhere: [variant != Plain]\n")
    with pytest.raises(InputError, match="study.yaml:3: where.0: the study has no variants, whose labels"):
        load_study("study.yaml")


def test_plots_show_rows_that_keep_their_conditions(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {"outcome": "done", "variant": list("aab"), "link.rtt_s": [0.001, 0.005, 0.001], "ttft_s": [1.0, 2.0, 9.0]}
    )

    def marks(*where: str) -> str:
        plot = PlotSpec(kind="bar", x="link.rtt", y="ttft_s", by="variant", name="it", where=where)
        drawn = draw_plots(frame, [plot], tmp_path, ("variant", "link.rtt"))
        return (drawn.behind | drawn.not_drawn)["it"]

    assert len(kept_rows(frame, ["variant != b", "link.rtt <= 1 ms"])) == 1
    assert len(kept_rows(frame, ["ttft_s < 2000 ms or variant in [b]"])) == 2
    assert marks("variant != b").startswith("each bar: 1 point")
    assert marks("variant == c") == "where: leaves out every row"
    assert "link.rtt_s is a time" in marks("link.rtt_s > 4")


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("variant !=", "'variant !=': 'nothing' stands where a value"),
        ("varient != a", "'varient' is neither a setting"),
        ("variant == 'Last'", "no variant is called 'Last'"),
    ],
)
def test_conditions_of_plots_are_checked_before_anything_runs(where: str, message: str) -> None:
    Path("study.yaml").write_text(STUDY.replace("by: variant", f"by: variant, where: [seed == 7, {where!r}]"))
    with pytest.raises(InputError, match=f"study.yaml:9: plots.0.where.1: {message}"):
        load_study("study.yaml")


def test_labels_that_there_are_not() -> None:
    Path("study.yaml").write_text(STUDY + "where: ['variant in [Plain, Greddy]']\n")
    with pytest.raises(
        InputError, match="study.yaml:11: where.0: no variant is called 'Greddy'; did you mean 'Greedy'"
    ):
        load_study("study.yaml")


def test_a_mapping_is_what_its_file_would_be() -> None:
    kvferry.sweep("study.yaml", output="by-file", jobs=1, plots=False)
    swept = kvferry.sweep(yaml.safe_load(STUDY), output="by-mapping", jobs=1, plots=False)
    assert swept.study.name == "study"
    for name in ("points.parquet", "study.yaml"):
        assert (Path("by-file") / name).read_bytes() == (Path("by-mapping") / name).read_bytes()
    with pytest.raises(InputError, match=r"\(mapping\): axes.link.rtx: unknown key|link.rtx"):
        kvferry.sweep({"base": "small.yaml", "axes": {"link.rtx": [1]}}, jobs=1)
