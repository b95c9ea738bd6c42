"""What a run keeps of its requests: figures of all, and token by token the stories of the first ones."""

import math
from array import array
from collections.abc import Iterator

import numpy as np

from kvferry.cloud.story import Story
from kvferry.pipelines.record import RequestRecord

# Requests whose tokens a run keeps one by one; of all it keeps figures.
MOST_STORIES = 1000
# What is noted of requests that have such a word in their story.
_NOTES = {
    "alone": "without the cloud",
    "beyond": "with other help than problem P has",
    "happened": "without all of the cloud's help",
}


class Stories:
    """Stories in the order in which their requests ended."""

    def __init__(self) -> None:
        # Of every request a figure for each column; and the first ones' stories.
        self._figures = array("d")
        self._whole: list[Story] = []
        # By attribute of a story: requests that have it, and what the first of them has.
        self._noted: dict[str, tuple[int, str]] = {}

    def __len__(self) -> int:
        return len(self._figures) // len(_COLUMNS)

    def add(self, story: Story) -> None:
        self._figures.extend(_figures_of(story).values())
        for key in _NOTES:
            if said := getattr(story, key):
                n, first = self._noted.get(key, (0, said))
                self._noted[key] = n + 1, first
        if len(self._whole) < MOST_STORIES:
            self._whole.append(story)

    def columns(self) -> dict[str, np.ndarray]:
        """Returns the figures of all requests, as ``Assisted`` has them."""
        table = np.array(self._figures).reshape(-1, len(_COLUMNS))
        return {name: table[:, n].copy() for n, name in enumerate(_COLUMNS)}

    def notes(self) -> Iterator[str]:
        for key in filter(self._noted.__contains__, _NOTES):
            found, first = self._noted[key]
            yield f"{found:,} of {len(self):,} requests {_NOTES[key]}: {first}"

    def records(self) -> list[RequestRecord]:
        """Returns the first stories, token by token, in order of their numbers."""
        return [
            RequestRecord(
                request=story.request,
                arrival_s=story.arrival_s,
                first_token_s=story.first_s,
                token_times_s=tuple(story.shown_s.tolist()),
            )
            for story in sorted(self._whole, key=lambda story: story.request)
        ]

    def answers(self) -> dict[int, str]:
        return {one.request: one.answer for one in self._whole if one.answer is not None}


def _since(end_s: float | None, start_s: float | None) -> float:
    return math.nan if end_s is None or start_s is None else end_s - start_s


def _figures_of(one: Story) -> dict[str, float]:
    """What is kept of every request, by column."""
    shown_s = one.shown_s
    return {
        "request": one.request,
        "arrival_s": one.arrival_s,
        "began_s": one.began_s,
        "first_s": _since(one.first_s, 0.0),
        "own_first_s": _since(one.own_first_s, 0.0),
        "last_s": float(shown_s[-1]) if len(shown_s) else math.nan,
        "shown": len(shown_s),
        "largest_gap_s": float((shown_s[1:] - shown_s[:-1]).max()) if len(shown_s) > 1 else math.nan,
        "prompt": one.prompt,
        "tokens": one.tokens,
        "ratio": one.ratio,
        "pace_s": math.nan if one.pace_s is None else one.pace_s,
        "prepared_s": _since(one.asked_s, one.began_s),
        "answered_s": _since(one.first_s, one.asked_s),
        "waited_s": one.waited_s if one.tokens else math.nan,
        "cloud_prefill_s": one.cloud_prefill_s if one.tokens else math.nan,
        "refined_s": one.refine_s if one.tokens else math.nan,
        "unpacked_s": _since(one.unpacked_s, one.first_s),
        "own_prefill_s": _since(one.own_first_s, one.unpacked_s),
        "came": one.came,
        "corrected": math.nan if one.corrected is None else one.corrected,
        "lost": one.happened is not None,
        "right": math.nan if one.wanted is None or one.answer is None else one.answer.startswith(one.wanted),
        "response_bytes": one.response_bytes if one.tokens else math.nan,
    }


_COLUMNS = tuple(_figures_of(Story(0, 0, 0, 0, 0, 0.0)))
