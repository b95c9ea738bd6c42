"""Families of models by their folders alone: what they say for real is what transformers' generate says."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tiny import LIVE_DECODING, LIVE_LOADING, tiny

pytest.importorskip("torch")

import torch
from transformers import AutoModelForCausalLM

from kvferry.model.decoders import decoder_of
from kvferry.model.models import load_model
from kvferry.model.request_session import RequestSession, step
from kvferry.model.session import Session
from kvferry.model.whole_prefill import prefill_layer
from kvferry.pipelines.run import run_scenario
from kvferry.specs.errors import InputError
from kvferry.specs.scenario import Scenario
from kvferry.traces.chance import Source, generator

pytestmark = pytest.mark.torch

SIZES = {
    "num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 96, "vocab_size": 211, "max_position_embeddings": 4096,
    "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
}  # fmt: skip
# By family, what its own configs say besides, as far as a tiny model can.
OWN: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": 300, "head_dim": 24},
    "phi3": {"sliding_window": 300, "rope_theta": 10000.0},
    "smollm3": {"tie_word_embeddings": True, "attention_bias": True},
    "granite": {
        "embedding_multiplier": 12.0, "attention_multiplier": 0.03, "residual_multiplier": 0.22,
        "logits_scaling": 8.0, "mlp_bias": True,
    },
    "olmo2": {"tie_word_embeddings": False},
    "gemma3_text": {
        "sliding_window": 300, "sliding_window_pattern": 2, "head_dim": 24, "query_pre_attn_scalar": 40,
        "final_logit_softcapping": 30.0, "rope_theta": 1e6, "rope_local_base_freq": 1e4,
    },
}  # fmt: skip
CONTEXT, OUTPUT = 150, 24
# Of a loaded context, within the windows above.
SHORT = ("workload.context=256", "workload.question=20", "workload.output=6")


def folder_of(family: str, folder: Path, dtype: str = "float32", **more: Any) -> Path:
    """Weights so large that attention has something to choose, drawn by transformers alone."""
    from transformers import AutoConfig

    config = AutoConfig.for_model(family, **SIZES | OWN[family] | more)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    for weights in model.parameters():
        neutral = float(weights.detach().mean()) if weights.ndim == 1 else 0.0
        torch.nn.init.normal_(weights, neutral, 0.2)
    model.to(getattr(torch, dtype)).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module", params=sorted(OWN))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_of(request.param, tmp_path_factory.mktemp(request.param))


def prompts(seed: int, sequences: int, context: int) -> list[list[int]]:
    return [generator(Source.PROMPTS, seed, n).integers(0, 211, context).tolist() for n in range(sequences)]


def generated(folder: Path, ids: list[int], tokens: int) -> list[int]:
    return list(_generated(folder, tuple(ids), tokens))


@cache
def _generated(folder: Path, ids: tuple[int, ...], tokens: int) -> tuple[int, ...]:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto").eval()
    with torch.no_grad():
        said = model.generate(torch.tensor([ids]), max_new_tokens=tokens, do_sample=False)
    return tuple(said[0, len(ids) :].tolist())


def decoding(folder: Path, system: str, *settings: str, **changes: Any) -> Scenario:
    described = {key: value for key, value in LIVE_DECODING.items() if key not in ("policies", "live")}
    workload = {"kind": "decode", "context": CONTEXT, "batch": 2, "output": OUTPUT}
    base = {**described, "system": system, "workload": workload, "live": {"paced": False}}
    return tiny(base, f"model={folder}", *settings, **changes)


@pytest.mark.parametrize("system", ["vllm", "flexgen", "kvswap", "shadowkv", "dynakv"])
def test_decoding_says_what_generate_says(folder: Path, system: str) -> None:
    """All KV in memory; read back from a file; all of it selected, its keys rebuilt, or in clusters."""
    changes: dict[str, Any] = {"budget": {"kv": "90 MiB"}}
    if system == "vllm":
        changes = {"budget": {"kv": None}}
    if system in ("kvswap", "shadowkv"):
        changes["policies"] = {"selected_tokens": CONTEXT + OUTPUT, "compression": 1}
    if system == "dynakv":
        changes["policies"] = {"selected_share": 1.0}
    wanted = decoding(folder, system, **changes)
    assert wanted.live.weights == str(folder) and wanted.model.kv_value_bytes == 4
    run = run_scenario(wanted)
    assert run.outcome == "done"
    for n, ids in enumerate(prompts(wanted.seed, 2, CONTEXT)):
        assert run.measured["answers"][str(n)] == generated(folder, ids, OUTPUT)


@pytest.mark.parametrize("system", ["local-prefill", "ferry"])
def test_a_loaded_context_answers_as_generate_does(folder: Path, system: str) -> None:
    """KV that is streamed is coarser than that which is computed, and answers may differ."""
    described = {key: value for key, value in LIVE_LOADING.items() if key != "live"}
    wanted = tiny({**described, "system": system, "policies": {}}, f"model={folder}", *SHORT)
    workload = wanted.context_reuse.workload
    run = run_scenario(wanted)
    assert run.outcome == "done"
    ids = prompts(wanted.seed, 1, workload.context + workload.question)[0]
    answer = run.measured["answers"]["0"]
    assert len(answer) == 6
    if system == "local-prefill":
        assert answer == generated(folder, ids, 6)


def test_sessions_say_what_generate_says(folder: Path) -> None:
    """Computed in chunks, and token by token in a batch."""
    model = load_model(folder)
    ids = prompts(3, 1, 70)[0]
    wanted = generated(folder, ids, 8)
    session = Session(model, ids[:50], chunk_tokens=16, room=40)
    session.prefill()
    assert session.generate(ids[50:], max_new_tokens=8, do_sample=False) == wanted
    decoder = decoder_of(model)
    one, rotary = RequestSession(ids), decoder.rotary(len(ids) + 8)
    one.more(decoder, rotary, 40)
    said = [int(one.more(decoder, rotary, len(ids)).argmax())]
    with torch.no_grad():
        while len(said) < 8:
            said.append(int(step(decoder, rotary, [one], said[-1:])[0].argmax()))
    assert said == wanted


def test_logits_are_those_of_the_model(folder: Path) -> None:
    """A cap on them changes no token that is likeliest."""
    model = load_model(folder)
    decoder, ids = decoder_of(model), prompts(5, 1, 40)[0]
    with torch.no_grad():
        hidden, rotary = decoder.embed(decoder.token_ids([ids])), decoder.rotary(40)
        for layer in range(decoder.layers):
            hidden = prefill_layer(decoder, layer, hidden, rotary).hidden
        own, theirs = decoder.logits(hidden), model(torch.tensor([ids])).logits
    torch.testing.assert_close(own, theirs, rtol=1e-4, atol=1e-4 * float(theirs.std()))


def test_a_sequence_longer_than_a_window_is_refused_by_name(tmp_path: Path) -> None:
    for family in ("mistral", "phi3", "gemma3_text"):
        folder = folder_of(family, tmp_path / family)
        with pytest.raises(InputError, match=r"model: .*newest 300 tokens alone, and sequences have 301"):
            decoding(folder, "vllm", "workload.context=277", budget={"kv": None})
        model = load_model(folder)
        assert decoder_of(model).rotary(300)[0].shape[2] == 300
        with pytest.raises(InputError, match="window of the newest 300 tokens, and sequences have 301"):
            decoder_of(model).rotary(301)


@pytest.mark.parametrize(
    ("family", "more", "said"),
    [
        ("phi3", {"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
        ("gemma3_text", {"use_bidirectional_attention": True}, "use_bidirectional_attention is not supported"),
        ("gemma3_text", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping is not supported"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(tmp_path: Path, family: str, more: dict[str, Any], said: str) -> None:
    folder = folder_of(family, tmp_path / "model", **more)
    with pytest.raises(InputError, match=said):
        load_model(folder)


@pytest.mark.parametrize("family", ["gemma2", "gpt2", "olmo", "gemma3"])
def test_other_families_are_refused_by_name(tmp_path: Path, family: str) -> None:
    folder = folder_of("mistral", tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": family}))
    with pytest.raises(InputError, match=f"model_type '{family}' is not run for real"):
        load_model(folder)


def test_a_folder_is_run_in_its_own_numbers_or_as_it_is_told(tmp_path: Path) -> None:
    """Weights that a scenario names stay; one backend's folder is the other's description."""
    single, half = (folder_of("mistral", tmp_path / dtype, dtype) for dtype in ("float32", "bfloat16"))
    budget = {"budget": {"kv": "90 MiB"}}
    for folder, settings, value_bytes in (
        (single, (), 4),
        (single, (f"live.weights={single}",), 4),
        (half, (), 2),
        (single, ("live.dtype=bfloat16",), 2),
        (half, ("live.dtype=float32",), 4),
    ):
        wanted = decoding(folder, "flexgen", *settings, **budget)
        assert (wanted.model.kv_value_bytes, wanted.model.weight_bits) == (value_bytes, 8 * value_bytes)
        assert run_scenario(wanted).outcome == "done"
    modelled = decoding(single, "flexgen", "backend=sim", **budget)
    assert modelled.live.weights is None and modelled.model.kv_value_bytes == 2
    assert decoding(single, "flexgen", f"live.weights={half}", **budget).live.weights == str(half)


def test_a_folder_that_is_not_there_is_told_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"model: 'models/typo' is not there"):
        decoding(Path("models/typo"), "flexgen")
    single = folder_of("mistral", tmp_path / "single")
    with pytest.raises(
        InputError, match=r"kv_value_bytes 4 instead of 2; --set precision.kv_value_bytes=4 reads it as"
    ):
        run_scenario(decoding(folder_of("mistral", tmp_path / "half", "bfloat16"), "flexgen", f"live.weights={single}"))
