"""How far a run came, told on the way; and that skipping in pieces changes nothing."""

import pytest
from tiny import DECODING, tiny

from kvferry.pipelines.decoding import decode, skip_memo
from kvferry.pipelines.decoding.passage import Passage
from kvferry.pipelines.run import run_scenario
from kvferry.policies.decode.means import KMEANS_ROUNDS
from kvferry.system.array_memo import ArrayMemo
from kvferry.system.memo import Memo
from kvferry.traces import clustered_keys
from kvferry.traces.key_process import KINDS


def test_rounds_of_clusters_come_before_tokens_and_skipped_tokens_count() -> None:
    told: list[tuple[int, int]] = []
    passage = Passage(lambda done, of: told.append((done, of)), 100)
    passage.clustered(0, 16)
    passage.clustered(8, 16)
    passage.decoded(1)
    passage.skipped(60)
    passage.decoded(16)
    passage.decoded(40)
    assert told == [(0, 116), (8, 116), (16 + 61, 116), (16 + 76, 116), (116, 116)]


def run(system: str, told: list[tuple[int, int]]) -> list[object]:
    workload = {"context": 300, "batch": 1, "output": 90, "decoded": 6}
    scenario = tiny(DECODING, system=system, workload=workload, budget=None)
    run = run_scenario(scenario, lambda done, of: told.append((done, of)))
    assert run.outcome == "done", run.why
    return [run.duration_s, run.decoded, run.counted.busy_s, run.counted.n_bytes, run.spans]


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clusters of prompts that an earlier run made are made again, and their rounds are counted; so are tokens that it
    skipped."""
    monkeypatch.setattr(clustered_keys, "_OF_PROMPTS", ArrayMemo(KINDS))
    monkeypatch.setattr(skip_memo, "_REACHED", Memo[bytes](2))


@pytest.mark.parametrize("system", ["dynakv", "pqcache", "clusterkv"])
def test_clusters_that_are_remembered_change_no_figure_and_have_no_rounds(
    system: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[int, int]] = []
    remembered: list[tuple[int, int]] = []
    forget(monkeypatch)
    assert run(system, made) == run(system, remembered)
    assert {of for _, of in remembered} == {90}
    assert {of for _, of in made} != {90}


@pytest.mark.parametrize("system", ["dynakv", "pqcache", "clusterkv", "kvswap"])
def test_skipping_in_pieces_changes_nothing_and_is_told(system: str, monkeypatch: pytest.MonkeyPatch) -> None:
    at_once: list[tuple[int, int]] = []
    in_pieces: list[tuple[int, int]] = []
    forget(monkeypatch)
    whole = run(system, at_once)
    monkeypatch.setattr(decode, "_SKIPPED_AT_ONCE", 7)
    forget(monkeypatch)
    assert run(system, in_pieces) == whole
    assert in_pieces == sorted(in_pieces)
    assert set(at_once) < set(in_pieces)
    (of,) = {of for _, of in in_pieces}
    rounds = of - 90
    assert rounds % KMEANS_ROUNDS == 0 and (rounds > 0) == (system != "kvswap")
    # The tokens before the middle part.
    assert max(done for done, _ in in_pieces) > rounds + 40
