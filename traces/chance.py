"""Chance has one owner: every source of it has a generator of its own, and no two share a stream."""

import zlib
from enum import IntEnum

import numpy as np


class Source(IntEnum):
    """What is left to chance. A number is never given to another source: it names the stream that results rest on.
    The ones that are missing had sources once."""

    ARRIVALS = 1
    CHUNK_HEADS = 2
    CHUNK_SCENES = 3
    CHUNK_ENTROPY = 4
    CHUNK_REACH = 5
    CRITICAL_PLACES = 6
    CRITICAL_STEPS = 7
    PROMPTS = 14
    COST_SAMPLES = 15
    COST_SPLIT = 16
    COST_WEIGHTS = 17
    LENGTHS = 18
    DECODED_SCENES = 19
    DECODED_CENTRES = 20
    POPULARITY = 21
    DECODED_KEYS = 22
    DECODED_QUERIES = 23
    DEVICES = 24
    BURSTS = 25
    SENTENCES = 26
    LINKS = 27
    GROWING_PLACES = 28
    GROWING_STEPS = 29
    FLASH_COMMANDS = 31
    MEASURED_MASKS = 32
    MEASURED_SHARES = 33
    MEASURED_TOKENS = 34
    MEASURED_READS = 35
    MEASURED_CONTENT = 36
    ROUND_TRIPS = 37
    STUDY_SAMPLES = 38
    NEEDLES = 45
    SESSIONS = 46
    LINK_COURSES = 47
    CHURN = 48


def generator(source: Source, seed: int, *place: int) -> np.random.Generator:
    """The generator of a source at a place (a sequence, a layer, a head, ...), for a run's `seed`.

    Sources and places are spawn keys: (1,) and (1, 0) are different streams, which they are not as mere seeds, where
    zeros at the end count for nothing. ValueError for a place that is no number below 2**32.
    """
    if not all(0 <= number < 2**32 for number in place):
        raise ValueError(f"a place of chance is made of numbers from 0 to below 2**32, got {place}")
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(int(source), *map(int, place))))


def named_generator(name: str, seed: int) -> np.random.Generator:
    """The generator of a trace that has a name: two models of one seed differ. Figures that stand beside the bundled
    models rest on these streams. They have no spawn key, so no source shares one."""
    return np.random.default_rng([seed, zlib.crc32(name.encode())])
