"""The server of stores in a process of its own, which ends with the process that started it."""

import sys
from pathlib import Path

from kvferry.cloud.child_server import ChildServer, settings_from_owner
from kvferry.specs.errors import KvferryError
from kvferry.specs.link import LinkSpec


class ServerProcess(ChildServer):
    """Serves a store, or a folder of them, on this machine, as ``ChildServer`` does."""

    def __init__(self, path: Path, link: LinkSpec | None = None, *, token: str | None = None) -> None:
        settings = {
            "path": str(path),
            "link": None if link is None else link.model_dump(mode="json", by_alias=True),
            "token": token,
        }
        super().__init__("kvferry.cloud.server_process", settings)


def main() -> None:
    """Run the server: the entry point of its process."""
    from kvferry.cloud.server import serve
    from kvferry.traces.resolve import link_trace

    settings = settings_from_owner()
    link = None if settings["link"] is None else LinkSpec.model_validate(settings["link"], context={"from_file": True})

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
