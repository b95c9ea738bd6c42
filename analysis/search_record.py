"""What the folder of a search says of itself, and the search that it says again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kvferry.analysis.search import Search, load_search
from kvferry.analysis.study_record import SEARCH, Recorded, check_plugins, read_provenance, write_record
from kvferry.analysis.tried import Tried
from kvferry.scenarios.loader import Check


def write_search_record(
    folder: Path, search: Search, tried: Sequence[Tried], intervals: bool | None = None
) -> list[str]:
    """Writes all that rerunning the search takes; `intervals`: which points were asked for theirs. Returns lines to
    say, of another search that lay there. Raises KvferryError."""
    found = {key: scenario for one in tried for key, scenario in one.scenarios.items()}
    record = Recorded("search", search.name, list(found.values()), list(search.space), search.settings, search.text)
    return write_record(folder, record, list(found), intervals)


def recorded_search(folder: Path, check: Check | None = None) -> Search:
    """Returns the search of a folder. Raises InputError: for plugins that it needs, too."""
    provenance = read_provenance(folder)
    check_plugins(folder, provenance)
    return load_search(str(folder / SEARCH), list(provenance.settings), check)
