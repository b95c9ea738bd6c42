"""Conditions on the settings of a point: comparisons joined by and, or, not. The language runs no code."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kvferry.specs.amount import Amount, amount_of
from kvferry.specs.units import KINDS

# The value of a key; raises LookupError for a key that there is none of.
ValueOf = Callable[[str], Any]
_TOKEN = re.compile(
    r"""\s*(?:(?P<op><=|>=|==|!=|<|>)|(?P<mark>[()\[\],])|(?P<quoted>'[^']*'|"[^"]*")|(?P<word>[^\s()\[\],<>=!'"]+))"""
)
_KEY = re.compile(r"[a-z_]+(\.[A-Za-z0-9_-]+)*")
# A right side is a key only where it cannot be taken for a name, such as llama-3.2-1b or ferry.
_KEY_ON_THE_RIGHT = re.compile(r"[a-z_]+(\.[a-z0-9_]+)+")
_ORDER = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_JOINING = ("and", "or", "not", "in")
_WORDS = {"null": None, "true": True, "false": False}
_MOST_CHARACTERS, _MOST_DEPTH = 1000, 20


class ConditionFault(ValueError):
    """Raised for a condition that is none, or that compares what cannot be compared."""


@dataclass(frozen=True)
class _Key:
    name: str

    def of(self, value_of: ValueOf) -> Any:
        return value_of(self.name)


@dataclass(frozen=True)
class _Value:
    value: Any

    def of(self, value_of: ValueOf) -> Any:
        return self.value


@dataclass(frozen=True)
class _Comparison:
    left: _Key
    sign: str
    right: tuple[_Key | _Value, ...]

    def holds(self, value_of: ValueOf) -> bool:
        left = self.left.of(value_of)
        if self.sign == "in":
            return any(_equal(left, right.of(value_of), self.left.name) for right in self.right)
        right = self.right[0].of(value_of)
        if self.sign in ("==", "!="):
            return _equal(left, right, self.left.name) == (self.sign == "==")
        if left is None or right is None:
            return False
        one, other = amount_of(left), amount_of(right)
        if one is None or other is None:
            named, what = (self.left.name, left) if one is None else ("the right side", right)
            raise ConditionFault(f"{self.sign} compares numbers, and {named} is {what!r:.60}")
        _check_alike(one, other, self.left.name)
        return bool(_ORDER[self.sign](one.number, other.number))


@dataclass(frozen=True)
class _Not:
    inner: Condition

    def holds(self, value_of: ValueOf) -> bool:
        return not self.inner.holds(value_of)


@dataclass(frozen=True)
class _All:
    parts: tuple[Condition, ...]

    def holds(self, value_of: ValueOf) -> bool:
        return all(part.holds(value_of) for part in self.parts)


@dataclass(frozen=True)
class _Any:
    parts: tuple[Condition, ...]

    def holds(self, value_of: ValueOf) -> bool:
        return any(part.holds(value_of) for part in self.parts)


Condition = _Comparison | _Not | _All | _Any


def condition_of(text: str) -> Condition:
    """The condition that a text says, such as "workload.context <= 32Ki or system in [ferry, sparkv]".

    On the left of <, <=, ==, !=, > , >= and in stands a key of a scenario; on the right a value as a scenario's file
    has it, a key with a dot, or a text in quotes; behind in a list. ``holds`` asks for the keys' values: what is not
    set equals null alone, and is neither below nor above anything. Raises ConditionFault; so does ``holds``.
    """
    if len(text) > _MOST_CHARACTERS:
        raise ConditionFault(f"is longer than {_MOST_CHARACTERS:,} characters")
    return _Reader(_tokens(text)).whole()


def keys_in(condition: Condition) -> Iterator[str]:
    """Yields the keys that it compares."""
    for one in _comparisons(condition):
        yield from (part.name for part in (one.left, *one.right) if isinstance(part, _Key))


def values_of(condition: Condition, key: str) -> Iterator[Any]:
    """Yields what a key is compared with."""
    for one in _comparisons(condition):
        if one.left.name == key:
            yield from (part.value for part in one.right if isinstance(part, _Value))


def _comparisons(condition: Condition) -> Iterator[_Comparison]:
    if isinstance(condition, _Comparison):
        yield condition
        return
    for part in (condition.inner,) if isinstance(condition, _Not) else condition.parts:
        yield from _comparisons(part)


def _equal(left: Any, right: Any, name: str) -> bool:
    one, other = amount_of(left), amount_of(right)
    if one is None or other is None:
        return type(left) is type(right) and bool(left == right)
    _check_alike(one, other, name)
    return one.number == other.number


def _check_alike(one: Amount, other: Amount, name: str) -> None:
    if not one.is_like(other):
        how = f"; write it like '{KINDS[one.kind].example}'" if one.kind in KINDS else ""
        raise ConditionFault(f"{name} is a {one.kind}, and is compared with a {other.kind}{how}")


def _tokens(text: str) -> list[tuple[str, str]]:
    """Kinds and texts."""
    found, at = [], 0
    text = text.rstrip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            raise ConditionFault(f"{text[at:].strip()[:20]!r} means nothing here; use <, <=, ==, !=, >, >= and in")
        kind, word = match.lastgroup, match[match.lastgroup]
        found.append(("joining" if kind == "word" and word in _JOINING else kind, word))
        at = match.end()
    return found


class _Reader:
    """Reads tokens from left to right."""

    def __init__(self, tokens: Sequence[tuple[str, str]]) -> None:
        self._tokens, self._at, self._depth = tokens, 0, 0

    def whole(self) -> Condition:
        found = self._any()
        if self._at < len(self._tokens):
            raise ConditionFault(f"{self._next()!r} is one too many")
        return found

    def _any(self) -> Condition:
        parts = [self._all()]
        while self._took("or"):
            parts.append(self._all())
        return parts[0] if len(parts) == 1 else _Any(tuple(parts))

    def _all(self) -> Condition:
        parts = [self._one()]
        while self._took("and"):
            parts.append(self._one())
        return parts[0] if len(parts) == 1 else _All(tuple(parts))

    def _one(self) -> Condition:
        self._depth += 1
        if self._depth > _MOST_DEPTH:
            raise ConditionFault(f"is nested more than {_MOST_DEPTH} deep")
        try:
            if self._took("not"):
                return _Not(self._one())
            if self._took("("):
                found = self._any()
                self._take(")")
                return found
            return self._comparison()
        finally:
            self._depth -= 1

    def _comparison(self) -> Condition:
        kind, name = self._peek()
        if kind != "word" or not _KEY.fullmatch(name):
            raise ConditionFault(f"{name or 'nothing'!r:.60} stands where a key should, like workload.context")
        self._at += 1
        if self._took("in"):
            self._take("[")
            right = [self._operand()]
            while self._took(","):
                right.append(self._operand())
            self._take("]")
            return _Comparison(_Key(name), "in", tuple(right))
        kind, sign = self._peek()
        if kind != "op":
            raise ConditionFault(
                f"{sign or 'nothing'!r:.60} stands behind {name} where <, <=, ==, !=, >, >= or in should"
            )
        self._at += 1
        return _Comparison(_Key(name), sign, (self._operand(),))

    def _operand(self) -> _Key | _Value:
        kind, text = self._peek()
        if kind == "quoted":
            self._at += 1
            return _Value(text[1:-1])
        words = []
        while self._peek()[0] == "word":
            words.append(self._next())
        if not words:
            raise ConditionFault(f"{text or 'nothing'!r:.60} stands where a value or a key should")
        joined = " ".join(words)
        if _KEY_ON_THE_RIGHT.fullmatch(joined):
            return _Key(joined)
        return _Value(_WORDS[joined] if joined in _WORDS else number_or_text(joined))

    def _peek(self) -> tuple[str, str]:
        return self._tokens[self._at] if self._at < len(self._tokens) else ("end", "")

    def _next(self) -> str:
        self._at += 1
        return self._tokens[self._at - 1][1]

    def _took(self, word: str) -> bool:
        kind, text = self._peek()
        if kind in ("joining", "mark") and text == word:
            self._at += 1
            return True
        return False

    def _take(self, word: str) -> None:
        if not self._took(word):
            raise ConditionFault(f"{self._peek()[1] or 'nothing'!r:.60} stands where {word!r} should")


def number_or_text(text: str) -> Any:
    """A bare number as a number; what has a unit stays text, which ``amount_of`` reads."""
    if re.fullmatch(r"[+-]?[0-9]{1,18}", text):
        return int(text)
    return float(text) if re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?", text) else text
