"""Stores under each other's names: the keys and values of another context are never used for this one."""

from pathlib import Path
from typing import Any

import pytest
from tiny import LIVE_LOADING, tiny

from kvferry.backends.world import Say
from kvferry.cloud.server_process import ServerProcess
from kvferry.pipelines.run import run_scenario
from kvferry.specs.errors import InputError

pytest.importorskip("torch")
pytestmark = pytest.mark.torch


EXACT: dict[str, Any] = {"policies": {"codec": "fp16"}, "workload": {"context": 384, "requests": 2}}
SCENARIO = tiny(LIVE_LOADING, **EXACT)


@pytest.fixture
def stores(tmp_path: Path) -> Path:
    """The stores of two contexts, under each other's names."""
    first, second = encoded(tmp_path)
    first.rename(tmp_path / "aside")
    second.rename(first)
    (tmp_path / "aside").rename(second)
    return tmp_path


def encoded(folder: Path, say: Say = lambda text: None) -> list[Path]:
    from kvferry.backends.live.loading.cloud_parts import encode_contexts

    return list(encode_contexts(SCENARIO, "fp16", folder, say))


def test_swapped_stores_are_written_anew(stores: Path) -> None:
    swapped = [path.read_bytes() for path in sorted(stores.iterdir())]
    said: list[str] = []
    encoded(stores, said.append)
    assert len([line for line in said if "written again: this store holds another context" in line]) == 2
    assert [path.read_bytes() for path in sorted(stores.iterdir())] == swapped[::-1]


def test_a_cloud_with_swapped_stores_is_refused(stores: Path) -> None:
    with (
        ServerProcess(stores) as server,
        pytest.raises(InputError, match=r"live.cloud: context 0 .* holds another context: [0-9]+ of 384 tokens"),
    ):
        run_scenario(tiny(LIVE_LOADING, **EXACT, live={"cloud": server.url}))
