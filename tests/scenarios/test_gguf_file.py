"""Models by a GGUF file: what its header says, and files that are none."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize

from kvferry.scenarios import gguf_file
from kvferry.scenarios.loader import load_model, load_scenario
from kvferry.specs.errors import InputError

LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FFN, TOKENS = 2, 64, 4, 2, 16, 96, 50
TENSORS = {
    "attn_q": (HEADS * HEAD_DIM, HIDDEN), "attn_k": (KV_HEADS * HEAD_DIM, HIDDEN),
    "attn_v": (KV_HEADS * HEAD_DIM, HIDDEN), "attn_output": (HIDDEN, HEADS * HEAD_DIM),
    "ffn_gate": (FFN, HIDDEN), "ffn_up": (FFN, HIDDEN), "ffn_down": (HIDDEN, FFN),
}  # fmt: skip


def written(file: Path, architecture: str = "llama", tied: bool = False, **more: int) -> Path:
    writer = GGUFWriter(file, architecture)
    writer.add_block_count(LAYERS)
    writer.add_embedding_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_feed_forward_length(FFN)
    writer.add_token_list([f"t{i}" for i in range(TOKENS)])
    for key, value in more.items():
        writer.add_uint32(f"{architecture}.{key.replace('__', '.')}", value)

    def tensor(name: str, shape: tuple[int, int], stored: GGMLQuantizationType) -> None:
        writer.add_tensor(name, quantize(np.ones(shape, np.float32), stored), raw_dtype=stored)

    tensor("token_embd.weight", (TOKENS, HIDDEN), GGMLQuantizationType.Q4_0)
    if not tied:
        tensor("output.weight", (TOKENS, HIDDEN), GGMLQuantizationType.Q8_0)
    for layer in range(LAYERS):
        for name, shape in TENSORS.items():
            tensor(f"blk.{layer}.{name}.weight", shape, GGMLQuantizationType.Q4_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def test_a_header_is_the_model_that_it_describes(tmp_path: Path) -> None:
    model = load_model(str(written(tmp_path / "mine.gguf")))
    assert (model.layers, model.hidden, model.query_heads, model.kv_heads) == (LAYERS, HIDDEN, HEADS, KV_HEADS)
    assert (model.head_dim, model.ffn, model.vocabulary, model.name) == (HEAD_DIM, FFN, TOKENS, "mine")
    # Q4_0 has 4.5 bits with its scales, Q8_0 8.5.
    assert (model.matrices.layer_bits, model.matrices.token_bits, model.matrices.head_bits) == (4.5, 4.5, 8.5)
    layer = sum(rows * columns for rows, columns in TENSORS.values())
    assert model.weight_bytes * 8 == LAYERS * layer * 4.5 + TOKENS * HIDDEN * (4.5 + 8.5)
    assert load_model(str(written(tmp_path / "tied.gguf", tied=True))).tied_embeddings


def test_its_own_weights_hold_against_a_bundled_default(tmp_path: Path) -> None:
    file = written(tmp_path / "mine.gguf")
    scenario = load_scenario("decode", ["device=rtx-4060", f"model={file}"])
    assert scenario.model == load_model(str(file)).model_copy(update={"source": scenario.model.source})
    assert "the model's own (GGUF) in place of the scenario's q4_k_m" in scenario.model.source


def test_a_mixture_of_experts(tmp_path: Path) -> None:
    counts = {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 32}
    model = load_model(str(written(tmp_path / "mixed.gguf", "qwen3moe", **counts)))
    assert model.experts is not None
    assert (model.experts.routed, model.experts.active, model.experts.ffn) == (4, 2, 32)


def test_windows_by_the_pattern_of_the_architecture(tmp_path: Path) -> None:
    for architecture, full in (("gemma2", (1,)), ("gemma3", ()), ("gpt-oss", (1,))):
        model = load_model(str(written(tmp_path / "mine.gguf", architecture, attention__sliding_window=512)))
        assert (model.window, model.full_layers) == (512, full)


def damaged(file: Path, at: int, value: bytes) -> Path:
    content = bytearray(file.read_bytes())
    content[at : at + len(value)] = value
    file.write_bytes(content)
    return file


def test_no_such_file_gives_more_than_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(file: Path) -> str:
        with pytest.raises(InputError) as error:
            load_model(str(file))
        said = str(error.value)
        assert file.name in said
        assert "\n" not in said
        return said

    whole = written(tmp_path / "whole.gguf")
    size = whole.stat().st_size
    for kept in (0, 3, 16, 20, 60, 400, size // 2, size - 1000):
        cut = tmp_path / f"cut{kept}.gguf"
        cut.write_bytes(whole.read_bytes()[:kept])
        assert f"not a whole GGUF file: it is cut short ({kept:,} bytes): download it again" in refused(cut)
    assert "magic" in refused(damaged(written(tmp_path / "magic.gguf"), 0, b"GGML"))
    old = refused(damaged(written(tmp_path / "version.gguf"), 4, struct.pack("<I", 1)))
    assert "is GGUF version 1; 2 and 3 are read: convert the model again" in old
    assert "big-endian" in refused(damaged(written(tmp_path / "order.gguf"), 4, struct.pack(">I", 3)))
    kv_heads = written(tmp_path / "heads.gguf")
    at = kv_heads.read_bytes().find(b"head_count_kv") + len("head_count_kv") + 4
    none = refused(damaged(kv_heads, at, struct.pack("<I", 0)))
    assert "llama.attention.head_count_kv: is 0; one whole number above 0" in none
    for at in (8, 16):  # counts of tensors and keys
        absurd = refused(damaged(written(tmp_path / "counts.gguf"), at, struct.pack("<Q", 2**60)))
        assert "not a whole" in absurd and absurd.endswith("; download it again")
    assert "mamba" in refused(written(tmp_path / "mamba.gguf", "mamba"))
    assert "sliding window" in refused(written(tmp_path / "window.gguf", attention__sliding_window=4096))
    # The architecture's own text, behind its key, its type and its length.
    name = written(tmp_path / "name.gguf")
    at = name.read_bytes().find(b"general.architecture") + len("general.architecture") + 12
    assert "general.architecture" in refused(damaged(name, at, b"\xff\xfe"))
    for bound, says in (("MOST_KEYS", "its header has"), ("MOST_TENSORS", "tensors, more than 3")):
        with monkeypatch.context() as patch:
            patch.setattr(gguf_file, bound, 3)
            assert says in refused(whole)
    monkeypatch.setattr(gguf_file, "MOST_ENTRIES", TOKENS - 1)
    assert "50 entries, more than 49" in refused(whole)


def test_names_are_told_with_their_control_characters_escaped(tmp_path: Path) -> None:
    whole = written(tmp_path / "twice.gguf").read_bytes()
    for layer in range(LAYERS):
        whole = whole.replace(b"blk.%d.attn_q.weight" % layer, b"blk.0.attn\n\x1b.weight")
    (tmp_path / "twice.gguf").write_bytes(whole)
    with pytest.raises(InputError) as error:
        load_model(str(tmp_path / "twice.gguf"))
    assert r"blk.0.attn\n\x1b.weight" in str(error.value)
    # The file's own name would end our line and begin one that is not ours.
    model = load_model(str(written(tmp_path / "evil\nkvferry: all is well.gguf")))
    assert model.name == r"evil\nkvferry: all is well"
    assert model.source == r"header of evil\nkvferry: all is well.gguf"
    with pytest.raises(InputError) as error:
        load_model(str(damaged(tmp_path / "evil\nkvferry: all is well.gguf", 0, b"GGML")))
    assert "\n" not in str(error.value) and r"evil\nkvferry: all is well.gguf: not a whole" in str(error.value)


@pytest.mark.parametrize("missing", ["llama.block_count", "llama.attention.head_count", "tokenizer.ggml.tokens"])
def test_what_a_header_lacks_is_named(tmp_path: Path, missing: str) -> None:
    file = written(tmp_path / "lacks.gguf")
    found = file.read_bytes().find(missing.encode())
    said: Any = pytest.raises(InputError)
    with said as error:
        load_model(str(damaged(file, found + len(missing) - 1, b"_")))
    assert ("vocab_size" if "tokens" in missing else missing) in str(error.value)


def test_an_engine_that_reads_no_gguf_is_refused_in_one_line(tmp_path: Path) -> None:
    settings = [f"model={written(tmp_path / 'mine.gguf')}", "device=iphone-17-pro"]
    with pytest.raises(InputError) as error:
        load_scenario("decode", settings)
    said = "model: a GGUF file, which mlx does not read; engine: llama.cpp would do, or precision.weights: mlx-4bit"
    assert str(error.value).endswith(said) and "\n" not in str(error.value)
    assert load_scenario("decode", [*settings, "engine=llama.cpp"]).model.matrices.layer_bits == 4.5
    # What the user says of weights holds in place of the file's.
    assert load_scenario("decode", [*settings, "precision.weights=mlx-4bit"]).model.weights == "mlx-4bit"


@pytest.mark.parametrize("engine", ["vllm", "mlc", "tensorrt-edge-llm", "hugging-face"])
def test_no_engine_but_llama_cpp_takes_a_gguf_file(tmp_path: Path, engine: str) -> None:
    with pytest.raises(InputError, match=f"a GGUF file, which {engine} does not read"):
        load_scenario("decode", [f"model={written(tmp_path / 'mine.gguf')}", f"engine={engine}"])
