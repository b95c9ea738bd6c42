"""A scenario: device, link, model, workload and policies together. Everything a run depends on."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, WithJsonSchema, field_validator, model_validator

from kvferry.specs.as_run import as_it_is_run, of_one_kind
from kvferry.specs.assist import AssistBudget, AssistLive, AssistSpec
from kvferry.specs.base import BadKey, Part
from kvferry.specs.budget import ContextReuseBudget, DecodeBudget
from kvferry.specs.device import DeviceSpec
from kvferry.specs.engine import EngineSpec
from kvferry.specs.errors import InputError, unknown_name
from kvferry.specs.kinds import (
    AssistParts,
    BudgetSpec,
    ContextReuseParts,
    DecodeParts,
    Live,
    LiveSpec,
    OfBudget,
    Parts,
    SessionParts,
    Workload,
    WorkloadSpec,
)
from kvferry.specs.link import LinkSpec, LoadSpec, NoLink
from kvferry.specs.live import ContextReuseLive, DecodeLive, RealModel
from kvferry.specs.machine import DEVICE, MachineName, MachineSpec
from kvferry.specs.model import ModelSpec
from kvferry.specs.runtime import RuntimeSpec
from kvferry.specs.scenario_checks import check
from kvferry.specs.session import SessionBudget, SessionLive, SessionSpec
from kvferry.specs.weight_format import PrecisionSpec
from kvferry.specs.workload import ContextReuseSpec, DecodeSpec, SloSpec

_NUMBERS = {"type": "array", "items": {"type": "number"}, "minItems": 1}
SETTING = {"anyOf": [{"type": ["string", "number", "boolean"], "minLength": 1}, _NUMBERS]}


def _is_setting(value: Any) -> Any:
    numbers = isinstance(value, list | tuple) and value and all(isinstance(one, int | float) for one in value)
    if not numbers and (not isinstance(value, str | int | float) or value == ""):
        raise ValueError(f"{value!r:.60} is not a policy's name or a setting's value")
    return value


Setting = Annotated[Any, AfterValidator(_is_setting), WithJsonSchema(SETTING)]


class PolicySpec(Part):
    """A policy by name, or a plain setting's value; every other key is a parameter of that policy, which knows
    what it takes. Without a name they are for the policy that the system has."""

    model_config = ConfigDict(extra="allow")
    # A policy by name, or a setting's value.
    name: Setting | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        return value if isinstance(value, dict | PolicySpec) else {"name": value}

    @model_validator(mode="after")
    def _something(self) -> "PolicySpec":
        if self.name is None and not self.model_extra:
            raise BadKey("name", "is missing")
        return self

    @property
    def value(self) -> Any:
        """The name or setting alone, {"name", and the parameters}, or the parameters alone."""
        named = {} if self.name is None else {"name": self.name}
        return {**named, **self.parameters} if self.parameters else self.name

    @property
    def parameters(self) -> dict[str, Any]:
        """As the file has them: numbers, text, booleans, lists and mappings; quantities still carry units."""
        return dict(self.model_extra or {})

    def over(self, below: "PolicySpec | None") -> "PolicySpec":
        """This policy, or where it has parameters alone, the policy below with these."""
        if self.name is not None or below is None:
            return self
        return PolicySpec.model_validate({"name": below.name, **below.parameters, **self.parameters})


class CostsSpec(Part):
    """The cost model that the modelled world obeys, and the one that planners estimate with."""

    # What the modelled world obeys.
    truth: str = Field(default="roofline", min_length=1)
    # What planners believe.
    estimate: str = Field(default="roofline", min_length=1)

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        return {"truth": value, "estimate": value} if isinstance(value, str) else value


class Scenario(Part):
    """What one run is made from. Equal scenarios give equal bytes."""

    # How results are titled.
    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+ -]{0,99}$", examples=["mine"])
    # The modelled world, or the real one.
    backend: Literal["sim", "torch"] = "sim"
    # Who loads the context, decodes or answers: a named composition of policies (kvferry systems).
    system: str = Field(min_length=1, max_length=100)
    # Where it runs: a name (kvferry devices), a path, or a mapping.
    device: DeviceSpec = Field(examples=["rtx-4060"])
    # Replaces the device's own engine, and what its profile says of software; None: as the device says.
    engine: EngineSpec | None = None
    # Of the device's processors the one that prefill and decoding run on; None: the device's own `main`.
    processor: str | None = Field(default=None, min_length=1, max_length=100)
    # What answers: a name (kvferry models), a path, Hugging Face's config.json, or a mapping.
    model: ModelSpec = Field(examples=["llama-3.1-8b"])
    # Replaces the model's own, whichever model it is; None: as the model says.
    precision: PrecisionSpec | None = None
    # The network between device and cloud, which contexts and messages cross. Decoding has no use for it, nor have
    # conversations without a cloud.
    link: LinkSpec = Field(examples=[{"rate": "100 Mbit/s", "rtt": "20 ms"}])
    # Other machines by name, with which the device talks over channels.
    machines: dict[MachineName, MachineSpec] = Field(default_factory=dict, max_length=100)
    # What is asked for: its kind, lengths and arrivals.
    workload: WorkloadSpec
    # What other programs take of a processor meanwhile.
    load: LoadSpec | None = None
    # What software takes to manage KV outside the processor's memory; None: as the device's profile says, or as the
    # runtime that was fitted on the device, or else as the prototype of the system's paper, scaled.
    runtime: RuntimeSpec | None = None
    # Role (schedule, control, ...) -> policy: replaces the system's own.
    policies: dict[str, PolicySpec] = Field(default_factory=dict)
    # System -> the same for it alone, under `policies`, so that several systems can be run from one file.
    system_policies: dict[str, dict[str, PolicySpec]] = Field(default_factory=dict)
    # per_head: SparKV's Eq. 4-5. all_heads: what a Transformer allows.
    coupling: Literal["per_head", "all_heads"] = "all_heads"
    # How long an op takes (docs/cost-models.md).
    costs: CostsSpec = CostsSpec()
    # What throughput is measured over.
    measure: Literal["decode", "end_to_end"] = "end_to_end"
    # By which requests are counted as served well; None: they are not.
    slo: SloSpec | None = None
    # Memory that the run may take.
    budget: BudgetSpec
    # Of the real world: model, processor, cloud, files.
    live: LiveSpec
    # Of every source of chance.
    seed: int = Field(default=0, ge=0, lt=2**63, strict=True)

    @model_validator(mode="before")
    @classmethod
    def _as_run(cls, value: Any) -> Any:
        return of_one_kind(as_it_is_run(value)) if isinstance(value, dict) else value

    @field_validator("policies", "machines", mode="before")
    @classmethod
    def _without_null(cls, named: Any) -> Any:
        """null: the system's own policy, no such machine. So an override takes back what the file says."""
        if not isinstance(named, dict):
            return named
        return {name: value for name, value in named.items() if value is not None}

    @field_validator("system_policies", mode="before")
    @classmethod
    def _systems_without_null(cls, systems: Any) -> Any:
        if not isinstance(systems, dict):
            return systems
        return {name: cls._without_null(policies) for name, policies in systems.items() if policies is not None}

    @model_validator(mode="after")
    def _fits_together(self) -> "Scenario":
        check(self)
        return self

    @property
    def policy_values(self) -> dict[str, Any]:
        """Role -> the name or value alone, or {"name", and the parameters}: what the file says for the scenario's
        system. Parameters without a name are laid over the ones that `system_policies` has for the role."""
        of_system = self.system_policies.get(self.system, {})
        own = {role: policy.over(of_system.get(role)) for role, policy in self.policies.items()}
        return {role: policy.value for role, policy in {**of_system, **own}.items()}

    @property
    def unsaid(self) -> set[str]:
        """Returns the keys that stand for nothing which a file could say: the link, where there is none."""
        return {"link"} if isinstance(self.link, NoLink) else set()

    @property
    def context_reuse(self) -> ContextReuseParts:
        """Workload, budget and live settings of a scenario whose workload is of this kind; so below."""
        return _parts(self, ContextReuseSpec, ContextReuseBudget, ContextReuseLive)

    @property
    def decode(self) -> DecodeParts:
        return _parts(self, DecodeSpec, DecodeBudget, DecodeLive)

    @property
    def assist(self) -> AssistParts:
        return _parts(self, AssistSpec, AssistBudget, AssistLive)

    @property
    def session(self) -> SessionParts:
        return _parts(self, SessionSpec, SessionBudget, SessionLive)

    @property
    def machine_names(self) -> tuple[str, ...]:
        """All machines, each instance of a group by its own name; DEVICE first."""
        of_groups = (machine.instances(name) for name, machine in self.machines.items())
        return (DEVICE, *(instance for group in of_groups for instance in group))

    def link_of(self, instance: str) -> LinkSpec | None:
        """The link of one of `machine_names`; None: what it sends and is sent costs nothing on its side."""
        return self.link if instance == DEVICE else self._machine(instance).link

    def seen_by(self, instance: str) -> "Scenario":
        """The same scenario with one of `machine_names` in the place of the device: its device, model, link if it has
        one, and live settings. Budget and background load are the device's alone. Raises InputError."""
        if instance == DEVICE:
            return self
        machine = self._machine(instance)
        live = {} if machine.live is None else {key: getattr(machine.live, key) for key in RealModel.model_fields}
        return self.model_copy(
            update={
                "device": machine.device,
                "processor": None,
                "model": machine.model,
                "precision": None,
                "link": machine.link or self.link,
                "live": self.live.model_copy(update=live),
                "budget": type(self.budget)(),
                "load": None,
                "machines": {},
            }
        )

    def _machine(self, instance: str) -> MachineSpec:
        name, dot, number = instance.partition(".")
        machine = self.machines.get(name)
        if machine is None or not machine.has(dot + number):
            known = (one.range_of(of) for of, one in self.machines.items())
            raise InputError(f"machines: {unknown_name('machine', instance, [DEVICE, *known])}")
        return machine

    def under(self, system: str) -> "Scenario":
        """The same scenario under another system, with that system's own policies."""
        if system == self.system:
            return self
        return self.model_copy(update={"system": system, "policies": {}})


def _parts(
    scenario: Scenario, workload: type[Workload], budget: type[OfBudget], live: type[Live]
) -> Parts[Workload, OfBudget, Live]:
    assert isinstance(scenario.workload, workload)
    assert isinstance(scenario.budget, budget)
    assert isinstance(scenario.live, live)
    return Parts(scenario.workload, scenario.budget, scenario.live)
