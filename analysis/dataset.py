"""The results of many points on disk: a line each while they are computed, one sorted Parquet table at the end."""

from __future__ import annotations

import io
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any

from kvferry.analysis.journal import SUFFIX, Journal, Row, rows_of
from kvferry.analysis.table_file import table_of
from kvferry.analysis.variants import VARIANT
from kvferry.specs.errors import KvferryError
from kvferry.system.whole_file import write_file

if TYPE_CHECKING:
    import pandas as pd

# Wall times start with this. They differ between equal runs and are kept apart, so that the points' bytes do not.
MEASURED = "measured."
# The first columns of the table; the prefix of a column's name says what it holds.
_FIRST = ("key", "outcome", "why", VARIANT, "name", "backend", "system", "seed", "coupling", "measure")
_PROFILES = ("device.", "model.")
_LAST = ("version",)
# Holds the rows that rows of another version have replaced.
EARLIER = "earlier.parquet"
_ALWAYS = ("key", "outcome", "why", "version")


class Dataset:
    """The rows of one folder, one per key. Use it in a ``with``: one process writes at a time.

    points.parquet   one row per point, sorted by key: equal results give equal bytes, whatever their order
    earlier.parquet  rows that rows of another version have taken the place of, by key and version
    timings.parquet  the wall times of the same points
    parts/           journals: rows not yet in the two, on disk as soon as they were added

    Raises KvferryError when another process writes here, a file cannot be written, or one is no Parquet file.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._journal: Journal | None = None

    def __enter__(self) -> Dataset:
        self._lock = _locked(self.folder)
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._close_journal()
        finally:
            self._lock.close()

    def add(self, row: Row) -> None:
        """Keep a row: scalars by column; it replaces the one of the same "key"."""
        if self._journal is None:
            self._journal = Journal(self.folder / "parts")
        self._journal.add(row)

    def compact(self, labels: Mapping[str, str] | None = None) -> pd.DataFrame:
        """Bring all rows into the tables and remove the parts; returns the points, as ``read_points`` does. `labels`:
        of variants, by key; rows that were kept under another one get it.

        Safe to interrupt: the parts are removed last.
        """
        self._close_journal()
        parts = _parts(self.folder)
        rows, replaced = _read(self.folder)
        rows, renamed = _labelled(rows, labels or {})
        if len(replaced):
            write_file(self.folder / EARLIER, _bytes_of(_arrow(_together(read_earlier(self.folder), replaced))))
        if parts or renamed:
            timings = rows.select(["key", *_timed(rows)])
            write_file(self.folder / "points.parquet", _bytes_of(rows.drop_columns(_timed(rows))))
            write_file(self.folder / "timings.parquet", _bytes_of(timings))
        # The second pattern: files that a killed process left unfinished.
        for path in (*parts, *self.folder.glob(".*.partial")):
            path.unlink(missing_ok=True)
        return _points(rows)

    def _close_journal(self) -> None:
        journal, self._journal = self._journal, None
        if journal is not None:
            journal.close()


def read_points(folder: Path) -> pd.DataFrame:
    """The points of a folder, sorted by key, also while a sweep writes to it or after it was killed.

    Columns: key, outcome, why, settings (named as by ``settings_of``), metrics, version. Empty if there is no data set.
    """
    return _points(_read(folder)[0])


def read_earlier(folder: Path) -> pd.DataFrame:
    """Returns the rows of other versions that were replaced, sorted by key and version; columns as in
    ``read_points``."""
    import pandas as pd

    table = _table(folder / EARLIER, ("key", "outcome", "version"))
    return pd.DataFrame(columns=list(_ALWAYS)) if table is None else table.to_pandas()


def rows_bytes(folder: Path, keys: Collection[str]) -> bytes:
    """Returns the points with these keys alone, as a table that held no others would have them."""
    points = read_points(folder)
    return _bytes_of(_arrow(points[points["key"].isin(keys)].astype(object)))


def _parts(folder: Path) -> list[Path]:
    return sorted((folder / "parts").glob(f"[!.]*{SUFFIX}"))


def _read(folder: Path) -> tuple[Any, pd.DataFrame]:
    """All rows with their wall times as an Arrow table, the parts' over the tables', by key and in order; and the ones
    of other versions that they take the place of, without wall times."""
    import pandas as pd

    # Parts first: if another process compacts one meanwhile, its rows are then found in the tables.
    fresh = _by_column(row for path in _parts(folder) for row in _rows_of(path))
    points = _table(folder / "points.parquet", ("key", "outcome", "version"))
    timings = _table(folder / "timings.parquet", ("key",))
    rows = pd.DataFrame(columns=list(_ALWAYS)) if points is None else points.to_pandas()
    if timings is not None:
        rows = rows.merge(timings.to_pandas(), on="key", how="left")
    # As objects: pandas would turn False into 0 in a column with whole numbers.
    rows = pd.concat([rows.astype(object), fresh])
    last = rows.drop_duplicates("key", keep="last").sort_values("key")
    before = rows[
        (rows["version"] != rows["key"].map(last.set_index("key")["version"])) & (rows["outcome"] != "failed")
    ]
    before = before.drop(columns=[column for column in before if str(column).startswith(MEASURED)])
    return _arrow(last), before


def _arrow(rows: pd.DataFrame) -> Any:
    """Returns the rows as an Arrow table in the order of columns, without columns that no row has a value in."""
    import pyarrow as pa

    used = [column for column in map(str, rows.columns) if column in _ALWAYS or rows[column].notna().any()]
    return pa.table({column: _array(rows[column]) for column in sorted(used, key=_order)})


def _together(earlier: pd.DataFrame, replaced: pd.DataFrame) -> pd.DataFrame:
    import pandas as pd

    rows = pd.concat([earlier.astype(object), replaced.astype(object)])
    return rows.drop_duplicates(["key", "version"], keep="last").sort_values(["key", "version"])


def _labelled(rows: Any, labels: Mapping[str, str]) -> tuple[Any, bool]:
    """Returns the rows with these labels, by key, and whether any of them had another."""
    if not labels:
        return rows, False
    frame = rows.to_pandas().astype(object)
    had = frame[VARIANT] if VARIANT in frame else frame["key"].map({})
    wanted = frame["key"].map(dict(labels)).fillna(had)
    same = (wanted == had) | (wanted.isna() & had.isna())
    return (rows, False) if same.all() else (_arrow(frame.assign(**{VARIANT: wanted})), True)


def _timed(rows: Any) -> list[str]:
    return [column for column in rows.column_names if column.startswith(MEASURED)]


def _points(rows: Any) -> pd.DataFrame:
    table: pd.DataFrame = rows.drop_columns(_timed(rows)).to_pandas()
    return table


def _order(column: str) -> tuple[int, int, str]:
    """Key and outcome first, settings, metrics, then what device and model are in detail."""
    if column in _FIRST:
        return (0, _FIRST.index(column), column)
    profile = column.startswith(_PROFILES) and column not in ("device.name", "model.name")
    place = 4 if column in _LAST else 3 if profile else 1 if "." in column else 2
    return (place, 0, column)


def _array(column: pd.Series) -> Any:
    """The column with one type; a mixture of text, numbers and booleans becomes text.

    The type depends on the values alone, not on which of them were stored together before.
    """
    import pyarrow as pa

    values = column.where(column.notna(), None).tolist()
    kinds = {type(value) for value in values}
    if kinds <= {str, NoneType}:
        return pa.array(values, pa.string())
    if kinds <= {bool, NoneType}:
        return pa.array(values, pa.bool_())
    if kinds == {int}:
        return pa.array(values, pa.int64())
    if kinds <= {int, float, NoneType}:
        return pa.array([value if value is None else float(value) for value in values], pa.float64())
    return pa.array([_word(value) for value in values], pa.string())


def _word(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    # Via float: beside a gap, pandas may have stored 1 as 1.0.
    return str(value).lower() if isinstance(value, bool) else repr(float(value))


def _bytes_of(table: Any) -> bytes:
    import pyarrow.parquet as pq

    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd", write_page_checksum=True)
    return buffer.getvalue()


def _table(path: Path, columns: tuple[str, ...]) -> Any:
    """The Parquet file as an Arrow table with at least these columns, of text; None if there is no such file.

    Raises KvferryError when the file is damaged.
    """
    try:
        return table_of(path, needed=columns)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise _damaged(path, error) from error


def _rows_of(path: Path) -> Iterator[Row]:
    """The rows of a part. Raises KvferryError when one is no row."""
    try:
        yield from rows_of(path)
    except (OSError, ValueError) as error:
        raise _damaged(path, error) from error


def _by_column(rows: Iterable[Row]) -> pd.DataFrame:
    """The rows as a table of objects; each repeated value is held once: most settings are repeated."""
    import pandas as pd

    columns: dict[str, list[Any]] = {}
    held: dict[Any, Any] = {}
    n_rows = 0
    for row in rows:
        for name, value in row.items():
            column = columns.setdefault(name, [])
            column += [None] * (n_rows - len(column))
            column.append(held.setdefault(value, value) if isinstance(value, str) else value)
        n_rows += 1
    for column in columns.values():
        column += [None] * (n_rows - len(column))
    return pd.DataFrame(columns, dtype=object)


def _damaged(path: Path, error: Exception) -> KvferryError:
    what = " ".join(str(error).split())
    costs = "only the wall times" if path.name == "timings.parquet" else "only its points, which then run again"
    return KvferryError(f"cannot read {path}: {what:.300}; removing this file costs {costs}")


def _locked(folder: Path) -> Any:
    """An open, locked file; the system releases the lock when the process ends, even when killed."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = open(folder / ".lock", "a")  # noqa: SIM115
    except OSError as error:
        raise KvferryError(f"cannot write to {folder}: {error.strerror}") from error
    try:
        import fcntl
    except ImportError:  # not on Windows, where nothing prevents two sweeps at once
        return lock
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise KvferryError(f"another sweep is writing to {folder}; wait for it, or name another folder") from None
    return lock
