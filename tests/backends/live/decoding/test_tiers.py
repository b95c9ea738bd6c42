"""KV in memory beside the file: bytes come back as they went, and attention takes in what is there."""

from pathlib import Path
from typing import Any

import pytest
from decoding import roles_of
from small_decoding import SmallDecoding, exact_logits
from tiny import LIVE_DECODING, tiny

from kvferry.machine.ops import Extents
from kvferry.pipelines.run import run_scenario
from kvferry.specs.errors import InputError

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
# Of a layer of the small model: 2 sides, 2 heads, 16 numbers of 4 B.
TOKEN_BYTES = 2 * 2 * 16 * 4


def test_bytes_come_back_as_they_went() -> None:
    from kvferry.backends.live.decoding.tiers import TierMemory

    memory = TierMemory(1 << 30)
    places = Extents((1 << 29, 0, 5000), (3, 1, 8192))
    content = bytes(range(256)) * 33
    memory.write(places, content[: places.n_bytes])
    read = memory.read(places)
    memory.write(places, bytes(places.n_bytes))
    assert bytes(read) == content[: places.n_bytes]
    assert [len(view) for view in read.views] == [3, 1, 8192]
    memory.write(places, content[: places.n_bytes])
    memory.give_up(Extents((5000,), (8192,)))
    # Whole pages alone are given up: from 8192 to 12288.
    left = bytes(memory.read(Extents((5000,), (8192,))))
    assert left == content[4 : 4 + 3192] + bytes(4096) + content[4 + 7288 : 4 + 8192]


def test_alike_rows_come_back_as_they_went() -> None:
    """Ranges of one length at multiples of it, in any order, are copied at once; of zero bytes there are none."""
    from kvferry.backends.live.decoding.tiers import TierMemory

    memory = TierMemory(1000)
    rows = Extents((96, 0, 864), (96, 96, 96))
    content = bytes(range(96)) * 3
    memory.write(rows, content)
    memory.write(Extents((0,), (50,)), b"x" * 50)
    read = memory.read(rows)
    assert read.rows().tobytes() == bytes(read) == content[:96] + b"x" * 50 + content[146:]
    assert [len(view) for view in read.views] == [96] * 3
    assert bytes(memory.read(Extents((864, 0), (96, 96)))) == content[192:] + b"x" * 50 + content[146:192]
    assert bytes(memory.read(Extents((), ()))) == b""


def test_memory_that_is_not_there_is_refused_by_its_placement() -> None:
    from kvferry.backends.live.decoding.tiers import TierMemory

    with pytest.raises(InputError, match="policies.placement: no 8,388,608.0 GiB of memory for KV.*say placement"):
        TierMemory(1 << 53)


@pytest.mark.parametrize("system", ["kvswap", "shadowkv", "flexgen"])
@pytest.mark.parametrize("placement", ["device", "host", "progressive"])
def test_all_blocks_in_any_tier_are_full_attention(model: Any, tmp_path: Path, system: str, placement: str) -> None:
    """Keys that are rebuilt among them; groups that are completed go where their layer lies."""
    policies: dict[str, Any] = {"placement": placement}
    if placement == "progressive":
        policies["placement"] = {"name": placement, "host": f"{2 * 25 * TOKEN_BYTES} B"}
    if system != "flexgen":
        policies |= {"selected_tokens": 1000, "compression": 1}
    roles = roles_of(system, group_tokens=4, **policies)
    sizes = {"context": 22, "batch": 2, "output": 14}
    decoding = SmallDecoding(model, tmp_path, roles, **sizes, free_bytes=3 * 24 * TOKEN_BYTES)
    answers = decoding.run()
    apart = torch.stack(decoding.logits) - exact_logits(model, decoding.ids, answers)
    assert apart.abs().max() < 1e-4 * torch.stack(decoding.logits).std()
    if placement == "progressive":
        assert decoding.flow.now.tiers == ("device", "device", "storage")


def test_a_scenario_places_its_kv() -> None:
    """Layers move to the host as memory fills, within the budgets of both; nothing is read from storage."""
    memory = {"unified": False, "capacity_bytes": "8 GB", "bytes_per_s": "10 GB/s", "copy_bytes_per_s": "1 GB/s"}
    device = {"extends": "laptop-cpu", "storage": "nvme", "memory": {**memory, "host_capacity_bytes": "1 GB"}}
    policies = {"selected_tokens": 32, "group_tokens": 4, "compression": 4, "slots": 16, "placement": "progressive"}
    wanted = tiny(LIVE_DECODING, device=device, policies=policies, budget={"kv": "280 KiB"})
    run = run_scenario(wanted)
    assert run.outcome == "done"
    assert {span.label for span in run.spans if span.resource == "copy"} == {"Copy"}
    assert not [span for span in run.spans if span.resource == "storage"]
    assert run.measured["answers"]
