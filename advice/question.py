"""A question: a device, a model, a link and a use, with limits on what an answer may take."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import isnan
from pathlib import Path
from typing import Any

from kvferry.advice.cloud import AS_IN_LINK, check_linked
from kvferry.advice.composition import Composition, Space, space_of
from kvferry.advice.use import Use, load_use
from kvferry.advice.words import command, value_of
from kvferry.analysis.search_spec import Constraint
from kvferry.api.scenario import load
from kvferry.pipelines.decoding.systems import DECODE_SYSTEMS
from kvferry.scenarios.library import names
from kvferry.scenarios.loader import load_device, load_model
from kvferry.scenarios.resolve import read_tree
from kvferry.scenarios.weights_of_file import own_weights, usual_weights
from kvferry.specs import human
from kvferry.specs.device import DeviceSpec
from kvferry.specs.errors import InputError, unknown_name
from kvferry.specs.scenario import Scenario
from kvferry.specs.units import KINDS, count, quantity
from kvferry.specs.weight_format import WEIGHT_FORMATS
from kvferry.specs.workload import MOST_CONTEXT
from kvferry.traces.resolve import bandwidth_trace
from kvferry.traces.turn import Turns
from kvferry.traces.turns import turns_of

NO_LINK = "none"
# Weights whose bytes are nearer to a file's than this are as they are stored there.
_AS_STORED = 0.02
_NUMBER = re.compile(r"\s*[\d.]+\s*")
_NUMBER_AND_UNIT = re.compile(r"\s*[\d.]+\s*[A-Za-z][A-Za-z/ ]*")
_PINNED = {f"policies.{part}": part for part in ("load", "decode", "keep", "evict")}


@dataclass(frozen=True, kw_only=True)
class Limit:
    """A constraint, and the option by which the user set it."""

    option: str
    constraint: Constraint

    @property
    def spelled(self) -> str:
        return self.option.replace("_", "-")


@dataclass(frozen=True, kw_only=True)
class Question:
    """``described``: what all scenarios have in common, as a file would have it; ``settings``: the user's own, which
    hold in all of them. ``any_quality``: what gives up some of the answer's quality counts like the rest;
    ``own_weights``: what the model's own file says of its weights, if it says it."""

    described: Mapping[str, Any]
    use: Use
    settings: tuple[str, ...] = ()
    limits: tuple[Limit, ...] = ()
    memory: str | None = None
    linked: bool = True
    helper: str | None = None
    any_quality: bool = False
    own_weights: str | None = None
    # The arguments that are given, by name.
    asked: Mapping[str, Any] = field(default_factory=dict)

    @property
    def about(self) -> str:
        """Returns the use's description, with the settings that the user changed in it."""
        pairs = [text.partition("=")[::2] for text in self.settings]
        asked = {key.removeprefix("workload."): value for key, value in pairs if key.startswith("workload.")}
        if self.described["workload"].get("context") != self.use.workload.get("context"):
            asked = {"context": f"{human.count(self.described['workload']['context'])} tokens", **asked}
        said = ", ".join(f"{key} {value}" for key, value in asked.items())
        return f"{self.use.spec.about}; asked with {said}" if said else self.use.spec.about

    def command(self, *further: str) -> str:
        """Returns the command that asks the same with further words."""
        own = ["--any-quality"] if self.any_quality else []
        return command(self.asked, self.settings, [*own, *further])

    @property
    def identity(self) -> dict[str, Any]:
        """All that makes it this question and no other one, as JSON has it."""
        own = ("settings", "memory", "linked", "helper", "any_quality")
        found = {key: getattr(self, key) for key in ("described", *own)}
        found["limits"] = [one.constraint.text for one in self.limits]
        return dict(json.loads(json.dumps(found | {"best": self.use.spec.best}, default=str)))

    def scenario(self, one: Composition, settings: Mapping[str, Any] | None = None) -> Scenario:
        """Returns the scenario of a composition; `settings` apply to it besides. Raises InputError."""
        described = self._assisted if one.helped is not None else dict(self.described)
        if self.memory is not None:
            described["budget"] = {**described.get("budget", {}), "memory": self.memory}
        asked = [f"{key}={_written(value)}" for key, value in one.settings.items() if key not in self._chosen]
        further = [f"{key}={_written(value)}" for key, value in (settings or {}).items()]
        try:
            return load(described, [*asked, *self.settings, *further])
        except InputError as error:
            raise _by_arguments(error, self.described["device"]) from None

    @property
    def _chosen(self) -> set[str]:
        return {text.partition("=")[0] for text in self.settings}

    @property
    def _assisted(self) -> dict[str, Any]:
        """One prompt after the other, each as long as the mean of the turns, at their pace."""
        turns, workload = self.turns.numbered, self.use.spec.workload
        prompt, output = (round(sum(getattr(t, key) for t in turns) / len(turns)) for key in ("prompt", "output"))
        assist = {
            "kind": "assist",
            "prompt": max(2, prompt),
            "question": min(workload.question, max(1, prompt - 1 - workload.beginning)),
            "beginning": min(workload.beginning, max(0, prompt - 2)),
            "output": output,
            "resident": True,
        }
        machines = {"cloud": {"device": self.helper, "model": self.described["model"]}}
        rest = {key: value for key, value in self.described.items() if key not in ("workload", "system")}
        return {**rest, "system": "pd-device", "workload": assist, "machines": machines}

    @cached_property
    def turns(self) -> Turns:
        """The turns of the use, with the user's settings."""
        scenario = self._plain
        return turns_of(scenario.session.workload, scenario.seed)

    @cached_property
    def _plain(self) -> Scenario:
        try:
            return load(dict(self.described), self.plain_settings)
        except InputError as error:
            raise _by_arguments(error, self.described["device"]) from None

    @property
    def plain_settings(self) -> list[str]:
        """The user's settings but those that pin a part of the composition."""
        return [one for one in self.settings if not one.startswith("policies.")]

    @property
    def counts_energy(self) -> bool:
        """Whether compositions are chosen by their energy."""
        return self.use.spec.best == "energy_j" or any(one.constraint.metric == "energy_j" for one in self.limits)

    @property
    def device(self) -> DeviceSpec:
        return self._plain.device

    @property
    def weights(self) -> str:
        """The weights that figures are of: their format, or bits of each."""
        model = self._plain.model
        return model.weights or f"{8 * model.weight_bytes / model.parameters:.3g}-bit"

    @cached_property
    def converts(self) -> bool:
        """Whether figures are of other weights than those that the model's own file says."""
        if self.own_weights is None:
            return False
        own_bytes = load_model(str(self.described["model"])).weight_bytes
        return abs(self._plain.model.weight_bytes / own_bytes - 1) > _AS_STORED

    @property
    def model_name(self) -> str:
        return self._plain.model.name

    @cached_property
    def space(self) -> Space:
        """What there is to choose from. Raises InputError."""
        longest = self.turns.longest
        pairs = (text.partition("=") for text in self.settings)
        pinned = {_PINNED[key]: value for key, _, value in pairs if key in _PINNED and not value.startswith("{")}
        if "decode" in pinned and pinned["decode"] not in DECODE_SYSTEMS:
            raise InputError(f"policies.decode: {unknown_name('decode system', pinned['decode'], DECODE_SYSTEMS)}")
        return space_of(
            self._plain,
            linked=self.linked,
            helped=self.helper is not None,
            longest=longest.tokens,
            pinned=pinned,
        )

    def without(self, limit: Limit | None) -> "Question":
        """The same question with one limit less; None: without a budget of memory."""
        if limit is None:
            return replace(self, memory=None)
        return replace(self, limits=tuple(one for one in self.limits if one is not limit))


def _by_arguments(error: InputError, device: Any) -> InputError:
    """The error by names of arguments: what is described was put together here, and has no file."""
    arguments = {
        "link.trace": "link",
        "link.rate": "link",
        "precision.weights": "weights",
        "budget.memory": "memory",
    }
    if not isinstance(device, str):
        arguments["device.storage"] = "storage"
    lines = str(error).replace("(mapping): ", "").replace("--set device.storage=", "--storage ").split("\n")
    named = (line.partition(":") for line in lines)
    return InputError("\n".join(f"{arguments.get(key, key)}{colon}{rest}" for key, colon, rest in named))


def _written(value: Any) -> str:
    return json.dumps(value)


def question_of(
    *,
    device: str,
    model: str,
    link: str | Mapping[str, Any] | None = None,
    use: str = "chat",
    memory: str | float | None = None,
    ttft: str | float | None = None,
    tokens_per_s: str | float | None = None,
    energy: str | float | None = None,
    context: str | int | None = None,
    storage: str | None = None,
    helper: str | None = None,
    weights: str | None = None,
    any_quality: bool = False,
    settings: Sequence[str] = (),
) -> Question:
    """Returns the question that these arguments ask; physical ones are text with a unit, or SI numbers. Raises
    InputError, whose lines begin with the argument's name."""
    given = {
        "device": device, "model": model, "link": link, "use": use, "memory": memory, "ttft": ttft,
        "tokens_per_s": tokens_per_s, "energy": energy, "context": context, "storage": storage, "helper": helper,
        "weights": weights,
    }  # fmt: skip
    asked = _named("use", lambda: load_use(use))
    _named("device", lambda: load_device(device))
    _named("model", lambda: load_model(model))
    own = own_weights(read_tree("model", model, Path.cwd()))
    linked = link is not None and link != NO_LINK
    if not linked:
        check_linked(settings)
    workload = dict(asked.workload)
    if context is not None:
        workload["context"] = _number("context", context, count)
        if workload["context"] > MOST_CONTEXT:
            raise InputError(f"context: {value_of('context', context):.40} is more than {MOST_CONTEXT:,} tokens")
    if not linked:
        workload["in_cloud"] = "nothing"
    described: dict[str, Any] = {
        "name": f"advice-{asked.spec.name}",
        "system": "in-memory",
        "device": device if storage is None else {"extends": device, "storage": storage},
        "model": model,
        # Without a link nothing is fetched, whatever its rate.
        "link": _link(link) if linked else {"rate": "1 Gbit/s"},
        "workload": workload,
        "seed": 1,
    }
    if weights is not None:
        described["precision"] = {"weights": weights}
    if helper is not None:
        if not linked:
            raise InputError(f"--helper {helper:.100} {AS_IN_LINK}")
        _named("helper", lambda: load_device(helper))
    limits = [
        _limit("ttft", "ttft_p95_s", ttft, "time"),
        _limit("tokens_per_s", "tpot_s", tokens_per_s, None),
        _limit("energy", "energy_j", energy, "energy"),
    ]
    budget = None if memory is None else f"{_budget_bytes(memory):.0f} B"
    question = Question(
        described=described,
        use=asked,
        settings=tuple(settings),
        limits=tuple(one for one in limits if one is not None),
        memory=budget,
        linked=linked,
        helper=helper,
        any_quality=any_quality,
        own_weights=own,
        asked={key: value for key, value in given.items() if value is not None},
    )
    if weights is not None:
        _check_weights(question, weights)
    elif own is None and not any(one.startswith("precision.weight") for one in settings):
        engine = question.device.engine
        usual = None if engine is None else usual_weights(engine.weights)
        precision = {} if usual is None else {"precision": {"weights": usual}}
        question = replace(question, described={**described, **precision})
    longest = question.turns.longest
    if longest.tokens > MOST_CONTEXT:
        tokens = f"{longest.tokens:,} tokens in the longest turn"
        raise InputError(f"context: makes {tokens}; at most {MOST_CONTEXT:,} will do")
    _ = question.space
    return question


def _named(argument: str, read: Any) -> Any:
    try:
        return read()
    except InputError as error:
        raise InputError("\n".join(f"{argument}: {line}" for line in str(error).split("\n"))) from None


def _number(argument: str, value: str | float, read: Any) -> float:
    if not isinstance(value, str):
        return value
    try:
        return read(value)
    except ValueError as error:
        raise InputError(f"{argument}: {error}") from None


def _budget_bytes(memory: str | float) -> float:
    n_bytes = _number("memory", memory, lambda text: quantity(text, "size"))
    if not (n_bytes > 0 and KINDS["size"].holds(n_bytes)):
        raise InputError(f"memory: {memory!r:.40} is not above 0, as in 4GiB")
    return n_bytes


def _link(link: str | Mapping[str, Any] | None) -> Mapping[str, Any]:
    """A trace by name or file, or a rate. Raises InputError for what begins like a rate and is neither."""
    if not isinstance(link, str):
        return dict(link or {})
    try:
        quantity(link, "rate")
    except ValueError as error:
        if Path(link).exists():
            return {"trace": link}
        if _NUMBER.fullmatch(link):
            raise InputError(f"link: {link:.40} has no unit; write it like '100 Mbit/s'") from None
        if _NUMBER_AND_UNIT.fullmatch(link):
            raise InputError(f"link: {error}{_rate_meant(link)}") from None
        return {"trace": link}
    return {"rate": link}


def _rate_meant(link: str) -> str:
    try:
        quantity(link, "size")
    except ValueError:
        return ""
    return f"; did you mean '{link}/s'?"


def check_link(link: str) -> None:
    """Raises InputError for what is no trace that is here, no rate and not `none`."""
    if link == NO_LINK:
        return
    described = _link(link)
    if "trace" in described:
        _named("link", lambda: bandwidth_trace(link))
    elif not KINDS["rate"].holds(quantity(link, "rate")):
        raise InputError(f"link: {link!r:.40} is out of range: a rate is {KINDS['rate'].bounds}")


def _check_weights(question: Question, weights: str) -> None:
    """Raises InputError, with the engines that read such weights where the device's own does not."""
    try:
        _ = question.device
    except InputError as error:
        able = [name for name in names("engine") if _reads(question, name)] if weights in WEIGHT_FORMATS else []
        would = f"; --set engine={' or '.join(able)} would" if able else ""
        raise InputError(f"{error}{would}") from None


def _reads(question: Question, engine: str) -> bool:
    try:
        _ = replace(question, settings=(*question.settings, f"engine={engine}")).device
    except InputError:
        return False
    return True


def _limit(argument: str, metric: str, value: str | float | None, kind: str | None) -> Limit | None:
    if value is None:
        return None
    if kind is not None:
        bound = _number(argument, value, lambda text: quantity(text, kind))
    else:
        try:
            bound = 1 / float(value)
        except (ValueError, ZeroDivisionError):
            raise InputError(f"{argument}: {value!r:.40} is not a number above 0, as in 8") from None
    if isnan(bound):
        raise InputError(f"{argument}: {value!r:.40} is not a number above 0")
    if bound <= 0:
        raise InputError(f"{argument}: {value!r:.40} is not above 0")
    return Limit(option=argument, constraint=Constraint(f"{argument} {value_of(argument, value)}", metric, True, bound))
