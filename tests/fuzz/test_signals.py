"""Signals at any moment of a command: it ends soon and quietly, leaves nothing behind, loses nothing that was done."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from seeds import blocks, check_each
from signalled import Ended, carried_out, contents, points_kept, what_is_wrong
from small_cloud import write_store
from tiny import LIVE_LOADING

from kvferry.analysis.dataset import read_points

HERE = "tests/fuzz/test_signals.py"
RUNS = {
    "quickstart": ("run", "quickstart", "--output", "out"),
    "decode": ("run", "decode", "--set", "workload.output=32", "--output", "out"),
    "assist": ("run", "pd_device/assist", "--set", "workload.output=32", "--output", "out"),
    "session": ("run", "session/day", "--set", "workload.turns=8", "--output", "out"),
    "assisted": ("run", "session/assisted", "--set", "workload.turns=4", "--output", "out"),
    "three-ways": ("run", "session/three-ways", "--set", "workload.turns=4", "--output", "out"),
    "offload": ("run", "offload", "--output", "out"),
}
COMPARED = {
    "loading": ("ferry,stream-only", "quickstart"),
    "session": ("on-flash,streamed", "session/day", "--set", "workload.turns=4"),
    "offload": ("vllm,full-flash", "offload", "--set", "workload.output=16"),
}
STUDY = """\
base: {extends: quickstart, link: {trace: null}}
axes:
  link.rate: [100 Mbit/s, 200 Mbit/s, 400 Mbit/s, 800 Mbit/s]
  workload.context: [2Ki, 3Ki, 4Ki]
"""
STUDIES = {
    "session": """\
base: {extends: session/day, workload: {turns: 6}}
axes:
  system: [on-flash, streamed]
  workload.question: [32, 64, 128]
""",
    "offload": """\
base: {extends: offload, workload: {output: 8}}
axes:
  budget.offload.to: [cpu, host]
  budget.offload.layers: [20, 29, 39]
""",
}
ADVISE = ("advise", "--device", "rtx-4060", "--model", "llama-3.1-8b", "--context", "1Ki")
SEARCH = """\
base: {extends: quickstart}
space:
  link.rtt: {from: 1 ms, to: 100 ms, log: true}
  workload.context: [1Ki, 2Ki, 4Ki]
objectives: [ttft_s, load_s]
points: 15
at_once: 5
"""
CALIBRATE = ("calibrate", "--model", "tiny", "--random-weights", "--quick", "--context", "1Ki", "--output", "out")
TUNE = ("tune", "kvswap/throughput", "--kv-memory", "2200 MiB", "--most-batch", "2", "--most-context", "8Ki")
CAPACITY = ("capacity", "pd_device/assist", "--set", "slo.ttft=2 s")
Undisturbed = Callable[..., Ended]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """The command as it ends by itself, once."""
    done: dict[tuple[object, ...], Ended] = {}

    def found(arguments: tuple[str, ...], serves: bool = False, **files: str) -> Ended:
        asked = (arguments, *files.items())
        if asked not in done:
            folder = tmp_path_factory.mktemp("undisturbed")
            _write(folder, files)
            ended, number = carried_out(folder, arguments, serves)
            assert (wrong := what_is_wrong(ended, number)) is None, wrong
            done[asked] = ended
        return done[asked]

    return found


def _write(folder: Path, files: dict[str, str]) -> None:
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text)


def cut(
    seed: int, folder: Path, arguments: tuple[str, ...], whole: Ended, serves: bool = False
) -> tuple[Ended, str | None]:
    """The command that gets a signal, and what is wrong with how it ends."""
    ended, number = carried_out(folder, arguments, serves, Random(seed), whole.used_s)
    return ended, what_is_wrong(ended, number)


def of_a_run(ended: Ended, whole: Ended, out: Path) -> str | None:
    """What is wrong with the folder of a run, or of one of several: each file is that of an undisturbed run, or the
    folder says that it was interrupted; and where there are metrics, nothing but pictures is missing."""
    found, full = contents(out), contents(whole.out / out.relative_to(ended.out))
    if ended.code == 0:
        return None if found == full else f"files differ: {sorted(found.keys() ^ full.keys())}"
    if "metrics.json" not in found:
        stray = [name for name in found if name.startswith("plots/")]
        return f"pictures without metrics: {stray}" if stray else None
    # They are written last of the data.
    data = {name for name in full if not name.startswith("plots/")}
    if not found.keys() >= data:
        return f"metrics without {data - found.keys()}"
    metrics = json.loads(found["metrics.json"])
    if metrics["outcome"] == "interrupted":
        return None
    other = [name for name, content in found.items() if content != full.get(name)]
    if "intervals" not in metrics and ended.code != 0:
        # The run is whole; what says how sure it is was not.
        whole_metrics = json.loads(full["metrics.json"])
        if metrics == {key: whole_metrics[key] for key in metrics}:
            other = [name for name in other if name != "metrics.json"]
    return f"other files than an undisturbed run's: {other}" if other else None


@pytest.mark.parametrize("name", RUNS)
@blocks(quick=0, long=60, size=10)
def test_run(tmp_path: Path, undisturbed: Undisturbed, name: str, seeds: range) -> None:
    whole = undisturbed(RUNS[name])

    def case(seed: int) -> str | None:
        ended, wrong = cut(seed, tmp_path / str(seed), RUNS[name], whole)
        return wrong or of_a_run(ended, whole, ended.out)

    check_each(seeds, f"{HERE}::test_run -k {name}", case)


@pytest.mark.parametrize("name", COMPARED)
@blocks(quick=0, long=60, size=10)
def test_compare(tmp_path: Path, undisturbed: Undisturbed, name: str, seeds: range) -> None:
    systems, *scenario = COMPARED[name]
    arguments = ("compare", *scenario, "--systems", systems, "--plots", "--output", "out")
    whole = undisturbed(arguments)

    def case(seed: int) -> str | None:
        ended, wrong = cut(seed, tmp_path / str(seed), arguments, whole)
        wrongs = (wrong, *(of_a_run(ended, whole, ended.out / system) for system in systems.split(",")))
        return next(filter(None, wrongs), None)

    check_each(seeds, f"{HERE}::test_compare -k {name}", case)


@blocks(quick=0, long=60, size=10)
def test_report(tmp_path: Path, undisturbed: Undisturbed, seeds: range) -> None:
    results = undisturbed(RUNS["decode"]).out
    arguments = ("report", str(results), "--output", "out.html")
    whole = undisturbed(arguments)

    def case(seed: int) -> str | None:
        ended, wrong = cut(seed, tmp_path / str(seed), arguments, whole)
        page = ended.folder / "out.html"
        if wrong or not page.exists():
            return wrong or ("no page" if ended.code == 0 else None)
        pages = (page.read_text(), (whole.folder / "out.html").read_text())
        # But for the minute in which it was made.
        one, other = (re.sub(r"[0-9-]+ [0-9:]+ UTC", "", text) for text in pages)
        return None if one == other else "another page than the undisturbed one"

    check_each(seeds, f"{HERE}::test_report", case)


@blocks(quick=1, long=60, size=1)
def test_sweep(tmp_path: Path, undisturbed: Undisturbed, seeds: range) -> None:
    check_each(seeds, f"{HERE}::test_sweep", lambda seed: gone_on_with(seed, tmp_path, undisturbed, "sweep", STUDY))


@pytest.mark.parametrize("name", STUDIES)
@blocks(quick=0, long=60, size=10)
def test_other_sweeps(tmp_path: Path, undisturbed: Undisturbed, name: str, seeds: range) -> None:
    case = lambda seed: gone_on_with(seed, tmp_path, undisturbed, "sweep", STUDIES[name])  # noqa: E731
    check_each(seeds, f"{HERE}::test_other_sweeps -k {name}", case)


@pytest.mark.parametrize("more", [("--quick",), ()], ids=["quick", "refined"])
@blocks(quick=0, long=30, size=10)
def test_advise(tmp_path: Path, undisturbed: Undisturbed, more: tuple[str, ...], seeds: range) -> None:
    arguments = (*ADVISE, *more, "--output", "out")
    whole = undisturbed(arguments)

    def case(seed: int) -> str | None:
        ended, wrong = cut(seed, tmp_path / str(seed), arguments, whole)
        return wrong or of_advice(ended, whole)

    check_each(seeds, f"{HERE}::test_advise -k {'quick' if more else 'refined'}", case)


def of_advice(ended: Ended, whole: Ended) -> str | None:
    """What is wrong with the folder of an answer: of one that was given all is there, and what was done of its study
    is as in an undisturbed one."""
    found, full = contents(ended.out), contents(whole.out)
    given = ended.code == 0 or "the best so far" in ended.said
    if given and (missing := {"scenario.yaml", "advice.json", "report.html"} - found.keys()):
        return f"an answer without {missing}: {ended.said}"
    if ended.code == 0 and found != full:
        return f"other files: {[name for name in found | full if found.get(name) != full.get(name)]}"
    if "advice.json" in found:
        json.loads(found["advice.json"])
    return None


@blocks(quick=0, long=60, size=10)
def test_search(tmp_path: Path, undisturbed: Undisturbed, seeds: range) -> None:
    check_each(seeds, f"{HERE}::test_search", lambda seed: gone_on_with(seed, tmp_path, undisturbed, "search", SEARCH))


def gone_on_with(seed: int, tmp_path: Path, undisturbed: Undisturbed, command: str, text: str) -> str | None:
    """A study that gets a signal, and the same command behind it."""
    arguments = (command, "study.yaml", "--no-plots", "--output", "out")
    alone = (*arguments, "--jobs", "1")
    whole = undisturbed(alone, study=text)
    folder = tmp_path / str(seed)
    _write(folder, {"study": text})
    ended, wrong = cut(seed, folder, (*arguments, "--jobs", "2" if seed % 10 == 5 else "1"), whole)
    if wrong:
        return wrong
    kept = points_kept(ended.out)
    if (told := re.search(r"kept ([0-9]+) of", ended.said)) and int(told[1]) != kept:
        return f"{kept} points are kept: {ended.said}"
    again, number = carried_out(folder, alone)
    if wrong := what_is_wrong(again, number):
        return wrong
    new = re.search(r"([0-9]+) (of them new|scenarios run now)", (folder / "printed").read_text())
    n_points = points_kept(again.out)
    if new is None or int(new[1]) != n_points - kept:
        return f"{kept} of {n_points} points were kept; then: {(folder / 'printed').read_text()}"
    found, full = contents(again.out), contents(whole.out)
    shutil.rmtree(folder)
    return None if found == full else f"other files: {[n for n in found | full if found.get(n) != full.get(n)]}"


@blocks(quick=0, long=60, size=10)
def test_reproduce(tmp_path: Path, undisturbed: Undisturbed, seeds: range) -> None:
    arguments = ("reproduce", "devices", "--seeds", "1", "--output", "out")

    def case(seed: int) -> str | None:
        return resumed(seed, tmp_path, undisturbed, arguments, points, contents)

    def points(out: Path) -> dict[str, Any]:
        kept = read_points(out / "runs") if (out / "runs").exists() else None
        return {} if kept is None else dict(zip(kept.get("key", ()), kept.get("outcome", ()), strict=True))

    check_each(seeds, f"{HERE}::test_reproduce", case)


@blocks(quick=0, long=60, size=10)
def test_tune(tmp_path: Path, undisturbed: Undisturbed, seeds: range) -> None:
    arguments = (*TUNE, "--output", "out/tuned.json")

    def case(seed: int) -> str | None:
        return resumed(seed, tmp_path, undisturbed, arguments, contents, contents)

    check_each(seeds, f"{HERE}::test_tune", case)


@pytest.mark.torch
@pytest.mark.parametrize("parts", ["compute,dispatch", "dispatch,codec,storage"])
@blocks(quick=0, long=30, size=10)
def test_calibrate(tmp_path: Path, undisturbed: Undisturbed, seeds: range, parts: str) -> None:
    pytest.importorskip("torch")
    arguments = (*CALIBRATE, "--parts", parts)

    def case(seed: int) -> str | None:
        return resumed(seed, tmp_path, undisturbed, arguments, measured, names)

    def measured(out: Path) -> dict[str, Any]:
        journal = out / "journal.jsonl"
        lines = journal.read_text().splitlines(keepends=True)[1:] if journal.exists() else []
        return {json.loads(line)["task"]: line for line in lines if line.endswith("\n")}

    check_each(seeds, f"{HERE}::test_calibrate -k {parts}", case)


@pytest.mark.torch
@blocks(quick=0, long=60, size=10)
def test_fidelity(tmp_path: Path, undisturbed: Undisturbed, seeds: range) -> None:
    pytest.importorskip("torch")
    arguments = ("fidelity", "live.yaml", "--runs", "2", "--output", "out")

    def case(seed: int) -> str | None:
        return resumed(seed, tmp_path, undisturbed, arguments, runs, names, live=json.dumps(LIVE_LOADING))

    def runs(out: Path) -> dict[str, Any]:
        kept = json.loads((out / "runs.json").read_text()) if (out / "runs.json").exists() else {}
        return {f"{key} {n}": run for key, found in kept.items() for n, run in enumerate(found["measured"])}

    check_each(seeds, f"{HERE}::test_fidelity", case)


@pytest.mark.torch
@blocks(quick=0, long=60, size=10)
def test_encode(tmp_path: Path, undisturbed: Undisturbed, seeds: range) -> None:
    pytest.importorskip("torch")
    arguments = ("encode", "live.yaml", "--output", "out")

    def case(seed: int) -> str | None:
        return resumed(seed, tmp_path, undisturbed, arguments, contents, contents, live=json.dumps(LIVE_LOADING))

    check_each(seeds, f"{HERE}::test_encode", case)


def names(out: Path) -> set[str]:
    """Files that are there in the end, where what they say is measured."""
    return set(contents(out))


def resumed(
    seed: int,
    tmp_path: Path,
    undisturbed: Undisturbed,
    arguments: tuple[str, ...],
    done: Callable[[Path], dict[str, Any]],
    whole: Callable[[Path], Any],
    **files: str,
) -> str | None:
    """A command that gets a signal, and behind every third the same command to its end: what was `done` stays as it
    was, and then there is the `whole` of an undisturbed one."""
    alone = undisturbed(arguments, **files)
    folder = tmp_path / str(seed)
    _write(folder, files)
    ended, wrong = cut(seed, folder, arguments, alone)
    kept = done(ended.out)
    if not wrong and (ended.code == 0 or seed % 3 == 0):
        again, number = carried_out(folder, arguments)
        wrong = what_is_wrong(again, number)
        found = done(again.out)
        if lost := [name for name in kept if found.get(name) != kept[name]]:
            wrong = wrong or f"lost: {lost}"
        if whole(again.out) != whole(alone.out):
            wrong = wrong or f"another end: {names(again.out) ^ names(alone.out)}"
    shutil.rmtree(folder)
    return wrong


@pytest.mark.torch
@blocks(quick=0, long=60, size=10)
def test_serve(tmp_path: Path, undisturbed: Undisturbed, seeds: range) -> None:
    pytest.importorskip("uvicorn")
    (tmp_path / "stores").mkdir()
    write_store(tmp_path / "stores" / "a.kvs")
    arguments = ("serve", str(tmp_path / "stores"), "--port", "0")
    whole = undisturbed(arguments, serves=True)
    check_each(
        seeds, f"{HERE}::test_serve", lambda seed: cut(seed, tmp_path / str(seed), arguments, whole, serves=True)[1]
    )


@pytest.mark.torch
@blocks(quick=0, long=60, size=10)
def test_serve_cloud(tmp_path: Path, undisturbed: Undisturbed, seeds: range) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("uvicorn")
    arguments = ("serve-cloud", "pd_device/live", "--port", "0")
    whole = undisturbed(arguments, serves=True)
    check_each(
        seeds,
        f"{HERE}::test_serve_cloud",
        lambda seed: cut(seed, tmp_path / str(seed), arguments, whole, serves=True)[1],
    )


@pytest.mark.parametrize("made", ["archive", "folder", "pictures"])
@blocks(quick=0, long=30, size=10)
def test_what_is_made_of_a_study(tmp_path: Path, undisturbed: Undisturbed, made: str, seeds: range) -> None:
    """It is there as undisturbed, or not at all; of pictures each."""
    text = STUDY + "plots: [{kind: line, x: workload.context, y: load_s, by: link.rate}]\n"
    sweep = undisturbed(("sweep", "study.yaml", "--no-plots", "--output", "out", "--jobs", "1"), study=text).out
    pack = ("pack", str(sweep), "--output", "a.zip")
    arguments = {
        "archive": pack,
        "folder": ("unpack", str(undisturbed(pack).folder / "a.zip"), "--output", "out"),
        "pictures": ("plot", str(sweep), "--format", "svg,png", "--output", "out"),
    }[made]
    whole = undisturbed(arguments)

    def case(seed: int) -> str | None:
        ended, wrong = cut(seed, tmp_path / str(seed), arguments, whole)
        found, full = (contents(one.folder / ("a.zip" if made == "archive" else "out")) for one in (ended, whole))
        some = not found or (made == "pictures" and found.items() <= full.items())
        return wrong or (None if found == full or (ended.code and some) else f"other: {sorted(found)}")

    check_each(seeds, f"{HERE}::test_what_is_made_of_a_study -k {made}", case)


@pytest.mark.parametrize("asked", [("schedule", "quickstart"), CAPACITY])
@blocks(quick=0, long=30, size=10)
def test_what_only_prints(tmp_path: Path, undisturbed: Undisturbed, asked: tuple[str, ...], seeds: range) -> None:
    whole = undisturbed(asked)
    repeat = f"{HERE}::test_what_only_prints"
    check_each(seeds, repeat, lambda seed: cut(seed, tmp_path / str(seed), asked, whole)[1])
