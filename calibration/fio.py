"""What fio says in JSON, with --output-format=json."""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from kvferry.calibration.json_value import JsonValue
from kvferry.specs.errors import InputError

_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}


class ReadRate(NamedTuple):
    """Random or sequential reads of one job."""

    block_bytes: int
    depth: int
    bytes_per_s: float
    random: bool


def rates_of(content: Any, source: str) -> list[ReadRate]:
    """The reads of all jobs, as many as read anything. Raises InputError, with the key, for what is no such file."""
    whole = JsonValue(content, source)
    common = whole.get("global options", {})
    entries: dict[tuple[Any, ...], list[JsonValue]] = {}
    for n, job in enumerate(whole.key("jobs").items()):
        group = tuple(str(job.get(key, "").value) for key in ("jobname", "groupid"))
        clones = _count(*_option(job, common, "numjobs", "1"))
        entries.setdefault((*group, clones) if clones > 1 else (n,), []).append(job)
    rates = [rate for alike in entries.values() if (rate := _rate(alike, common)) is not None]
    if not rates:
        raise InputError(f"{source}: jobs: none of them reads anything; fio --rw=randread would")
    return rates


def _rate(alike: Sequence[JsonValue], common: JsonValue) -> ReadRate | None:
    """The rate of one job, if it reads anything. With --group_reporting its clones (numjobs) are one entry, with the
    rate of all together; without it each is an entry with its own rate."""
    job = alike[0]
    bytes_per_s = sum(each.key("read").key("bw_bytes").number() for each in alike)
    if not bytes_per_s:
        return None
    clones = _count(*_option(job, common, "numjobs", "1"))
    if len(alike) not in (1, clones):
        raise InputError(
            f"{job.place}: numjobs is {clones}, and {len(alike)} entries are named alike; "
            f"fio --group_reporting makes one of a job's"
        )
    return ReadRate(
        block_bytes=_bytes(*_option(job, common, "bs", "4k")),
        depth=_count(*_option(job, common, "iodepth", "1")) * clones,
        bytes_per_s=bytes_per_s,
        random="rand" in _option(job, common, "rw", "read")[0],
    )


def _option(job: JsonValue, common: JsonValue, name: str, otherwise: str) -> tuple[str, str]:
    """What the job was asked for, and where that stands."""
    own = job.get("job options", {})
    return str(own.get(name, common.get(name, otherwise).value).value), f"{own.place}.{name}"


def _bytes(text: str, place: str) -> int:
    match = re.fullmatch(r"(\d{1,12})(?:([kmg])i?b?)?", text.strip().lower())
    if not match:
        raise InputError(f"{place}: {text[:40]!r} is no block size like 4k or 4096")
    return int(match[1]) * _UNITS[match[2] or ""]


def _count(text: str, place: str) -> int:
    if not re.fullmatch(r"\d{1,6}", text.strip()) or int(text) < 1:
        raise InputError(f"{place}: {text[:40]!r} is no count from 1 on")
    return int(text)
