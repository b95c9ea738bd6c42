"""Which systems a command takes, and values that are none."""

import numpy as np
import pytest
from tiny import DECODING, LOADING, tiny

from kvferry.analysis.executors.choice import executor_for
from kvferry.api.scenario import overrides_of, under_systems
from kvferry.specs.errors import InputError


def test_systems_of_one_paper_are_compared_unless_others_are_named() -> None:
    loading = tiny(LOADING)
    assert {"ferry", "cachegen", "local-prefill"} < under_systems(loading, None).systems.keys()
    decoding = tiny(DECODING)
    of_kvswap = under_systems(decoding, None).systems.keys()
    assert {"kvswap", "flexgen", "vllm"} < of_kvswap
    of_dynakv = under_systems(decoding.under("dynakv"), None).systems.keys()
    assert of_dynakv == {"dynakv", "pqcache", "clusterkv", "no-cluster"}
    assert not of_kvswap & of_dynakv
    assert under_systems(decoding, ["kvswap", "dynakv"]).systems.keys() == {"kvswap", "dynakv"}


def test_a_text_is_no_list_of_systems() -> None:
    with pytest.raises(InputError, match=r"systems: 'ferry' is one text; write \[\"ferry\"\]"):
        under_systems(tiny(LOADING), "ferry")


def test_an_array_is_no_value() -> None:
    assert overrides_of({"seed": np.int64(3)}) == ["seed=3"]
    assert overrides_of({"seed": np.array([3])}) == ["seed=3"]
    with pytest.raises(InputError, match=r"seed: array\(\[1, 2\]\) is no text, number"):
        overrides_of({"seed": np.array([1, 2])})


@pytest.mark.parametrize("jobs", [0, -3])
@pytest.mark.parametrize("name", [None, "cores", "in-process"])
def test_jobs_are_at_least_one(name: str | None, jobs: int) -> None:
    with pytest.raises(InputError, match=f"--jobs {jobs}: is not at least 1"):
        executor_for(name, jobs)
