"""A composition: what loads, what decodes, what becomes of KV between turns, or what helps; and what there is to choose
from."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal

from kvferry.codecs.sizes import measured
from kvferry.pipelines.assist.systems import ASSIST_SYSTEMS
from kvferry.pipelines.decoding.systems import DECODE_SYSTEMS, DecodeSystem
from kvferry.pipelines.loading.systems import SYSTEMS
from kvferry.policies.decode.placement import OneTier
from kvferry.specs.scenario import Scenario

# What a composition gives up: nothing but rounding, numbers of the KV cache, or tokens.
Loss = Literal["none", "coarser", "part"]
LOSSES: tuple[Loss, ...] = ("none", "coarser", "part")
# 16 bits, and llama.cpp's q8_0: blocks of 32 numbers share a scale of 16 bits.
KV_BITS = (16.0, 8.5)
# Encodings whose KV error is within this factor of the least count as equal, as analysis/quality.py has it.
_AS_EXACT = 1.1
_COMPUTES_ALL = "local-prefill"
_IN_MEMORY = "vllm"
KEPT_IN_MEMORY = "memory"


@dataclass(frozen=True, kw_only=True)
class Composition:
    """``load`` and ``decode`` are systems by name; ``away``: where KV lies while it decodes, if not in the processor's
    memory; ``keep`` and ``evict`` as a session has them. ``kv_bits``: of each number of the KV cache. ``group_tokens``:
    tokens that are read together, None: the decode system's own. ``prefill_chunk``: tokens that pass a layer together.
    ``helped``: a system of a device with a cloud, in place of load, decode and keep."""

    load: str = _COMPUTES_ALL
    decode: str = _IN_MEMORY
    away: Literal["storage", "host"] | None = None
    keep: str = KEPT_IN_MEMORY
    evict: str = "lru"
    kv_bits: float = KV_BITS[0]
    group_tokens: int | None = None
    prefill_chunk: int = 2048
    helped: str | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """What it sets in a scenario, by key."""
        budget = {"budget.prefill_chunk": self.prefill_chunk, "precision.kv_value_bytes": self.kv_bits / 8}
        if self.helped is not None:
            return {"system": self.helped, **budget}
        decode: dict[str, Any] = {"name": self.decode}
        if self.away == "host":
            decode["placement"] = "host"
        if self.group_tokens is not None:
            decode["group_tokens"] = self.group_tokens
        policies = {"load": self.load, "decode": decode, "keep": self.keep, "evict": self.evict}
        return {**{f"policies.{key}": value for key, value in policies.items()}, **budget}

    @property
    def name(self) -> str:
        """A name for people: its parts, and what of its settings is not usual."""
        if self.helped is not None:
            return " ".join([self.helped, *self._unusual])
        decode = self.decode if self.away is None else f"{self.decode} on {self.away}"
        load = [] if self.load == _COMPUTES_ALL else [self.load]
        return " + ".join([*load, decode, f"keep {self.keep}", *self._unusual])

    @property
    def _unusual(self) -> list[str]:
        said = [] if self.evict == "lru" else [f"evict {self.evict}"]
        said += [] if self.kv_bits == KV_BITS[0] else [f"KV of {self.kv_bits:g} bits"]
        said += [] if self.group_tokens is None else [f"groups of {self.group_tokens}"]
        return [*said, *([] if self.prefill_chunk == 2048 else [f"prefill by {self.prefill_chunk}"])]

    @property
    def unusual_parts(self) -> int:
        """Returns how many parts are not what every engine has, each further place of kept KV among them."""
        return len(self.differs(Composition())) + self.keep.count("-")

    @property
    def decoding(self) -> DecodeSystem:
        return DECODE_SYSTEMS[self.decode]

    @property
    def loss(self) -> Loss:
        """What it gives up of the answer that the model gives with all KV at 16 bits."""
        if self.helped is not None:
            return "part" if ASSIST_SYSTEMS[self.helped].assist.ratio == "auto" and _refines(self.helped) else "none"
        if self.decoding.roles.selective:
            return "part"
        return "coarser" if self.kv_bits < KV_BITS[0] or self.load in coarse_loads() else "none"

    @property
    def given_up(self) -> int:
        """Returns how much it gives up, as a rank: 0 is nothing."""
        return LOSSES.index(self.loss)

    def gives_up_no_more_than(self, loss: Loss) -> bool:
        return self.given_up <= LOSSES.index(loss)

    def differs(self, other: "Composition") -> tuple[str, ...]:
        """Returns the names of the parts in which two compositions differ."""
        return tuple(one.name for one in fields(self) if getattr(self, one.name) != getattr(other, one.name))


def _refines(helped: str) -> bool:
    return ASSIST_SYSTEMS[helped].answers == "helped"


def coarse_loads() -> frozenset[str]:
    """Returns the loading systems that may stream KV with clearly more error than the best encoding."""
    levels = measured()
    least = min(error for of in levels.values() for error, kl_nats in of if kl_nats > 0)
    found = set()
    for name, system in SYSTEMS.items():
        of_codec = levels.get(system.codec, ())
        of_codec = of_codec[:1] if system.settings.get("objective_s") == "quality" else of_codec
        if not of_codec or max(one.relative_error for one in of_codec) > _AS_EXACT * least:
            found.add(name)
    return frozenset(found)


@dataclass(frozen=True)
class Space:
    """The values of each part of a composition that a scenario allows; ``helped`` by a machine called cloud."""

    parts: Mapping[str, tuple[Any, ...]]
    decodes: tuple[tuple[str, Any], ...]
    helped: tuple[str, ...]
    # Systems that are left out, by name, and why.
    left_out: Mapping[str, str]
    # Whether something lies in the cloud at first.
    fetches: bool = False

    def neighbours(self, one: Composition) -> list[Composition]:
        """Returns the compositions that differ from this one in one part; where this keeps KV in the cloud, also
        in what loads it, as neither gains anything without the other."""
        if one.helped is not None:
            return [replace(one, helped=name) for name in self.helped if name != one.helped]
        found = [replace(one, **{part: value}) for part, values in self.parts.items() for value in values]
        loads = [name for name in self.parts["load"] if name != _COMPUTES_ALL][:1]
        found += [
            replace(one, keep=keep, load=load)
            for keep in self.parts["keep"]
            for load in loads
            if "cloud" in keep and one.load == _COMPUTES_ALL
        ]
        others = [other for other in dict.fromkeys(map(self.plain, found)) if other != one]
        return [*others, *self.with_decodes(one)]

    def plain(self, one: Composition) -> Composition:
        """Returns the composition with the usual value of each part that makes no difference in it: what evicts where
        nothing is evicted, what loads where nothing lies in the cloud, groups where the decode system has none."""
        usual: dict[str, Any] = {}
        if one.keep in ("drop", "cloud"):
            usual["evict"] = self.parts["evict"][0]
        if not self.fetches and "cloud" not in one.keep:
            usual["load"] = self.parts["load"][0]
        if not one.decoding.tunable:
            usual["group_tokens"] = None
        return replace(one, **usual)

    def leaner(self, one: Composition) -> list[Composition]:
        """Returns the compositions that differ from this one in parts that change what memory it takes, and in nothing
        else: those that give up no more first."""
        chunks, bits = self.parts["prefill_chunk"], self.parts["kv_bits"]
        found = [replace(one, kv_bits=b, prefill_chunk=n) for b in bits for n in chunks if one.helped is None]
        return sorted((other for other in found if other != one), key=lambda other: other.given_up)

    def with_decodes(self, one: Composition) -> list[Composition]:
        """Returns the compositions that decode otherwise than this one, those whose KV lies elsewhere meanwhile with
        no copy of it in memory."""
        return [
            self.plain(self._kept_where_it_lies(replace(one, decode=name, away=away, group_tokens=None)))
            for name, away in self.decodes
            if (name, away) != (one.decode, one.away)
        ]

    def _kept_where_it_lies(self, one: Composition) -> Composition:
        keeps = self.parts["keep"]
        places = ("memory",) if one.away is None else ("flash", "cloud", "drop")
        return replace(one, keep=next((place for place in places if place in keeps), keeps[0]))

    @property
    def start(self) -> list[Composition]:
        """Returns a composition for each decode system, with the first value of every other part."""
        first = {part: values[0] for part, values in self.parts.items()}
        return [self._kept_where_it_lies(Composition(decode=name, away=away, **first)) for name, away in self.decodes]

    @property
    def helpers(self) -> list[Composition]:
        return [Composition(helped=name) for name in self.helped]

    def everything(self) -> list[Composition]:
        """Returns all compositions, each once."""
        found = [Composition(decode=name, away=away) for name, away in self.decodes]
        for part, values in self.parts.items():
            found = [replace(one, **{part: value}) for one in found for value in values]
        return [*dict.fromkeys(map(self.plain, found)), *self.helpers]

    @cached_property
    def number(self) -> int:
        """Returns the number of compositions."""
        return len(self.everything())


# The longest prompt that systems of clusters are tried for: a run of 8Ki tokens takes seconds, and of 32Ki a minute.
_MOST_CLUSTERED = 2048
_LOADS = ("ferry", "sparkv", "strong-hybrid", "stream-only", "cachegen-best-level", "cachegen", "kivi", _COMPUTES_ALL)


def space_of(
    scenario: Scenario, *, linked: bool, helped: bool, longest: int, pinned: Mapping[str, str] = MappingProxyType({})
) -> Space:
    """Returns what there is to choose from. `linked`: there is a link over which a cloud keeps KV; `helped`: a machine
    answers along; `longest`: tokens of the longest turn; `pinned`: parts that the user has chosen."""
    device, left_out = scenario.device, dict[str, str]()
    # The host comes first, since it is mostly faster than storage.
    places = [] if device.memory.unified else ["host"]
    places += ["storage"] if device.storage is not None else []
    decodes: list[tuple[str, Any]] = [(_IN_MEMORY, None)]
    for name, system in DECODE_SYSTEMS.items():
        roles = system.roles
        if roles.selector.evicts or roles.placement.mapped or roles == DECODE_SYSTEMS[_IN_MEMORY].roles:
            continue
        if system.paper == "dynakv" and longest > _MOST_CLUSTERED:
            left_out[name] = f"a run over more than {_MOST_CLUSTERED:,} tokens takes minutes"
        elif roles.placement.away is None or not isinstance(roles.placement, OneTier):
            decodes.append((name, None))
        else:
            decodes += [(name, place) for place in places]
    flash = ["flash", "memory-flash"] if device.storage is not None else []
    cloud = ["cloud", "memory-cloud"] if linked else []
    both = ["flash-cloud", "memory-flash-cloud"] if flash and cloud else []
    fetches = linked and scenario.session.workload.in_cloud == "contexts"
    parts: dict[str, tuple[Any, ...]] = {
        "keep": ("memory", "drop", *flash, *cloud, *both),
        # Of equal ones the first is taken: where nothing lies in the cloud at first, the one that loads nothing.
        "load": _LOADS if fetches else (_COMPUTES_ALL, *_LOADS[:-1]) if linked else (_COMPUTES_ALL,),
        "evict": ("lru", "cost", "predicted"),
        "kv_bits": KV_BITS,
        "prefill_chunk": (2048, 512),
        "group_tokens": (None, 2, 8, 16),
    }
    parts |= {part: (value,) for part, value in pinned.items() if part in parts}
    if "decode" in pinned:
        away = DECODE_SYSTEMS[pinned["decode"]].roles.placement.away
        decodes = [(pinned["decode"], None if away == "device" else away)]
    helpers = tuple(name for name in ASSIST_SYSTEMS if name != "device-only") if helped else ()
    return Space(parts, tuple(decodes), helpers, left_out, fetches)
