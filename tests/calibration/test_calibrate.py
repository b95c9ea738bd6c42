"""A calibration on this machine, small: what it measures, that it goes on after a kill, that a scenario runs on it."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tiny import measured as on_measured
from typer.testing import CliRunner

pytest.importorskip("torch")
pytest.importorskip("transformers")

from kvferry.calibration import measured_model as rig
from kvferry.calibration import sparsity
from kvferry.calibration.calibrate import calibrate
from kvferry.calibration.environment import environment
from kvferry.calibration.journal import NAME, Journal
from kvferry.calibration.masks import drawn_masks
from kvferry.calibration.measurement import Measurement, merged
from kvferry.calibration.power import rapl
from kvferry.calibration.profile import profile
from kvferry.calibration.settings import PARTS, Settings
from kvferry.calibration.tables import AXES, pooled
from kvferry.cli.calibrate import _PARTS
from kvferry.cli.main import app
from kvferry.machine.ops import Advance, DecodeStep, Prefill, Project
from kvferry.model.attention import BlockSparse
from kvferry.pipelines.run import run_scenario
from kvferry.scenarios.loader import load_device, load_model
from kvferry.sim.costs.cost_model import main_costs
from kvferry.specs.errors import InputError, KvferryError
from kvferry.specs.scenario import Scenario
from kvferry.traces.chunks import CHUNK_TOKENS, causal_blocks

pytestmark = pytest.mark.torch

BASE = load_device("laptop-cpu")
QUICK = Settings(model="tiny", random_weights=True, context=CHUNK_TOKENS, quick=True)
# It is right and saves nothing, which does not matter here.
NOT_COMPILED = partial(BlockSparse, compiled=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole calibration of the tiny model."""
    folder = tmp_path_factory.mktemp("device")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sparsity, "BlockSparse", NOT_COMPILED)
        calibrate(QUICK, folder, BASE)
    return folder


def measured(folder: Path) -> list[Measurement]:
    return [Measurement.from_json(m) for m in json.loads((folder / "calibration.json").read_text())["measurements"]]


def scenario(folder: Path, **changes: Any) -> Scenario:
    return on_measured(folder, **{"costs": "table", **changes})


def test_a_profile_says_how_it_was_measured(folder: Path) -> None:
    how = load_device(str(folder / "profile.yaml")).calibration
    assert how is not None
    assert how.quick
    widest = max(measured(folder), key=lambda one: one.spread)
    assert (how.largest_spread_of, how.largest_spread) == (widest.what, pytest.approx(widest.spread, abs=1e-4))
    assert f"on {how.date}" in (folder / "profile.yaml").read_text().splitlines()[0]


def test_a_scenario_runs_on_the_profile(folder: Path) -> None:
    run = run_scenario(scenario(folder))
    assert run.outcome == "done"
    assert {"cpu", "link", "decompress"} <= {span.resource for span in run.spans}


def test_predictions_at_grid_points_are_what_was_measured(folder: Path) -> None:
    whole, found = scenario(folder), measured(folder)
    costs = main_costs("table", whole.device, whole.model)
    for (tokens,), seconds in pooled(found, "project", AXES["project"]).items():
        assert costs.cost(Project(tokens)).duration_s == pytest.approx(seconds)
    for (context, _, tokens), seconds in pooled(found, "advance", AXES["advance"]).items():
        op = Advance(int(tokens), causal_blocks(int(tokens), int(context)) * whole.model.kv_heads, int(context))
        assert costs.cost(op).duration_s == pytest.approx(seconds)
    for (context, tokens), seconds in pooled(found, "prefill", AXES["prefill"]).items():
        assert costs.cost(Prefill(tokens, context)).duration_s == pytest.approx(seconds)
    for (context,), seconds in pooled(found, "decode_step", AXES["decode_step"]).items():
        assert costs.cost(DecodeStep(1, context)).duration_s == pytest.approx(seconds)


def test_whole_and_shorter_chunks_were_measured_at_every_context(folder: Path) -> None:
    points = pooled(measured(folder), "advance", AXES["advance"])
    assert set(points) == {(c, 1.0, t) for c in (0.0, 1024.0) for t in (256.0, 1024.0)}
    # a column of the four layers: each projected, all but the last advanced
    one = next(m for m in measured(folder) if m.what == "advance")
    assert len(one.values) % 3 == 0


def test_every_number_has_a_source(folder: Path) -> None:
    device = load_device(str(folder / "profile.yaml"))
    profile = device.model_dump(
        mode="json", exclude={"sources", "name", "main", "calibration"}, exclude_none=True, exclude_defaults=True
    )

    def leaves(value: Any, path: str) -> list[str]:
        if not isinstance(value, dict):
            return [path]
        return [leaf for key, below in value.items() for leaf in leaves(below, f"{path}.{key}" if path else key)]

    for leaf in leaves(profile, ""):
        parts = leaf.split(".")
        assert any(".".join(parts[:n]) in device.sources for n in range(1, len(parts) + 1)), leaf


def test_it_says_what_it_ran_on_and_not_where(folder: Path) -> None:
    record = json.loads((folder / "calibration.json").read_text())
    assert record["settings"]["threads"] == 1
    assert record["environment"]["at the beginning"]["torch"].startswith("2.")
    for file in ("calibration.json", "profile.yaml", "journal.jsonl"):
        text = (folder / file).read_text()
        assert os.uname().nodename not in text and str(folder) not in text
    assert set(environment()) >= {"cpu", "cores", "governor", "clock_mhz", "load_average_1min"}
    # the large files that were read and served are gone
    assert not (folder / "probe").exists()


def test_what_is_in_the_journal_is_not_measured_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (folder / NAME).read_bytes()
    calibrate(QUICK, folder, BASE, name="again")
    assert (folder / NAME).read_bytes() == before
    assert load_device(str(folder / "profile.yaml")).name == "again"


def test_other_settings_are_refused(folder: Path) -> None:
    with pytest.raises(InputError, match="threads: 1, now 2"):
        calibrate(replace(QUICK, threads=2), folder, BASE)


@pytest.mark.long
def test_killed_it_goes_on_where_it_was(tmp_path: Path) -> None:
    # SIGKILL once the journal has some tasks: nothing is cleaned up, and a line may be torn
    command = [sys.executable, "-c", "from kvferry.cli.main import main; main()"]
    arguments = ["calibrate", "--model", "tiny", "--random-weights", "--quick", "--context", "1Ki"]
    arguments += ["--parts", "compute,dispatch", "-o", str(tmp_path / "d")]
    journal = tmp_path / "d" / NAME
    process = subprocess.Popen([*command, *arguments], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    until_s = time.monotonic() + 120
    while not journal.exists() or journal.read_bytes().count(b"\n") < 4:
        assert process.poll() is None and time.monotonic() < until_s
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = journal.read_bytes()
    assert not (tmp_path / "d" / "profile.yaml").exists()
    with journal.open("ab") as file:
        file.write(b'{"task": "compute: col')
    ended = CliRunner().invoke(app, arguments)
    assert (ended.exit_code, ended.exception) == (0, None)
    assert journal.read_bytes().startswith(kept[: kept.rfind(b"\n") + 1])
    tasks = [json.loads(line)["task"] for line in journal.read_text().splitlines()[1:]]
    assert len(tasks) == len(set(tasks))
    device = load_device(str(tmp_path / "d" / "profile.yaml"))
    # what was not measured is the base profile's, and says so
    assert device.decompressor == BASE.decompressor
    assert device.sources["decompressor"].startswith("not measured; laptop-cpu:")
    assert run_scenario(scenario(tmp_path / "d")).outcome == "done"


def test_interrupted_it_keeps_what_is_done(tmp_path: Path) -> None:
    def progress(name: str, done: int, of: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        calibrate(QUICK, tmp_path, BASE, parts=["compute"], progress=progress)
    assert not (tmp_path / "probe").exists()
    lines = (tmp_path / NAME).read_text().splitlines()
    assert len(lines) == 3


def test_block_sparse_attention_has_densities(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rig, "BlockSparse", NOT_COMPILED)
    calibrate(replace(QUICK, attention="block-sparse"), tmp_path, BASE, parts=["compute"])
    header, *rows = (tmp_path / "measured" / "tiny" / "advance.csv").read_text().splitlines()
    assert header == "context,density,tokens,seconds"
    assert len(rows) == 2 * 2 * 2


@pytest.mark.parametrize("density", [0.05, 0.5, 1.0])
def test_masks_have_the_density_asked_for_and_their_diagonal(density: float) -> None:
    spec = load_model("tiny")
    active = drawn_masks(spec, 2048, 1024, density).active(2, 1)
    causal = causal_blocks(1024, 2048)
    diagonal = 16
    assert active.sum(axis=(1, 2)).tolist() == [max(round(density * causal), diagonal)] * spec.kv_heads
    for row in range(8):
        assert active[:, row, 32 + 2 * row : 34 + 2 * row].all()
        assert not active[:, row, 34 + 2 * row :].any()


# --- power ---------------------------------------------------------------------------------------------------------


def zone(folder: Path, name: str, microjoules: int) -> Path:
    (folder / name).mkdir(exist_ok=True)
    (folder / name / "energy_uj").write_text(f"{microjoules}\n")
    (folder / name / "max_energy_range_uj").write_text("1000000\n")
    return folder / name


def test_rapl_adds_packages_and_knows_that_counters_begin_anew(tmp_path: Path) -> None:
    # 0.3 J, and 0.2 J over the end of the range; cores are inside their package
    zone(tmp_path, "intel-rapl:0", 100_000)
    zone(tmp_path, "intel-rapl:1", 900_000)
    zone(tmp_path, "intel-rapl:0:0", 5)
    meter = rapl(tmp_path)
    assert meter is not None

    def work() -> None:
        zone(tmp_path, "intel-rapl:0", 400_000)
        zone(tmp_path, "intel-rapl:1", 100_000)

    assert meter.joules(work) == {"cpu": pytest.approx(0.5)}


def test_without_counters_there_is_no_meter(tmp_path: Path) -> None:
    assert rapl(tmp_path) is None
    (zone(tmp_path, "intel-rapl:0", 1) / "energy_uj").write_text("?")
    assert rapl(tmp_path) is None


# --- the profile of given measurements -----------------------------------------------------------------------------


def given(what: str, *values: float, unit: str = "s", **at: float) -> Measurement:
    return Measurement(what=what, unit=unit, values=values, at=at)


def test_what_is_typical_lies_between_two_speeds() -> None:
    # 7 at one speed and 4 at the other, one of each left out: (6 x 1 + 3 x 2) / 9
    assert given("advance", *[1.0] * 7, *[2.0] * 4).typical == pytest.approx(4 / 3)
    assert given("advance", 1.0, 2.0, 6.0).typical == 3.0  # too few to leave any out


def test_passes_are_merged_by_what_and_where() -> None:
    passes = [given("advance", 1.0, context=5.0), given("project", 9.0), given("advance", 3.0, context=5.0)]
    other = given("advance", 4.0, context=6.0)
    assert merged([*passes, other]) == [given("advance", 1.0, 3.0, context=5.0), given("project", 9.0), other]


def test_numbers_of_a_profile_by_hand() -> None:
    found = [
        given("dispatch", 4e-5, 5e-5, 6e-5),
        # 1 ms and 10 M values a second
        given("decode huffman", 2e-3, values=1e4, bytes=1.0, workers=2.0),
        given("decode huffman", 11e-3, values=1e5, bytes=1.0, workers=2.0),
        given("decode cachegen", 4e-3, values=1e4, bytes=1.0, workers=2.0),
        # 0.1 ms and 1 GB/s
        given("placing", 1.1e-3, bytes=1e6),
        given("placing", 2.1e-3, bytes=2e6),
        given("request", 3e-4),
        given("receive", 5e8, unit="byte/s"),
        given("random_read", 1e8, unit="byte/s", block_bytes=4096.0, depth=1.0),
        given("random_read_fio", 9e8, unit="byte/s", block_bytes=4096.0, depth=1.0),
        given("compute beside decompress", 1.2, 1.3, 1.4, unit="times", link_bytes_per_s=4e7),
        given("compute beside link", 0.97, unit="times", link_bytes_per_s=4e7),
        given("decompress beside compute", 1.5, unit="times", link_bytes_per_s=4e7),
        given("copy beside compute", 1.25, unit="times", link_bytes_per_s=4e7),
        given("power idle cpu by RAPL", 3.0, unit="W"),
        given("power active cpu by RAPL", 12.0, unit="W"),
        given("power active dram by RAPL", 2.0, unit="W"),
    ]
    here = {"memory_bytes": 8e9, "free_memory_bytes": 6e9}
    draft, fit = profile("d", Settings(model="tiny", workers=2), load_model("tiny"), found, here, BASE)
    device = draft.checked()
    assert fit is None
    cpu = device.processors["cpu"]
    assert (cpu.dispatch_s, cpu.idle_w, cpu.active_w) == (5e-5, 3.0, 12.0)
    assert (cpu.flop_per_s, draft.sources["processors.cpu.flop_per_s"]) == (0.896e12, "not measured; laptop-cpu")
    assert (device.decompressor.workers, device.decompressor.piece_s) == (2, pytest.approx(1e-3))
    assert device.decompressor.values_per_s == pytest.approx(1e7)
    # one size tells no fixed time
    assert device.decompressor.of("cachegen").values_per_s == pytest.approx(2.5e6)
    assert device.memory.copy_bytes_per_s == pytest.approx(1e9)
    assert (device.memory.copy_latency_s, device.memory.reserved_bytes) == (pytest.approx(1e-4), 2e9)
    assert (device.network.request_s, device.network.bytes_per_s) == (3e-4, 5e8)
    assert device.storage is not None and device.storage.read[0].bytes_per_s == (1e8,)
    assert device.contention is not None and device.contention.link_bytes_per_s == 4e7
    # what was not slower beside the other is left out
    assert device.contention.slowdown == {
        "cpu": {"decompress": 1.3},
        "decompress": {"cpu": 1.5},
        "copy": {"cpu": 1.25},
    }


def test_three_sizes_of_pieces_are_a_table() -> None:
    sizes = {1e4: 2e-3, 5e4: 7e-3, 1e5: 8e-3}
    found = [given("decode huffman", seconds, values=values, workers=1.0) for values, seconds in sizes.items()]
    draft, _ = profile("d", Settings(model="tiny"), load_model("tiny"), found, {}, BASE)
    decoding = draft.checked().decompressor
    assert [decoding.seconds(values) for values in sizes] == pytest.approx(list(sizes.values()))
    assert "decompressor.pieces" in draft.sources


# Whole prompts, as many points as a roofline needs.
OPS = [
    Measurement(what="decode_step", unit="s", values=(1e-3,), at={"context": 1024.0}),
    Measurement(what="prefill", unit="s", values=(1e-2,), at={"context": 0.0, "tokens": 64.0}),
]
CUDA = replace(QUICK, device="cuda")
ON_GPU = {"memory_bytes": 64e9, "device_memory_bytes": 16e9}


def test_kernels_of_choosing_are_shares_of_the_peak_and_a_rate_without_the_launch() -> None:
    """By hand: a launch takes 10 us and a score 0.1 ns; 1 MB of keys in 20 us is half of 100 GB/s."""
    peaks = [given("matrix_product", 1e12, unit="flop/s", rows=2048.0), given("memory_copy", 1e11, bytes=2.0**27)]
    ranked = [given("rank", 1e-5 + rows * 1e3 * 1e-10, rows=rows, scores=1e3) for rows in (8.0, 512.0)]
    kernels = [given("scoring", 2e-5, bytes=1e6), given("gather", 5e-5, bytes=1e6)]
    draft, fit = profile("d", QUICK, load_model("tiny"), [*peaks, *ranked, *kernels, *OPS], {}, BASE)
    cpu = draft.checked().processors["cpu"]
    assert fit is not None
    assert cpu.topk_per_s == pytest.approx(1e10, rel=1e-3)
    assert cpu.efficiency["scoring"] == pytest.approx(0.5 / fit.raised, rel=1e-3)
    assert cpu.efficiency["gather"] == pytest.approx(0.2 / fit.raised, rel=1e-3)


def test_a_gpus_copy_path_is_that_of_pinned_memory() -> None:
    copied = [given("copy to the device, pinned", 1e-5 + n / 25e9, bytes=n) for n in (4e3, 6.4e7)]
    others = [given("copy to the device, pageable", 1e-2, bytes=6.4e7)]
    pieces = [given("pieces to the device", 8e-3, bytes=6.4e7, piece_bytes=256.0)]
    draft, _ = profile("d", CUDA, load_model("tiny"), [*copied, *others, *pieces], ON_GPU, BASE)
    memory = draft.checked().memory
    assert (memory.copy_bytes_per_s, memory.copy_latency_s) == pytest.approx((25e9, 1e-5), rel=1e-3)
    told = draft.sources["memory.copy_bytes_per_s"]
    assert "copy to the device, pageable: 6.4 GB/s" in told
    assert "pieces of 256 B brought together first: 8 GB/s" in told
    assert [(one.range_bytes, one.bytes_per_s) for one in memory.gathered] == [(256.0, 8e9)]


def test_without_a_meter_it_is_said_plainly() -> None:
    draft, _ = profile("d", QUICK, load_model("tiny"), [given("no_power_meter", 1.0, unit="")], {}, BASE)
    assert draft.checked().processors["cpu"].active_w == 0.0
    assert "nothing on this device tells" in draft.sources["processors.cpu.active_w"]


def test_a_meter_of_something_else_is_no_meter() -> None:
    found = [given("power idle cpu by RAPL", 3.0, unit="W"), given("power active cpu by RAPL", 12.0, unit="W")]
    draft, _ = profile("d", CUDA, load_model("tiny"), found, ON_GPU, BASE)
    gpu = draft.checked().processors["gpu"]
    assert (gpu.idle_w, gpu.active_w) == (0.0, 0.0)
    for state in ("idle_w", "active_w"):
        source = draft.sources[f"processors.gpu.{state}"]
        assert source == "RAPL does not tell what it draws: energy of this processor is not counted"


def test_a_gpu_in_the_memory_of_its_cpu_shares_it() -> None:
    """A Jetson: what is taken when the calibration begins is not free, and KV needs no copy path."""
    orin = load_device("jetson-orin-nx-sparkv")
    here = {"memory_bytes": 16e9, "free_memory_bytes": 13e9, "device_memory_bytes": 16e9, "device_unified": True}
    draft, _ = profile("d", CUDA, load_model("tiny"), [], here, orin)
    memory = draft.checked().memory
    assert (memory.unified, memory.capacity_bytes, memory.reserved_bytes) == (True, 16e9, 3e9)
    assert memory.host_capacity_bytes is None
    assert draft.sources["memory.unified"] == "a GPU in the memory of the CPU"


def test_a_copy_path_that_was_not_measured_is_the_base_profiles() -> None:
    # a base without one moves bytes as fast as its memory does
    for name, bytes_per_s in (("rtx-5080-laptop", 25e9), ("laptop-cpu", BASE.memory.bytes_per_s)):
        draft, _ = profile("d", CUDA, load_model("tiny"), [], ON_GPU, load_device(name))
        assert draft.checked().memory.copy_bytes_per_s == pytest.approx(bytes_per_s)
        assert draft.sources["memory.copy_bytes_per_s"].startswith(f"not measured; {name}")


# --- mistakes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--model", "./nowhere"], "nowhere"),
        (["--model", "tiny"], "--random-weights draws weights for it"),
        (["--model", "byte-small", "--dtype", "int3"], "^unknown dtype 'int3'[^;]*;[^;]*$"),
        (["--model", "tiny", "--random-weights", "--parts", ""], "--parts: names nothing to measure; known: compute,"),
        (["--model", "tny", "--random-weights"], "Did you mean 'tiny'"),
        (["--model", "tiny", "--random-weights", "--parts", "compute,disk"], "unknown part 'disk'"),
        (["--model", "tiny", "--random-weights", "--attention", "sparse"], "dense or block-sparse"),
        (["--model", "tiny", "--random-weights", "--context", "100"], "from one token chunk on"),
        (["--model", "tiny", "--random-weights", "--context", "much"], "--context"),
        (["--model", "tiny", "--random-weights", "--device", "abacus"], "device 'abacus' is not available"),
        (["--model", "tiny", "--random-weights", "--device", "cuda:15"], "device 'cuda:15' is not available"),
        (["--model", "tiny", "--random-weights", "--dtype", "int3"], "unknown dtype 'int3'"),
    ],
)
def test_mistakes_are_reported(arguments: list[str], said: str, tmp_path: Path) -> None:
    ended = CliRunner().invoke(app, ["calibrate", "-o", str(tmp_path / "out"), *arguments])
    assert isinstance(ended.exception, InputError), ended.exception
    assert re.search(said, str(ended.exception)) if said.startswith("^") else said in str(ended.exception)
    assert not (tmp_path / "out" / NAME).exists()


def test_a_full_disk_is_reported_and_the_rest_is_kept(tmp_path: Path) -> None:
    journal = Journal(tmp_path, {})
    journal.add("a", [given("x", 1.0)])
    journal.path = Path("/dev/full")
    with pytest.raises(KvferryError, match="the disk is full; what was measured before is kept"):
        journal.add("b", [given("x", 1.0)])
    assert list(Journal(tmp_path, {}).done) == ["a"]


def test_the_command_knows_all_parts() -> None:
    assert tuple(_PARTS.split(",")) == PARTS
