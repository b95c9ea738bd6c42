"""How a part of the real world carries out ops: one method for each, registered with the op that it runs."""

from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

from kvferry.machine.ops import Op
from kvferry.specs.errors import InputError

Method = TypeVar("Method", bound=Callable[..., Any])


def runs(op: type[Op]) -> Callable[[Method], Method]:
    """Registers the method below, of a RegisteredOps, as what carries out an op."""

    def register(method: Method) -> Method:
        method.runs = op  # type: ignore[attr-defined]
        return method

    return register


class RegisteredOps:
    """A runner whose methods say with ``runs`` which op each carries out. ``about``: what its ops belong to."""

    about: ClassVar[str]
    # Runners of further ops.
    parts: "tuple[RegisteredOps, ...]" = ()
    # By op, the name of the method that runs it.
    _methods: ClassVar[dict[type[Op], str]] = {}

    def __init_subclass__(cls) -> None:
        found = {method.runs: name for name, method in vars(cls).items() if hasattr(method, "runs")}
        cls._methods = cls._methods | found

    def method_of(self, op: Op) -> Callable[..., Any]:
        """What carries out an op. Raises InputError when nothing does."""
        for runner in (self, *self.parts):
            if type(op) in runner._methods:
                return getattr(runner, runner._methods[type(op)])
        raise InputError(f"{op.label} is no op of {self.about}")
