"""The dimensions of a study: what varies with what, value by value."""

import math
import zlib
from collections.abc import Iterator, Sequence

import numpy as np

from kvferry.analysis.study_spec import SampleSpec, StudySpec
from kvferry.scenarios.faults import input_error
from kvferry.scenarios.number_range import MOST_POINTS, NumberRange, RangeFault
from kvferry.scenarios.resolve import Complaint
from kvferry.specs.node import Node, node_of
from kvferry.traces.chance import Source, generator

# Keys of a scenario with their values and places in the study's file. The keys of one dimension vary together.
Dimension = dict[str, list[Node]]
_Path = tuple[str | int, ...]


def dimensions_of(spec: StudySpec, tree: Node, taken: Sequence[str] = ()) -> list[Dimension]:
    """Axes, then zip groups, then samples, then seeds; `taken` are keys that variants set. Raises InputError."""
    faults: list[Complaint] = []
    # By dimension, where each of its keys stands in the file.
    paths: list[dict[str, _Path]] = [{key: ("axes", key)} for key in spec.axes]
    paths += [{key: ("zip", n, key) for key in group} for n, group in enumerate(spec.zip) if group]
    dimensions = [{key: _values(tree, path, faults) for key, path in group.items()} for group in paths]
    for n, sample in enumerate(spec.samples):
        group: dict[str, _Path] = {key: ("samples", n, "keys", key) for key in sample.keys}
        paths.append(group)
        dimensions.append({key: _sampled(sample, key, tree, path, faults) for key, path in group.items()})
    if spec.seeds is not None:
        paths.append({"seed": ("seeds",)})
        dimensions.append({"seed": [node_of(seed, _at(tree, ("seeds",)).place) for seed in spec.seeds]})
    faults = faults or list(_misfits(paths, dimensions, taken))
    if faults:
        raise input_error(faults, tree)
    return dimensions


def _misfits(paths: list[dict[str, _Path]], dimensions: list[Dimension], taken: Sequence[str]) -> Iterator[Complaint]:
    seen: list[str] = []
    for group, dimension in zip(paths, dimensions, strict=True):
        first = next(iter(dimension))
        for key, path in group.items():
            earlier = next((other for other in seen if f"{other}.".startswith(f"{key}.")), None)
            if earlier is not None:
                yield Complaint(path, f"sets what the axis {earlier} varies; keep one of them", at_key=True)
            varied = next((one for one in taken if f"{key}.".startswith(f"{one}.") or one.startswith(f"{key}.")), None)
            if varied is not None:
                yield Complaint(path, f"varies what a variant sets, {varied}; keep one of them", at_key=True)
            if len(dimension[key]) != len(dimension[first]):
                what = f"{len(dimension[key])} values beside {len(dimension[first])} of {first}"
                yield Complaint(path, f"{what}; keys that go together need as many")
            seen.append(key)
    sizes = [len(next(iter(dimension.values()))) for dimension in dimensions]
    if math.prod(sizes) > MOST_POINTS:
        longest = next(iter(paths[sizes.index(max(sizes))].values()))
        what = f"{max(sizes):,} values; the axes make {math.prod(sizes):,} points, at most {MOST_POINTS:,} will do"
        yield Complaint(longest, what)


def _at(tree: Node, path: _Path) -> Node:
    node = tree.find(path)
    assert node is not None
    return node


def _values(tree: Node, path: _Path, faults: list[Complaint]) -> list[Node]:
    """The values of a list, or those of a range; adds to `faults`."""
    node = _at(tree, path)
    if isinstance(node.value, list):
        return node.value
    try:
        return [node_of(value, node.place) for value in NumberRange.of(node).values()]
    except RangeFault as fault:
        faults += _below(path, fault)
        return [node]


def _sampled(sample: SampleSpec, key: str, tree: Node, path: _Path, faults: list[Complaint]) -> list[Node]:
    """This many values of a key, from a stream of its own: another key beside it changes nothing."""
    node = _at(tree, path)
    chance = generator(Source.STUDY_SAMPLES, sample.seed, zlib.crc32(key.encode()))
    shares = chance.random(sample.points)
    if sample.method == "latin-hypercube":
        # Parts in an order by chance: not by a shuffle, whose stream numpy may change.
        parts = np.argsort(chance.random(sample.points), kind="stable")
        shares = (parts + shares) / sample.points
    if isinstance(node.value, list):
        n = len(node.value)
        return [node.value[min(int(share * n), n - 1)] for share in shares]
    try:
        limits = NumberRange.of(node)
        if limits.step is not None or limits.points is not None:
            raise RangeFault(Complaint(("step" if limits.points is None else "points",), "is of no use to a sample"))
    except RangeFault as fault:
        faults += _below(path, fault)
        return [node] * sample.points
    return [node_of(limits.at(float(share)), node.place) for share in shares]


def _below(path: _Path, fault: RangeFault) -> list[Complaint]:
    return [Complaint((*path, *complaint.key), complaint.what, complaint.at_key) for complaint in fault.complaints]
