"""(i): how to have a composition today: the flags of an engine that does it, or else the parts that none has."""

import re
from collections.abc import Mapping
from functools import lru_cache
from importlib.resources import files
from math import ceil
from shlex import quote

import yaml
from pydantic import Field, TypeAdapter

from kvferry.advice.answer import Statement, runners_up
from kvferry.advice.composition import KV_BITS, Composition
from kvferry.advice.question import Question
from kvferry.advice.trial import Trial
from kvferry.pipelines.decoding.systems import DECODE_SYSTEMS
from kvferry.scenarios.loader import load_model
from kvferry.specs.base import Spec

_USUAL_CHUNK = 2048
_VARIABLE = re.compile(r"[A-Z_]+=")
# Whose prototype a part is, where no engine has it: by the systems whose paper's table they stand in.
_PROTOTYPES = {
    **dict.fromkeys(("sparkv",), "SparKV's prototype"),
    **dict.fromkeys(("cachegen", "cachegen-best-level"), "CacheGen, in LMCache"),
    **dict.fromkeys(("kivi",), "KIVI's prototype"),
    "ferry": "this project's loader (kvferry serve is its cloud)",
    "kvswap": "KVSwap's prototype",
    "flexgen": "FlexGen's prototype",
    **dict.fromkeys(("infinigen", "infinigen-star", "infinigen-star-ru"), "InfiniGen's prototype"),
    "shadowkv": "ShadowKV's prototype",
    "loki": "Loki's prototype",
    "quest": "Quest's prototype",
    "specontext": "SpeContext's prototype",
}

# Control characters as bash reads them back.
_ESCAPED = {n: f"\\x{n:02x}" for n in (*range(0x20), 0x7F)}


class EngineFlags(Spec):
    """Names what an engine does, by flags of its command and variables of its environment."""

    source: str
    command: str
    decodes: dict[str, tuple[str, ...]]
    loads: dict[str, tuple[str, ...]]
    keeps: dict[str, tuple[str, ...]]
    kv_bits: dict[float, tuple[str, ...]] = Field(default_factory=dict)
    chunk: str
    # With these it keeps all KV of layers that attend to a window, behind which turns go on.
    whole_windows: tuple[str, ...] = ()

    def lacks(self, one: Composition) -> list[str]:
        """Returns the parts of a composition that the engine has no flag for."""
        found = [] if one.decode in self.decodes and one.away is None else [one.decode]
        found += [] if one.load in self.loads else [one.load]
        found += [] if one.keep in self.keeps else [f"keep {one.keep}"]
        return found + (
            [] if one.kv_bits == KV_BITS[0] or one.kv_bits in self.kv_bits else [f"KV of {one.kv_bits} bits"]
        )

    def line(self, one: Composition, model: str, context: int, processor: str = "gpu", *, windows: bool = False) -> str:
        """Returns the command of a composition on a kind of processor, each flag once. `windows`: the model has layers
        that attend to one."""
        flags = [*self.decodes[one.decode], *self.kv_bits.get(one.kv_bits, ())]
        flags += [self.chunk] if one.prefill_chunk != _USUAL_CHUNK else []
        flags += [*self.keeps[one.keep], *self.loads[one.load]]
        flags += self.whole_windows if windows and one.keep != "drop" else ()
        environment = [flag for flag in flags if _VARIABLE.match(flag)]
        words = [*environment, self.command, *(flag for flag in flags if flag not in environment)]
        gguf = model if model.endswith(".gguf") else f"{model}.gguf"
        filled = {"model": _word(model), "gguf": _word(gguf), "context": context, "chunk": one.prefill_chunk}
        filled["layers"] = 0 if processor == "cpu" else 99
        return " ".join(dict.fromkeys(words)).format(**filled)


def _word(text: str) -> str:
    """The text as one word of a shell, in one line and with nothing that a terminal obeys."""
    if text.isprintable():
        return quote(text)
    return "$'{}'".format(text.replace("\\", r"\\").replace("'", r"\'").translate(_ESCAPED))


@lru_cache(maxsize=1)
def engines() -> Mapping[str, EngineFlags]:
    """Returns what is known of engines, by name."""
    text = (files("kvferry.advice") / "engines.yaml").read_text(encoding="utf-8")
    return TypeAdapter(dict[str, EngineFlags]).validate_python(yaml.safe_load(text))


def today(question: Question, ranked: list[Trial]) -> Statement:
    """Returns the command of an engine that does the best composition; else what is missing, whose prototype has it,
    and the best one that an engine does."""
    best = ranked[0]
    if best.composition.helped is not None:
        return Statement("i", "today", (f"{best.composition.helped}: P/D-Device's prototype; no engine has it",))
    context = 256 * ceil((question.turns.longest.prompt + question.turns.longest.output) / 256)
    model = str(question.described["model"])
    if _processor(question) == "npu":
        of = f"the figures are of the npu of {question.device.name}, which no engine that is listed runs on"
        return Statement(
            "i", "today", (f"{of}; on its CPU: --set processor=cpu, where there is one",), {"command": None}
        )
    if (line := _line(question, best.composition, model, context)) is not None:
        alike = [one for one in runners_up(ranked, question.use.spec.best) if one.composition.helped is None]
        same = [one.composition.name for one in alike if _line(question, one.composition, model, context) == line]
        told = (
            [f"{' and '.join(same)}: the same command, so that what sets them apart is not this engine's"]
            if same
            else []
        )
        return Statement("i", "today", (*_whose_figures(question), line, *told), {"command": line, "same": same})
    _, lacking = min((len(of), of) for of in (one.lacks(best.composition) for one in engines().values()))
    said = [f"no engine has {', '.join(lacking)} as it is here: {', '.join(_whose(lacking))}"]
    metric = question.use.spec.best
    for other in ranked[1:]:
        line = _line(question, other.composition, model, context) if other.composition.helped is None else None
        if line is not None:
            more = other.figures[metric] / best.figures[metric] - 1
            said.append(f"nearest that one has ({100 * more:+.3g} %): {line}")
            return Statement("i", "today", tuple(said), {"lacking": lacking, "command": line})
    return Statement("i", "today", tuple(said), {"lacking": lacking})


def _line(question: Question, one: Composition, model: str, context: int) -> str | None:
    """The command of the device's own engine, or else of any that does it."""
    own = question.device.engine
    known = engines()
    first = [own.name] if own is not None and own.name in known else list(known)
    windows = load_model(model).exceeds_window(context)
    able = (known[name] for name in first if not known[name].lacks(one))
    return next((engine.line(one, model, context, _processor(question), windows=windows) for engine in able), None)


def _processor(question: Question) -> str:
    """The kind of the processor that figures are of."""
    return question.device.processors[question.device.main].kind


def _whose_figures(question: Question) -> list[str]:
    """Says it where the command is not of the engine that the profile's figures are of."""
    own = question.device.engine
    if own is None or own.name in engines():
        return []
    return [f"the figures are of {own.name}, whose flags are not listed"]


def _whose(parts: list[str]) -> list[str]:
    found = []
    for part in parts:
        if part in _PROTOTYPES:
            found.append(_PROTOTYPES[part])
        elif part in DECODE_SYSTEMS:
            found.append(f"{DECODE_SYSTEMS[part].paper}'s prototype has {part}")
        else:
            found.append(f"none is known for {part}")
    return list(dict.fromkeys(found))
