"""Checks which of a paper's runs share work, and so have the same kin."""

from kvferry.analysis.reproduction.kin import kin_of
from kvferry.scenarios.loader import load_scenario


def kin(*settings: str, base: str = "dynakv/latency") -> str:
    return kin_of(load_scenario(base, settings))


def test_phones_and_caches_are_of_one_kin_and_what_clusters_come_from_is_not() -> None:
    alike = {kin(*of) for of in ((), ("device=oneplus-ace2",), ("policies.cache_share=0.02",))}
    others = [("seed=2",), ("system=pqcache",), ("policies.selected_share=0.3",), ("workload.output=2Ki",)]
    assert len(alike) == 1 and "" not in alike
    assert len(alike | {kin(*of) for of in others}) == 1 + len(others)


def test_runs_without_clusters_have_none() -> None:
    assert kin(base="quickstart") == kin("system=no-cluster") == ""
