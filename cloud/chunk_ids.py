"""Which chunks a request asks for, as its URL says it: 0-7,12."""

import re
from collections.abc import Sequence

from kvferry.specs.errors import InputError

MOST_IDS = 65_536
_RUN = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)


def read_ids(text: str) -> list[int]:
    """ "0-2,7" -> [0, 1, 2, 7]. Raises InputError for text of another form, and for more than 65,536 ids."""
    ids: list[int] = []
    for part in text.split(","):
        match = _RUN.fullmatch(part)
        if not match:
            raise InputError(f"ids={text[:40]!r} are no chunks; write them like ids=0-7,12")
        first, last = int(match[1]), int(match[2] or match[1])
        if not first <= last < first + MOST_IDS - len(ids):
            raise InputError(f"ids={text[:40]!r}: runs ascend, and a request may ask for {MOST_IDS:,} chunks at most")
        ids += range(first, last + 1)
    return ids


def write_ids(ids: Sequence[int]) -> str:
    """The inverse of `read_ids`; ascending neighbours become a run."""
    runs: list[list[int]] = []
    for i in ids:
        if runs and runs[-1][1] == i - 1:
            runs[-1][1] = i
        else:
            runs.append([i, i])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
