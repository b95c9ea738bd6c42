"""Content of an object as a digest: equal for objects that hold the same, in one process."""

import hashlib
from collections import OrderedDict, defaultdict, deque
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import numpy as np

# Plugins' code may be another one under the same name.
_OWN = ("kvferry", "numpy", "builtins", "collections", "functools")
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_LISTS = (list, tuple)
_DICTS = (dict, defaultdict, OrderedDict)
# Refused as base classes: their content is not among an object's attributes.
_BUILT_IN = (*_PLAIN[:-1], *_LISTS, dict, set, frozenset, deque, np.ndarray, BaseException, staticmethod, classmethod)


class Unclear(TypeError):
    """Raised where it cannot be told what an object holds."""


def digest_of(one: Any, *apart: np.ndarray) -> bytes:
    """Returns a digest of all that is reachable, but for these arrays themselves. Raises Unclear for functions that
    hold something, for code that is not KVFerry's or numpy's, and for objects that keep their content from Python."""
    found = _Content(apart)
    found.add(one)
    return found.digest.digest()


class _Content:
    """Walks through what an object holds, each object once."""

    def __init__(self, apart: tuple[np.ndarray, ...]) -> None:
        self.digest = hashlib.sha256()
        # Objects by id, numbered as they are met: they may hold each other. They live as long as what is asked of.
        self._met = {id(array): -1 - n for n, array in enumerate(apart)}

    def add(self, one: Any) -> None:
        """Raises Unclear."""
        if type(one) in _PLAIN or isinstance(one, np.generic):
            self._say(type(one).__name__, repr(one))
        elif id(one) in self._met:
            self._say("met", self._met[id(one)])
        else:
            self._met[id(one)] = len(self._met)
            self._held(one)

    def _held(self, one: Any) -> None:
        if type(one) is np.ndarray:
            self._array(one)
        elif type(one) in _LISTS:
            self._each(one)
        elif type(one) is deque:
            self._each([one.maxlen, *one])
        elif type(one) in _DICTS:
            self._code(type(one))
            self._each([getattr(one, "default_factory", None), *(part for pair in one.items() for part in pair)])
        elif isinstance(one, type | FunctionType):
            self._code(one)
        elif isinstance(one, MethodType):
            self._each([one.__func__, one.__self__])
        elif isinstance(one, partial):
            self._each([one.func, one.args, one.keywords])
        else:
            self._code(type(one))
            self._each([part for pair in _state_of(one).items() for part in pair])

    def _each(self, parts: list[Any] | tuple[Any, ...]) -> None:
        self._say(type(parts).__name__, len(parts))
        for part in parts:
            self.add(part)

    def _array(self, one: np.ndarray) -> None:
        if one.dtype.hasobject:
            raise Unclear("an array of objects")
        # By columns or by rows: sums may differ in the last bit.
        self._say(str(one.dtype), one.shape, one.strides)
        self.digest.update(np.ascontiguousarray(one).data)

    def _code(self, one: Any) -> None:
        module, name = one.__module__ or "", one.__qualname__
        holds = any(getattr(one, of, None) for of in ("__closure__", "__defaults__", "__kwdefaults__"))
        if module.partition(".")[0] not in _OWN or "<" in name or holds:
            raise Unclear(f"{module}.{name}")
        self._say(module, name)

    def _say(self, *what: object) -> None:
        self.digest.update(repr(what).encode())


def _state_of(one: Any) -> dict[Any, Any]:
    if isinstance(one, tuple) and hasattr(one, "_fields"):  # a NamedTuple
        return dict(enumerate(one))
    slots = [(kind.__name__, kind.__dict__.get("__slots__", ())) for kind in type(one).__mro__]
    if isinstance(one, _BUILT_IN) or any(isinstance(names, str) for _, names in slots):
        raise Unclear(type(one).__name__)
    held = {_mangled(kind, name): True for kind, names in slots for name in names if not name.endswith("__")}
    if not held and not hasattr(one, "__dict__"):
        raise Unclear(type(one).__name__)
    return {name: getattr(one, name) for name in held if hasattr(one, name)} | getattr(one, "__dict__", {})


def _mangled(kind: str, name: str) -> str:
    return f"_{kind.lstrip('_')}{name}" if name.startswith("__") else name
