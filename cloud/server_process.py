"""A cloud of one's own: the server in a process beside this one, for as long as it is needed."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kvferry.specs.errors import KvferryError, MissingExtra
from kvferry.specs.link import LinkSpec
from kvferry.system.child_process import sheltered

_START_S = 30.0
_STOP_S = 3.0
# What is kept of what the server says: the last is why it does not come up.
_LAST_LINES = 20


class ServerProcess:
    """Serves a store, or a folder of them, on this machine while in its `with` block; `url` says where.

    It ends when this process does, however that ends. Raises KvferryError when it does not come up, with what it said;
    MissingExtra without starlette and uvicorn.
    """

    def __init__(self, path: Path, link: LinkSpec | None = None, *, token: str | None = None) -> None:
        missing = [name for name in ("starlette", "uvicorn") if find_spec(name) is None]
        if missing:
            raise MissingExtra(f"serving needs {missing[0]}: pip install 'kvferry[torch]'")
        told = {
            "path": str(path),
            "link": None if link is None else link.model_dump(mode="json", by_alias=True),
            "token": token,
        }
        # What it is to do comes on its standard input, whose end is also how it learns that nobody needs it any more.
        with sheltered():
            self._process = subprocess.Popen(
                [sys.executable, "-m", "kvferry.cloud.server_process"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        # A pipe that nobody empties is full some day, and the server would wait there instead of serving.
        self._said = deque[str](maxlen=_LAST_LINES)
        self._listening = threading.Thread(target=self._listen, name="kvferry server's words", daemon=True)
        self._listening.start()
        try:
            self.url = self._begin(json.dumps(told))
        except BaseException:
            self.stop()
            raise

    @property
    def process_id(self) -> int:
        return self._process.pid

    def stop(self) -> None:
        """Doing it twice is harmless."""
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

    def __enter__(self) -> "ServerProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _begin(self, told: str) -> str:
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        late = threading.Timer(_START_S, process.kill)
        late.start()
        try:
            process.stdin.write(told + "\n")
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


def main() -> None:
    """In the server's process."""
    from kvferry.cloud.server import serve
    from kvferry.traces.resolve import link_trace

    told: dict[str, Any] = json.loads(sys.stdin.readline())
    link = None if told["link"] is None else LinkSpec.model_validate(told["link"], context={"from_file": True})

    def alone() -> None:
        sys.stdin.read()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=alone, daemon=True).start()
    try:
        serve(
            Path(told["path"]),
            trace=None if link is None else link_trace(link),
            rtt_s=0.0 if link is None else link.rtt_s,
            token=told["token"],
            tell=lambda url: print(url, flush=True),
        )
    except KeyboardInterrupt:
        pass
    except KvferryError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
