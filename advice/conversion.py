"""Names the file that an engine reads, and how to make it from the model's own where figures are of other weights."""

import re
from dataclasses import dataclass
from pathlib import Path

from kvferry.advice.question import Question
from kvferry.advice.words import word
from kvferry.scenarios.hugging_face import config_at
from kvferry.scenarios.library import names
from kvferry.scenarios.loader import load_model
from kvferry.specs.document import expanded
from kvferry.specs.weight_format import WEIGHT_FORMATS

_GGUF, _READS_GGUF = ".gguf", "llama.cpp"
# Finds the Hugging Face id in the source line of a bundled model's description.
_HUB = re.compile(r"Hugging Face config\.json of ([\w.-]+/[\w.-]+)")
_AS_TRAINED = ("fp16", "bf16")


@dataclass(frozen=True)
class ModelFile:
    """``name``: what an engine's command line calls the model; ``gguf``: its file for engines that read GGUF.
    ``conversion``: words and commands that make that file from the model's own, where the two differ."""

    name: str
    gguf: str
    conversion: tuple[str, ...] = ()


def model_file(question: Question, engine: str | None) -> ModelFile:
    """Returns the file that an engine reads so that figures are of it. `engine`: its name; None: any."""
    model = str(question.described["model"])
    if model in names("model"):
        return _of_name(question, model, engine)
    if model.endswith(_GGUF):
        return _of_gguf(question, model)
    given = Path.cwd() / expanded(model)
    if config_at(given) is not None:
        return _of_folder(question, model, engine)
    stem = Path(model).stem
    return ModelFile(stem, f"{stem}{_GGUF}")


def _of_name(question: Question, model: str, engine: str | None) -> ModelFile:
    """A bundled model: engines that read no GGUF file take its id at Hugging Face, which its file says."""
    gguf, found = f"{model}{_GGUF}", _HUB.search(load_model(model).source)
    name = found[1] if found else model
    if engine in (None, _READS_GGUF):
        return ModelFile(name, gguf)
    if found is None:
        return ModelFile(name, gguf, (f"{name} stands for that model's id at Hugging Face, or its folder",))
    if question.weights in _AS_TRAINED:
        return ModelFile(name, gguf)
    said = f"the figures are of {question.weights} weights, and {name} has the model's own"
    return ModelFile(name, gguf, (f"{said}: name an id or a folder that is quantised so",))


def _of_gguf(question: Question, model: str) -> ModelFile:
    if not question.converts:
        return ModelFile(model, model)
    to = f"{model.removesuffix(_GGUF)}-{question.weights}{_GGUF}"
    said = f"the figures are of {question.weights} weights, and those of this file have {_own_bits(model):.3g} bits"
    if question.weights not in WEIGHT_FORMATS:
        return ModelFile(to, to, (f"{said}: it has to be converted first",))
    command = f"llama-quantize --allow-requantize {word(model)} {word(to)} {_as_quantized(question.weights)}"
    return ModelFile(to, to, (f"{said}: convert it first", command))


def _of_folder(question: Question, model: str, engine: str | None) -> ModelFile:
    bare = model.rstrip("/").removesuffix("/config.json")
    to = f"{bare}-{question.weights}{_GGUF}"
    if engine == _READS_GGUF and question.weights in WEIGHT_FORMATS:
        whole = f"{bare}-f16{_GGUF}"
        commands = f"python convert_hf_to_gguf.py {word(bare)} --outtype f16 --outfile {word(whole)}"
        if question.weights != "fp16":
            commands += f" && llama-quantize {word(whole)} {word(to)} {_as_quantized(question.weights)}"
        return ModelFile(bare, to if question.weights != "fp16" else whole, ("convert the folder first", commands))
    if question.own_weights is None or question.converts:
        return ModelFile(bare, to, (f"the figures are of {question.weights} weights: convert the folder first",))
    return ModelFile(bare, to)


def _own_bits(model: str) -> float:
    spec = load_model(model)
    return 8 * spec.weight_bytes / spec.parameters


def _as_quantized(weights: str) -> str:
    """The name by which llama-quantize knows a format."""
    return {"fp16": "F16", "bf16": "BF16", "mxfp4": "MXFP4_MOE"}.get(weights, weights.upper())
