"""A scenario: device, link, model, workload and policies together. Everything a run depends on."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, WithJsonSchema, field_validator, model_validator

from kvferry.specs.assist import AssistBudget, AssistLive, AssistSpec
from kvferry.specs.base import BadKey, Part
from kvferry.specs.budget import ContextReuseBudget, DecodeBudget
from kvferry.specs.device import DeviceSpec
from kvferry.specs.engine import EngineSpec, with_engine
from kvferry.specs.errors import InputError, unknown_name
from kvferry.specs.kinds import (
    BY_KIND,
    KINDS,
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
from kvferry.specs.machine import DEVICE, MOST_MACHINES, MachineName, MachineSpec
from kvferry.specs.main_processor import with_main
from kvferry.specs.model import ModelSpec
from kvferry.specs.runtime import RuntimeSpec
from kvferry.specs.session import SessionBudget, SessionLive, SessionSpec
from kvferry.specs.stored_model import as_stored
from kvferry.specs.weight_format import PrecisionSpec, in_precision
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


def _values(policies: Mapping[str, PolicySpec]) -> dict[str, Any]:
    return {role: policy.value for role, policy in policies.items()}


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


# Of kinds of workload that may do without: decoding fetches nothing, and has what its bundled scenarios write.
_LINKS = {"decode": LinkSpec(rate_bytes_per_s=1e9 / 8), "session": NoLink()}


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
    def _of_one_kind(cls, value: Any) -> Any:
        """Give the parts whose keys depend on the workload's kind that kind. Where it is not known, they are left out:
        the fault is the kind's."""
        if not isinstance(value, dict):
            return value
        workload = value.get("workload")
        kind = workload.get("kind") if isinstance(workload, dict) else getattr(workload, "kind", None)
        if kind not in KINDS:
            return {key: part for key, part in value.items() if key not in BY_KIND} | {
                key: {"kind": KINDS[0]} for key in BY_KIND
            }
        parts: dict[str, Any] = {key: value.get(key) for key in BY_KIND}
        for key, part in parts.items():
            if part is None:
                parts[key] = {"kind": kind}
            elif isinstance(part, dict):
                if part.get("kind", kind) != kind:
                    raise BadKey(f"{key}.kind", f"{part['kind']!r:.60} is not the workload's, which is {kind}")
                parts[key] = {**part, "kind": kind}
        if kind in _LINKS and value.get("link") is None:
            parts["link"] = _LINKS[kind]
            if kind == "session" and isinstance(workload, dict):
                # What lies in a cloud comes over a link.
                parts["workload"] = {"in_cloud": "nothing", **parts.get("workload", workload)}
        return {**value, **parts}

    @model_validator(mode="before")
    @classmethod
    def _as_it_is_run(cls, value: Any) -> Any:
        """The device with the engine and the processor, and the model in the precision, that the scenario asks for."""
        if not isinstance(value, dict):
            return value
        device, processor, engine = value.get("device"), value.get("processor"), value.get("engine")
        if isinstance(device, dict) and isinstance(engine, dict):
            device = with_engine(device, engine, replace=True)
            value = {**value, "device": device}
        named = device.get("processors") if isinstance(device, dict) else None
        if isinstance(device, dict) and isinstance(named, dict) and isinstance(processor, str) and processor in named:
            value = {**value, "device": with_main(device, processor)}
        value = dict(as_stored(value))
        model, precision = value.get("model"), value.get("precision")
        if isinstance(model, dict) and precision is not None:
            value = {**value, "model": in_precision(model, precision)}
        return value

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
    def _bounded(self) -> "Scenario":
        self.workload.check_size(self.model, per_head=self.coupling == "per_head")
        return self

    @model_validator(mode="after")
    def _within_the_window(self) -> "Scenario":
        models = {f"machines.{name}.model": machine.model for name, machine in self.machines.items()}
        real = self.backend != "sim"
        if real or not isinstance(self.workload, DecodeSpec | SessionSpec):
            # Which systems of these model windows, they say themselves.
            models = {"model": self.model, **models}
        which = "a real run has none that are longer" if real else f"{self.workload.kind} has none that are longer"
        would = "--set backend=sim" if real else "workload.kind decode or session"
        for key, model in models.items():
            if what := model.beyond_window(self.workload.longest_tokens):
                would += (
                    " with KV in memory (--system vllm)" if self.workload.kind == "decode" else " with KV in memory"
                )
                raise BadKey(key, f"{what}; {which}: shorter ones (workload.context) would do, or {would}")
        return self

    @model_validator(mode="after")
    def _weights_that_the_engine_reads(self) -> "Scenario":
        engine, weights = self.device.engine, self.model.weights
        if engine is not None and weights is not None and engine.weights and weights not in engine.weights:
            key = "model.weights" if self.precision is None or self.precision.weights is None else "precision.weights"
            raise BadKey(key, f"{engine.name} does not read {weights}; it reads {', '.join(engine.weights)}")
        return self

    @model_validator(mode="after")
    def _names_of_the_devices(self) -> "Scenario":
        of_machines = {f"machines.{name}.device": machine.device for name, machine in self.machines.items()}
        for key, device in {"device": self.device, **of_machines}.items():
            if device.main not in device.processors:
                has = f"it has {', '.join(device.processors)}"
                raise BadKey(f"{key}.main", f"{device.main!r} is no processor of this device; {has}")
        known = ", ".join(self.device.processors)
        if self.processor is not None and self.processor not in self.device.processors:
            raise BadKey("processor", f"{self.processor!r} is no processor of the device; it has {known}")
        wanted = self.load.processor if self.load else None
        if wanted is not None and wanted not in self.device.processors:
            raise BadKey("load.processor", f"{wanted!r} is no processor of the device; it has {known}")
        return self

    @model_validator(mode="after")
    def _within_the_memory(self) -> "Scenario":
        budget, free = self.budget.memory_bytes, self.device.memory.free_bytes
        if budget is not None and budget > free:
            what = f"{budget / 1e9:.4g} GB is more than the {free / 1e9:.4g} GB that the device leaves free"
            raise BadKey("budget.memory", what)
        return self

    @model_validator(mode="after")
    def _few_machines(self) -> "Scenario":
        machines = sum(machine.count or 1 for machine in self.machines.values())
        if machines > MOST_MACHINES:
            raise BadKey("machines", f"are {machines:,} with all groups; at most {MOST_MACHINES:,} will do")
        return self

    @property
    def policy_values(self) -> dict[str, Any]:
        """Role -> the name or value alone, or {"name", and the parameters}: what the file says for the scenario's
        system. Parameters without a name are laid over the ones that `system_policies` has for the role."""
        of_system = self.system_policies.get(self.system, {})
        own = {role: policy.over(of_system.get(role)) for role, policy in self.policies.items()}
        return _values({**of_system, **own})

    @property
    def unsaid(self) -> set[str]:
        """Returns the keys that stand for nothing which a file could say: the link, where there is none."""
        return {"link"} if isinstance(self.link, NoLink) else set()

    @property
    def context_reuse(self) -> ContextReuseParts:
        """Workload, budget and live settings of a scenario whose workload is of this kind; so below."""
        return self._parts(ContextReuseSpec, ContextReuseBudget, ContextReuseLive)

    @property
    def decode(self) -> DecodeParts:
        return self._parts(DecodeSpec, DecodeBudget, DecodeLive)

    @property
    def assist(self) -> AssistParts:
        return self._parts(AssistSpec, AssistBudget, AssistLive)

    @property
    def session(self) -> SessionParts:
        return self._parts(SessionSpec, SessionBudget, SessionLive)

    def _parts(
        self, workload: type[Workload], budget: type[OfBudget], live: type[Live]
    ) -> Parts[Workload, OfBudget, Live]:
        assert isinstance(self.workload, workload)
        assert isinstance(self.budget, budget)
        assert isinstance(self.live, live)
        return Parts(self.workload, self.budget, self.live)

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
