"""Content of an object as a digest: equal for objects that hold the same, in one process."""

import hashlib
from collections import deque
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import numpy as np

# Plugins' code may be another one under the same name.
_OWN = ("kvferry", "numpy", "builtins", "collections", "functools")
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_LISTS = (list, tuple, deque)


class Unclear(TypeError):
    """Raised where it cannot be told what an object holds."""


def digest_of(one: Any, *apart: np.ndarray) -> bytes:
    """Returns a digest of all that is reachable, but for these arrays themselves. Raises Unclear for functions that
    hold something, for code that is not KVFerry's or numpy's, and for objects that keep their content from Python."""
    found = _Content(apart)
    found.add(one)
    return found.digest.digest()


class _Content:
    def __init__(self, apart: tuple[np.ndarray, ...]) -> None:
        self.digest = hashlib.sha256()
        # Objects by id, numbered as they are met: they may hold each other. They live as long as what is asked of.
        self._met = {id(array): -1 - n for n, array in enumerate(apart)}

    def add(self, one: Any) -> None:
        if isinstance(one, np.ndarray):
            self._array(one)
        elif type(one) in _PLAIN or isinstance(one, np.generic):
            self._say(type(one).__name__, repr(one))
        elif id(one) in self._met:
            self._say("met", self._met[id(one)])
        else:
            self._met[id(one)] = len(self._met)
            self._held(one)

    def _held(self, one: Any) -> None:
        if type(one) in _LISTS:
            self._each(one)
        elif isinstance(one, dict):
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

    def _each(self, parts: Any) -> None:
        self._say(type(parts).__name__, len(parts))
        for part in parts:
            self.add(part)

    def _array(self, one: np.ndarray) -> None:
        if id(one) in self._met:
            self._say("array", self._met[id(one)])
            return
        if one.dtype.hasobject:
            raise Unclear("an array of objects")
        self._say(str(one.dtype), one.shape)
        self.digest.update(np.ascontiguousarray(one).data)

    def _code(self, one: Any) -> None:
        if one.__module__.partition(".")[0] not in _OWN or getattr(one, "__closure__", None):
            raise Unclear(f"{one.__module__}.{one.__qualname__}")
        self._say(one.__module__, one.__qualname__)

    def _say(self, *what: object) -> None:
        self.digest.update(repr(what).encode())


def _state_of(one: Any) -> dict[Any, Any]:
    slots = [name for kind in type(one).__mro__ for name in getattr(kind, "__slots__", ())]
    if isinstance(one, tuple):  # a NamedTuple
        return dict(enumerate(one))
    if not slots and not hasattr(one, "__dict__"):
        raise Unclear(type(one).__name__)
    return {name: getattr(one, name) for name in slots if hasattr(one, name)} | getattr(one, "__dict__", {})
