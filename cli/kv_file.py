"""``kvferry kv-file``: what a file with KV holds that a real run kept (``live.kv_file``)."""

from typing import Annotated

import typer

from kvferry.cli.options import JsonOption


def kv_file(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="A file that live.kv_file named; FILE.log lies beside it.")
    ],
    json: JsonOption = False,
) -> None:
    """Read a KV file that a real run left behind, however the run ended, up to its last finished step.

    Every entry is checked against its checksum on the way. "in place": the file has it where the log says; "behind":
    the writes of the last steps had not ended, and the log has it; "in memory": it had no place in the file yet, and
    the log has it.
    """
    from kvferry.analysis.envelope import to_json
    from kvferry.cli.table import print_table
    from kvferry.disk.kv_file import KvFile
    from kvferry.specs import human

    found = KvFile(file)
    summary = found.summary()
    if json:
        print(to_json(summary), end="")
        return
    rows = [
        (_TITLES[key], value if isinstance(value, str) else human.of_unit(key)(value)) for key, value in summary.items()
    ]
    print_table(("of this file", ""), rows, title=file)


_TITLES = {
    "model": "model",
    "dtype": "numbers",
    "layers": "layers",
    "sequences": "sequences",
    "rows": "rows of all layers",
    "entry_bytes": "an entry",
    "context_tokens": "tokens of a prompt",
    "step": "last finished step",
    "tokens": "tokens of a sequence",
    "clusters": "clusters",
    "entries": "entries",
    "entries_in_place": "in place",
    "entries_behind": "behind",
    "entries_in_memory": "in memory",
    "entries_in_no_cluster": "in no cluster yet",
    "file_bytes": "file",
    "log_bytes": "log",
    "dropped_bytes": "cut off at its end",
}
