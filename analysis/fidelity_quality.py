"""Quality of decoding in both worlds: what a modelled run knows of it beside what real ones measured."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kvferry.analysis.figure_beside import MARK, figure_beside
from kvferry.analysis.figures import FIGURES
from kvferry.pipelines.run import BACKENDS, run_scenario
from kvferry.specs.scenario import Scenario

Figures = Mapping[str, float]

COUNTED = "counted in both"
INDICATION = "an indication: measured for the selector, not in this run"
GENERATED = "of keys that are generated, not the model's"
NOT_MODELLED = "not modelled"
_RECALL = "recall_share"
# Names each figure that ``live.quality`` measures, and how a modelled run comes to it, if it does.
_MODELLED = {
    "attended_tokens": COUNTED,
    "attention_mass": INDICATION,
    _RECALL: GENERATED,
    **dict.fromkeys(("agreement_share", "kl_nats", "kl_p95_nats", "perplexity", "perplexity_over_full"), NOT_MODELLED),
    **dict.fromkeys(("right_share", "full_attention_right_share"), NOT_MODELLED),
}


def quality_of(metrics: Figures) -> dict[str, float]:
    """Returns what a run's metrics say of its quality."""
    return {key: metrics[key] for key in _MODELLED if key in metrics}


def quality_beside(simulated: Figures, measured: Sequence[Figures]) -> dict[str, dict[str, Any]]:
    """Returns each figure that all real runs measured, as ``figure_beside`` sets it beside the modelled one:
    ``simulated`` and ``error`` are None where that is not known. ``how`` it is known, and ``alike``: whether both are
    of one thing."""
    if not all("agreement_share" in one for one in measured):
        return {}
    keys = [key for key in _MODELLED if all(key in one for one in measured)]
    return {key: _row(key, simulated.get(key), [one[key] for one in measured]) for key in keys}


def with_recall(scenario: Scenario, quality: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Returns the same with the recall of a modelled run that generates its own keys, where the one that replayed the
    real selections knows none."""
    found = quality.get(_RECALL)
    if found is None or found["simulated"] is not None:
        return dict(quality)
    decoded = run_scenario(scenario, open_world=BACKENDS["sim"]).decoded
    if decoded is None or decoded.recall is None:
        return dict(quality)
    row = _row(_RECALL, decoded.recall, [found["measured"]])
    return {**quality, _RECALL: row | {"spread": found["spread"]}}


def quality_rows(rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yields scenario, metric and what ``quality_beside`` has of it."""
    for row in rows:
        for key, found in row.get("quality", {}).items():
            yield row["name"], key, found


def notes_on(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns how far modelled figures of quality can be held against measured ones."""
    quality = list(quality_rows(rows))
    marked = {key: found["how"] for _, key, found in quality if found["simulated"] is not None and not found["alike"]}
    lines = [f"{MARK} {FIGURES[key].label}, modelled: {how}" for key, how in marked.items()]
    unknown = dict.fromkeys(FIGURES[key].label for _, key, found in quality if found["simulated"] is None)
    return [*lines, *([f"not modelled: {', '.join(unknown)}"] if unknown else [])]


def _row(key: str, simulated: float | None, measured: Sequence[float]) -> dict[str, Any]:
    if simulated is None:
        return figure_beside(measured[0], measured) | {
            "simulated": None,
            "error": None,
            "alike": False,
            "how": NOT_MODELLED,
        }
    how = _MODELLED[key]
    return figure_beside(simulated, measured) | {"alike": how == COUNTED, "how": how}
