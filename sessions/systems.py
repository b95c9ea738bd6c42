"""Systems for sessions, by name: what loads, what decodes, and what becomes of KV between turns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from kvferry.pipelines.assist.systems import ASSIST_SYSTEMS, AssistSystem
from kvferry.pipelines.decoding.systems import DECODE_SYSTEMS, DecodeSystem
from kvferry.pipelines.loading.systems import SYSTEMS, LoadingSystem
from kvferry.pipelines.parameters import BadParameters, arguments_of, schema_of
from kvferry.pipelines.policy_schema import Schema, setting, united
from kvferry.pipelines.workload import System
from kvferry.policies.keep.eviction import EvictionName
from kvferry.policies.keep.kept import Place
from kvferry.scenarios.resolve import Complaint
from kvferry.specs.errors import InputError, pick

# The places where KV is kept between turns: what memory has no room for goes to flash.
Keep = Literal[
    "drop", "memory", "flash", "cloud", "memory-flash", "memory-cloud", "flash-cloud", "memory-flash-cloud"
]  # fmt: skip


def keeping_of(keep: Keep = "drop", evict: EvictionName = "lru") -> None:
    """What a scenario may say of what is kept between turns."""


@dataclass(frozen=True, kw_only=True)
class SessionSystem:
    """A composition. ``load``: brings what lies in the cloud alone. ``decode``: answers; its layout is that of KV on
    flash. ``assist``: a cloud that reads what is new, too. ``keep``, ``evict``: where KV stays between turns, and what
    goes first when room is lacking."""

    about: str
    load: str = "ferry"
    decode: str = "full-flash"
    keep: Keep = "drop"
    evict: EvictionName = "lru"
    paper: str = "sessions"
    # A cloud that helps with what is new in a turn; None: none does.
    assist: str | None = None
    # What a scenario says of these systems, by role.
    loading: LoadingSystem
    decoding: DecodeSystem
    assisting: AssistSystem | None = None

    @property
    def codec(self) -> str | None:
        return self.loading.codec

    @property
    def places(self) -> tuple[Place, ...]:
        """Returns where KV is kept between turns."""
        return () if self.keep == "drop" else tuple(self.keep.split("-"))  # type: ignore[arg-type]

    @property
    def policy_schemas(self) -> Mapping[str, Schema]:
        kept = {key: setting(value) for key, value in schema_of(keeping_of).items()}
        named = {role: _named(table) for role, (_, table) in _ROLES.items()}
        return {**named, **kept}

    @property
    def policy_rules(self) -> Sequence[Schema]:
        return ()

    def with_policies(self, policies: Mapping[str, Any]) -> "SessionSystem":
        """The same system with some of its parts replaced: `load`, `decode` and `assist` by a system's name, or
        {"name": ..., that system's own policies}, or these alone; `keep` and `evict` by a name. Raises
        BadParameters."""
        complaints: list[Complaint] = []
        changed: dict[str, Any] = {}
        for role, (part, table) in _ROLES.items():
            if role in policies:
                try:
                    changed |= self._part(role, part, table, policies[role])
                except BadParameters as error:
                    complaints += error.complaints
        try:
            changed |= arguments_of(keeping_of, policies, **dict.fromkeys(_ROLES, Any)) | changed
        except BadParameters as error:
            complaints += error.complaints
        if complaints:
            raise BadParameters(complaints)
        return replace(self, **changed)

    def _part(self, role: str, part: str, table: Mapping[str, Any], value: Any) -> dict[str, Any]:
        said = dict(value) if isinstance(value, Mapping) else {"name": value}
        name = said.pop("name", None)
        try:
            own: System | None = getattr(self, part) if name is None else pick(f"{part} system", table, str(name))
            if own is None:
                raise InputError(f"names no system that assists; {', '.join(table)} are known")
            made = own.with_policies(said)
        except BadParameters as error:
            raise BadParameters([replace(one, key=(role, *one.key)) for one in error.complaints]) from None
        except InputError as error:
            raise BadParameters([Complaint((role,), str(error))]) from None
        return {part: made, role: getattr(self, role) if name is None else str(name)}


# By the key under `policies`: the field that has the system, and those that there are.
_ROLES: dict[str, tuple[str, Mapping[str, Any]]] = {
    "load": ("loading", SYSTEMS),
    "decode": ("decoding", DECODE_SYSTEMS),
    "assist": ("assisting", ASSIST_SYSTEMS),
}


def _named(table: Mapping[str, System]) -> Schema:
    """A system by name, or with policies of its own."""
    either: list[Schema] = [{"enum": list(table)}, {"type": "null"}]
    own = {"name": {"enum": list(table)}, **united(one.policy_schemas for one in table.values())}
    either.append({"type": "object", "minProperties": 1, "properties": own, "additionalProperties": False})
    return {"anyOf": either}


def _made(about: str, load: str, decode: str, keep: Keep, evict: EvictionName = "lru") -> SessionSystem:
    parts = {"loading": SYSTEMS[load], "decoding": DECODE_SYSTEMS[decode]}
    return SessionSystem(about=about, load=load, decode=decode, keep=keep, evict=evict, **parts)  # type: ignore[arg-type]


SESSION_SYSTEMS: dict[str, SessionSystem] = {
    "forgetful": _made("nothing is kept: every turn computes its prompt again", "local-prefill", "vllm", "drop"),
    "streamed": _made("nothing is kept here: the cloud keeps all, and ferry loads it", "ferry", "vllm", "cloud"),
    "in-memory": _made("KV stays in memory, as far as there is room", "ferry", "vllm", "memory"),
    "on-flash": _made("KV stays in memory, and what has no room there on flash", "ferry", "vllm", "memory-flash"),
    "kvswap-on-flash": _made("KV lies on flash while decoding and between turns", "ferry", "kvswap", "flash"),
    "everywhere": _made("in memory, on flash and in the cloud", "ferry", "vllm", "memory-flash-cloud"),
    "three-way": _made(
        "the same; what is not in memory is read, streamed and computed at once",
        "ferry-three-way",
        "vllm",
        "memory-flash-cloud",
    ),
}
