"""Files of every kind that is read, damaged: they are read, or refused with a message; nothing else."""

import hashlib
import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from damage import damaged, damaged_lines
from kept_clusters import KeptClusters
from limited import called
from seeds import blocks, check_each

from kvferry.analysis.dataset import Dataset
from kvferry.layouts.pools import PoolLayout
from kvferry.scenarios.library import BUNDLED as SCENARIOS
from kvferry.scenarios.loader import load_device
from kvferry.traces.chunks import generate_chunks
from kvferry.traces.format import StoredTrace, write_trace
from kvferry.traces.key_recording import KeyRecording
from kvferry.traces.rate import RateTrace
from kvferry.traces.resolve import BUNDLED as TRACES
from kvferry.traces.selections import SelectionStream

HERE = "tests/fuzz/test_files.py"
FOREIGN = Path(__file__).parent.parent / "data" / "calibrate"
MAIN = load_device("tiny").main
SMALL = ("--set", "model=tiny", "--set", "workload.context=2Ki")
LOADED = ("--set", "load.trace=./l.yaml")
MEASURED = ("--set", "device=tiny", "--set", "costs=table", "--set", f"device.processors.{MAIN}.measured=./measured")
STUDY = """\
base:
  name: small
  system: stream-only
  device: tiny
  model: tiny
  link: {rate: 80 Mbit/s}
  workload: {kind: context-reuse, context: 2Ki}
axes: {workload.context: [1Ki, 2Ki]}
"""
ODD_VALUES: list[object] = [
    None,
    True,
    -1,
    0,
    1e308,
    float("nan"),
    10**400,
    "BIG",
    "",
    "\x1b[31m",
    "x" * 999,
    [],
    {},
    [[]],
]
# Two values of each kind of column that a table of results has not, or has elsewhere.
OTHER_KINDS = [
    pa.array([[1.0, 2.0], [3.0]]),
    pa.array([["a"], []]),
    pa.array([{"a": 1}, {"a": 2}]),
    pa.array([b"\xff\xfe", b""]),
    pa.array([10**18, 2], pa.timestamp("ns")),
    pa.array([1, 2], pa.duration("s")),
    pa.array([1, 2], pa.decimal128(38, 10)),
    pa.array([float("nan"), float("inf")]),
    pa.array([1e308, -1e308]),
    pa.array([-(2**63), 2**63 - 1]),
    pa.array([2**64 - 1, 0], pa.uint64()),
    pa.array([1, None], pa.int8()),
    pa.array([True, False]),
    pa.nulls(2),
    pa.array(["", None]),
    pa.array(["$\\frac{$", "</script>\x1b[31m"], pa.large_string()),
    pa.array(["x" * 9999, "x"]).dictionary_encode(),
    pa.array(["1e999", "-1"]),
]
# Tokens of a decode.
FEW = tuple(f"--set=workload.{size}" for size in ("context=40", "output=8", "decoded=null", "part=middle"))
# What makes the whole file in a folder, its name, and the words of the command that reads it.
Made = tuple[Callable[[Path], object], str, tuple[str, ...]]


def trace_csv(folder: Path) -> None:
    write_trace(folder / "t.csv", StoredTrace("bandwidth", RateTrace.from_samples([1e6, 2e6, 0.0], 0.5), {"a": "b"}))


def chunks(folder: Path) -> None:
    generate_chunks("text", 2048, 4, 2, 0, sequence=0, chunk_tokens=1024).save(folder / "c.npz")


def selections(folder: Path) -> None:
    SelectionStream(np.array([[[[1, 2]]]] * 3, dtype=np.int32), groups=4).save(folder / "x.npz")


def keys(folder: Path) -> None:
    made = np.random.default_rng(1).normal(size=(2, 2, 50, 4)).astype(np.float32)
    KeyRecording(made, made[:, :, None]).save(folder / "k.npz")


def kept_kv(folder: Path) -> None:
    """``crashed/kv.bin`` and its log."""
    layout = PoolLayout(layers=2, sequences=1, blocks=9, first_blocks=2, block_tokens=4, token_bytes=16, file_spare=9)
    kept, chance = KeptClusters(folder, layout, 9), Random(1)
    for _ in range(6):
        kept.step(chance.randrange)
    kept.close()
    kept.crashed(len(kept.log) - 5, bool)


def table(folder: Path) -> None:
    (folder / "measured").mkdir(exist_ok=True)
    rows = "\n".join(
        f"{context},{tokens},{context * tokens * 1e-9}" for context in (0, 512, 2048) for tokens in (1, 512)
    )
    (folder / "prefill.csv").write_text(f"context,tokens,seconds\n{rows}\n")


def copied(source: Path, name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(source.read_bytes())


def points(folder: Path) -> None:
    (folder / "study.yaml").write_text(STUDY)
    row = {
        "outcome": "done",
        "why": None,
        "name": "ä",
        "seed": 1,
        "ttft_s": 0.1,
        "version": "v",
        "measured.wall_s": 0.1,
    }
    with Dataset(folder / "out") as data:
        for key in "abcdef":
            data.add(row | {"key": key})
        data.compact()
        data.add(row | {"key": "g", "measured.wall_s": 9.0})
    part = next((folder / "out" / "parts").iterdir())
    part.rename(part.with_name("x.rows"))


def kinds() -> dict[str, Made]:
    run = ("run", "quickstart", "--json", *SMALL)
    found: dict[str, Made] = {
        "trace": (trace_csv, "t.csv", (*run, "--set", "link.trace=./t.csv")),
        "trace shown": (trace_csv, "t.csv", ("traces", "show", "t.csv")),
        "generated trace": (copied(TRACES / "wifi-campus.yaml", "m.yaml"), "m.yaml", ("traces", "show", "m.yaml")),
        "generated load": (
            copied(TRACES / "load-bursty.yaml", "m.yaml"),
            "m.yaml",
            (*run, "--set", "load.trace=./m.yaml"),
        ),
        "chunks": (chunks, "c.npz", (*run, "--set", "workload.chunks=./c.npz")),
        "chunks shown": (chunks, "c.npz", ("traces", "show", "c.npz")),
        "keys": (keys, "k.npz", ("run", "dynakv/latency", "--json", *FEW, "--set", "workload.recorded_keys=./k.npz")),
        "selections shown": (selections, "x.npz", ("traces", "show", "x.npz")),
        "KV file": (kept_kv, "crashed/kv.bin", ("kv-file", "crashed/kv.bin")),
        "KV file's log": (kept_kv, "crashed/kv.bin.log", ("kv-file", "crashed/kv.bin", "--json")),
        "device": (copied(SCENARIOS / "devices" / "tiny.yaml", "d.yaml"), "d.yaml", (*run, "--set", "device=./d.yaml")),
        "device shown": (copied(SCENARIOS / "devices" / "oneplus-12.yaml", "d.yaml"), "d.yaml", ("devices", "d.yaml")),
        "model": (copied(SCENARIOS / "models" / "tiny.yaml", "m.yaml"), "m.yaml", ("models", "m.yaml")),
        "study": (points, "study.yaml", ("sweep", "study.yaml", "-j", "1", "-o", "new", "--json")),
        **{
            f"data set, {name}": (points, f"out/{name}", ("sweep", "study.yaml", "-j", "1", "-o", "out", "--json"))
            for name in ("points.parquet", "timings.parquet", "parts/x.rows")
        },
    }
    for file in sorted(FOREIGN.glob("*.json")):
        words = ("calibrate", "--from", file.name, "--base", "tiny", "--model", "llama-3.2-1b", "-o", "profile")
        found[file.name] = (copied(file, file.name), file.name, words)
    return found


@pytest.mark.long
def test_whole_files_are_read(tmp_path: Path) -> None:
    for n, (make, _, words) in enumerate(kinds().values()):
        folder = tmp_path / str(n)
        folder.mkdir()
        make(folder)
        found = called(*words, folder=folder)
        assert (found.fault, found.code) == (None, 0), (words, str(found))


@blocks(quick=12, long=5000, size=20)
def test_damaged_files(seeds: range, tmp_path: Path) -> None:
    def case(seed: int) -> str | None:
        chance = Random(seed)
        kind, (make, name, words) = chance.choice(sorted(kinds().items(), key=lambda item: item[0]))
        folder = tmp_path / str(seed)
        folder.mkdir()
        make(folder)
        content = (folder / name).read_bytes()
        if name.endswith((".npz", ".parquet", ".rows", ".bin", ".log")) or chance.random() < 0.5:
            content = damaged(chance, content)
        else:
            content = damaged_lines(chance, content.decode()).encode("utf-8", "surrogatepass")
        (folder / name).write_bytes(content)
        found = called(*words, folder=folder)
        return f"{kind}: {found.fault}: {found}" if found.fault else None

    check_each(seeds, f"{HERE}::test_damaged_files", case)


@blocks(quick=8, long=1000, size=8)
def test_odd_json_of_other_tools(seeds: range, tmp_path: Path) -> None:
    files = sorted(FOREIGN.glob("*.json"))
    if not files:
        pytest.skip("no samples of other tools")

    def case(seed: int) -> str | None:
        chance = Random(seed)
        file = chance.choice(files)
        text = json.dumps(odd(chance, json.loads(file.read_text())))
        (tmp_path / file.name).write_text(text.replace('"BIG"', "9" * 5000))
        words = ("calibrate", "--from", file.name, "--base", "tiny", "--model", "llama-3.2-1b", "-o", "profile")
        found = called(*words, folder=tmp_path)
        return f"{file.name}: {found.fault}: {found}" if found.fault else None

    check_each(seeds, f"{HERE}::test_odd_json_of_other_tools", case)


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a study's archive, ``a.zip``, unpacked in ``out``."""
    folder = tmp_path_factory.mktemp("unpacked")
    (folder / "study.yaml").write_text(STUDY + "plots: [{kind: line, x: workload.context, y: ttft_s, by: system}]\n")
    for words in (
        ("sweep", "study.yaml", "-j", "1", "--no-plots", "-o", "swept"),
        ("pack", "swept", "-o", "a.zip"),
        ("unpack", "a.zip", "-o", "out"),
    ):
        found = called(*words, folder=folder)
        assert (found.fault, found.code) == (None, 0), str(found)
    return folder


@blocks(quick=10, long=1000, size=20)
def test_values_of_other_kinds_in_an_archive(seeds: range, tmp_path: Path, unpacked: Path) -> None:
    """A column of its tables, or a value of its records, is of another kind than a sweep writes."""
    key = pq.read_table(unpacked / "out/order.parquet")["key"][0].as_py()
    commands = (
        ("report", "out", "-o", "r.html"),
        ("plot", "out", "--output", "drawn"),
        ("run", "out", "--point", key, "--no-plots", "-o", "new"),
        ("pack", "out", "-o", "b.zip"),
        ("unpack", "out", "--check", "-j", "1"),
        ("unpack", "changed.zip", "-o", "new"),
    )

    def case(seed: int) -> str | None:
        chance = Random(seed)
        folder = tmp_path / str(seed)
        shutil.copytree(unpacked / "out", folder / "out")
        name = chance.choice(["points.parquet", "order.parquet", "manifest.json", "provenance.json"])
        file, words = folder / "out" / name, chance.choice(commands)
        if name.endswith(".json"):
            text = json.dumps(odd(chance, json.loads(file.read_text())))
            file.write_text(text.replace('"BIG"', "9" * 5000))
        else:
            with_column_of_another_kind(chance, file)
        packed_again(folder / "out", folder / "changed.zip", "manifest.json" if name == "manifest.json" else None)
        found = called(*words, folder=folder)
        shutil.rmtree(folder)
        if found.code == 1 and (found.out or "not drawn" in found.err) and words[0] in ("unpack", "plot"):
            # Figures that differ, and plots without points.
            return None
        return f"{name}, {words[0]}: {found.fault}: {found}" if found.fault else None

    check_each(seeds, f"{HERE}::test_values_of_other_kinds_in_an_archive", case)


def with_column_of_another_kind(chance: Random, file: Path) -> None:
    """Half of the time a column that pictures and reports look at."""
    table = pq.read_table(file)
    shown = [one for one in ("key", "outcome", "system", "ttft_s", "workload.context") if one in table.column_names]
    column = chance.choice(shown if chance.random() < 0.5 else table.column_names)
    at, n = table.column_names.index(column), len(table)
    values = chance.choice(OTHER_KINDS)
    pq.write_table(table.set_column(at, column, values.take(pa.array([one % 2 for one in range(n)]))), file)


def packed_again(folder: Path, file: Path, as_it_is: str | None) -> None:
    """An archive of a folder, with digests that fit unless its manifest shall stay as it is."""
    contents = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    if as_it_is is None:
        manifest = json.loads(contents["manifest.json"])
        manifest["files"] = {
            name: hashlib.sha256(one).hexdigest() for name, one in contents.items() if name != "manifest.json"
        }
        contents["manifest.json"] = json.dumps(manifest).encode()
    with zipfile.ZipFile(file, "w") as archive:
        for name, one in contents.items():
            archive.writestr(name, one)


def odd(chance: Random, value: object) -> object:
    """The value with one of its parts, somewhere, become something else."""
    if isinstance(value, dict) and value and chance.random() < 0.9:
        key = chance.choice(sorted(value))
        return {**value, key: odd(chance, value[key])}
    if isinstance(value, list) and value and chance.random() < 0.9:
        at = chance.randrange(len(value))
        return [*value[:at], odd(chance, value[at]), *value[at + 1 :]]
    odd_ones: list[object] = [
        None,
        True,
        -1,
        0,
        1e308,
        "BIG",
        "\x1b[31m",
        "",
        [],
        {},
        [[]],
        float("nan"),
        10**400,
        "x" * 999,
    ]
    return chance.choice(odd_ones)
