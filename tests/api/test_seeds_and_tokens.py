"""Comparisons over seeds with their paired statistics, and when each token came."""

from pathlib import Path

import pandas as pd
import pytest
from tiny import DECODING, tiny

import kvferry
from kvferry.scenarios.loader import load_scenario
from kvferry.specs.errors import InputError

# Of which the first one is not the median.
SEEDS = 5


pytestmark = pytest.mark.usefixtures("small_here")


def test_each_seed_is_compared_with_itself() -> None:
    systems = ["stream-only", "local-prefill"]
    compared = kvferry.compare("small.yaml", systems, seeds=3)
    alone = {
        name: [kvferry.run("small.yaml", system=name, seed=seed).metrics["ttft_s"] for seed in range(3)]
        for name in systems
    }
    for name, one in compared.results.items():
        assert [metrics["ttft_s"] for _, metrics in one.repeats.by_seed.values()] == alone[name]
        assert one.metrics["ttft_s"] == sorted(alone[name])[1]
        assert one.ranges is not None and one.ranges["ttft_s"] == (min(alone[name]), max(alone[name]))
    (pair,) = compared.pairs
    ahead = sum(a < b for a, b in zip(alone[pair.better], alone[pair.worse], strict=True))
    assert (pair.points, pair.ahead, pair.courses, pair.interval) == (3, ahead, 3, None)
    assert compared.results["stream-only"].envelope["seeds"] == [0, 1, 2]


def test_the_folder_holds_the_scenario_of_the_run_that_it_shows() -> None:
    compared = kvferry.compare("small.yaml", ["stream-only"], seeds=SEEDS)
    compared.write("out", plots=False)
    kept = load_scenario("out/stream-only/scenario.yaml")
    found = compared.results["stream-only"]
    of_seed = {seed: metrics["ttft_s"] for seed, (_, metrics) in found.repeats.by_seed.items()}
    assert kept.seed == sorted(of_seed, key=of_seed.__getitem__)[SEEDS // 2] != 0
    assert kept.seed == found.envelope["seed"]
    assert kvferry.run(kept).metrics["ttft_s"] == compared.results["stream-only"].metrics["ttft_s"]


def test_of_one_seed_there_are_no_pairs() -> None:
    assert kvferry.compare("small.yaml", ["stream-only", "local-prefill"]).pairs == []
    for seeds in (1, 1001):
        with pytest.raises(InputError, match=r"seeds: \d+ is not between 2 and 1000"):
            kvferry.compare("small.yaml", ["stream-only"], seeds=seeds)
    real = tiny(DECODING).model_copy(update={"backend": "torch"})
    with pytest.raises(InputError, match="seeds: real runs differ by themselves"):
        kvferry.compare(real, [real.system], seeds=2)


def test_every_token_has_its_instant() -> None:
    result = kvferry.run(tiny(DECODING), intervals=False)
    result.write("plain", plots=False)
    result.write("full", plots=False, tokens=True)
    assert not Path("plain/tokens.parquet").exists()
    tokens, requests = pd.read_parquet("full/tokens.parquet"), pd.read_parquet("full/requests.parquet")
    assert list(tokens.columns) == ["request", "token", "at_s"]
    of = tokens.groupby("request")
    assert list(of.size()) == list(requests["tokens"]) and (requests["tokens"] > 1).all()
    assert list(of["at_s"].first()) == list(requests["first_token_s"])
    assert list(of["at_s"].last()) == list(requests["last_token_s"])
    assert all(rows["token"].tolist() == list(range(len(rows))) for _, rows in of)
    assert result.tokens["at_s"].tolist() == tokens["at_s"].tolist()
    # An answer of one token, which a load says as its first.
    loaded = kvferry.run("small.yaml")
    assert loaded.tokens["at_s"].tolist() == loaded.requests["first_token_s"].tolist()
