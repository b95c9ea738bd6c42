"""A scenario with `backend: torch`: a real model, a real server, real codecs, under the unchanged pipeline."""

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_cloud import with_number
from tiny import LIVE_LOADING, changed, tiny

from kvferry.backends.needs import ContextsInCloud
from kvferry.backends.world import DEVICE, Inputs
from kvferry.cloud.store import Store, StoreWriter
from kvferry.codecs.sizes import CODECS
from kvferry.pipelines.run import run_scenario
from kvferry.specs.errors import InputError
from kvferry.specs.scenario import Scenario

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

# A codec that loses nothing of a float16 model's KV.
EXACT: dict[str, Any] = {
    "policies": {"codec": "fp16"},
    "model": {"kv_value_bytes": 2},
    "live": {"dtype": "float16"},
}


@pytest.fixture(scope="module")
def shared_stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shared") / "stores"


@pytest.fixture(autouse=True)
def _stores(request: pytest.FixtureRequest, shared_stores: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Encoding takes longer than a run: tests share the stores, but for those that look into theirs."""
    own = "tmp_path" in request.fixturenames
    folder = request.getfixturevalue("tmp_path") / "stores" if own else shared_stores
    monkeypatch.setenv("KVFERRY_STORES", str(folder))


def scenario(**changes: Any) -> Scenario:
    return tiny(LIVE_LOADING, **changes)


@pytest.fixture(scope="module")
def exact_store(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A folder with the store of the scenario's context, without loss, and the answers of a local prefill."""
    folder = tmp_path_factory.mktemp("exact")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KVFERRY_STORES", str(folder))
        run_scenario(scenario(system="stream-only", **EXACT))
        return folder, run_scenario(scenario(system="local-prefill", **EXACT)).measured["answers"]


@pytest.mark.parametrize(
    "system",
    ["ferry", "cachegen", "local-prefill"]
    + [pytest.param(one, marks=pytest.mark.long) for one in ("sparkv", "strong-hybrid", "kivi", "stream-only")],
)
def test_every_system_answers(system: str) -> None:
    run = run_scenario(scenario(system=system))
    assert (run.outcome, len(run.requests)) == ("done", 1)
    (record,) = run.requests
    assert record.units_computed + record.units_streamed == 3 * 3
    assert len(record.token_times_s) == 3
    assert record.first_token_s > record.loaded_s > 0
    moved = sum(span.n_bytes for span in run.spans if span.resource == "link")
    # A transfer that lost its race has moved bytes, and brought no unit.
    assert moved > 0 or not record.units_streamed
    if system in ("cachegen", "kivi", "stream-only", "local-prefill"):
        assert (moved > 0) == (system != "local-prefill")
    assert len(run.measured["answers"]["0"]) == 3


def test_exact_kv_gives_the_answer_of_a_local_prefill(tmp_path: Path, exact_store: tuple[Path, Any]) -> None:
    """fp16 of a float16 model loses nothing: loaded, computed and mixed KV give equal answers."""
    stored, alone = exact_store
    shutil.copytree(stored, tmp_path / "stores")
    answers = {
        system: run_scenario(scenario(system=system, **EXACT)).measured["answers"]
        for system in ("stream-only", "ferry")
    }
    assert alone == answers["stream-only"] == answers["ferry"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("system", ["ferry", "stream-only", "local-prefill"])
def test_a_gpu_answers_as_a_cpu_does(system: str) -> None:
    wide = {"model": {"kv_value_bytes": 4}, "live": {"dtype": "float32"}}
    here = run_scenario(scenario(system=system, **wide))
    there = run_scenario(scenario(system=system, **{**wide, "live": {**wide["live"], "processor": "cuda:0"}}))
    assert here.measured["answers"] == there.measured["answers"]


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
    run = run_scenario(scenario(workload={"requests": 2}, device={"decompressor": {"workers": 2}}))
    assert len(run.requests) == 2
    assert len(list((tmp_path / "stores").iterdir())) == 2


def test_block_sparse_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    from kvferry.backends.live.loading import library

    # Compiling takes ten seconds, and is tested with the attention itself.
    monkeypatch.setattr(library, "BlockSparse", partial(library.BlockSparse, compiled=False))
    run = run_scenario(scenario(system="local-prefill", live={"attention": "block-sparse"}))
    assert run.outcome == "done"


def test_a_hopeless_link_leaves_the_work_to_the_processor() -> None:
    run = run_scenario(scenario(system="ferry", link={"rate": "8 kbit/s"}))
    assert run.outcome == "done"
    assert run.requests[0].units_computed >= 8


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"coupling": "per_head"}, "coupling: all_heads"),
        ({"load": {"share": 0.5}}, "leave load out"),
        ({"live": {"weights": None}}, "`random` draws weights"),
        ({"live": {"text": "/nonexistent.txt"}}, "live.text"),
        ({"live": {"processor": "abacus"}}, "^live.processor: device 'abacus' is not available"),
        ({"live": {"processor": "abacus", "weights": "byte-small"}}, "^live.processor: device 'abacus'"),
    ],
)
def test_what_cannot_be_had_is_reported(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(Exception, match=message) as caught:
        run_scenario(scenario(**changes))
    assert type(caught.value).__module__.startswith("kvferry")


@pytest.mark.parametrize("system", ["ferry", pytest.param("stream-only", marks=pytest.mark.long)])
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


@pytest.mark.parametrize(
    ("which", "system"),
    [("one", "stream-only"), ("all", "ferry")]
    + [
        pytest.param(*both, marks=pytest.mark.long)
        for both in (("one", "ferry"), ("one", "sparkv"), ("all", "stream-only"), ("all", "sparkv"))
    ],
)
def test_chunks_that_arrive_whole_and_do_not_decode(
    tmp_path: Path, exact_store: tuple[Path, Any], system: str, which: str
) -> None:
    stored, answers = exact_store
    shutil.copytree(stored, tmp_path / "stores")
    (path,) = (tmp_path / "stores").glob("fp16*")
    _chunks_that_do_not_decode(path, (lambda i: i == 15) if which == "one" else (lambda i: True))
    run = run_scenario(scenario(system=system, **EXACT))
    assert run.outcome == "done", run.why
    (record,) = run.requests
    assert record.units_computed + record.units_streamed == 3 * 3
    assert run.measured["answers"] == answers
    if system == "stream-only":
        assert record.units_computed == record.units_unusable == (1 if which == "one" else 9)
        assert record.wasted_bytes > 0
    if record.units_unusable:
        assert "checksum" in (record.unusable or "")
        assert run.faults
    assert record.link_down is None


def test_chunks_that_decode_to_what_no_model_computed(tmp_path: Path, exact_store: tuple[Path, Any]) -> None:
    """One holds a number that is none, one entry two chunks: both are computed instead."""
    described = scenario(system="stream-only", **EXACT)
    stored, answers = exact_store
    shutil.copytree(stored, tmp_path / "stores")
    (path,) = (tmp_path / "stores").glob("fp16*")
    with Store(path) as store:
        header, tokens = store.index.header, store.index.token_ids
        chunks = store.read(range(int(np.prod(header.shape))))
    chunks[1] = with_number(chunks[1], np.nan)
    chunks[8] += chunks[9]
    with StoreWriter(path, header, tokens) as writer:
        for place, data in zip(np.ndindex(header.shape), chunks, strict=True):
            writer.put(*place, data)
    run = run_scenario(described)
    assert run.outcome == "done", run.why
    assert run.measured["answers"] == answers
    (record,) = run.requests
    assert record.units_computed == record.units_unusable == 2


def test_texts_of_another_kind_are_told_apart() -> None:
    with pytest.raises(InputError, match="'ftp://x' is not the address of a server, like http://127.0.0.1:8100"):
        scenario(live={"cloud": "ftp://x"})
    with pytest.raises(InputError, match="'CUDA' is not a torch device, like cpu or cuda:0"):
        scenario(live={"processor": "CUDA"})


def test_another_model_than_the_scenario_says(tmp_path: Path) -> None:
    from kvferry.model.models import random_model

    model = random_model("qwen3", scenario(model={"layers": 4}).model, seed=0)
    model.save_pretrained(tmp_path / "weights")
    with pytest.raises(InputError, match="layers 4 instead of 3"):
        run_scenario(scenario(live={"weights": str(tmp_path / "weights")}))


def test_the_command_and_a_cloud_of_its_own(
    call: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvferry.cloud.server_process import ServerProcess
    from kvferry.scenarios.loader import dump_yaml

    monkeypatch.chdir(tmp_path)
    Path("live.yaml").write_text(dump_yaml(scenario()))
    code, out, err = call("encode", "live.yaml", "--output", "cloud")
    assert code == 0, err
    assert [Path(line).suffix for line in out.split()] == [".kvs"]
    with ServerProcess(tmp_path / "cloud") as server:
        code, out, err = call("run", "live.yaml", "--set", f"live.cloud={server.url}", "--json")
        assert code == 0, err
        found = json.loads(out)
        assert found["outcome"] == "done"
        assert found["metrics"]["ttft_s"] > 0
        other = ("--set", f"live.cloud={server.url}", "--set", "workload.context=512")
        code, _, err = call("run", "live.yaml", *other)
        assert code == 2
        assert "kvferry encode" in err


def test_a_token_that_the_server_does_not_know(exact_store: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from kvferry.cloud.server_process import ServerProcess

    with ServerProcess(exact_store[0], token="open-sesame-42") as server:
        asked = scenario(**changed(EXACT, live={"cloud": server.url}))
        with pytest.raises(InputError, match="needs the right token; it is taken from KVFERRY_TOKEN, which is not set"):
            run_scenario(asked)
        monkeypatch.setenv("KVFERRY_TOKEN", "open-sesame-43")
        with pytest.raises(InputError, match="KVFERRY_TOKEN, which holds another"):
            run_scenario(asked)


def test_sizes_of_a_store_are_what_the_model_of_the_codec_says() -> None:
    """Real sizes of real KV against policies.codecs at its recorded entropy."""
    from kvferry.backends.live.loading.cloud_parts import LoadingParts
    from kvferry.backends.live.world import live_world
    from kvferry.model.recording import record

    described = scenario()
    needs = {DEVICE: ContextsInCloud(codec="huffman")}
    with live_world(described, needs, Inputs(), lambda span: None, lambda what: None) as world:
        stored = world.content.stored(0)
        assert isinstance(world.parts, LoadingParts)
        context = world.parts._library._context(0)
        chunks = record(world.parts.model, context, chunk_tokens=256).chunks
    modelled = CODECS["huffman"](chunks.entropy_bits, chunks.tokens * 2 * 16).encoded_bytes
    np.testing.assert_allclose(stored.encoding.encoded_bytes, modelled, rtol=0.1)
