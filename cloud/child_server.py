"""A server in a process of its own, which ends with the process that started it."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, Self

from kvferry.specs.errors import KvferryError, MissingExtra
from kvferry.system.child_process import sheltered

_START_S = 30.0
_STOP_S = 3.0
# How many lines of the server's standard error are kept: the last one says why it did not start.
_LAST_LINES = 20


class ChildServer:
    """A Python module that runs beside this process and serves at `url`, until `stop` or the end of its `with` block.

    The module reads its settings with ``settings_from_owner`` and prints its URL. It also ends when this process does,
    however that ends. Raises KvferryError with the server's last line when it does not start within `start_s`;
    MissingExtra without starlette and uvicorn.
    """

    def __init__(self, module: str, settings: Mapping[str, Any], start_s: float = _START_S) -> None:
        missing = [name for name in ("starlette", "uvicorn") if find_spec(name) is None]
        if missing:
            raise MissingExtra(f"serving needs {missing[0]}: pip install '.[torch]'")
        # It reads its settings from its standard input, and stops when that is closed, as the end of this process does.
        with sheltered():
            self._process = subprocess.Popen(
                [sys.executable, "-m", module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        # The pipe has to be read: once it was full, the server would wait instead of serving.
        self._said = deque[str](maxlen=_LAST_LINES)
        self._listening = threading.Thread(target=self._listen, name="kvferry server's stderr", daemon=True)
        self._listening.start()
        try:
            self.url = self._begin(json.dumps(settings), start_s)
        except BaseException:
            self.stop()
            raise

    @property
    def process_id(self) -> int:
        return self._process.pid

    def stop(self) -> None:
        """End the server. Harmless when it has ended already."""
        process = self._process
        process.terminate()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._listening.join()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _begin(self, settings: str, start_s: float) -> str:
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        late = threading.Timer(start_s, process.kill)
        late.start()
        try:
            process.stdin.write(settings + "\n")
            process.stdin.flush()
            url = process.stdout.readline().strip()
        except BrokenPipeError:
            url = ""
        finally:
            late.cancel()
        if not url:
            process.kill()
            self._listening.join()
            raise KvferryError(f"the server did not come up: {self._said[-1] if self._said else 'it said nothing'}")
        return url

    def _listen(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if line.strip():
                self._said.append(line.strip())


def settings_from_owner() -> dict[str, Any]:
    """In the server's process: what its owner gave it. From now on it gets SIGTERM when its owner is gone."""
    settings: dict[str, Any] = json.loads(sys.stdin.readline())

    def stop_with_owner() -> None:
        sys.stdin.read()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop_with_owner, daemon=True).start()
    return settings
