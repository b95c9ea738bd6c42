"""A device on which torch has no memory left is an outcome of the run, whatever was being made or done."""

import itertools
from typing import Any

import pytest
from tiny import LIVE, LIVE_DECODING, tiny

from kvferry.pipelines.run import run_scenario
from kvferry.specs.errors import OutOfMemory

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
SAID = "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has ..."
WAYS = {**LIVE, "pages": {key: LIVE_DECODING[key] for key in LIVE_DECODING if key not in ("policies", "budget")}}
WAYS["pages"]["system"] = "vllm"


@pytest.mark.parametrize(("part", "nth"), [("rotary", 1), ("embed", 5)], ids=["made", "done"])
@pytest.mark.parametrize("way", WAYS)
def test_no_memory_left_is_an_outcome(way: str, part: str, nth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from kvferry.model.decoder import Decoder

    really, calls = getattr(Decoder, part), itertools.count(1)

    def lacking(*arguments: Any) -> Any:
        if next(calls) >= nth:
            raise torch.OutOfMemoryError(SAID)
        return really(*arguments)

    monkeypatch.setattr(Decoder, part, lacking)
    run = run_scenario(tiny(WAYS[way]))
    assert run.outcome == "out_of_memory"
    assert run.why.startswith("no memory is left: CUDA out of memory")


def test_what_stands_for_something_else_stays_what_it_is() -> None:
    from kvferry.backends.live.engine.out_of_memory import lack_of_memory, told_as_out_of_memory
    from kvferry.backends.live.engine.worker import outcome

    def fails(error: Exception) -> None:
        raise error

    assert lack_of_memory(ValueError("out of memory"), "no memory is left") is None
    found = outcome(fails, RuntimeError("shapes differ"))[1]
    assert (type(found), str(found)) == (RuntimeError, "shapes differ")
    found = outcome(fails, RuntimeError("CUDA error: out of memory\nCUDA kernel errors might ..."))[1]
    assert (type(found), str(found)) == (OutOfMemory, "no memory is left: CUDA error: out of memory")
    with pytest.raises(RuntimeError, match="shapes differ"), told_as_out_of_memory("no memory is left"):
        fails(RuntimeError("shapes differ"))
