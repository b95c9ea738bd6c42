"""Policies from a user's own file: known once the file is used, and nothing of it where the file is no good."""

import hashlib
import pickle
import sys
from collections.abc import Mapping
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from plugin import FAULTY, LOADER, none_left, written  # noqa: F401
from tiny import DECODING, LOADING, tiny

from kvferry.analysis.code_version import code_version
from kvferry.analysis.point import Point, Work
from kvferry.pipelines import plugins
from kvferry.pipelines.checks import check_names
from kvferry.pipelines.decoding.systems import DECODE_SYSTEMS, ROLES
from kvferry.pipelines.loading.systems import SYSTEMS
from kvferry.pipelines.plugin_kinds import KINDS
from kvferry.pipelines.plugins import drop, take_up, use, used
from kvferry.pipelines.run import run_scenario
from kvferry.policies.decode.key_index import KEY_INDEXES
from kvferry.policies.loading.staged import SCHEDULES
from kvferry.sim.costs.cost_model import COST_MODELS
from kvferry.specs.errors import InputError, KvferryError, Terminated

pytestmark = pytest.mark.usefixtures("here")


def test_a_loader_is_a_system_that_runs() -> None:
    plugin = use(written(LOADER))
    assert plugin.path == str(Path("mine.py").resolve())
    assert used() == (plugin,)
    assert SYSTEMS["mine"].about == "Streams all, as a test does"
    mine, bundled = (run_scenario(tiny(LOADING, system=name)) for name in ("mine", "stream-only"))
    assert mine.requests == bundled.requests
    drop(plugin)
    assert "mine" not in SYSTEMS
    assert used() == ()


# One entry of each kind, as short as can be.
ENTRIES: Mapping[str, tuple[str, str]] = {
    "loader": ("from kvferry.policies.loading.single_path import StreamOnly", "StreamOnly"),
    "schedule": ("from kvferry.policies.loading.chain import chain_plan", "chain_plan"),
    "selector": ("from kvferry.policies.decode.page_bounds import PageBounds", "PageBounds"),
    "residency": ("from kvferry.policies.decode.residency import Reuse", "Reuse"),
    "layout": ("from kvferry.policies.decode.blocking import TokenGroups", "TokenGroups"),
    "upkeep": ("from kvferry.policies.decode.upkeep import RollingGroups", "RollingGroups"),
    "placement": ("from kvferry.policies.decode.placement import Progressive", "Progressive"),
    "batching": ("from kvferry.policies.decode.batcher import Continuous", "Continuous"),
    "attention": (
        "from kvferry.policies.decode.attention_kernel import AttentionKernel",
        "AttentionKernel(paged=True)",
    ),
    "index": ("from kvferry.policies.decode.key_index import TokenKeys", "TokenKeys"),
    "system": (
        "from kvferry.pipelines.decoding.systems import DECODE_SYSTEMS, DecodeSystem",
        'DecodeSystem(about="as kvswap", roles=DECODE_SYSTEMS["kvswap"].roles)',
    ),
    "cost-model": ("from kvferry.sim.costs.roofline import Roofline", "Roofline"),
}
TABLES = {"loader": SYSTEMS, "schedule": SCHEDULES, "system": DECODE_SYSTEMS, "cost-model": COST_MODELS, **ROLES}
TABLES |= {"index": KEY_INDEXES}


def test_there_is_an_entry_of_every_kind() -> None:
    assert tuple(ENTRIES) == KINDS


@pytest.mark.parametrize("kind", KINDS)
def test_an_entry_of_each_kind_stands_in_its_table_until_it_is_dropped(kind: str) -> None:
    imports, thing = ENTRIES[kind]
    plugin = use(written(f'{imports}\n\nKVFERRY = {{"{kind}": {{"mine": {thing}}}}}\n'))
    assert "mine" in TABLES[kind]
    assert plugins.plugin_of(TABLES[kind], "mine") == plugin
    drop(plugin)
    assert "mine" not in TABLES[kind]


def test_a_role_and_a_cost_model_are_named_in_a_scenario() -> None:
    use(
        written("""\
from dataclasses import dataclass

from kvferry.policies.decode.page_bounds import PageBounds
from kvferry.sim.costs.roofline import Roofline


@dataclass(frozen=True, kw_only=True)
class Coarse(PageBounds):
    most: int = 3


class Slow(Roofline):
    def cost(self, op):
        found = super().cost(op)
        return type(found)(2 * found.duration_s, found.n_bytes)


KVFERRY = {"selector": {"coarse": Coarse}, "cost-model": {"slow": Slow}}
""")
    )
    asked = {"selector": {"name": "coarse", "most": 5}, "selected_tokens": 64}
    check_names(tiny(DECODING, policies=asked))
    roles = DECODE_SYSTEMS["kvswap"].with_policies(asked).roles
    assert roles.selector.most == 5  # type: ignore[attr-defined]
    with pytest.raises(InputError, match="most: 'x' is not a whole number"):
        DECODE_SYSTEMS["kvswap"].with_policies({"selector": {"name": "coarse", "most": "x"}})
    bundled, slow = (run_scenario(tiny(LOADING, system="local-prefill", costs=name)) for name in ("roofline", "slow"))
    assert bundled.duration_s < slow.duration_s < 2.5 * bundled.duration_s


def test_a_changed_file_replaces_what_it_had() -> None:
    use(written(LOADER))
    assert use("mine.py") == use("mine.py")
    second = use(written(LOADER.replace('"mine"', '"yours"')))
    assert used() == (second,)
    assert "yours" in SYSTEMS and "mine" not in SYSTEMS


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import nothing_of_the_kind\n", "mine.py:1: ModuleNotFoundError: No module named 'nothing_of_the_kind'"),
        ("x = 1\nif x\n", "mine.py:2: SyntaxError: expected ':'"),
        ("def f():\n    raise OSError('no')\n\n\nf()\n", "mine.py:2: OSError: no"),
        ("class Rude(BaseException):\n    pass\n\n\nraise Rude('no')\n", "mine.py:5: Rude: no"),
        ("raise SystemExit(0)\n", "mine.py:1: SystemExit: 0"),
        ("x = 1\n", "mine.py: has no KVFERRY"),
        ("KVFERRY = [1]\n", "mine.py: is [1] in its KVFERRY"),
        ("KVFERRY = {\n  'loaders': {}}\n", "mine.py:2: unknown kind 'loaders'; known: attention, "),
        ("KVFERRY = {'loader':\n  [1]}\n", "mine.py:1: loader: [1] is no mapping of names"),
        ("KVFERRY = {'loader': {\n  'a b': int}}\n", "mine.py:2: loader: 'a b' is no name"),
        ("KVFERRY = {'loader': {\n  'ferry': int}}\n", "mine.py:2: loader 'ferry' is there already"),
        ("KVFERRY = {'system': {\n  'kvswap': int}}\n", "mine.py:2: system 'kvswap' is there already"),
        (
            "KVFERRY = {'loader': {\n  'mine': int}}\n",
            "mine.py:2: loader 'mine': int lacks start, next_compute, next_stream, window",
        ),
        ("KVFERRY = {'loader': {'mine': 3}}\n", "mine.py:1: loader 'mine': 3 is no class or function"),
        ("KVFERRY = {'system': {'mine': 3}}\n", "mine.py:1: system 'mine': 3 is no system; make it with one of Load"),
        ("KVFERRY = {'selector': {'mine': int}}\n", "mine.py:1: selector 'mine': a role is a dataclass"),
        ("KVFERRY = {'schedule': {'mine': lambda a: a}}\n", "mine.py:1: schedule 'mine': takes (problem, bytes_per_s)"),
        (
            "class A:\n    def __init__(self):\n        1 / 0\n\n\nKVFERRY = {'loader': {'mine': A}}\n",
            "mine.py:3: loader 'mine': ZeroDivisionError: division by zero",
        ),
    ],
)
def test_what_is_wrong_with_a_file_is_said_with_its_line(text: str, says: str) -> None:
    before = {kind: dict(table) for kind, table in TABLES.items()}
    with pytest.raises(InputError) as error:
        use(written(text))
    assert str(error.value).startswith(says)
    assert before == TABLES
    assert used() == ()


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(InputError, match="mine.py is not there"):
        use("mine.py")


def test_an_error_while_it_runs_names_its_line() -> None:
    use(written(FAULTY))
    with pytest.raises(KvferryError, match=r"mine\.py:8: ZeroDivisionError: division by zero") as error:
        run_scenario(tiny(LOADING, system="faulty"))
    assert not isinstance(error.value, InputError)


def sent_as(path: str, text: bytes) -> plugins.Plugin:
    return plugins.Plugin(path, hashlib.sha256(text).hexdigest(), text, Path(path).stem)


def test_a_text_with_another_digest_is_refused_before_it_is_run() -> None:
    sent = plugins.Plugin("/elsewhere/mine.py", "0" * 64, b"open('was-run', 'w')\n", "mine")
    with pytest.raises(InputError, match="mine: its text came with the digest of another; nothing of it was run"):
        take_up([sent])
    assert not Path("was-run").exists()
    assert used() == ()


def test_another_process_is_given_the_text() -> None:
    """A worker has neither the file nor, at first, its names; it takes up a later text of the same file, too."""
    first = use(written(LOADER))
    sent = pickle.dumps(used())
    drop(first)
    Path("mine.py").unlink()
    take_up(pickle.loads(sent))  # noqa: S301
    assert run_scenario(tiny(LOADING, system="mine")).outcome == "done"
    assert used() == (first,)
    assert first.text is not None
    second = sent_as(first.path, first.text.replace(b'"mine"', b'"yours"'))
    take_up([second])
    assert used() == (second,)
    assert "yours" in SYSTEMS and "mine" not in SYSTEMS


def test_another_process_is_given_what_is_asked_and_nothing_else() -> None:
    """A worker lives for many sweeps: what one brought along is no part of the next, and keeps no name from it."""
    first = use(written(LOADER))
    second = use(written(LOADER.replace('"mine"', '"yours"'), "yours.py"))
    take_up([second])
    assert (used(), "mine" in SYSTEMS) == ((second,), False)
    assert first.text is not None
    same_name = sent_as("/elsewhere/mine.py", first.text + b"# Another's.\n")
    for asked in ((first,), (same_name,), (second, first), (), (first, second)):
        take_up(asked)
        assert set(used()) == set(asked)
    assert {"mine", "yours"} <= set(SYSTEMS)


def test_the_version_is_the_same_in_any_order() -> None:
    first, second = use(written(LOADER)), use(written(LOADER.replace('"mine"', '"yours"'), "yours.py"))
    before = code_version()
    drop(first)
    assert code_version() != before
    assert use(first.path) == first
    assert (used(), code_version()) == ((second, first), before)


@pytest.mark.parametrize("text", [LOADER + "1 / 0\n", LOADER + "x = (\n", LOADER.replace('"mine"', '"ferry"')])
def test_a_slip_leaves_what_worked(text: str) -> None:
    plugin = use(written(LOADER))
    with pytest.raises(InputError):
        use(written(text))
    assert used() == (plugin,)
    assert run_scenario(tiny(LOADING, system="mine")).outcome == "done"


def test_the_digest_is_of_the_files_bytes() -> None:
    written_bytes = b"\xef\xbb\xbf" + LOADER.replace("\n", "\r\n").encode()
    Path("mine.py").write_bytes(written_bytes)
    assert use("mine.py").sha256 == hashlib.sha256(written_bytes).hexdigest()
    assert "mine" in SYSTEMS


@pytest.mark.parametrize(
    ("line", "says"),
    [("raise SystemExit(0)", "SystemExit: 0"), ("exit()", "SystemExit"), ("raise GeneratorExit", "GeneratorExit")],
)
def test_a_policy_that_would_end_the_process_has_failed(line: str, says: str) -> None:
    """Exit code 0 without a word would be a result."""
    use(written(FAULTY.replace("return 1 / 0", line)))
    with pytest.raises(KvferryError, match=rf"mine\.py:8: {says}"):
        run_scenario(tiny(LOADING, system="faulty"))
    row = Work(run_scenario, code_version(), used())(Point.of(tiny(LOADING, system="faulty")))
    assert row["outcome"] == "failed"


def test_a_signal_ends_the_process_also_within_a_policy() -> None:
    use(
        written(
            "from kvferry.specs.errors import Terminated\n" + FAULTY.replace("return 1 / 0", "raise Terminated(143)")
        )
    )
    with pytest.raises(Terminated):
        run_scenario(tiny(LOADING, system="faulty"))


@pytest.mark.parametrize("end", [KeyboardInterrupt, Terminated])
def test_a_signal_is_no_fault_of_a_file_that_is_being_run(end: type[BaseException]) -> None:
    with pytest.raises(end):
        use(written(f"from kvferry.specs.errors import Terminated\nraise {end.__name__}\n"))


def test_a_module_by_its_name_and_an_installed_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path.cwd())
    written(LOADER, "module_of_mine.py")
    plugin = use("module_of_mine")
    assert (plugin.name, plugin.text) == ("module_of_mine", None)
    assert use(sys.modules["module_of_mine"]) == plugin
    drop(plugin)
    point = EntryPoint(name="mine", value="module_of_mine", group=plugins.GROUP)
    monkeypatch.setattr(plugins, "entry_points", lambda group: [point] if group == "kvferry.plugins" else [])
    monkeypatch.setattr(plugins, "_looked_for_installed", False)
    check_names(tiny(LOADING, system="mine"))
    assert used() == (plugin,)
    with pytest.raises(InputError, match="is not the module that it is where this run was asked for"):
        take_up([plugins.Plugin(plugin.path, "0" * 64, None, "module_of_mine")])


def test_an_installed_plugin_that_cannot_be_used_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint(name="mine", value="module_that_is_not_there", group=plugins.GROUP)
    monkeypatch.setattr(plugins, "entry_points", lambda group: [point])
    monkeypatch.setattr(plugins, "_looked_for_installed", False)
    with pytest.raises(InputError, match="mine is installed with the entry point kvferry.plugins: module_that"):
        check_names(tiny(LOADING))


def test_a_module_that_cannot_be_imported_is_named_with_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path.cwd())
    Path("broken_by_hand.py").write_text("import math\nmath.sqrt(-1)\n")
    with pytest.raises(InputError, match=r"^broken_by_hand: cannot be imported: .*broken_by_hand\.py:2: ValueError: "):
        use("broken_by_hand")
