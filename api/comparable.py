"""Scenarios that can be compared: one under several systems, or as variants set it, each with one seed or many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kvferry.analysis.variants import variants_of
from kvferry.api.scenario import Settings, Source, under_systems, under_variants
from kvferry.pipelines.workload import System
from kvferry.pipelines.workloads import WORKLOADS
from kvferry.specs.errors import InputError
from kvferry.specs.scenario import Scenario

MOST_SEEDS = 1000
# By label what each variant sets, or a file, or the text of one in braces.
VariantsSource = Mapping[str, Mapping[str, Any]] | str | Path


@dataclass(frozen=True)
class Comparable:
    """What can be compared: the scenario under each system, why others are left out, which settings and policies some
    of the systems do not have, and why some that were asked for cannot run it, or select the number of tokens that all
    shall."""

    scenario: Scenario
    under: Mapping[str, Scenario]
    left_out: Mapping[str, str] = field(default_factory=dict)
    without_effect: tuple[str, ...] = ()
    unable: Mapping[str, str] = field(default_factory=dict)
    are_variants: bool = False
    # The same with each of several seeds in place of the scenario's own.
    seeds: tuple[Mapping[str, Scenario], ...] = ()


def _attending_to(scenario: Scenario, system: System, tokens: int) -> Scenario:
    """Returns the scenario whose system attends to this many tokens, if it selects any. Raises InputError."""
    from kvferry.pipelines.decoding.quality import attending_to
    from kvferry.pipelines.decoding.systems import DecodeSystem

    return attending_to(scenario, system, tokens) if isinstance(system, DecodeSystem) else scenario


def comparable(
    source: Source,
    systems: Sequence[str] | None = None,
    settings: Settings = (),
    *,
    seed: int | None = None,
    equal_tokens: int | None = None,
    variants: VariantsSource | None = None,
) -> Comparable:
    """Checks before the first one runs which systems can run a scenario. `systems`: None: those of the same paper that
    can. `variants`: in place of systems, by label the keys that each sets. `equal_tokens`: the ones that select KV
    select this many tokens each. What is asked for and cannot run the scenario, or select as many, is ``unable``.
    Raises InputError as ``under_systems`` does, and where none is able."""
    if variants is not None and systems is not None:
        raise InputError("variants: these name their systems; leave systems out")
    if variants is None:
        found = under_systems(source, systems, settings, seed=seed, without_refused=True)
    else:
        found = under_variants(source, variants_of(variants), settings, seed=seed)
    scenario, under = found.own, dict(found.systems)
    kind, left_out, unable = WORKLOADS[scenario.workload.kind], dict(found.left_out), dict[str, str]()
    if systems is not None:
        left_out, unable = unable, left_out
    if equal_tokens is not None and scenario.workload.kind != "decode":
        raise InputError(f"equal_tokens: {scenario.name} is {scenario.workload.kind}; it is for workloads that decode")
    if equal_tokens is not None and equal_tokens < 1:
        raise InputError(f"equal_tokens: at least 1 token is selected, got {equal_tokens}")

    def system_of(one: Scenario) -> System:
        """Raises InputError where it cannot run the scenario."""
        system = kind.systems[one.system].with_policies(one.policy_values)
        kind.flow(one, system, lambda done, of: None)
        return system

    for name, one in list(under.items()):
        try:
            system = system_of(one)
        except InputError as error:
            asked_for = systems is not None or variants is not None or name == scenario.system
            (unable if asked_for else left_out)[name] = str(error)
            del under[name]
            continue
        if equal_tokens is None:
            continue
        try:
            under[name] = _attending_to(one, system, equal_tokens)
            system_of(under[name])
        except InputError as error:
            unable[name] = str(error)
            del under[name]
    if not under:
        raise InputError("; ".join(f"{name}: {why}" for name, why in {**unable, **left_out}.items()))
    return Comparable(scenario, under, left_out, found.remarks, unable, variants is not None)


def with_seeds(
    source: Source,
    seeds: int,
    systems: Sequence[str] | None = None,
    settings: Settings = (),
    *,
    equal_tokens: int | None = None,
    variants: VariantsSource | None = None,
) -> Comparable:
    """Returns what ``comparable`` gives, with each of the seeds 0, 1, ... Raises as it does, and for real runs, which
    differ by themselves."""
    if not 2 <= seeds <= MOST_SEEDS:
        raise InputError(f"seeds: {seeds} is not between 2 and {MOST_SEEDS}")
    every = [
        comparable(source, systems, settings, seed=seed, equal_tokens=equal_tokens, variants=variants)
        for seed in range(seeds)
    ]
    first = every[0]
    if first.scenario.backend != "sim":
        raise InputError("seeds: real runs differ by themselves; runs says how often each is taken")
    return replace(first, seeds=tuple(one.under for one in every))
