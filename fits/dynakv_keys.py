"""Fit the statistics of generated keys on what DynaKV says of its models' clusters, Tab. 2 and Tab. 5.

python fits/dynakv_keys.py           # how far the keys as they are lie from both tables
python fits/dynakv_keys.py steps     # the same a step away with each number: any that is nearer is a better start

The distance is the mean squared logarithm of ours over printed: of Tab. 2's mean over models within 1 to 16 tokens, and
of Tab. 5's variance of static and of local clusters over adaptive ones. Nothing else of the paper is looked at.
"""

import argparse
import math
from collections.abc import Iterator, Mapping
from statistics import mean

from kvferry.analysis.reproduction.measurements import clusters
from kvferry.scenarios.loader import load_scenario
from kvferry.specs.workload import KeysSpec

# Tab. 2, the mean of four models, by tokens; Tab. 5, the mean of eight cases.
WANTED_AGAIN = {1: 0.421, 2: 0.480, 4: 0.540, 8: 0.601, 16: 0.659}
VARIANCE = {"pqcache": 1.686, "clusterkv": 1.035}
# Few heads and many, texts that differ.
RUNS = (("qwen2.5-3b", 1), ("qwen2.5-3b", 2), ("llama-3.2-1b", 3))
# Values beside the present one that are tried, as factors of it.
FITTED = ("scene", "spread", "drift", "present", "whim")
FACTORS = (0.8, 1.25)


def found(keys: Mapping[str, float]) -> tuple[dict[int, float], dict[str, float]]:
    """Returns Tab. 2 and Tab. 5 as keys with these numbers give them."""
    settings = [f"workload.keys.{name}={value:g}" for name, value in keys.items()]
    again, variance = list[dict[int, float]](), list[dict[str, float]]()
    for model, seed in RUNS:
        given = [f"model={model}", f"seed={seed}", *settings]
        ours, *others = (
            clusters(load_scenario("dynakv/latency", [*given, f"system={system}"])) for system in ("dynakv", *VARIANCE)
        )
        again.append({tokens: ours[f"wanted_within_{tokens}"] for tokens in WANTED_AGAIN})
        names = zip(VARIANCE, others, strict=True)
        variance.append({name: other["cluster_variance"] / ours["cluster_variance"] for name, other in names})
    return (
        {tokens: mean(one[tokens] for one in again) for tokens in WANTED_AGAIN},
        {name: mean(one[name] for one in variance) for name in VARIANCE},
    )


def distance(again: Mapping[int, float], variance: Mapping[str, float]) -> float:
    of_again = mean(math.log(again[tokens] / share) ** 2 for tokens, share in WANTED_AGAIN.items())
    return of_again + sum(math.log(variance[name] / ratio) ** 2 for name, ratio in VARIANCE.items())


def tried(steps: bool) -> Iterator[dict[str, float]]:
    present = {name: float(getattr(KeysSpec(), name)) for name in FITTED}
    yield present
    if steps:
        for name in FITTED:
            for factor in FACTORS:
                value = present[name] * factor
                yield present | {name: round(value) if name == "scene" else value}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("steps",))
    for keys in tried(parser.parse_args().what is not None):
        again, variance = found(keys)
        numbers = " ".join(f"{name} {value:g}" for name, value in keys.items())
        shares = " ".join(f"{share:.0%}" for share in again.values())
        ratios = " ".join(f"{name} {ratio:.2f}" for name, ratio in variance.items())
        print(f"{distance(again, variance):.4f}  {numbers}: {shares}, {ratios}", flush=True)


if __name__ == "__main__":
    main()
