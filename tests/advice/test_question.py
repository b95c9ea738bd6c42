"""What a question makes of its arguments: the weights' format, links, memory, and what is refused."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize

from kvferry.advice.composition import Composition
from kvferry.advice.question import question_of
from kvferry.advice.today import today
from kvferry.advice.trial import Trial
from kvferry.specs.errors import InputError


def weights_of(model: str, *settings: str, device: str = "rtx-4060", **of: object) -> tuple[float, str | None]:
    """Bits of a layer's weight in the scenarios of a question, and the format by its name."""
    question = question_of(device=device, model=model, settings=settings, **of)  # type: ignore[arg-type]
    model_spec = question._plain.model
    return model_spec.matrices.layer_bits, model_spec.weights


def gguf(file: Path, stored: GGMLQuantizationType) -> str:
    """A file of one layer whose projections are all square."""
    import numpy as np

    writer = GGUFWriter(file, "llama")
    writer.add_block_count(1)
    writer.add_embedding_length(64)
    writer.add_head_count(4)
    writer.add_head_count_kv(4)
    writer.add_key_length(16)
    writer.add_feed_forward_length(64)
    writer.add_token_list([f"t{i}" for i in range(50)])
    parts = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    for name, rows in (("token_embd", 50), *((f"blk.0.{part}", 64) for part in parts)):
        writer.add_tensor(f"{name}.weight", quantize(np.ones((rows, 64), np.float32), stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return str(file)


def test_a_file_keeps_the_format_of_its_own_weights(tmp_path: Path) -> None:
    half = gguf(tmp_path / "half.gguf", GGMLQuantizationType.F16)
    small = gguf(tmp_path / "small.gguf", GGMLQuantizationType.Q4_0)
    assert weights_of(half) == (16.0, None)
    assert weights_of(small) == (4.5, None)
    assert weights_of(half, weights="q8_0") == (8.5, "q8_0")
    assert weights_of("llama-3.2-1b")[1] == "q4_k_m"


def test_weights_that_are_not_the_files_own_have_to_be_converted_first(tmp_path: Path) -> None:
    half = gguf(tmp_path / "half.gguf", GGMLQuantizationType.F16)
    of = {"device": "rtx-4060", "use": "chat"}
    plain, other = (question_of(model=half, weights=weights, **of) for weights in (None, "q8_0"))
    best = Trial(composition=Composition(), scenario=None, outcome="done", figures={"answer_s": 1.0})
    assert today(plain, [best]).facts["conversion"] == [] and len(today(plain, [best]).lines) == 1
    line, first = today(other, [best]).lines
    to = half.replace("half.gguf", "half-q8_0.gguf")
    assert f"-m {to} " in line
    assert first.startswith("the figures are of q8_0 weights, and those of this file have 16 bits: convert it first: ")
    assert first.endswith(f"llama-quantize --allow-requantize {half} {to} Q8_0")
    # Weights of the same size are the file's own.
    assert not question_of(model=half, weights="fp16", **of).converts
    config = {"num_hidden_layers": 2, "hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 512}
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "config.json").write_text(json.dumps({**config, "vocab_size": 99, "torch_dtype": "float16"}))
    folder = question_of(model=str(tmp_path / "folder"), **of)
    assert folder.weights == "q4_k_m", "a folder of 16 bits is run in the engine's usual format"
    assert today(folder, [best]).facts["conversion"][1].startswith("python convert_hf_to_gguf.py ")


def test_each_fault_of_a_use_is_one_line_with_file_line_and_key(
    tmp_path: Path, call: Callable[..., tuple[int, str, str]]
) -> None:
    use = tmp_path / "mine.yaml"
    use.write_text("name: mine\nabout: my own\nworkload: {kind: session, output: -4}\nbest: anwser_s\n")
    code, out, err = call("advise", "--device", "rtx-4060", "--model", "qwen3-8b", "--use", str(use))
    assert (code, out) == (2, "")
    output, best = err.splitlines()
    assert output == f"kvferry: --use: {use}:3: workload.output: -4: must be at least 1"
    assert best.startswith(f"kvferry: --use: {use}:4: best: 'anwser_s' is none of answer_s, ")


def test_a_file_of_dimensions_has_the_usual_format_unless_it_says_bits(tmp_path: Path) -> None:
    import yaml

    from kvferry.scenarios.loader import load_model

    spec = load_model("llama-3.2-1b").model_dump(mode="json", exclude_none=True)
    plain = {key: value for key, value in spec.items() if not key.endswith("_bits")}
    for name, more, found in (("plain", {}, "q4_k_m"), ("bits", {"weight_bits": 8.0}, None)):
        file = tmp_path / f"{name}.yaml"
        file.write_text(yaml.safe_dump(plain | more))
        assert weights_of(str(file))[1] == found


def test_the_usual_format_follows_the_engine_and_the_users_precision() -> None:
    assert weights_of("llama-3.2-1b", "engine=mlx", device="apple-m3")[1] == "mlx-4bit"
    assert weights_of("llama-3.2-1b", "precision.weight_bits=8") == (8.0, None)
    assert weights_of("llama-3.2-1b", "precision.weights=q8_0")[1] == "q8_0"


def test_weights_that_an_engine_does_not_read_are_told_with_one_that_does() -> None:
    with pytest.raises(InputError, match=r"^weights: llama.cpp does not read mlx-4bit; .*; --set engine=mlx would$"):
        weights_of("llama-3.2-1b", weights="mlx-4bit", device="apple-m3")
    assert weights_of("llama-3.2-1b", "engine=mlx", weights="mlx-4bit", device="apple-m3")[1] == "mlx-4bit"
    with pytest.raises(InputError, match="^weights: llama.cpp does not read mlx-4bit; it reads [^;]*$"):
        weights_of("llama-3.2-1b", weights="mlx-4bit")


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"link": "100 Mbit"}, r"^link: '100 Mbit' is a size, not a rate; .*; did you mean '100 Mbit/s'\?$"),
        ({"link": "10 parsec/s"}, r"^link: '10 parsec/s' has no unit of a rate; write it like '850 Mbit/s'$"),
        ({"link": "0"}, r"^link: 0 has no unit; write it like '100 Mbit/s'$"),
        ({"helper": "rtx-4090"}, r"^--helper rtx-4090 needs --link, as in --link '100 Mbit/s'$"),
        ({"context": "10Mi"}, r"^context: 10Mi is more than 10,000,000 tokens$"),
        ({"memory": "-4GiB"}, r"^memory: '-4GiB' is not above 0, as in 4GiB$"),
        ({"memory": "0 B"}, r"^memory: '0 B' is not above 0"),
    ],
)
def test_an_argument_that_will_not_do_is_named_with_what_would(asked: dict[str, str], says: str) -> None:
    with pytest.raises(InputError, match=says):
        question_of(device="rtx-4060", model="llama-3.2-1b", **asked)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("setting", "needs"),
    [
        ("policies.keep=memory-cloud", True),
        ("policies.load=ferry", True),
        ("policies={load: {name: ferry}}", True),
        ("workload.in_cloud=contexts", True),
        ("policies.keep=memory", False),
        ("policies.load=local-prefill", False),
        ("workload.in_cloud=nothing", False),
    ],
)
def test_a_cloud_is_not_answered_for_without_a_link(setting: str, needs: bool) -> None:
    asked = {"device": "rtx-4060", "model": "llama-3.2-1b", "use": "documents", "settings": [setting]}
    if not needs:
        question_of(**asked)  # type: ignore[arg-type]
        return
    for link in (None, "none"):
        with pytest.raises(InputError) as error:
            question_of(**asked, link=link)  # type: ignore[arg-type]
        assert str(error.value) == f"--set {setting} needs --link, as in --link '100 Mbit/s'"
    question_of(**asked, link="100 Mbit/s")  # type: ignore[arg-type]


def test_a_question_is_asked_again_by_its_own_command() -> None:
    """Numbers of the API are SI; a shell takes the line."""
    asked = question_of(
        device="rtx-4060", model="qwen3-8b", memory=6e9, tokens_per_s=8.0, settings=["workload.think=1 s"]
    )
    assert asked.command("--limit", "5min") == (
        "kvferry advise --device rtx-4060 --model qwen3-8b --use chat --memory '6000000000 B' --tokens-per-s 8"
        " --set 'workload.think=1 s' --limit 5min"
    )
