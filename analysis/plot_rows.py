"""Selects the rows of a study's table that a plot shows: all of its conditions hold for each."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from kvferry.analysis.condition import ConditionFault, condition_of
from kvferry.analysis.search_spec import kind_of
from kvferry.analysis.settings import column_of
from kvferry.specs.units import KINDS

if TYPE_CHECKING:
    import pandas as pd


def kept_rows(frame: pd.DataFrame, where: Sequence[str]) -> pd.DataFrame:
    """Returns the rows for which all conditions hold. Raises ConditionFault: where none is left, too."""
    if not where:
        return frame
    conditions = [condition_of(text) for text in where]
    columns = frozenset(frame.columns)
    rows: Any = frame.to_dict("records")
    kept = [all(one.holds(partial(_value, row, columns)) for one in conditions) for row in rows]
    if not any(kept):
        raise ConditionFault("where: leaves out every row")
    return frame[kept]


def _value(row: Mapping[str, Any], columns: Collection[str], key: str) -> Any:
    """Returns a value as a scenario's file has it: numbers with the unit that their column is in."""
    column = column_of(key, columns)
    if column is None:
        raise ConditionFault(f"where: there is no setting or metric {key!r:.60}")
    value = row[column]
    if value is None or value != value:
        return None
    kind = kind_of(column)
    return value if kind is None or isinstance(value, str) else f"{value!r} {KINDS[kind].unit}"
