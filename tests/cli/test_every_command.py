"""Every command meets every workload: it gives a result (0) or says what is wrong with the input (2), never more."""

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from matplotlib.figure import Figure
from tiny import LIVE, TINY

from kvferry.cli import main as command
from kvferry.pipelines.workloads import WORKLOADS

Call = Callable[..., tuple[int, str, str]]

# What each command is called with. A scenario is JSON, which is YAML.
SIMULATED = {
    "run": ("run", "tiny.yaml", "--output", "run"),
    "run --json": ("run", "tiny.yaml", "--json"),
    "compare": ("compare", "tiny.yaml", "--systems", "FEW", "--output", "compared"),
    "compare --json": ("compare", "tiny.yaml", "--json"),  # every system
    "schedule": ("schedule", "tiny.yaml"),
    "schedule --solver": ("schedule", "tiny.yaml", "--solver", "highs", "--json"),
    "tune": ("tune", "tiny.yaml", "--least-context", "512"),
    "sweep": ("sweep", "study.yaml", "--jobs", "1", "--output", "swept"),
    "capacity": (
        *("capacity", "tiny.yaml", "--least", "device.decompressor.workers"),
        *("--most", "2", "--set", "slo.ttft=1 h"),
    ),
    "search": ("search", "search.yaml", "--jobs", "1", "--output", "searched"),
}
LIVE_TOO = {
    "run": ("run", "live.yaml", "--output", "run"),
    "encode": ("encode", "live.yaml", "--output", "stores"),
    "fidelity": ("fidelity", "live.yaml", "--runs", "1", "--output", "both"),
}
# They take no scenario (a question, a paper, a device, a store), or serve one until they are interrupted.
OTHERS = {
    "advise",
    "reproduce",
    "plot",
    "pack",
    "unpack",
    "report",
    "calibrate",
    "serve",
    "serve_cloud",
    "scenarios",
    "systems",
    "devices",
    "models",
    "runtimes",
    "schema",
    "kv_file",
}
# Who has nothing to do for a workload says so.
REFUSED = {
    ("schedule", "decode"),
    ("schedule --solver", "decode"),
    ("encode", "decode"),
    ("tune", "context-reuse"),
    *((name, "assist") for name in ("encode", "schedule", "schedule --solver", "tune")),
    *((name, "session") for name in ("encode", "schedule", "schedule --solver", "tune")),
}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KVFERRY_STORES", str(tmp_path / "kept"))


@pytest.fixture(autouse=True)
def printed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each kind's pictures are printed where it runs alone. Other commands draw theirs too, but print none of them:
    that takes most of their time, and pictures of each sort are printed by tests beside their code."""

    def unprinted(figure: Figure, file: BinaryIO, **_: Any) -> None:
        assert figure.axes
        file.write(b"a picture")

    called = getattr(request.node, "callspec", None)
    if called is not None and called.params["name"] != "run":
        monkeypatch.setattr(Figure, "savefig", unprinted)


def met(call: Call, name: str, kind: str, arguments: tuple[str, ...]) -> None:
    few = ",".join(list(WORKLOADS[kind].systems)[:2])
    code, out, err = call(*(few if argument == "FEW" else argument for argument in arguments))
    assert code == (2 if (name, kind) in REFUSED else 0), err
    assert "Traceback" not in err
    if code == 2:
        assert out == ""
        assert err.startswith("kvferry: ")
        assert kind in err, "names the workload that it cannot do"
    elif "--json" in arguments:
        json.loads(out)


def test_every_command_is_here() -> None:
    known = {each.name or inspect.unwrap(each.callback).__name__ for each in command.app.registered_commands}
    assert {name.split()[0] for name in (*SIMULATED, *LIVE_TOO)} | OTHERS == known


def test_every_workload_is_here() -> None:
    assert set(TINY) == set(WORKLOADS)
    assert set(LIVE) == set(WORKLOADS)


@pytest.mark.parametrize("kind", WORKLOADS)
@pytest.mark.parametrize("name", SIMULATED)
def test_simulated(call: Call, name: str, kind: str) -> None:
    Path("tiny.yaml").write_text(json.dumps(TINY[kind]))
    length = "workload.prompt" if kind == "assist" else "workload.context"
    study = {
        "base": TINY[kind],
        "axes": {"system": list(WORKLOADS[kind].systems)[:2], length: [1024, 2048]},
        "plots": [{"kind": "line", "x": length, "y": "energy_j", "by": "system"}],
    }
    Path("study.yaml").write_text(json.dumps(study))
    search = {"base": TINY[kind], "space": {length: [1024, 2048]}, "objectives": ["memory_peak_bytes"], "points": 2}
    Path("search.yaml").write_text(json.dumps(search))
    met(call, name, kind, SIMULATED[name])


@pytest.mark.torch
@pytest.mark.parametrize("kind", LIVE)
@pytest.mark.parametrize("name", LIVE_TOO)
def test_for_real(call: Call, name: str, kind: str) -> None:
    pytest.importorskip("torch")
    Path("live.yaml").write_text(json.dumps(LIVE[kind]))
    met(call, name, kind, LIVE_TOO[name])
