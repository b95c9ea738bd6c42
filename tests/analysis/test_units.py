"""Which unit of a context took which path: in units.parquet and in the timeline."""

from collections import Counter

import pyarrow as pa
import pytest
from tiny import LOADING, changed

from kvferry.analysis.folder import units_columns
from kvferry.analysis.timeline import trace_events
from kvferry.pipelines import record
from kvferry.pipelines.loading import reuse
from kvferry.pipelines.run import run_scenario
from kvferry.scenarios.loader import load_scenario


def test_a_loaded_context_says_which_unit_took_which_path() -> None:
    loaded = run_scenario(load_scenario(LOADING))
    (request,) = loaded.requests
    paths = Counter(unit.streamed for unit in request.units)
    assert (paths[True], paths[False]) == (request.units_streamed, request.units_computed)
    table = pa.table(units_columns(loaded.requests)).to_pandas()
    assert not table.duplicated(["token_chunk", "layer"]).any()
    assert (table["asked_s"] < table["ready_s"]).all()
    assert table["ready_s"].max() == request.loaded_s
    assert Counter(table["path"]) == {"streamed": paths[True], "computed": paths[False]}
    marks = [event for event in trace_events(loaded) if event["ph"] == "i"]
    assert Counter(event["cat"] for event in marks) == Counter(table["path"])


def test_heads_that_take_paths_of_their_own_are_named() -> None:
    scenario = load_scenario(changed(LOADING, coupling="per_head", system="sparkv", workload={"context": 512}))
    loaded = run_scenario(scenario)
    heads = {unit.head for unit in loaded.requests[0].units}
    assert heads == set(range(scenario.model.kv_heads))


def test_paths_of_later_requests_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reuse, "MOST_UNIT_PATHS", 1)
    assert record.MOST_UNIT_PATHS == 100_000
    runs = run_scenario(load_scenario(changed(LOADING, workload={"context": 512, "requests": 2})))
    assert [bool(request.units) for request in runs.requests] == [True, False]
    # As many as one request has units are no room for a second one's.
    monkeypatch.setattr(reuse, "MOST_UNIT_PATHS", len(runs.requests[0].units))
    runs = run_scenario(load_scenario(changed(LOADING, workload={"context": 512, "requests": 2})))
    assert [bool(request.units) for request in runs.requests] == [True, False]
