"""Studies: which points they make, what is drawn of them, and the lines that say what is wrong with one."""

from pathlib import Path

import pandas as pd
import pytest

from kvferry.analysis.study import load_study, study_names
from kvferry.analysis.study_plots import draw_plots
from kvferry.analysis.study_spec import PlotSpec
from kvferry.specs.errors import InputError

BASE = """\
name: small
system: stream-only
device: rtx-5080-laptop
model: tiny
link: {rate: 80 Mbit/s}
workload: {kind: context-reuse, context: 4Ki}
seed: 7
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("small.yaml").write_text(BASE)


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
  device: [rtx-5080-laptop, jetson-agx-orin-64gb]
  link: [{rate: 1 Gbit/s}, {rate: 2 Gbit/s, rtt: 8 ms}]
seeds: [3]
""")
    )
    found = [(p.device.name, p.link.rate_bytes_per_s, p.link.rtt_s) for p in study.points]
    assert found == [
        ("rtx-5080-laptop", 1.25e8, 0.0),
        ("rtx-5080-laptop", 2.5e8, 0.008),
        ("jetson-agx-orin-64gb", 1.25e8, 0.0),
        ("jetson-agx-orin-64gb", 2.5e8, 0.008),
    ]
    assert (study.name, study.output) == ("devices", Path("results/devices"))


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
    assert len(study.points) >= (8 if name == "decode-fidelity" else 51)
    assert study.plots


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("axes: {seed: [1]}", "study.yaml:1: base: is missing"),
        ("base: 5", "study.yaml:1: base: 5 is not a scenario: its name, its path, or a mapping (key: value)"),
        ("base: quickstrat", "study.yaml:1: base: unknown scenario 'quickstrat'"),
        ("base: small.yaml\nbase: x", "study.yaml:2: base stands twice"),
        ("base: small.yaml\naxis: {}", "study.yaml:2: axis: unknown key; known here: axes, base"),
        ("base: small.yaml\naxes: {seed: 3}", "study.yaml:2: axes.seed: 3 is not a list"),
        ("base: small.yaml\naxes: {seed: []}", "study.yaml:2: axes.seed: a list: entries needed: at least 1"),
        (
            "base: small.yaml\naxes:\n  seed: [1, 2]\n  link.rt: [4 ms]",
            "study.yaml:4: link.rt: unknown key; known here: offset",
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
            "study.yaml:3: plots.0.kind: 'lien' is none of line, cdf, heat_map; did you mean 'line'?",
        ),
        (
            "base: small.yaml\nplots:\n  - {kind: line, x: seed, y: ttft_z}",
            "study.yaml:3: plots.0.y: 'ttft_z' is neither a setting nor a metric; did you mean 'ttft_s'?",
        ),
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
    files, left_out = draw_plots(FRAME, plots, tmp_path)
    assert {path.name for path in files} == {
        f"{stem}.{format}"
        for stem in (
            "line-workload.context-ttft_s-system",
            "how-long",
            "heat_map-workload.context-system-ttft_s",
            "how-long-5",
        )
        for format in ("png", "svg")
    }
    assert left_out == {"cdf-energy_j": "unknown column 'energy_j'; known: outcome, system, ttft_s, workload.context."}


def test_what_a_failing_link_let_through_is_not_drawn(tmp_path: Path) -> None:
    files, left_out = draw_plots(FRAME.assign(outcome="infeasible"), [PlotSpec(kind="cdf", x="ttft_s")], tmp_path)
    assert files == []
    assert left_out == {"cdf-ttft_s": "nothing to draw: no row has ttft_s"}


def test_the_study_in_the_docs_is_one() -> None:
    text = (Path(__file__).parents[2] / "docs" / "sweeps.md").read_text()
    study = load_study(written(text.split("```yaml\n")[1].split("```")[0]))
    assert len(study.points) == 3 * 3 * 3 * 5
    assert (study.name, study.output) == ("contexts", Path("runs/contexts"))


def test_a_study_changes_sources_too(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text("base: quickstart\naxes: {device.memory.bytes_per_s: [1 GB/s, 2 GB/s]}\n")
    for point in load_study(str(tmp_path / "study.yaml")).points:
        assert point.device.sources["memory.bytes_per_s"] == "given in study.yaml"
