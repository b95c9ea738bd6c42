"""A policy that stands in for a system's own of the same role, as a scenario names it."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from functools import lru_cache, partial
from typing import Any

from kvferry.pipelines.parameters import BadParameters, arguments_of
from kvferry.scenarios.resolve import Complaint
from kvferry.specs.errors import InputError, pick

# Parameters of a system's selector that stay with another selector in its place: per head or over all heads.
STAYING = ("per_head",)
# Evaluates the text of annotations, for each role several times in a run.
_signature = lru_cache(maxsize=256)(inspect.signature)


def stand_in(role: str, makers: Mapping[str, Callable[..., Any]], value: Any, own: Any) -> Any:
    """Makes what a scenario names of `makers`, or the system's `own`, also by its own name, with other parameters.
    Another selector chooses head by head where the system's does, unless the scenario says otherwise. Raises
    BadParameters."""
    parameters = dict(value) if isinstance(value, Mapping) else {"name": value}
    name = parameters.pop("name", None)
    try:
        maker = None if name is None else pick(role, makers, name if isinstance(name, str) else repr(name))
        if maker is None or _makes(maker, own):
            given = {key: item for key, item in declared(own).items() if key in fields_of(own)}
            return replace(own, **arguments_of(taking(given), parameters))
        made = maker(**arguments_of(maker, parameters))
        return replace(made, **kept(own, made, parameters))
    except BadParameters as error:
        raise BadParameters([replace(one, key=(role, *one.key)) for one in error.complaints]) from None
    except (InputError, ValueError) as error:
        said = of_parameter(error, parameters, ())
        raise BadParameters([replace(said, key=(role, *said.key))]) from None


def kept(own: Any, made: Any, value: Any) -> dict[str, Any]:
    """Returns what of the system's `own` policy stays with another that was `made` of a scenario's `value`."""
    said = value if isinstance(value, Mapping) else {}
    if type(own) is type(made):
        return {}
    shared = fields_of(own) & fields_of(made)
    return {name: True for name in STAYING if name in shared and name not in said and getattr(own, name)}


def _makes(maker: Callable[..., Any], own: Any) -> bool:
    """Returns whether the name of a maker is that of the system's own policy."""
    made, bound = (maker.func, maker.args) if isinstance(maker, partial) else (maker, ())
    if type(own) is not made:
        return False
    first = (one.name for one in fields(own) if not one.kw_only)
    return all(getattr(own, name) == value for name, value in zip(first, bound, strict=False))


def of_parameter(error: Exception, parameters: Iterable[str], otherwise: tuple[str, ...]) -> Complaint:
    """Returns what a role says of one of its parameters by name, or else of all."""
    name, colon, what = str(error).partition(": ")
    return Complaint((name,), what) if colon and name in parameters else Complaint(otherwise, str(error))


def fields_of(part: Any) -> frozenset[str]:
    """Names of a role's parameters that a scenario can give by themselves."""
    return frozenset(one.name for one in fields(part) if one.kw_only)


def declared(part: Any) -> Mapping[str, inspect.Parameter]:
    kind: Any = type(part)
    return _signature(kind, eval_str=True).parameters


def taking(parameters: Mapping[str, inspect.Parameter]) -> Callable[..., Any]:
    """Returns a function that declares these parameters, and the same one again: a model of it takes milliseconds."""
    signature = inspect.Signature(list(parameters.values()))
    try:
        return _declaring(signature)
    except TypeError:  # a default of a plugin's that has no hash
        return _declaring.__wrapped__(signature)


@lru_cache(maxsize=256)
def _declaring(signature: inspect.Signature) -> Callable[..., Any]:
    def takes(**_: Any) -> None: ...

    takes.__signature__ = signature  # type: ignore[attr-defined]
    return takes
