"""Systems by name: which loader with which settings, over which encoding of the stored context."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from kvferry.codecs.sizes import CODECS
from kvferry.pipelines.parameters import BadParameters, arguments_of, schema_of
from kvferry.pipelines.policy_schema import Schema, setting
from kvferry.policies.loading.ferry import Ferry
from kvferry.policies.loading.ferry_three_way import ThreeWayFerry
from kvferry.policies.loading.horizon import Horizon
from kvferry.policies.loading.hybrid import Hybrid
from kvferry.policies.loading.loader import Loader, ReadingLoader, Serving
from kvferry.policies.loading.single_path import CacheGen, LocalPrefill, StreamOnly
from kvferry.policies.loading.staged import Staged
from kvferry.scenarios.resolve import Complaint


@dataclass(frozen=True, kw_only=True)
class LoadingSystem:
    """A composition: everything a published system is, as far as loading a context goes."""

    loader: Callable[..., Loader]
    codec: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    about: str
    paper: str = "sparkv"
    # How loads that are under way together share link and processor.
    serving: Serving = "fair"

    @property
    def policy_schemas(self) -> Mapping[str, Schema]:
        read = schema_of(self.loader, codec=Literal[tuple(CODECS)], serving=Serving)
        # A schedule is named with parameters of its own.
        return {key: value if key == "schedule" else setting(value) for key, value in read.items()}

    @property
    def policy_rules(self) -> Sequence[Schema]:
        return ()

    def with_policies(self, policies: Mapping[str, Any]) -> "LoadingSystem":
        """The same system with some of its policies replaced, as ``Scenario.policy_values`` asks.

        Roles are `codec`, `serving` and the loader's parameters, a physical one without its unit (`objective: 1 s`);
        what a function does by name may be a mapping, {"name": ..., its parameters}. Raises BadParameters, an
        InputError, for any other role, and for values that its role does not take.
        """
        system, complaints = self, list[Complaint]()
        for role, value in policies.items():
            try:
                system = system._with(role, value)
            except BadParameters as error:
                complaints += error.complaints
        if complaints:
            raise BadParameters(complaints)
        return system

    def _with(self, role: str, value: Any) -> "LoadingSystem":
        settings = arguments_of(self.loader, {role: value}, codec=Literal[tuple(CODECS)], serving=Serving)
        codec, serving = settings.pop("codec", self.codec), settings.pop("serving", self.serving)
        system = replace(self, codec=codec, serving=serving, settings={**self.settings, **settings})
        try:
            system.new_loader()
        except ValueError as error:
            raise BadParameters([Complaint((role,), str(error))]) from None
        return system

    def new_loader(self) -> Loader:
        """A loader for one request."""
        return self.loader(**self.settings)

    @property
    def reads(self) -> bool:
        """Returns whether it reads what lies on local storage, beside computing and streaming."""
        return isinstance(self.new_loader(), ReadingLoader)


SYSTEMS: dict[str, LoadingSystem] = {
    "sparkv": LoadingSystem(
        loader=Staged, codec="huffman", about="the paper's: greedy schedule, adapted by its controller"
    ),
    "sparkv-last-first": LoadingSystem(
        loader=Staged,
        settings={"schedule": "greedy-last-first"},
        codec="huffman",
        about="a reading of sparkv: what is streamed goes from the last tokens to the first",
    ),
    "sparkv-overdue": LoadingSystem(
        loader=Staged,
        settings={"compute_overdue": True},
        codec="huffman",
        about="a reading of sparkv: an idle processor computes what the link was to have brought by now",
    ),
    "ferry": LoadingSystem(
        loader=Ferry,
        codec="huffman",
        about="ours: paths meet in the bound's own order; what computing waits for comes first; races the last",
    ),
    "ferry-horizon": LoadingSystem(
        loader=Horizon,
        codec="huffman",
        about="ours: ferry that plans by a forecast of the link with its uncertainty",
    ),
    "ferry-three-way": LoadingSystem(
        loader=ThreeWayFerry,
        codec="huffman",
        about="ours: ferry over three paths, as conversations leave KV on local storage, too",
    ),
    "strong-hybrid": LoadingSystem(
        loader=Hybrid, codec="huffman", about="compute early token chunks, stream late ones; static split by mean rates"
    ),
    "strong-hybrid-true-costs": LoadingSystem(
        loader=Hybrid,
        settings={"variant": "true-costs"},
        codec="huffman",
        about="the same, split by every chunk's cost",
    ),
    "strong-hybrid-two-pointer": LoadingSystem(
        loader=Hybrid, settings={"variant": "two-pointer"}, codec="huffman", about="the same, meeting unit by unit"
    ),
    "cachegen": LoadingSystem(
        loader=CacheGen, codec="cachegen", about="stream all, at the best of five levels that meets 2 s"
    ),
    "cachegen-best-level": LoadingSystem(
        loader=CacheGen,
        settings={"objective_s": "quality"},
        codec="cachegen",
        about="a reading of cachegen: its best level, however long that takes",
    ),
    "kivi": LoadingSystem(loader=StreamOnly, codec="kivi", about="stream all at a fixed 2-bit quantisation"),
    "stream-only": LoadingSystem(loader=StreamOnly, codec="huffman", about="stream all in SparKV's encoding"),
    "local-prefill": LoadingSystem(loader=LocalPrefill, codec="huffman", about="compute all, fetch nothing"),
}
