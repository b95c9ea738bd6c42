"""Measured tables: interpolation by hand, edges, and files that are not in order."""

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from kvferry.machine.ops import DecodeStep, FeedForward, OutputHead, Prefill, PrefillHead, PrefillLayer
from kvferry.policies.decode.attention_kernel import EAGER, FLASH
from kvferry.scenarios.loader import load_device, load_model
from kvferry.sim.costs.cost_model import COST_MODELS
from kvferry.sim.costs.grid import Grid, read_grid
from kvferry.sim.costs.roofline import Roofline
from kvferry.sim.costs.table import MeasuredTable
from kvferry.specs.errors import InputError

PROCESSOR, MODEL = load_device("tiny").processors["gpu"], load_model("tiny")


def plane() -> Grid:
    """Seconds at context 0 and 100, batch 1 and 5: 1, 3 in the first row, 2, 8 in the second."""
    return Grid("t", ("context", "batch"), (np.array([0.0, 100]), np.array([1.0, 5])), np.array([[1.0, 3], [2, 8]]))


def test_between_grid_points_it_is_multilinear() -> None:
    grid = plane()
    # At context 25, batch 1: 1.25, batch 5: 4.25; batch 3 lies halfway.
    assert grid({"context": 25, "batch": 3}) == pytest.approx(2.75)
    assert grid({"context": np.array([0, 100]), "batch": 5}).tolist() == [3, 8]
    assert grid.warnings == ()


def test_beyond_the_edge_it_goes_on_straight_and_says_so() -> None:
    grid = plane()
    assert grid({"context": 200, "batch": 1}) == pytest.approx(3)
    assert grid({"context": 0, "batch": np.array([0, 7])}).tolist() == pytest.approx([0.5, 4])
    assert grid({"context": -1000, "batch": 1}) == 0
    assert grid.warnings == (
        "t: context -1000 and 200 lies outside the measured 0 to 100; extrapolated",
        "t: batch 0 and 7 lies outside the measured 1 to 5; extrapolated",
    )


def test_one_value_of_a_feature_is_a_constant() -> None:
    grid = Grid("t", ("batch",), (np.array([4.0]),), np.array([2.5]))
    assert grid({"batch": np.array([4, 9])}).tolist() == [2.5, 2.5]
    assert len(grid.warnings) == 1


def test_a_profile_folder_prices_what_it_has_measured(tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "decode_step.csv").write_text("context,batch,seconds\n0,1,1\n0,5,3\n100,1,2\n100,5,8\n")
    # Of 1024 tokens after 1024 others, 200 blocks are causal: 50 are a density of a quarter.
    (folder / "prefill_head.csv").write_text("density,seconds\n0,1\n1,5\n")
    costs = COST_MODELS["table"](PROCESSOR.model_copy(update={"measured": str(tmp_path)}), MODEL)
    roofline = Roofline(PROCESSOR, MODEL)
    assert costs.cost(DecodeStep(3, 25)).duration_s == pytest.approx(2.75)
    assert costs.cost(DecodeStep(3, 25)).n_bytes == roofline.cost(DecodeStep(3, 25)).n_bytes
    assert costs.durations_s(PrefillHead(1024, 50, context_tokens=1024)) == pytest.approx(2)
    final = PrefillHead(1024, 50, np.array([False, True]), 1024)
    last_s = roofline.cost(PrefillHead(1024, 50, True, 1024)).duration_s
    assert costs.durations_s(final) == pytest.approx([2, last_s])
    assert costs.cost(FeedForward(2)) == roofline.cost(FeedForward(2))
    assert isinstance(costs, MeasuredTable)
    costs.cost(DecodeStep(9, 25))
    assert [warning.split(":")[0] for warning in costs.warnings] == ["decode_step.csv"]


def prompts(tmp_path: Path, columns: str = "context,tokens") -> MeasuredTable:
    """Prompts of 20 and 100 tokens: 1.1 and 2.1 s, and 2 s more behind 1,000; the output head takes 0.1 s of these."""
    rows = "0,20,1.1\n0,100,2.1\n1000,20,3.1\n1000,100,4.1\n" if "tokens" in columns else "0,1.1\n1000,3.1\n"
    (tmp_path / "prefill.csv").write_text(f"{columns},seconds\n{rows}")
    (tmp_path / "output_head.csv").write_text("batch,seconds\n1,0.1\n4,0.1\n")
    return MeasuredTable.read(tmp_path, Roofline(PROCESSOR, MODEL))


def test_layers_of_a_prompt_and_its_output_head_take_what_the_whole_takes(tmp_path: Path) -> None:
    costs = prompts(tmp_path)
    # Four layers: (2.1 + 1.0 - 0.1) / 4 for 100 tokens behind 500.
    layer = PrefillLayer(1, 100, 2, kernel=FLASH, context_tokens=500)
    assert costs.cost(layer).duration_s == pytest.approx(0.75)
    assert costs.cost(layer).n_bytes == Roofline(PROCESSOR, MODEL).cost(layer).n_bytes
    passed_s = 4 * costs.cost(layer).duration_s + costs.cost(OutputHead(1)).duration_s
    assert passed_s == pytest.approx(costs.cost(Prefill(100, 500)).duration_s)
    # 60 tokens lie halfway; three prompts take three times as long.
    three = PrefillLayer(3, np.array([20, 60]), context_tokens=np.array([0, 1000]))
    assert costs.durations_s(three) == pytest.approx([3 * 0.25, 3 * 0.875])


def test_a_longer_prompt_than_was_measured_goes_in_pieces_behind_each_other(tmp_path: Path) -> None:
    # 100 behind 500, 100 behind 600, 60 behind 700: 3.0 + 3.2 + 2.9 s without the output head.
    assert prompts(tmp_path).durations_s(PrefillLayer(1, 260, context_tokens=500)) == pytest.approx(9.1 / 4)
    both = PrefillLayer(1, np.array([260, 20, 0]), context_tokens=np.array([500, 0, 0]))
    assert prompts(tmp_path).durations_s(both) == pytest.approx([9.1 / 4, 0.25, 0])
    # Without a column of tokens they do not matter.
    assert prompts(tmp_path, "context").durations_s(PrefillLayer(1, 260)) == pytest.approx(0.25)


def test_attention_that_writes_its_scores_is_not_what_was_measured(tmp_path: Path) -> None:
    costs, eager = prompts(tmp_path), PrefillLayer(1, 100, kernel=EAGER)
    assert costs.cost(eager) == Roofline(PROCESSOR, MODEL).cost(eager)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", ":1: needs a header"),
        ("seconds\n1\n", ":1: needs a header"),
        ("context,batch\n1,2\n", ":1: needs a header"),
        ("contxt,seconds\n1,2\n", ":1: column 'contxt'; known, once each: context, batch"),
        ("batch,batch,seconds\n1,1,2\n", ":1: column 'batch'"),
        ("context,seconds\n1,2\n3,x\n", ":3: '3,x' is not 2 numbers"),
        ("context,seconds\n1,2\n3\n", ":3: '3' is not 2 numbers"),
        ("context,seconds\n1,2\n3,-1\n", ":3: '3,-1'"),
        ("context,seconds\n1,nan\n3,1\n", ":2: '1,nan'"),
        ("context,batch,seconds\n1,1,1\n1,2,1\n2,1,1\n", "make 4 grid points"),
        ("context,batch,seconds\n1,1,1\n1,2,1\n2,1,1\n2,1,1\n", "twice"),
    ],
)
def test_a_table_out_of_order_is_refused_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "decode_step.csv").write_text(text)
    with pytest.raises(InputError) as error:
        read_grid(tmp_path / "decode_step.csv", ("context", "batch"))
    assert "decode_step.csv" in str(error.value)
    assert said in str(error.value)


def test_few_rows_of_many_values_take_no_memory(tmp_path: Path) -> None:
    # 20,000 values on each of two axes would be 400 million places.
    rows = "".join(f"{n},{n},1\n" for n in range(20_000))
    (tmp_path / "decode_step.csv").write_text("context,batch,seconds\n" + rows)
    tracemalloc.start()
    try:
        with pytest.raises(
            InputError, match="20,000 rows, but 20000 x 20000 values of .* make 400,000,000 grid points"
        ):
            read_grid(tmp_path / "decode_step.csv", ("context", "batch"))
        assert tracemalloc.get_traced_memory()[1] < 100e6
    finally:
        tracemalloc.stop()


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no measured table"):
        MeasuredTable.read(tmp_path, Roofline(PROCESSOR, MODEL))
