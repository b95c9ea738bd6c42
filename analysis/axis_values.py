"""The values of a study's axes in the table of its results: what tells them apart, and how they are written.

An axis may set a whole part of a scenario, as ``device`` or ``link: [{rate: ...}, {trace: ...}]`` do: a value is all
settings under its key, however many columns that are.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from kvferry.analysis.plots import short_names
from kvferry.analysis.settings import column_of, key_of
from kvferry.specs import human

if TYPE_CHECKING:
    import pandas as pd


def columns_under(key: str, columns: Collection[str]) -> list[str]:
    """The columns that a key of a scenario file sets: its own and all below it, in the order of the table."""
    own = column_of(key, columns)
    return [column for column in columns if column == own or column.startswith(f"{key}.")]


def written_values(table: pd.DataFrame, key: str) -> list[str]:
    """For each row the value of an axis in words, as few as tell its values apart: "link.rtt 4 ms", "link.trace
    wifi-campus", "policies not set"."""
    columns = columns_under(key, table.columns)
    own = column_of(key, table.columns)
    varied = [column for column in columns if table[column].nunique(dropna=False) > 1]
    # The key's own column says most, then the ones that differ most.
    varied.sort(key=lambda column: (column != own, -table[column].nunique()))
    values = len(table[varied].drop_duplicates()) if varied else 1
    texts = [""] * len(table)
    for column in varied or columns[:1]:
        more = _joined(texts, _texts(table[column]), key_of(column))
        if (len(set(more)), -more.count("")) > (len(set(texts)), -texts.count("")):
            texts = more
        if len(set(texts)) == values and "" not in texts:
            break
    return [text or f"{key} not set" for text in texts]


def _joined(before: Sequence[str], texts: Sequence[str], name: str) -> list[str]:
    return [
        ", ".join(part for part in (known, text and f"{name} {text}") if part)
        for known, text in zip(before, texts, strict=True)
    ]


def _texts(column: pd.Series[Any]) -> list[str]:
    """A column's values as they are written; "" for what is not set."""
    there = list(column.dropna().unique())
    if any(isinstance(value, str) for value in there):
        written = dict(zip(there, short_names(there), strict=True))
    else:
        written = {value: human.of_unit(str(column.name))(value) for value in there}
    return [written.get(value, "") for value in column]
