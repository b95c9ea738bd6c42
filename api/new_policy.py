"""A policy of one's own to begin with: the example of its kind under a name, and a test that runs it."""

import re
import sys
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from kvferry.pipelines.plugin_kinds import KINDS, taken_names
from kvferry.specs.errors import InputError, pick
from kvferry.system.whole_file import write_file

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
# The scenario that a kind's test runs, and how it is asked to use the policy.
_DECODING = """\
SCENARIO = {
    "name": "small",
    "system": "kvswap",
    "device": {"extends": "tiny", "storage": {"bytes_per_s": "100 MB/s", "latency_s": "50 us"}},
    "model": "tiny",
    "link": {"rate": "1 MB/s"},
    "workload": {"kind": "decode", "context": 1024, "batch": 2, "output": 12},
    "measure": "decode",
    "budget": {"kv_share": 0.9},
}
"""
_LOADING = """\
SCENARIO = {
    "name": "small",
    "system": "sparkv",
    "device": "tiny",
    "model": "tiny",
    "link": {"rate": "50 Mbit/s", "rtt": "4 ms"},
    "workload": {"kind": "context-reuse", "context": 4096},
}
"""
_OF_KIND: dict[str, tuple[str, str]] = {
    "loader": (_LOADING, '{"system": NAME}'),
    "schedule": (_LOADING, '{"policies.schedule": NAME}'),
    "selector": (_DECODING, '{"policies.selector": NAME}'),
    "index": (_DECODING, '{"policies.selector": NAME}'),
    "residency": (_DECODING, '{"policies.residency": NAME}'),
    "layout": (_DECODING, '{"policies.layout": NAME}'),
    "upkeep": (_DECODING, '{"policies.upkeep": NAME}'),
    "placement": (_DECODING, '{"system": "flexgen", "policies.placement": NAME}'),
    "batching": (_DECODING, '{"system": "vllm", "policies.batching": NAME}'),
    "attention": (_DECODING, '{"system": "vllm", "policies.attention": NAME}'),
    "system": (_DECODING, '{"system": NAME}'),
    "cost-model": (_LOADING, '{"costs.truth": NAME}'),
}
_TEST = '''\
"""Runs {name} on a small scenario: pytest {test}"""

from pathlib import Path

import kvferry

NAME = "{name}"
PLUGIN = Path(__file__).parent / "{file}"
{scenario}

def test_it_runs_and_gives_the_same_twice() -> None:
    kvferry.use(PLUGIN)
    asked = {asked}
    first, second = (kvferry.run(SCENARIO, asked) for _ in range(2))
    assert first.outcome == "done", first.why
    assert first.metrics == second.metrics
    assert first.requests["first_token_s"].notna().all()
    assert Path(PLUGIN).stem in first.envelope["provenance"]["plugins"]
'''


def new_policy(name: str, kind: str, folder: str | Path = ".") -> tuple[Path, Path]:
    """Writes NAME.py, the commented example of this kind under a name, and test_NAME.py, which runs it; returns both.

    Raises InputError for a name that is none or taken, also by a module that can be imported, a kind that there is not,
    and a file that is there already.
    """
    pick("role", dict.fromkeys(KINDS), kind)
    if not _NAME.fullmatch(name):
        raise InputError(f"{name!r:.60} is no name for a policy: small letters, digits and dashes, a letter first")
    if name in taken_names(kind):
        raise InputError(f"{kind} {name!r} is there already; give yours another name")
    stem, folder = name.replace("-", "_"), Path(folder)
    file, test = folder / f"{stem}.py", folder / f"test_{stem}.py"
    for path in (file, test):
        if path.exists():
            raise InputError(f"{path} is there already; remove it, or give the policy another name")
    # A file of that name would be imported in its place wherever Python is started beside it.
    if stem in sys.stdlib_module_names or find_spec(stem) is not None:
        raise InputError(f"{name!r} is a module of Python's or an installed one; give the policy another name")
    example = files("kvferry.api.examples").joinpath(f"{kind.replace('-', '_')}.py").read_text(encoding="utf-8")
    for word, own in (
        ("example-policy", name),
        ("example_policy", stem),
        ("EXAMPLE_POLICY", stem.upper()),
        ("ExamplePolicy", "".join(part.capitalize() for part in name.split("-"))),
    ):
        example = example.replace(word, own)
    scenario, asked = _OF_KIND[kind]
    tested = _TEST.format(name=name, file=file.name, test=test.name, scenario=scenario, asked=asked)
    return write_file(file, example.encode()), write_file(test, tested.encode())
