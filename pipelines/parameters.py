"""Parameters of policies as a scenario writes them, held against what the function that takes them declares."""

import inspect
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Annotated, Any, Literal, get_args, get_origin

import numpy as np
from pydantic import BeforeValidator, ConfigDict, TypeAdapter, ValidationError, ValidationInfo, create_model
from pydantic.json_schema import GenerateJsonSchema

from kvferry.pipelines.plugins import used
from kvferry.pipelines.policy_schema import Schema, stand_ins
from kvferry.policies.loading.problem import LoadProblem
from kvferry.policies.loading.staged import SCHEDULES
from kvferry.scenarios.faults import complaints_of
from kvferry.scenarios.resolve import Complaint
from kvferry.specs.base import BadKey, Part
from kvferry.specs.errors import InputError, KvferryError, pick
from kvferry.specs.findings import BOUNDS, rule_of
from kvferry.specs.node import brief
from kvferry.specs.units import Seconds


class BadParameters(InputError):
    """What is wrong with them, each with the key that it stands under."""

    def __init__(self, complaints: list[Complaint]) -> None:
        super().__init__(complaints)
        self.complaints = complaints

    def __str__(self) -> str:
        return "\n".join(f"policies.{'.'.join(map(str, c.key))}: {c.what}" for c in self.complaints)


class _Parameters(Part):
    model_config = ConfigDict(strict=True, populate_by_name=False)


def arguments_of(function: Callable[..., Any], values: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """Keyword arguments for a function: those of its parameters with a default that `values` names, without the unit
    (`objective: 1 s` for ``objective_s``). A bool, number or Literal must be one; what counts seconds has a unit.

    `more` are further names with their types, to be returned beside. Raises BadParameters.
    """
    model = _model_of(function, tuple(more.items()))
    try:
        read = model.model_validate(values, context={"from_file": True})
    except ValidationError as error:
        raise BadParameters(complaints_of(error, model)) from None
    return {name: getattr(read, name) for name in model.model_fields if name in read.model_fields_set}


def schema_of(function: Callable[..., Any], **more: Any) -> dict[str, Schema]:
    """Returns by key, as a scenario writes it, the JSON schema of the values that ``arguments_of`` reads."""
    properties = _properties_of(_model_of(function, tuple(more.items())), (*used(), *SCHEDULES))
    bound = function.keywords if isinstance(function, partial) else ()
    return {key: _values_alone(value) for key, value in properties.items() if key not in bound}


# A schema of all systems asks for those of a hundred functions some thousand times.
@lru_cache(maxsize=256)
def _properties_of(model: type[_Parameters], known: Hashable) -> dict[str, Schema]:
    """Returns the schemas of a model's fields, as far as plugins and schedules are those that are `known`."""
    properties: dict[str, Schema] = model.model_json_schema(schema_generator=_PlainSchema).get("properties", {})
    return properties


class _PlainSchema(GenerateJsonSchema):
    """What JSON has no word for may be anything."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012 as its base has it

    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> dict[str, Any]:
        return {}


@dataclass(frozen=True)
class _Looks:
    """Beside a reader of a parameter: what JSON schemas say of its values, asked for when a schema is made."""

    schema: Callable[[], Schema]

    def __get_pydantic_json_schema__(self, core: Any, handler: Any) -> Schema:
        return self.schema()


def _values_alone(value: dict[str, Any]) -> dict[str, Any]:
    """Returns a parameter's schema without its own name and default; of a type with a schema of its own: anything."""
    return (
        {key: item for key, item in value.items() if key not in ("title", "default")}
        if "$ref" not in str(value)
        else {}
    )


def _model_of(function: Callable[..., Any], more: tuple[tuple[str, Any], ...] = ()) -> type[_Parameters]:
    # A plugin's callable may be a dataclass, which has no hash.
    return _kept_model(function, more) if isinstance(function, Hashable) else _made_model(function, more)


def _made_model(function: Callable[..., Any], more: tuple[tuple[str, Any], ...]) -> type[_Parameters]:
    declared = inspect.signature(function, eval_str=True).parameters
    fields: Any = {
        name: (_type_of(name, parameter.annotation), parameter.default)
        for name, parameter in declared.items()
        if parameter.default is not parameter.empty
    }
    fields |= {name: (kind, None) for name, kind in more}
    return create_model("Parameters", __base__=_Parameters, **fields)


# A model takes milliseconds to make, and one system's keys are those of forty functions.
_kept_model = lru_cache(maxsize=256)(_made_model)


def _type_of(name: str, annotation: Any) -> Any:
    if name in _NAMED:
        return Annotated[Any, BeforeValidator(_NAMED[name][0]), _Looks(_NAMED[name][1])]
    if name.endswith("_s"):
        words = tuple(word for part in get_args(annotation) if get_origin(part) is Literal for word in get_args(part))
        seconds: Any = Seconds
        if bounds := [one for part in (annotation, *get_args(annotation)) for one in getattr(part, "__metadata__", ())]:
            seconds = Annotated[(seconds, *bounds)]
        # Bounds are the number's, not the words'.
        seconds = _seconds_or(seconds, words) if words else seconds
        return seconds | None if type(None) in get_args(annotation) else seconds
    return annotation


def _seconds_or(bounded: Any, words: tuple[str, ...]) -> Any:
    """A duration, or one of these words."""
    seconds: TypeAdapter[float] = TypeAdapter(bounded)

    def read(value: Any, info: ValidationInfo) -> Any:
        if value in words:
            return value
        try:
            return seconds.validate_python(value, context=info.context)
        except ValidationError as error:
            known, first = " or ".join(words), error.errors()[0]
            came = f"{brief(value)}: " if first["type"] in BOUNDS else ""
            raise ValueError(f"{came}{rule_of(first)}; or {known}") from None

    return Annotated[Any, BeforeValidator(read), _Looks(lambda: {"anyOf": [seconds.json_schema(), {"enum": [*words]}]})]


def _planner(value: Any) -> Any:
    """A planner's name as it is; a mapping of a name and parameters as the planner with these bound."""
    if not isinstance(value, Mapping):
        if callable(value):
            return value
        value = {"name": value}
    parameters = dict(value)
    if (name := parameters.pop("name", None)) is None:
        raise BadKey("name", "is missing")
    try:
        planner = pick("schedule", SCHEDULES, name if isinstance(name, str) else repr(name))
        if not parameters:
            return planner
        if said := [key for key in parameters if isinstance(planner, partial) and key in planner.keywords]:
            raise BadParameters([Complaint((said[0],), f"{name} says it; leave it out, or name another schedule")])
        planner = partial(planner, **arguments_of(planner, parameters))
        planner(_ONE_UNIT, 1.0)  # says now what it cannot take
    except BadParameters as error:
        first = error.complaints[0]
        raise BadKey(".".join(map(str, first.key)), first.what) from None
    except (InputError, ValueError) as error:
        raise ValueError(str(error)) from None
    except KvferryError:
        pass  # a time limit too short for this is not to blame yet
    return planner


_ONE_UNIT = LoadProblem(compute_s=np.ones((1, 1, 1)), stream_bytes=np.ones((1, 1, 1)), coupling="all_heads")
# Parameters that take a function by its name: how they are read, and what a schema says of them.
_NAMED: dict[str, tuple[Callable[[Any], Any], Callable[[], Schema]]] = {
    "schedule": (_planner, lambda: stand_ins(SCHEDULES, schema_of))
}
