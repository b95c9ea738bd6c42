"""Systems by name, and policies that replace theirs."""

import pytest

from kvferry.pipelines.systems import SYSTEMS
from kvferry.policies.codecs import CODECS
from kvferry.policies.loading.cachegen import CacheGen
from kvferry.policies.loading.hybrid import Hybrid
from kvferry.specs.errors import InputError


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_system_is_complete(name: str) -> None:
    system = SYSTEMS[name]
    assert system.codec in CODECS
    assert system.about
    assert system.new_loader() is not system.new_loader()  # loaders remember: each request has its own


def test_a_policy_is_replaced_and_the_table_left_alone() -> None:
    changed = SYSTEMS["strong-hybrid"].with_policies({"variant": "two-pointer", "codec": "kivi"})
    loader = changed.new_loader()
    assert isinstance(loader, Hybrid)
    assert (loader.variant, changed.codec) == ("two-pointer", "kivi")
    assert SYSTEMS["strong-hybrid"].codec == "huffman"


def test_physical_policies_carry_units() -> None:
    loader = SYSTEMS["cachegen"].with_policies({"objective": "500 ms"}).new_loader()
    assert isinstance(loader, CacheGen)
    assert loader.objective_s == 0.5


@pytest.mark.parametrize(
    ("system", "policies", "message"),
    [
        ("sparkv", {"shedule": "greedy"}, "unknown policy 'shedule'.*Did you mean 'schedule'"),
        ("sparkv", {"schedule": "gredy"}, "unknown schedule 'gredy'.*Did you mean 'greedy'"),
        ("strong-hybrid", {"variant": "static"}, "static"),
        ("cachegen", {"objective": "2"}, "no unit"),
        ("cachegen", {"codec": "gzip"}, "unknown codec 'gzip'"),
        ("ferry", {"schedule": "greedy"}, "unknown policy 'schedule'"),
    ],
)
def test_what_a_system_cannot_take(system: str, policies: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        SYSTEMS[system].with_policies(policies)
