"""The server in a process of its own, which ends with the process that started it."""

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
# How many lines of the server's standard error are kept: the last one says why it did not start.
_LAST_LINES = 20


class ServerProcess:
    """Serves a store, or a folder of them, on this machine at `url`, until `stop` or the end of its `with` block.

    It also ends when this process does, however that ends. Raises KvferryError with the server's last line when it does
    not start; MissingExtra without starlette and uvicorn.
    """

    def __init__(self, path: Path, link: LinkSpec | None = None, *, token: str | None = None) -> None:
        missing = [name for name in ("starlette", "uvicorn") if find_spec(name) is None]
        if missing:
            raise MissingExtra(f"serving needs {missing[0]}: pip install '.[torch]' in KVFerry's folder")
        settings = {
            "path": str(path),
            "link": None if link is None else link.model_dump(mode="json", by_alias=True),
            "token": token,
        }
        # It reads its settings from its standard input, and stops when that is closed, as the end of this process does.
        with sheltered():
            self._process = subprocess.Popen(
                [sys.executable, "-m", "kvferry.cloud.server_process"],
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
            self.url = self._begin(json.dumps(settings))
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

    def __enter__(self) -> "ServerProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _begin(self, settings: str) -> str:
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        late = threading.Timer(_START_S, process.kill)
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


def main() -> None:
    """Run the server: the entry point of its process."""
    from kvferry.cloud.server import serve
    from kvferry.traces.resolve import link_trace

    settings: dict[str, Any] = json.loads(sys.stdin.readline())
    link = None if settings["link"] is None else LinkSpec.model_validate(settings["link"], context={"from_file": True})

    def stop_with_owner() -> None:
        sys.stdin.read()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop_with_owner, daemon=True).start()
    try:
        serve(
            Path(settings["path"]),
            trace=None if link is None else link_trace(link),
            rtt_s=0.0 if link is None else link.rtt_s,
            token=settings["token"],
            tell=lambda url: print(url, flush=True),
        )
    except KeyboardInterrupt:
        pass
    except KvferryError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
