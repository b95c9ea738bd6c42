"""(i): how to have a composition today: the flags of an engine that does it, or else the parts that none has."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from math import ceil
from typing import Any

import yaml
from pydantic import Field, TypeAdapter

from kvferry.advice.answer import Statement, runners_up
from kvferry.advice.composition import KV_BITS, Composition
from kvferry.advice.conversion import ModelFile, model_file
from kvferry.advice.fit import Fit, holds
from kvferry.advice.question import Question
from kvferry.advice.trial import Trial
from kvferry.advice.words import word
from kvferry.pipelines.decoding.systems import DECODE_SYSTEMS
from kvferry.scenarios.loader import load_model
from kvferry.specs import human
from kvferry.specs.base import Spec

# Contexts are whole numbers of this many tokens, where memory holds them.
_BLOCK = 256
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


class EngineFlags(Spec):
    """Names what an engine does, by flags of its command and variables of its environment."""

    source: str
    command: str
    decodes: dict[str, tuple[str, ...]]
    loads: dict[str, tuple[str, ...]]
    keeps: dict[str, tuple[str, ...]]
    kv_bits: dict[float, tuple[str, ...]] = Field(default_factory=dict)
    # What it has in place of KV of so many bits, where that is not the same.
    kv_as: dict[float, str] = Field(default_factory=dict)
    chunk: str
    # Tokens that pass a layer together without the flag; None: it is always said.
    usual_chunk: int | None = 2048
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

    def line(
        self, one: Composition, model: ModelFile, context: int, processor: str = "gpu", *, windows: bool = False
    ) -> str:
        """Returns the command of a composition on a kind of processor, each flag once. `windows`: the model has layers
        that attend to one."""
        flags = [*self.decodes[one.decode], *self.kv_bits.get(one.kv_bits, ())]
        flags += [self.chunk] if one.prefill_chunk != self.usual_chunk else []
        flags += [*self.keeps[one.keep], *self.loads[one.load]]
        flags += self.whole_windows if windows and one.keep != "drop" else ()
        environment = [flag for flag in flags if _VARIABLE.match(flag)]
        words = [*environment, self.command, *(flag for flag in flags if flag not in environment)]
        filled = {"model": word(model.name), "gguf": word(model.gguf), "context": context, "chunk": one.prefill_chunk}
        filled["layers"] = 0 if processor == "cpu" else 99
        return " ".join(dict.fromkeys(words)).format(**filled)


@lru_cache(maxsize=1)
def engines() -> Mapping[str, EngineFlags]:
    """Returns what is known of engines, by name."""
    text = (files("kvferry.advice") / "engines.yaml").read_text(encoding="utf-8")
    return TypeAdapter(dict[str, EngineFlags]).validate_python(yaml.safe_load(text))


def today(question: Question, ranked: Sequence[Trial], fit: Fit | None = None) -> Statement:
    """Returns the command of an engine that does the best composition; else what is missing, whose prototype has it,
    and the best one that an engine does. `fit`: of the best one, whose longest context its command does not exceed."""
    best = ranked[0]
    if best.composition.helped is not None:
        return Statement("i", "today", (f"{best.composition.helped}: P/D-Device's prototype; no engine has it",))
    if _processor(question) == "npu":
        of = f"the figures are of the npu of {question.device.name}, which no engine that is listed runs on"
        return Statement(
            "i", "today", (f"{of}; on its CPU: --set processor=cpu, where there is one",), {"command": None}
        )
    context = _context(question, fit)
    if (found := _command(question, best.composition, context)) is not None:
        alike = [one for one in runners_up(ranked, question.use.spec.best) if one.composition.helped is None]
        same = [one.composition.name for one in alike if _command(question, one.composition, context) == found]
        told = [f"{' and '.join(same)}: the same command, so that this engine does not tell them apart"] if same else []
        lines = (*_whose_figures(question), *found.lines(), *_short(question, fit), *told)
        return Statement("i", "today", lines, {**found.facts, "context": context, "same": same})
    lacking, missing = _missing(question, best.composition)
    said = [missing]
    elsewhere = next((name for name, engine in engines().items() if not engine.lacks(best.composition)), None)
    if elsewhere is not None and best.composition.helped is None:
        found = _command_of(question, elsewhere, best.composition, context)
        return Statement("i", "today", (*said, *found.lines()), {"lacking": lacking, **found.facts, "context": context})
    metric = question.use.spec.best
    for other in ranked[1:]:
        if other.composition.helped is not None or _command(question, other.composition, context) is None:
            continue
        held = context if holds(question, other.composition, context) else min(context, _longest(question))
        if (found := _command(question, other.composition, held)) is not None:
            more = other.figures[metric] / best.figures[metric] - 1
            said += found.lines(f"nearest that one has ({100 * more:+.3g} %): ")
            return Statement("i", "today", tuple(said), {"lacking": lacking, **found.facts, "context": held})
    return Statement("i", "today", tuple(said), {"lacking": lacking})


def _context(question: Question, fit: Fit | None) -> int:
    """The tokens of the longest turn, in whole blocks where these fit."""
    longest = _longest(question)
    whole = _BLOCK * ceil(longest / _BLOCK)
    return whole if fit is None or not fit.context or whole <= fit.longest else min(longest, fit.longest)


def _longest(question: Question) -> int:
    return question.turns.longest.tokens


def _short(question: Question, fit: Fit | None) -> list[str]:
    """Says it where a command's context does not hold the longest turn."""
    if fit is None or not fit.context or fit.longest >= (longest := _longest(question)):
        return []
    return [f"this holds {human.count(fit.longest)} tokens, and the longest turn has {human.count(longest)}"]


@dataclass(frozen=True)
class Command:
    """``line``: starts an engine; ``first``: what makes the file that it reads, in words and commands."""

    line: str
    first: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def lines(self, head: str = "") -> list[str]:
        return [f"{head}{self.line}", *([": ".join(self.first)] if self.first else []), *self.notes]

    @property
    def facts(self) -> dict[str, Any]:
        return {"command": self.line, "conversion": list(self.first), "notes": list(self.notes)}


def _command(question: Question, one: Composition, context: int) -> Command | None:
    """The command of the device's own engine, or else of any that does it."""
    for name in _considered(question):
        if not engines()[name].lacks(one):
            return _command_of(question, name, one, context)
    return None


def _command_of(question: Question, name: str, one: Composition, context: int) -> Command:
    engine, file = engines()[name], model_file(question, name)
    windows = load_model(str(question.described["model"])).exceeds_window(context)
    line = engine.line(one, file, context, _processor(question), windows=windows)
    other = engine.kv_as.get(one.kv_bits)
    notes = () if other is None else (f"{name} has {other} in place of KV of {one.kv_bits:g} bits",)
    return Command(line, file.conversion, notes)


def an_engine_has(question: Question, one: Composition) -> bool:
    """Whether the device's own engine, or else any that is listed, has all parts of a composition."""
    if one.helped is not None:
        return False
    return any(not engines()[name].lacks(one) for name in _considered(question))


def _considered(question: Question) -> list[str]:
    """The device's own engine, where its flags are known, else all."""
    own, known = question.device.engine, engines()
    return [own.name] if own is not None and own.name in known else list(known)


def _missing(question: Question, one: Composition) -> tuple[list[str], str]:
    """The parts that no engine has, or else which engine lacks which parts, and the words for it."""
    lacks = {name: engine.lacks(one) for name, engine in engines().items()}
    fewest = min(lacks.values(), key=len)
    nowhere = [part for part in fewest if all(part in of for of in lacks.values())]
    if nowhere:
        return nowhere, f"no engine has {' or '.join(nowhere)} as it is here: {', '.join(_whose(nowhere))}"
    considered = _considered(question)
    own = lacks[considered[0]]
    if has_all := [name for name, of in lacks.items() if not of]:
        said = f"{considered[0]}, which the figures are of, lacks {' and '.join(own)}"
        return own, f"{said}; {' and '.join(has_all)} has all of it"
    each = "; ".join(f"{name} lacks {' and '.join(of)}" for name, of in lacks.items())
    return own if len(considered) == 1 else fewest, f"no engine has all of it: {each}"


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
