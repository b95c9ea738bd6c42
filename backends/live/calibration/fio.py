"""What fio says in JSON, with --output-format=json."""

import re
from typing import Any, NamedTuple

from kvferry.backends.live.calibration.told import Told
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
    whole = Told(content, source)
    common = whole.get("global options", {})
    rates = []
    for job in whole.key("jobs").items():
        options = job.get("job options", {})
        bytes_per_s = job.key("read").key("bw_bytes").number()
        if not bytes_per_s:
            continue

        def option(name: str, otherwise: str, own: Told = options) -> str:
            return str(own.get(name, common.get(name, otherwise).value).value)

        rates.append(
            ReadRate(
                block_bytes=_bytes(option("bs", "4k"), f"{options.place}.bs"),
                # Jobs reported as a group are one entry.
                depth=_count(option("iodepth", "1"), options.place) * _count(option("numjobs", "1"), options.place),
                bytes_per_s=bytes_per_s,
                random="rand" in option("rw", "read"),
            )
        )
    if not rates:
        raise InputError(f"{source}: jobs: none of them reads anything; fio --rw=randread would")
    return rates


def _bytes(text: str, place: str) -> int:
    match = re.fullmatch(r"(\d{1,12})(?:([kmg])i?b?)?", text.strip().lower())
    if not match:
        raise InputError(f"{place}: {text[:40]!r} is no block size like 4k or 4096")
    return int(match[1]) * _UNITS[match[2] or ""]


def _count(text: str, place: str) -> int:
    if not re.fullmatch(r"\d{1,6}", text.strip()) or int(text) < 1:
        raise InputError(f"{place}: {text[:40]!r} is no count from 1 on")
    return int(text)
