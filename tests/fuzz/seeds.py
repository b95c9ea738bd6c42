"""Which seeds a test tries: a few in ``make test``, many in ``make test-all``, KVFERRY_FUZZ_TIMES as many where that is
set; one where KVFERRY_FUZZ names it."""

import os
from collections.abc import Callable
from typing import Any

import pytest

_ONLY = os.environ.get("KVFERRY_FUZZ")
_TIMES = int(os.environ.get("KVFERRY_FUZZ_TIMES", "1"))


def blocks(quick: int, long: int, size: int, first: int = 0) -> Any:
    """Parametrises a test by `seeds`, `size` at a time; all but `quick` from `first` on, where none takes 10 s, are
    marked as long."""
    if _ONLY:
        found = [pytest.param(range(int(_ONLY), int(_ONLY) + 1), id=_ONLY)]
    else:
        long *= _TIMES
        found = [
            pytest.param(
                range(begin, min(begin + size, long)),
                id=f"{begin}-{min(begin + size, long) - 1}",
                marks=[] if first <= begin < first + quick else [pytest.mark.long],
            )
            for begin in range(0, long, size)
        ]
    return pytest.mark.parametrize("seeds", found)


def check_each(seeds: range, test: str, case: Callable[[int], str | None]) -> None:
    """Fail with every seed for which `case` returns what is wrong, and the command that repeats it."""
    wrong = [(seed, why) for seed in seeds if (why := case(seed))]
    repeat = f"python -m pytest -n 0 {test}"
    assert not wrong, "\n".join(f"seed {seed}: {why}\n  repeat: KVFERRY_FUZZ={seed} {repeat}" for seed, why in wrong)
