"""A scenario with `backend: torch`: a real model, a real server, real codecs, under the unchanged pipeline."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny import LIVE_LOADING, tiny

from kvferry.backends.world import Inputs, Needs
from kvferry.cloud.store import Store, StoreWriter
from kvferry.codecs.sizes import CODECS
from kvferry.pipelines.run import run_scenario
from kvferry.specs.errors import InputError
from kvferry.specs.scenario import Scenario

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def _stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVFERRY_STORES", str(tmp_path / "stores"))


def scenario(**changes: Any) -> Scenario:
    return tiny(LIVE_LOADING, **changes)


@pytest.mark.parametrize(
    "system", ["ferry", "sparkv", "strong-hybrid", "cachegen", "kivi", "stream-only", "local-prefill"]
)
def test_every_system_answers(system: str) -> None:
    run = run_scenario(scenario(system=system))
    assert (run.outcome, len(run.requests)) == ("done", 1)
    (record,) = run.requests
    assert record.units_computed + record.units_streamed == 3 * 3
    assert len(record.token_times_s) == 3
    assert record.first_token_s > record.loaded_s > 0
    moved = sum(span.n_bytes for span in run.spans if span.resource == "link")
    assert (moved > 0) == (record.units_streamed > 0)
    if system in ("cachegen", "kivi", "stream-only", "local-prefill"):
        assert (moved > 0) == (system != "local-prefill")
    assert len(run.measured["answers"]["0"]) == 3


def test_exact_kv_gives_the_answer_of_a_local_prefill() -> None:
    """fp16 of a float16 model loses nothing: what was loaded, computed or mixed answers alike."""
    exact = {"model": {"kv_value_bytes": 2}, "live": {"dtype": "float16"}}
    answers = {
        system: run_scenario(scenario(system=system, policies={"codec": "fp16"}, **exact)).measured["answers"]
        for system in ("local-prefill", "stream-only", "ferry")
    }
    assert answers["local-prefill"] == answers["stream-only"] == answers["ferry"]


def test_stores_are_made_once_and_sizes_are_theirs(tmp_path: Path) -> None:
    said: list[str] = []
    run = run_scenario(scenario(system="stream-only"), say=said.append)
    (store,) = (tmp_path / "stores").iterdir()
    assert [line for line in said if "encoding" in line]
    said.clear()
    again = run_scenario(scenario(system="stream-only"), say=said.append)
    assert not said
    assert run.requests[0].streamed_bytes == again.requests[0].streamed_bytes
    # All chunks, each with a header of its own; the file has its index besides.
    assert 0.9 * store.stat().st_size < run.requests[0].streamed_bytes < store.stat().st_size


def test_requests_read_different_contexts(tmp_path: Path) -> None:
    run = run_scenario(scenario(workload={"requests": 2}))
    assert len(run.requests) == 2
    assert len(list((tmp_path / "stores").iterdir())) == 2


def test_block_sparse_attention(tmp_path: Path) -> None:
    run = run_scenario(scenario(system="local-prefill", live={"attention": "block-sparse"}))
    assert run.outcome == "done"


def test_a_hopeless_link_leaves_the_work_to_the_processor() -> None:
    run = run_scenario(scenario(system="ferry", link={"rate": "8 kbit/s"}))
    assert run.outcome == "done"
    assert run.requests[0].units_computed >= 8


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"coupling": "per_head"}, "coupling: all_heads"),
        ({"load": {"share": 0.5}}, "leave load out"),
        ({"live": {"weights": None}}, "`random` draws weights"),
        ({"live": {"text": "/nonexistent.txt"}}, "live.text"),
        ({"live": {"processor": "abacus"}}, "^live.processor: device 'abacus' is not available"),
        ({"live": {"processor": "abacus", "weights": "byte-small"}}, "^live.processor: device 'abacus'"),
    ],
)
def test_what_cannot_be_had_is_told(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(Exception, match=told) as caught:
        run_scenario(scenario(**changes))
    assert type(caught.value).__module__.startswith("kvferry")


@pytest.mark.parametrize("system", ["ferry", "stream-only"])
def test_a_cloud_that_is_gone_before_the_start(system: str) -> None:
    said: list[str] = []
    run = run_scenario(scenario(system=system, live={"cloud": "http://127.0.0.1:9"}), say=said.append)
    assert run.outcome == "done", run.why
    (record,) = run.requests
    assert (record.units_computed, record.units_streamed) == (9, 0)
    assert record.link_down is not None and "127.0.0.1:9 gives nothing" in record.link_down
    assert any("127.0.0.1:9 gives nothing" in line for line in said)
    alone = run_scenario(scenario(system="local-prefill"))
    assert run.measured["answers"] == alone.measured["answers"]


def _chunks_that_do_not_decode(path: Path, bad: Callable[[int], bool]) -> None:
    """Write a store anew with other bytes in some chunks, and checksums that fit: they come through as stored."""
    with Store(path) as store:
        header, tokens = store.index.header, store.index.token_ids
        chunks = store.read(range(int(np.prod(header.shape))))
    with StoreWriter(path, header, tokens) as writer:
        for i, (place, data) in enumerate(zip(np.ndindex(header.shape), chunks, strict=True)):
            at = len(data) // 2
            writer.put(*place, data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :] if bad(i) else data)


@pytest.mark.parametrize("system", ["ferry", "stream-only", "sparkv"])
@pytest.mark.parametrize("which", ["one", "all"])
def test_chunks_that_arrive_whole_and_do_not_decode(tmp_path: Path, system: str, which: str) -> None:
    exact: dict[str, Any] = {"model": {"kv_value_bytes": 2}, "live": {"dtype": "float16"}}
    described = scenario(system=system, policies={"codec": "fp16"}, **exact)
    alone = run_scenario(scenario(system="local-prefill", policies={"codec": "fp16"}, **exact))
    run_scenario(described)
    (path,) = (tmp_path / "stores").glob("fp16*")
    _chunks_that_do_not_decode(path, (lambda i: i == 15) if which == "one" else (lambda i: True))
    run = run_scenario(described)
    assert run.outcome == "done", run.why
    (record,) = run.requests
    assert record.units_computed + record.units_streamed == 3 * 3
    assert run.measured["answers"] == alone.measured["answers"]
    if system == "stream-only":
        assert record.units_computed == record.units_unusable == (1 if which == "one" else 9)
        assert record.wasted_bytes > 0
    if record.units_unusable:
        assert "checksum" in (record.unusable or "")
        assert run.faults
    assert record.link_down is None


def test_texts_of_another_kind_are_told_apart() -> None:
    with pytest.raises(InputError, match="'ftp://x' is not the address of a server, like http://127.0.0.1:8100"):
        scenario(live={"cloud": "ftp://x"})
    with pytest.raises(InputError, match="'CUDA' is not a torch device, like cpu or cuda:0"):
        scenario(live={"processor": "CUDA"})


def test_another_model_than_the_scenario_says(tmp_path: Path) -> None:
    from kvferry.backends.live.model.models import random_model

    model = random_model("qwen3", scenario(model={"layers": 4}).model, seed=0)
    model.save_pretrained(tmp_path / "weights")
    with pytest.raises(InputError, match="layers 4 instead of 3"):
        run_scenario(scenario(live={"weights": str(tmp_path / "weights")}))


def test_the_command_and_a_cloud_of_its_own(tmp_path: Path) -> None:
    from kvferry.cloud.server_process import ServerProcess
    from kvferry.scenarios.loader import dump_yaml

    (tmp_path / "live.yaml").write_text(dump_yaml(scenario()))

    def command(*words: str) -> subprocess.CompletedProcess[str]:
        code = "import sys; from kvferry.cli.main import main; main()"
        return subprocess.run(
            [sys.executable, "-c", code, *words], cwd=tmp_path, capture_output=True, text=True, timeout=120
        )

    encoded = command("encode", "live.yaml", "--output", "cloud")
    assert encoded.returncode == 0, encoded.stderr
    assert [Path(line).suffix for line in encoded.stdout.split()] == [".kvs"]
    with ServerProcess(tmp_path / "cloud") as server:
        done = command("run", "live.yaml", "--set", f"live.cloud={server.url}", "--json")
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert found["outcome"] == "done"
        assert found["metrics"]["ttft_s"] > 0
        other = command("run", "live.yaml", "--set", f"live.cloud={server.url}", "--set", "workload.context=512")
        assert other.returncode == 2
        assert "kvferry encode" in other.stderr


def test_a_token_that_the_server_does_not_know(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kvferry.cloud.server_process import ServerProcess

    run_scenario(scenario(system="local-prefill"))
    with ServerProcess(tmp_path / "stores", token="open-sesame-42") as server:
        asked = scenario(live={"cloud": server.url})
        with pytest.raises(InputError, match="needs the right token; it is taken from KVFERRY_TOKEN, which is not set"):
            run_scenario(asked)
        monkeypatch.setenv("KVFERRY_TOKEN", "open-sesame-43")
        with pytest.raises(InputError, match="KVFERRY_TOKEN, which holds another"):
            run_scenario(asked)


def test_sizes_of_a_store_are_what_the_model_of_the_codec_says() -> None:
    """Real sizes of real KV against policies.codecs at its recorded entropy."""
    from kvferry.backends.live.loading.cloud_parts import LoadingParts
    from kvferry.backends.live.model.recording import record
    from kvferry.backends.live.world import live_world

    described = scenario()
    needs = Needs(codec="huffman")
    with live_world(described, needs, Inputs(), lambda span: None, lambda what: None) as world:
        stored = world.stored(0)
        assert isinstance(world.parts, LoadingParts)
        context, _ = world.parts._library._ids(0)
        chunks = record(world.parts.model, context, chunk_tokens=256).chunks
    modelled = CODECS["huffman"](chunks.entropy_bits, chunks.tokens * 2 * 16).encoded_bytes
    np.testing.assert_allclose(stored.encoding.encoded_bytes, modelled, rtol=0.1)
