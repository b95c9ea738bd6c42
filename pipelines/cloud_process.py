"""The cloud of a real run in a process of its own, which ends with the run's: see ``cloud.child_server``."""

import sys

from kvferry.cloud.child_server import settings_from_owner
from kvferry.pipelines.serving import serve_cloud
from kvferry.scenarios.loader import dumped_scenario
from kvferry.specs.errors import KvferryError


def main() -> None:
    settings = settings_from_owner()
    try:
        serve_cloud(
            dumped_scenario(settings["scenario"]),
            token=settings["token"],
            tell=lambda url: print(url, flush=True),
            say=lambda what: print(what, file=sys.stderr, flush=True),
        )
    except KeyboardInterrupt:
        pass
    except KvferryError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
