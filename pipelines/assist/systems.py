"""Systems for devices with a cloud, by name: P/D-Device and what it is compared with."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from kvferry.pipelines.parameters import BadParameters, arguments_of, schema_of
from kvferry.pipelines.policy_schema import Schema, stand_ins
from kvferry.policies.assist.help import Help
from kvferry.policies.assist.serving import Serving
from kvferry.scenarios.resolve import Complaint

# Who answers: a device that a cloud helps, one of the two alone, or both in turns.
Answers = Literal["helped", "device", "cloud", "in-turns"]

# By the key under `policies`, and the only name that stands there: what it says replaces the system's own.
_ROLES: dict[str, tuple[str, type]] = {"assist": ("optimised", Help), "serving": ("slots", Serving)}
# Of Help what has an effect, by who answers.
_COUNTS: dict[Answers, tuple[str, ...]] = {
    "helped": ("tokens", "ratio", "smoothing", "patience_s", "refiner", "mask", "catch_up"),
    "device": (),
    "cloud": ("patience_s",),
    "in-turns": ("draft", "accepted", "patience_s"),
}


@dataclass(frozen=True, kw_only=True)
class AssistSystem:
    """``fixed``: of `assist` what makes the system what its name says. ``idle``: what has no effect beside that."""

    about: str
    answers: Answers
    assist: Help = field(default_factory=Help)
    fixed: tuple[str, ...] = ()
    idle: tuple[str, ...] = ()
    serving: Serving = field(default_factory=Serving)
    paper: str = "pd_device"

    @property
    def codec(self) -> None:
        """No contexts of this workload lie in a cloud."""
        return None

    @property
    def needs_a_cloud(self) -> bool:
        return self.answers != "device"

    @property
    def _counting(self) -> tuple[str, ...]:
        """Returns what of `assist` has an effect on this system."""
        return tuple(name for name in _COUNTS[self.answers] if name not in self.idle)

    @property
    def policy_schemas(self) -> Mapping[str, Schema]:
        return {role: stand_ins({name: declares}, schema_of) for role, (name, declares) in _ROLES.items()}

    @property
    def policy_rules(self) -> Sequence[Schema]:
        """Roles and parameters that mean something to this system."""
        if not self.needs_a_cloud:
            return ({"propertyNames": {"enum": ["assist"]}}, _of_assist(("name",)))
        counting = (name.removesuffix("_s") for name in self._counting)
        rules = [_of_assist(("name", *counting))]
        rules += [_of_assist((), {name: {"const": getattr(self.assist, name)}}) for name in self.fixed]
        return rules

    def with_policies(self, policies: Mapping[str, Any]) -> "AssistSystem":
        """The same system with what ``policies.assist`` and ``policies.serving`` say. Raises BadParameters."""
        complaints = [
            Complaint((role,), f"{role!r} is no role here; known: {', '.join(_ROLES)}", at_key=True)
            for role in policies
            if role not in _ROLES
        ]
        changed: dict[str, Any] = {}
        for role, (name, declares) in _ROLES.items():
            if role not in policies:
                continue
            said = policies[role]
            parameters = dict(said) if isinstance(said, Mapping) else {"name": said}
            if (given := parameters.pop("name", name)) != name:
                complaints.append(Complaint((role, "name"), f"unknown {role} {given!r}; known: {name}"))
                continue
            try:
                values = arguments_of(declares, parameters)
            except BadParameters as error:
                complaints += [replace(one, key=(role, *one.key)) for one in error.complaints]
                continue
            complaints += self._idle(role, values)
            changed[role] = replace(getattr(self, role), **values)
        if complaints:
            raise BadParameters(complaints)
        return replace(self, **changed)

    def _idle(self, role: str, values: Mapping[str, Any]) -> Iterator[Complaint]:
        """Of a role's values the ones that have no effect on this system."""
        if role == "serving":
            if not self.needs_a_cloud:
                yield Complaint((role,), "has no effect: the device answers by itself", idle=True)
            return
        for name, value in values.items():
            key, own = (role, name.removesuffix("_s")), getattr(self.assist, name)
            if name not in self._counting:
                yield Complaint(key, f"has no effect on this system: {self.about}", idle=True)
            elif name in self.fixed and value != own:
                yield Complaint(key, f"{value} is not {own}, which makes this system what it is", idle=True)


def _of_assist(names: Sequence[str] = (), properties: Mapping[str, Schema] | None = None) -> Schema:
    """What `assist` says, where it says more than a name, is of these names, and as these properties."""
    said: Schema = {"properties": dict(properties or {})}
    return {"properties": {"assist": {**said, **({"propertyNames": {"enum": list(names)}} if names else {})}}}


ASSIST_SYSTEMS: dict[str, AssistSystem] = {
    "pd-device": AssistSystem(
        about="a refined prompt and as many tokens as cover its prefill, shown at a steady pace",
        answers="helped",
    ),
    "tokens-only": AssistSystem(
        about="tokens alone: the device prefills the whole prompt meanwhile",
        answers="helped",
        assist=Help(ratio=1.0),
        fixed=("ratio",),
        # Nothing is chosen of a prompt that is kept whole.
        idle=("refiner", "mask"),
    ),
    "refinement-only": AssistSystem(
        about="the first token and a refined prompt, no further tokens",
        answers="helped",
        assist=Help(tokens=1),
        fixed=("tokens",),
        # No further tokens are shown at a pace, or caught up with.
        idle=("smoothing", "catch_up"),
    ),
    "device-only": AssistSystem(about="the device answers by itself", answers="device"),
    "speculative-edge": AssistSystem(
        about="drafts of the device, at which the cloud looks several tokens at a time",
        answers="in-turns",
    ),
    "cloud-only": AssistSystem(about="the cloud answers to the last token", answers="cloud"),
}
