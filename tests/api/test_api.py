"""The API as a notebook uses it: the command's own results, as objects."""

import inspect
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from command import Call
from plugin import FAULTY, LOADER, none_left, written  # noqa: F401
from tiny import DECODING, LIVE_LOADING, LOADING, tiny

import kvferry
from kvferry.api.scenario import Settings
from kvferry.pipelines.record import Run

PNG = b"\x89PNG\r\n"


pytestmark = pytest.mark.usefixtures("small_here")


def test_importing_it_imports_nothing_else() -> None:
    """Every room is imported through the package: what it imports, all commands do."""
    program = (
        "import kvferry, sys; print(sorted(m for m in sys.modules if m.startswith(('kvferry', 'numpy', 'torch'))))"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert shown == "['kvferry']\n"


def test_what_it_has_is_documented_and_typed() -> None:
    assert set(kvferry.__all__) <= set(dir(kvferry))
    for name in kvferry.__all__:
        thing = getattr(kvferry, name)
        assert inspect.getdoc(thing), name
        if inspect.isfunction(thing):
            parameters = inspect.signature(thing).parameters.values()
            assert all(one.annotation is not inspect.Parameter.empty for one in parameters), name
            assert "Raises" in str(thing.__doc__) or name == "override", name
    with pytest.raises(AttributeError, match="'kvferry' has no attribute 'nonsense'"):
        _ = kvferry.nonsense  # type: ignore[attr-defined]
    assert (Path(kvferry.__file__).parent / "py.typed").exists()


@pytest.mark.parametrize(
    "settings",
    [
        {"link.rtt": "20 ms", "workload.context": 2048, "costs.truth": "roofline", "seed": np.int64(9)},
        ["link.rtt=20 ms", "workload.context=2Ki", "costs.truth=roofline", "seed=9"],
    ],
)
def test_settings_are_those_of_the_command(settings: Settings) -> None:
    loaded = kvferry.load("small.yaml", settings)
    assert (loaded.link.rtt_s, loaded.workload.context, loaded.seed) == (0.02, 2048, 9)
    assert kvferry.override(kvferry.load("small.yaml"), settings) == loaded
    assert kvferry.load(kvferry.load("small.yaml"), settings) == loaded


def test_a_value_is_what_it_is_in_python() -> None:
    loaded = kvferry.load(
        "small.yaml", {"link.rtt": "1e-3 s", "workload.requests": np.int32(3), "policies": {"codec": "kivi"}}
    )
    assert loaded.link.rtt_s == 1e-3
    assert loaded.context_reuse.workload.requests == 3
    assert loaded.policy_values == {"codec": "kivi"}
    with pytest.raises(kvferry.InputError, match="link.rtt: inf is not a finite number"):
        kvferry.load("small.yaml", {"link.rtt": float("inf")})
    with pytest.raises(kvferry.InputError, match="seed: <object object at"):
        kvferry.load("small.yaml", {"seed": object()})
    with pytest.raises(kvferry.InputError, match='is one text; write \\["seed=3"\\]'):
        kvferry.load("small.yaml", "seed=3")
    with pytest.raises(kvferry.InputError, match="--set link.rtx=4: link.rtx: unknown key"):
        kvferry.load("small.yaml", {"link.rtx": 4})


def test_a_mapping_is_a_scenario_and_another_system_has_its_own_policies() -> None:
    loaded = kvferry.load({**DECODING, "policies": {"compression": 4}}, system="shadowkv", seed=3)
    assert (loaded.system, loaded.seed, loaded.policies) == ("shadowkv", 3, {})


def test_a_result_is_what_the_command_prints_and_writes(call: Call) -> None:
    _, out, _ = call("run", "small.yaml", "--json", "--output", "by-command", "--no-plots")
    result = kvferry.run("small.yaml")
    assert result.envelope == json.loads(out)
    assert result.metrics["ttft_s"] == json.loads(out)["metrics"]["ttft_s"]
    written = result.write("by-api", plots=False)
    assert {path.name for path in written} == {path.name for path in Path("by-command").iterdir()}
    assert all(path.read_bytes() == (Path("by-command") / path.name).read_bytes() for path in written)
    _, out, _ = call("run", "small.yaml")
    lines = [line.rstrip() for line in out.splitlines()]
    assert all(line.rstrip() in lines for line in repr(result).splitlines())


def test_frames_have_units_in_their_names() -> None:
    result = kvferry.run("small.yaml", {"workload.requests": 2})
    assert result.requests["request"].tolist() == [0, 1]
    assert result.requests["ttft_s"].mean() == pytest.approx(result.metrics["ttft_s"])
    assert {"resource", "label", "start_s", "end_s", "n_bytes", "request", "step", "layer"} == set(result.spans)
    assert str(result.spans["request"].dtype) == "Int64"
    assert len(result.units) == 2 * 4 * result.scenario.model.layers
    assert set(result.units["path"]) == {"streamed"}


def test_a_result_shows_itself() -> None:
    result = kvferry.run(tiny(DECODING))
    assert "kvswap" in result._repr_html_() and "tiny is not a measured device" in result._repr_html_()
    assert list(result.pictures) == ["gantt", "decode"]
    assert result.picture() is result.pictures["decode"]
    picture = result.picture("gantt")
    assert picture._repr_png_().startswith(PNG) and b"<svg" in picture.svg
    assert [path.name for path in picture.save("plots")] == ["gantt.png", "gantt.svg"]
    with pytest.raises(kvferry.InputError, match="picture: 'bars' is none of this result's: gantt, decode"):
        result.picture("bars")


def test_running_out_of_memory_is_a_result() -> None:
    result = kvferry.run(tiny(LOADING), {"model": "qwen3-14b", "device": "jetson-orin-nano-8gb"})
    assert result.outcome == "out_of_memory"
    assert result.why and result.remarks[0].startswith("out of memory: ")


def test_what_a_run_notes_of_its_figures_is_left_out_where_it_has_none() -> None:
    shown = str(kvferry.compare(DECODING, ["kvswap", "specontext"], {"workload.output": 300, "workload.decoded": 12}))
    assert "out of memory" in shown
    assert "kvswap: selections are generated" in shown and "specontext: selections" not in shown


def test_systems_are_compared() -> None:
    compared = kvferry.compare("small.yaml", ["stream-only", "local-prefill"])
    assert list(compared.results) == list(compared.metrics.index) == ["stream-only", "local-prefill"]
    assert compared.metrics["ttft_s"]["stream-only"] == compared["stream-only"].metrics["ttft_s"]
    assert compared.headline == "ttft_s"
    assert "vs best" in compared._repr_html_() and "stream-only" in repr(compared)
    assert set(compared.pictures) == {"paths", "bars"}
    assert compared.picture()._repr_png_().startswith(PNG)
    everything = kvferry.compare(tiny(DECODING))
    assert "kvswap" in everything.results and not everything.failed
    with pytest.raises(kvferry.InputError, match="systems: unknown system 'streem'"):
        kvferry.compare("small.yaml", ["streem"])


def test_a_system_that_fails_leaves_the_others() -> None:
    kvferry.use(written(FAULTY))
    compared = kvferry.compare("small.yaml", ["faulty", "stream-only"])
    assert list(compared.results) == ["stream-only"]
    assert compared.failed == {"faulty": "mine.py:8: ZeroDivisionError: division by zero"}


def test_a_sweep_is_a_frame_of_points() -> None:
    kvferry.use(written(LOADER))
    Path("study.yaml").write_text("base: small.yaml\naxes: {system: [mine, stream-only], link.rtt: [1 ms, 9 ms]}\n")
    counted: list[tuple[int, int]] = []
    swept = kvferry.sweep("study.yaml", {"seed": 5}, jobs=1, progress=lambda done, of: counted.append((done, of)))
    assert swept.points["system"].tolist() == ["mine", "mine", "stream-only", "stream-only"]
    assert swept.points["link.rtt_s"].tolist() == pytest.approx([0.001, 0.009] * 2)
    assert swept.points["seed"].unique().tolist() == [5]
    assert counted[-1] == (4, 4)
    assert "<table" in swept._repr_html_() and "4 points (4 done)" in repr(swept)
    assert kvferry.sweep("study.yaml", {"seed": 5}, jobs=1).summary["new"] == 0


def stopped(scenario: kvferry.Scenario, *_: object, **__: object) -> Run:
    return Run(outcome="interrupted", why="0 of 1 requests")


def test_an_interrupted_run_without_a_request_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvferry.pipelines.run.run_scenario", stopped)
    with pytest.raises(KeyboardInterrupt, match="0 of 1 requests"):
        kvferry.run("small.yaml")
    assert kvferry.compare("small.yaml", ["stream-only"]).interrupted


def test_several_runs_are_for_the_real_world() -> None:
    with pytest.raises(kvferry.InputError, match="the modelled world gives the same every time"):
        kvferry.run("small.yaml", runs=2)
    with pytest.raises(kvferry.InputError, match="runs: 0 is not at least 1"):
        kvferry.run("small.yaml", runs=0)


@pytest.mark.parametrize("function", [kvferry.run, kvferry.compare, kvferry.load, kvferry.sweep, kvferry.fidelity])
def test_what_is_not_there_is_an_input_error(function: Callable[[str], object]) -> None:
    with pytest.raises(kvferry.InputError):
        function("quickstrat")


@pytest.mark.torch
@pytest.mark.long
def test_fidelity_is_a_frame_of_errors() -> None:
    pytest.importorskip("torch")
    Path("live.yaml").write_text(json.dumps(LIVE_LOADING))
    found = kvferry.fidelity("live.yaml", runs=1)
    row = found.metrics.set_index("metric").loc["ttft_s"]
    assert row["error"] == pytest.approx(row["simulated"] / row["measured"] - 1)
    assert found.summary["scenarios"] == 1
    assert "ttft_s" in found._repr_html_()


def test_a_calibration_from_files_is_a_device() -> None:
    bench = Path(__file__).parents[1] / "data" / "calibrate" / "llama-bench.json"
    made = kvferry.calibrate("llama-3.2-1b", "mine", files=[bench], base="tiny")
    assert made.profile.exists()
    assert made.device.name == "mine"
    assert kvferry.load("small.yaml", {"device": made.profile, "model": "llama-3.2-1b"}).device.name == "mine"
    with pytest.raises(kvferry.InputError, match="model: names what to measure with"):
        kvferry.calibrate()


@pytest.mark.long
def test_pictures_are_drawn_on_the_cores_that_ran_a_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvferry.analysis.folder._workers", lambda pictures: 2)
    Path("study.yaml").write_text("base: small.yaml\naxes: {link.rtt: [1 ms, 9 ms]}\n")
    for _ in range(2):
        assert kvferry.sweep("study.yaml", jobs=2, output="swept").summary["outcomes"] == {"done": 2}
        written = kvferry.compare("small.yaml", ["stream-only", "local-prefill"]).write("both")
        assert Path("both/plots/bars.png") in written
        Path("swept/points.parquet").unlink()


@pytest.mark.torch
def test_a_real_run_says_what_it_ran_on() -> None:
    pytest.importorskip("torch")
    from kvferry.analysis.ran_on import drawn_ids, ran_on

    real = kvferry.load("live/quickstart")
    found = ran_on(real)
    assert {"torch", "transformers"} <= found["versions"].keys()
    assert found["weights"].startswith("sha256:") and found["tokenizer"] == "bytes" and found["cores"] >= 1
    assert drawn_ids(real) is None and ran_on(kvferry.load("quickstart")) == {}
    random = kvferry.load(real, {"live.weights": "random"})
    assert ran_on(random)["weights"] == f"drawn from seed {random.seed}"
    assert "random weights have no tokenizer" in (drawn_ids(random) or "")
