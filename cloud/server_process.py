"""The server of stores in a process of its own, which ends with the process that started it."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kvferry.cloud.child_server import ChildServer, settings_from_owner
from kvferry.specs.errors import KvferryError

if TYPE_CHECKING:
    from kvferry.specs.link import LinkSpec
    from kvferry.traces.rate import RateTrace


class ServerProcess(ChildServer):
    """Serves a store, or a folder of them, on this machine, as ``ChildServer`` does."""

    def __init__(
        self, path: Path, link: "LinkSpec | None" = None, *, token: str | None = None, takes: bool = False
    ) -> None:
        settings = {
            "path": str(path),
            "link": None if link is None else link.model_dump(mode="json", by_alias=True),
            "token": token,
            "takes": takes,
        }
        super().__init__("kvferry.cloud.server_process", settings)


def main() -> None:
    """Run the server: the entry point of its process."""
    from kvferry.cloud.server import serve

    settings = settings_from_owner()
    trace, up, rtt_s = (None, None, 0.0) if settings["link"] is None else _paced(settings["link"])
    try:
        serve(
            Path(settings["path"]),
            trace=trace,
            rtt_s=rtt_s,
            token=settings["token"],
            up=up,
            takes=settings["takes"],
            tell=lambda url: print(url, flush=True),
        )
    except KeyboardInterrupt:
        pass
    except KvferryError as error:
        sys.exit(str(error))


def _paced(described: object) -> "tuple[RateTrace, RateTrace | None, float]":
    """Returns a link's rates over time, down and up, and its RTT. What reads them takes half of a server's start, and
    is imported for links alone."""
    from kvferry.specs.link import LinkSpec
    from kvferry.traces.resolve import link_trace

    link = LinkSpec.model_validate(described, context={"from_file": True})
    return link_trace(link), None if link.up is None else link_trace(link.up), link.rtt_s


if __name__ == "__main__":
    main()
