"""Systems by name: which loader with which settings, over which encoding of the stored context."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kvferry.policies.codecs import CODECS
from kvferry.policies.loading.cachegen import CacheGen
from kvferry.policies.loading.ferry import Ferry
from kvferry.policies.loading.hybrid import Hybrid
from kvferry.policies.loading.loader import Loader
from kvferry.policies.loading.single_path import LocalPrefill, StreamOnly
from kvferry.policies.loading.staged import Staged
from kvferry.specs.errors import InputError, pick, unknown_name
from kvferry.specs.units import quantity


@dataclass(frozen=True, kw_only=True)
class System:
    """A composition: everything a published system is, as far as loading a context goes."""

    loader: Callable[..., Loader]
    codec: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    about: str

    def with_policies(self, policies: Mapping[str, Any]) -> "System":
        """The same system with some of its policies replaced, as ``Scenario.policy_values`` asks.

        Roles are `codec` and the loader's own parameters, a physical one without its unit (`objective: 1 s`).
        Raises InputError for any other role, and for values that its role does not take.
        """
        roles = {_role(name): name for name in inspect.signature(self.loader).parameters}
        settings = dict(self.settings)
        codec = self.codec
        for role, policy in policies.items():
            if role == "codec":
                pick("codec", CODECS, str(policy))
                codec = policy
            elif role in roles:
                settings[roles[role]] = _setting(roles[role], policy)
            else:
                raise unknown_name("policy", role, {"codec", *roles})
        system = replace(self, codec=codec, settings=settings)
        system.new_loader()  # complains now about what it cannot take
        return system

    def new_loader(self) -> Loader:
        """A loader for one request. Raises InputError when a setting has a value it cannot have."""
        try:
            return self.loader(**self.settings)
        except (TypeError, ValueError) as error:
            raise InputError(f"policies: {error}") from error


def _role(parameter: str) -> str:
    return parameter.removesuffix("_s")


def _setting(parameter: str, value: Any) -> Any:
    """As it stands; text with a unit where the loader wants seconds."""
    if not parameter.endswith("_s"):
        return value
    try:
        return quantity(str(value), "time")
    except ValueError as error:
        raise InputError(f"policies: {_role(parameter)}: {error}") from None


SYSTEMS: dict[str, System] = {
    "sparkv": System(loader=Staged, codec="huffman", about="the paper's: greedy schedule, adapted by its controller"),
    "ferry": System(
        loader=Ferry, codec="huffman", about="ours: compute from the chain's front, stream from its back, race the last"
    ),
    "strong-hybrid": System(
        loader=Hybrid, codec="huffman", about="compute early token chunks, stream late ones; static split by mean rates"
    ),
    "strong-hybrid-true-costs": System(
        loader=Hybrid,
        settings={"variant": "true-costs"},
        codec="huffman",
        about="the same, split by every chunk's cost",
    ),
    "strong-hybrid-two-pointer": System(
        loader=Hybrid, settings={"variant": "two-pointer"}, codec="huffman", about="the same, meeting unit by unit"
    ),
    "cachegen": System(
        loader=CacheGen, codec="cachegen", about="stream all, at the best of five levels that meets 2 s"
    ),
    "kivi": System(loader=StreamOnly, codec="kivi", about="stream all at a fixed 2-bit quantisation"),
    "stream-only": System(loader=StreamOnly, codec="huffman", about="stream all in SparKV's encoding"),
    "local-prefill": System(loader=LocalPrefill, codec="huffman", about="compute all, fetch nothing"),
}
