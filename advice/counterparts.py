"""Compositions that the best one is judged beside, whatever the search passed over."""

from dataclasses import replace

from kvferry.advice.composition import Composition, Space


def counterparts(space: Space, best: Composition) -> list[Composition]:
    """Returns the best composition without any KV kept between turns, and without any that comes over the link; of
    these such as the user's own settings allow."""
    if best.helped is not None:
        return []
    kept = [keep for keep in space.parts["keep"] if keep in _without_cloud(best.keep)]
    found = [replace(best, keep="drop")] if "drop" in space.parts["keep"] else []
    if "local-prefill" in space.parts["load"] and kept:
        found.append(replace(best, load="local-prefill", keep=kept[0]))
    return [one for one in dict.fromkeys(map(space.plain, found)) if one != best]


def _without_cloud(keep: str) -> tuple[str, ...]:
    """Places of KV between turns, without the cloud among them; where there is no other, memory."""
    places = "-".join(place for place in keep.split("-") if place != "cloud")
    return (places,) if places else ("memory", "drop")
