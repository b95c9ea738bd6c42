"""A Parquet file of results as a table, once its size and the kinds of its columns are known to be good."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from kvferry.analysis.figures import FIGURES
from kvferry.analysis.variants import VARIANT

# A sweep has a row per point and some hundred columns; a run a row per span.
MOST_ROWS, MOST_VALUES, MOST_TEXT_BYTES = 5_000_000, 100_000_000, 1_000_000_000
_TEXTS = ("key", "outcome", "why", "version", VARIANT, "name", "backend", "system", "coupling", "measure")


def table_of(path: Path, *, needed: Collection[str] = (), numbers: Collection[str] = ()) -> Any:
    """Returns an Arrow table whose columns are of text, 64-bit numbers or truth values. `needed`: columns of text that
    it has, without a gap but in `why`; `numbers`: further ones that it has. Figures are numbers, or none.

    Raises FileNotFoundError, OSError, and ValueError with the column for what is no such table or would take too much
    memory: a small file may claim any number of equal rows.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            _check_size(file.metadata)
            schema = file.schema_arrow
        kinds = {column.name: _kind(column, column.name in FIGURES or column.name in numbers) for column in schema}
        if len(kinds) < len(schema):
            raise ValueError("two of its columns have one name")
        if lacking := [column for column in (*needed, *numbers) if column not in kinds]:
            raise ValueError(f"it has no column {', '.join(lacking)}")
        for column in needed:
            if kinds[column] != pa.string():
                raise ValueError(f"its column {column} holds {kinds[column]} and not text")
        texts = [name for name, kind in kinds.items() if kind == pa.string()]
        # As dictionaries first: one long text may stand in each of many rows.
        with pq.ParquetFile(path, page_checksum_verification=True, read_dictionary=texts) as file:
            table = file.read().replace_schema_metadata(None)
        _check_texts(table)
        table = table.cast(pa.schema(list(kinds.items())))
        table.validate(full=True)
    except FileNotFoundError:
        raise
    except (ValueError, OSError):
        raise
    except Exception as error:  # pyarrow has errors of several kinds
        raise ValueError(str(error)) from error
    for column in needed:
        # What is done has no reason why it is not.
        if column != "why" and table[column].null_count:
            raise ValueError(f"its column {column} has rows without a value")
    return table


def _check_size(metadata: Any) -> None:
    rows, columns = metadata.num_rows, metadata.num_columns
    if rows > MOST_ROWS or rows * columns > MOST_VALUES:
        most = f"{MOST_ROWS:,} rows and {MOST_VALUES:,} values would do"
        raise ValueError(f"it has {rows:,} rows of {columns:,} columns; {most}: split the study into smaller ones")


def _kind(column: Any, is_figure: bool) -> Any:
    """Returns what a column becomes. Raises ValueError where no table of results has its kind."""
    import pyarrow as pa

    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
    if is_figure or column.name.startswith("energy_"):
        wanted, empty, good = "numbers", pa.float64(), is_number
    elif column.name in _TEXTS:
        wanted, empty, good = "text", pa.string(), is_text
    else:
        wanted, empty, good = "text, numbers or truth values", kind, is_text or is_number or pa.types.is_boolean(kind)
    if pa.types.is_null(kind):
        return empty
    if not good:
        raise ValueError(f"its column {column.name} holds {column.type!s:.60}; {wanted} would do")
    if is_text:
        return pa.string()
    return pa.int64() if pa.types.is_integer(kind) else pa.float64() if is_number else kind


def _check_texts(table: Any) -> None:
    """Raises ValueError for columns of dictionaries whose texts would be too long, written out."""
    import pyarrow as pa
    import pyarrow.compute as pc

    n_bytes = 0
    for column in table.columns:
        for part in column.chunks if pa.types.is_dictionary(column.type) else ():
            lengths = pc.binary_length(part.dictionary).take(part.indices)
            n_bytes += pc.sum(lengths.cast(pa.int64())).as_py() or 0
    if n_bytes > MOST_TEXT_BYTES:
        raise ValueError(f"its texts have {n_bytes:,} bytes; {MOST_TEXT_BYTES:,} would do")
