"""Pictures drawn again from what lies in a results folder: nothing is run, and no scenario is read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvferry.analysis.compare_bars import compare_bars
from kvferry.analysis.compared import COMPARED, COMPARED_ASSISTED, COMPARED_DECODING
from kvferry.analysis.dataset import EARLIER, read_earlier, read_points
from kvferry.analysis.folder import bars_of, write_pictures
from kvferry.analysis.latex import comparison_latex
from kvferry.analysis.study_plots import Drawn, draw_plots
from kvferry.analysis.study_record import STUDY, keys_in_order, plots_in, read_provenance
from kvferry.analysis.style import AS_DRAWN, Print, render
from kvferry.specs.document import read_text
from kvferry.specs.errors import InputError
from kvferry.system.whole_file import write_file

if TYPE_CHECKING:
    import pandas as pd

_MOST_BYTES = 50_000_000


def redraw(
    folder: Path,
    output: Path,
    *,
    study: Path | None = None,
    version: str | None = None,
    how: Print = AS_DRAWN,
    latex: bool = False,
) -> tuple[Drawn, list[str]]:
    """Draws the pictures of a sweep's folder, or the bars of a comparison's, into another one; returns what became of
    them, and lines to say.

    `study`: a file whose `plots` are drawn instead of the folder's own. `version`: rows of this version of KVFerry
    alone, of ones that were replaced, too. Raises InputError for a folder that holds no such results.
    """
    if (folder / "points.parquet").is_file():
        return _of_sweep(folder, output, study, version, how, latex)
    if (folder / "comparison.json").is_file():
        return _of_comparison(folder, output, how, latex), []
    if (folder / "scenario.yaml").is_file():
        what = f"is a run's, whose pictures are of its events: kvferry run {folder / 'scenario.yaml'} has them again"
        raise InputError(f"{folder}: {what}")
    raise InputError(f"{folder}: holds neither points.parquet of a sweep nor comparison.json")


def _of_sweep(
    folder: Path, output: Path, study: Path | None, version: str | None, how: Print, latex: bool
) -> tuple[Drawn, list[str]]:
    provenance = read_provenance(folder)
    if provenance.kind == "search":
        raise InputError(
            f"{folder}: is of a search: kvferry search {folder / provenance.text_file} -o {folder} draws it"
        )
    plots = plots_in(folder / STUDY if study is None else study)
    if not plots:
        raise InputError(f"{folder / STUDY if study is None else study}: plots: is missing; --study FILE names others")
    frame, said = _rows(folder, version)
    drawn = draw_plots(
        frame,
        plots,
        output,
        provenance.axes,
        (provenance.study, provenance.about),
        provenance.chance,
        how,
        latex,
    )
    return drawn, said


def _rows(folder: Path, version: str | None) -> tuple[pd.DataFrame, list[str]]:
    """Returns the rows of the study's points in their order, of one version or of all, and what is to be said of
    them."""
    import pandas as pd

    points, earlier = read_points(folder), read_earlier(folder)
    if version is not None:
        every = pd.concat([one for one in (points, earlier) if len(one)])
        found = every[every["version"].str.startswith(version)]
        known = ", ".join(sorted(set(every["version"])))
        if found["version"].nunique() != 1:
            raise InputError(f"rows {version}: names {found['version'].nunique()} versions; known: {known}")
        points = found
    keys = keys_in_order(folder)
    place = {key: n for n, key in enumerate(dict.fromkeys(keys))}
    rows = points[points["key"].isin(place)].sort_values("key", key=lambda column: column.map(place), kind="stable")
    said = []
    counts = rows["version"].value_counts()
    if len(counts) > 1:
        of = ", ".join(f"{n:,} of {name}" for name, n in counts.sort_index().items())
        said.append(f"rows of several versions of KVFerry are drawn together: {of}; --rows VERSION draws one's")
    if len(rows) < len(place):
        said.append(f"{len(place) - len(rows):,} of {len(place):,} points have no row and are not drawn")
    if version is None and len(earlier):
        said.append(f"{len(earlier):,} rows of other versions lie in {EARLIER}; --rows VERSION draws them")
    return rows.reset_index(drop=True), said


def _of_comparison(folder: Path, output: Path, how: Print, latex: bool) -> Drawn:
    envelopes, unclear = _compared(folder / "comparison.json")
    metrics = {name: one["metrics"] for name, one in envelopes.items()}
    ranked_by = next(
        (key for key in ("ttft_s", "throughput_tokens_per_s") if any(key in one for one in metrics.values())), None
    )
    drawn = Drawn()
    if ranked_by is None:
        drawn.not_drawn["bars"] = "no system has a time to the first token, or a rate"
        return drawn
    draw = partial(compare_bars, metrics, **bars_of(envelopes, ranked_by, unclear))
    drawn.files += write_pictures(output / "bars", render(draw, how))
    if latex:
        figures = list(dict.fromkeys([*COMPARED, *COMPARED_DECODING, *COMPARED_ASSISTED]))
        title = next((str(one["scenario"]) for one in envelopes.values()), "")
        text = comparison_latex(metrics, _telling(figures, metrics), title)
        drawn.files.append(write_file(output / "comparison.tex", text.encode()))
    return drawn


def _telling(figures: Sequence[str], metrics: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Figures that are not 0 for all."""
    return [key for key in figures if any(one.get(key) for one in metrics.values())]


def _compared(path: Path) -> tuple[dict[str, Any], list[str]]:
    """Returns the systems' envelopes, and which cannot be told from a better one."""
    try:
        whole = json.loads(read_text(path, _MOST_BYTES))
        found, unclear = whole["systems"], [str(name) for name in whole.get("unclear", [])]
        if not all(isinstance(one["metrics"], dict) and isinstance(one["scenario"], str) for one in found.values()):
            raise ValueError("a system has no metrics")
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise InputError(f"{path}: is damaged: {str(error)[:200]}") from None
    return dict(found), unclear
