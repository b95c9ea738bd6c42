"""The measurements so far, line by line. A calibration that was killed goes on from there."""

import errno
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kvferry.calibration.measurement import Measurement
from kvferry.specs.errors import InputError, KvferryError

NAME = "journal.jsonl"
_FORMAT = "kvferry-calibration 2"
_MOST_BYTES = 64 * 2**20


class Journal:
    """Tasks by name, each with its measurements. The first line has the settings, which must be the same.

    A last line without a line end does not count: its writer was killed.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any], *, fresh: bool = False) -> None:
        """Continue the folder's journal, or begin one. Raises InputError for a journal of other settings, or another
        file."""
        self.path = folder / NAME
        self.done: dict[str, list[Measurement]] = {}
        head = json.dumps({"format": _FORMAT, "settings": dict(settings)})
        try:
            folder.mkdir(parents=True, exist_ok=True)
            whole = b"" if fresh or not self.path.exists() else self._whole_lines()
            if whole:
                self._take(whole.decode(errors="replace").splitlines(), json.loads(head)["settings"])
                os.truncate(self.path, len(whole))
            else:
                self.path.write_text(head + "\n")
        except OSError as error:
            raise _cannot(self.path, error) from None

    def add(self, task: str, measurements: Sequence[Measurement]) -> None:
        """Write a task's measurements. Raises KvferryError when the disk is full."""
        line = json.dumps({"task": task, "measured": [measurement.to_json() for measurement in measurements]})
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
        except OSError as error:
            raise _cannot(self.path, error) from None
        self.done[task] = list(measurements)

    def _whole_lines(self) -> bytes:
        if self.path.stat().st_size > _MOST_BYTES:
            raise InputError(f"{self.path}: more than {_MOST_BYTES:,} bytes; no journal of ours. --fresh starts over")
        content = self.path.read_bytes()
        return content[: content.rfind(b"\n") + 1]

    def _take(self, lines: list[str], settings: Mapping[str, Any]) -> None:
        for number, line in enumerate(lines, 1):
            try:
                entry = json.loads(line)
                if number == 1:
                    if entry["format"] != _FORMAT:
                        raise ValueError(f"format {entry['format']!r:.40}")
                    self._compare(entry["settings"], settings)
                else:
                    self.done[str(entry["task"])] = [Measurement.from_json(each) for each in entry["measured"]]
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
                raise InputError(
                    f"{self.path}:{number}: no line of a journal ({error}); --fresh measures again"
                ) from None

    def _compare(self, theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
        differ = [key for key in {**theirs, **ours} if theirs.get(key) != ours.get(key)]
        if differ:
            shown = "; ".join(f"{key}: {theirs.get(key)!s:.80}, now {ours.get(key)!s:.80}" for key in differ)
            raise InputError(
                f"{self.path}: begun under other settings ({shown}); the same ones go on with it, --fresh starts over, "
                f"another --output keeps both"
            )


def _cannot(path: Path, error: OSError) -> KvferryError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return KvferryError(f"cannot write {path}: the disk is full; what was measured before is kept")
    return InputError(f"cannot write {path}: {error.strerror}; another --output would do")
