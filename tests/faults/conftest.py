"""A small cloud for a module's tests: its store, and a server of it in a process of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from small_cloud import write_store

from kvferry.cloud.server_process import ServerProcess


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_store(tmp_path_factory.mktemp("stores") / "0.kvs").parent


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[ServerProcess]:
    with ServerProcess(folder) as server:
        yield server
