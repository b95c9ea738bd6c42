"""Real runs that keep their file with the KV: what its reader finds is what the model computed."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from noted_entries import check_entries, noted_entries, whole
from tiny import LIVE_PLAIN, changed

from kvferry.disk.kv_file import KvFile
from kvferry.pipelines.run import run_scenario
from kvferry.scenarios.loader import load_scenario
from kvferry.specs.errors import InputError

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

SCENARIO = changed(LIVE_PLAIN, system="dynakv")
POOLS: dict[str, Any] = {"name": "cluster-pools", "group_tokens": 4, "page_buffers": 2, "page": "1 KiB"}
WAYS: list[tuple[str, dict[str, Any]]] = [
    ("dynakv", {"threshold": 0.5, "selected_share": 0.3}),
    (
        "dynakv",
        {"threshold": 0.5, "layout": {"name": "dual-head", "group_tokens": 16, "page_buffers": 3, "page": "1 KiB"}},
    ),
    ("dynakv", {"threshold": 0.5, "layout": POOLS}),
    ("dynakv", {"upkeep": {"name": "global-clusters", "every_tokens": 5}, "layout": POOLS}),
    ("dynakv", {"residency": "none", "upkeep": {"name": "local-clusters", "window_tokens": 6, "window_clusters": 2}}),
    ("pqcache", {}),
    ("clusterkv", {"window_tokens": 8, "window_clusters": 2}),
    ("no-cluster", {}),
]


def kept_by(path: Path, system: str = "dynakv", **changes: Any) -> Any:
    live = changes.pop("live", {})
    return load_scenario(changed(SCENARIO, system=system, live={"kv_file": str(path), **live}, **changes))


@pytest.mark.parametrize(("system", "policies"), WAYS)
def test_all_that_was_computed_is_found(tmp_path: Path, system: str, policies: dict[str, Any]) -> None:
    path = tmp_path / "run.kv"
    with noted_entries() as noted:
        run = run_scenario(kept_by(path, system, policies=policies, workload={"output": 24}))
    found = KvFile(path)
    assert (found.step, found.tokens, found.dropped_bytes) == (23, 150 + 23, 0)
    check_entries(found, whole(noted))
    summary = found.summary()
    # The last token's writes may not have been carried out.
    kinds = ("entries_in_place", "entries_behind", "entries_in_memory")
    assert sum(summary[kind] for kind in kinds) == summary["entries"]
    assert run.measured["kv_log_bytes"] == summary["log_bytes"] == path.with_name("run.kv.log").stat().st_size
    assert (summary["clusters"] > 0) == (system != "no-cluster")
    if system == "dynakv" and "threshold" in policies and "upkeep" not in policies:
        assert summary["clusters"] > summary["rows"] * (150 // 16), "clusters were cut"
    assert sorted(one.name for one in tmp_path.iterdir()) == ["run.kv", "run.kv.log"]


def test_numbers_of_two_bytes(tmp_path: Path) -> None:
    path, model = tmp_path / "run.kv", {**SCENARIO["model"], "kv_value_bytes": 2, "weight_bits": 16}
    with noted_entries() as noted:
        run_scenario(kept_by(path, model=model, live={"dtype": "bfloat16"}, workload={"output": 4}))
    found = KvFile(path)
    assert found.header.dtype == "bfloat16"
    check_entries(found, whole(noted))


def test_a_run_decodes_the_same(tmp_path: Path) -> None:
    kept = run_scenario(kept_by(tmp_path / "run.kv"))
    scratch = run_scenario(load_scenario(SCENARIO))
    assert kept.measured["answers"] == scratch.measured["answers"]
    assert "kv_log_bytes" not in scratch.measured


@pytest.mark.parametrize(
    ("system", "changes", "why"),
    [
        ("kvswap", {"policies": {"group_tokens": 4}}, "KV blocks are clusters there, or have one token; they have 4"),
        ("shadowkv", {"policies": {"group_tokens": 4}}, "the file has keys and values, not values alone"),
        ("dynakv", {"policies": {"layout": "cluster-by-cluster"}}, "the layout moves what lies behind a cluster"),
        ("dynakv", {"policies": {"placement": "host"}}, "not all KV lies in a file here"),
        ("vllm", {"budget": {"kv": None}}, "not all KV lies in a file here"),
        ("dynakv", {"live": {"kv_folder": "/tmp"}}, "leave live.kv_folder out"),
    ],
)
def test_what_is_refused(tmp_path: Path, system: str, changes: dict[str, Any], why: str) -> None:
    path = tmp_path / "run.kv"
    with pytest.raises(InputError, match=f"live.kv_file: .*{why}"):
        run_scenario(kept_by(path, system, **changes))
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"live\.kv_file: .* is a folder; name a file"):
        run_scenario(kept_by(tmp_path))
    with pytest.raises(InputError, match=r"live\.kv_file: .* cannot be written: No such file or directory"):
        run_scenario(kept_by(tmp_path / "none" / "run.kv"))


def test_the_command(tmp_path: Path, call: Callable[..., tuple[int, str, str]]) -> None:
    path = tmp_path / "run.kv"
    run_scenario(kept_by(path, workload={"output": 4}))
    code, out, err = call("kv-file", str(path), "--json")
    assert (code, err) == (0, "")
    assert json.loads(out) == KvFile(path).summary()
    code, out, err = call("kv-file", str(path))
    assert (code, err) == (0, "")
    assert "last finished step" in out and "in place" in out
    path.with_name("run.kv.log").unlink()
    code, out, err = call("kv-file", str(path))
    assert (code, out) == (2, "")
    assert "run.kv.log: there is no such file" in err
