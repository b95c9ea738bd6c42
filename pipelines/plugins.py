"""Policies, systems and cost models of the user's own: a Python file says in ``KVFERRY`` what it has, by kind and name.

    KVFERRY = {"loader": {"halves": Halves}, "selector": {"every-other": EveryOther}}

Used, the file is run and its entries stand in the tables in which all names are looked up. Nothing uses a file but the
user's own call: a scenario's text runs no code. Other processes are given the text of the file, and run that.
"""

import ast
import hashlib
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from importlib.abc import SourceLoader
from importlib.metadata import entry_points
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from threading import Lock
from types import ModuleType
from typing import Any, TextIO

from kvferry.specs.document import read_text, shown
from kvferry.specs.errors import InputError, KvferryError, Terminated, unknown_name

_lock = Lock()
# How many are inside, in this thread or others, and where standard output went before the first of them came.
_inside = 0
_before: TextIO | None = None


@contextmanager
def printing_aside() -> Iterator[None]:
    """``print`` writes to standard error meanwhile, in all threads of the process."""
    global _inside, _before
    with _lock:
        if _inside == 0:
            _before, sys.stdout = sys.stdout, sys.stderr
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0 and _before is not None:
                sys.stdout, _before = _before, None


# What a plugin's file has, and the group of installed ones.
TABLE = "KVFERRY"
GROUP = "kvferry.plugins"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")


@dataclass(frozen=True)
class Plugin:
    """A file in use. ``path``: where it lies. ``sha256``: of its bytes; of an installed package, of all its Python
    files. ``text``: what the file holds; of an installed module, which other processes import themselves, None."""

    path: str
    sha256: str
    text: bytes | None
    # By which other processes import it; of a file, its stem.
    name: str


@dataclass(frozen=True)
class _Used:
    plugin: Plugin
    # What it added: the table and the name in it.
    added: tuple[tuple[dict[str, Any], str], ...]


_used: dict[str, _Used] = {}
_looked_for_installed = False


@printing_aside()
def use(source: str | Path | ModuleType) -> Plugin:
    """Makes what a plugin has known under its names: a Python file by its path, or a module, itself or by its name.

    A file that is used already is run again if it has changed, and its former entries are gone; else nothing is done.
    Raises InputError, naming file and line, for a file that cannot be run, has no ``KVFERRY``, or has an entry that is
    none of its kind or whose name is there already. Nothing of it is known then but what an earlier use had.
    """
    if isinstance(source, ModuleType):
        return _taken_up(_installed(source), source)
    path = Path(source).expanduser()
    if path.is_file() and path.suffix != ".py":
        raise InputError(f"{source}: is no plugin: a Python file is, whose name ends in .py, or an installed module")
    if isinstance(source, str) and re.fullmatch(r"[A-Za-z_]\w*(\.\w+)*", source) and path.suffix != ".py":
        module = _imported(source)
        return _taken_up(_installed(module), module)
    read_text(path, kind="plugin")  # says what cannot be read; the digest is of the bytes, line ends as they are
    text = path.read_bytes()
    return _taken_up(Plugin(str(path.resolve()), hashlib.sha256(text).hexdigest(), text, path.stem))


@printing_aside()
def use_installed() -> None:
    """Uses what installed packages name under the entry point ``kvferry.plugins``, once per process. Raises InputError
    for one that cannot be used."""
    global _looked_for_installed
    if _looked_for_installed:
        return
    for point in entry_points(group=GROUP):
        try:
            use(_imported(point.module))
        except InputError as error:
            package = point.dist.name if point.dist else point.name
            raise InputError(f"{package} is installed with the entry point {GROUP}: {error}") from None
    _looked_for_installed = True


def used() -> tuple[Plugin, ...]:
    """The plugins in use, in the order in which they came."""
    return tuple(one.plugin for one in _used.values())


def plugin_of(table: Mapping[str, Any], name: str) -> Plugin | None:
    """The plugin that an entry of a table is from; None: it comes with KVFerry."""
    for one in _used.values():
        if any(where is table and name == known for where, known in one.added):
            return one.plugin
    return None


@printing_aside()
def take_up(plugins: Sequence[Plugin]) -> None:
    """Uses in this process what another one uses, and nothing else: a worker lives for many sweeps.

    Raises InputError as ``use`` does, and where a text or an installed module is not the one that was asked for.
    """
    asked = {plugin.path if plugin.text is not None else plugin.name for plugin in plugins}
    for plugin in used():
        if (plugin.path if plugin.text is not None else plugin.name) not in asked:
            drop(plugin)
    for plugin in plugins:
        if plugin.text is not None:
            if hashlib.sha256(plugin.text).hexdigest() != plugin.sha256:
                raise InputError(f"{plugin.name}: its text came with the digest of another; nothing of it was run")
            _taken_up(plugin)
        elif use(_imported(plugin.name)).sha256 != plugin.sha256:
            raise InputError(f"{plugin.name}: is not the module that it is where this run was asked for")


def drop(plugin: Plugin) -> None:
    """Its entries are not known any more."""
    for table, name in _used.pop(plugin.path).added:
        del table[name]


@contextmanager
def naming_plugins() -> Iterator[None]:
    """An error that comes up in a plugin's file becomes a KvferryError that names file and line; what it prints goes to
    standard error."""
    try:
        with printing_aside() if _used else nullcontext():
            yield
    except (KvferryError, KeyboardInterrupt, Terminated):
        raise
    except BaseException as error:
        place = _place_in(error, {one.plugin.path for one in _used.values()})
        if place is None:
            for one in _used.values():
                error.add_note(f"plugin in use: {one.plugin.path}")
            raise
        raise KvferryError(f"{place}: {type(error).__name__}: {_said(error)}") from error


def _taken_up(plugin: Plugin, module: ModuleType | None = None) -> Plugin:
    known = _used.get(plugin.path)
    if known is not None and known.plugin.sha256 == plugin.sha256:
        return known.plugin
    module = module or _run(plugin)
    before = [(table, name, table[name]) for table, name in known.added] if known else []
    if known is not None:
        drop(known.plugin)
    try:
        entries = _entries(plugin, module)
    except InputError:
        # A slip in a notebook does not take away what worked.
        for table, name, entry in before:
            table[name] = entry
        if known is not None:
            _used[plugin.path] = known
        raise
    for table, name, entry in entries:
        table[name] = entry
    _used[plugin.path] = _Used(plugin, tuple((table, name) for table, name, _ in entries))
    return plugin


def _entries(plugin: Plugin, module: ModuleType) -> list[tuple[dict[str, Any], str, Any]]:
    """By table and name. Raises InputError."""
    path = shown(Path(plugin.path))
    has = getattr(module, TABLE, None)
    if not isinstance(has, Mapping):
        what = "has no" if has is None else f"is {has!r:.60} in its"
        example = f'{TABLE} = {{"loader": {{"my-loader": MyLoader}}}}'
        raise InputError(f"{path}: {what} {TABLE}; it says what the file has, as in {example}")
    # All tables that a plugin may add to are imported where there is a plugin.
    from kvferry.pipelines.guarded import guarded
    from kvferry.pipelines.plugin_kinds import KINDS, entry_of, table_of, taken_names
    from kvferry.policies.decode.key_index import selector_by

    entries: list[tuple[dict[str, Any], str, Any]] = []
    for kind, named in has.items():
        if kind not in KINDS:
            raise InputError(f"{_place(plugin, kind)}: {unknown_name('kind', str(kind), KINDS)}")
        if not isinstance(named, Mapping):
            raise InputError(f"{_place(plugin, kind)}: {kind}: {named!r:.60} is no mapping of names")
        for name, thing in named.items():
            place = _place(plugin, name)
            if not isinstance(name, str) or not _NAME.fullmatch(name):
                what = "is no name: letters, digits and . _ + - will do, a letter or digit first"
                raise InputError(f"{place}: {kind}: {name!r:.60} {what}")
            if name in taken_names(kind) or any(
                name == other for _, other, _ in entries if kind in ("loader", "system")
            ):
                raise InputError(f"{place}: {kind} {name!r} is there already; give yours another name")
            try:
                entry = guarded(kind, name, plugin.path, entry_of(kind, thing))
                entries.append((table_of(kind, thing), name, entry))
                if kind == "index" and name not in has.get("selector", ()):
                    selector = guarded("selector", name, plugin.path, selector_by(name, thing))
                    entries.append((table_of("selector", None), name, selector))
            except Exception as error:
                within = _place_in(error, {plugin.path})
                what = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
                raise InputError(f"{within or place}: {kind} {name!r}: {what}") from None
    return entries


class _Text(SourceLoader):
    """A module from a plugin's text, which need not lie in a file here."""

    def __init__(self, plugin: Plugin) -> None:
        self._plugin = plugin

    def get_filename(self, fullname: str) -> str:
        return self._plugin.path

    def get_data(self, path: str | bytes) -> bytes:
        assert self._plugin.text is not None
        return self._plugin.text


def _run(plugin: Plugin) -> ModuleType:
    """Runs the file. Raises InputError."""
    # A name of its own: two files may be called alike, and neither hides a module that is imported by that name.
    name = f"kvferry_plugin_{re.sub(r'[^A-Za-z0-9]', '_', plugin.name)}_{plugin.sha256[:12]}"
    spec = spec_from_loader(name, _Text(plugin), origin=plugin.path)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    # Dataclasses look for their module there, and so does pickle.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, KeyboardInterrupt | Terminated):
            raise
        raise InputError(f"{_place_of(error, plugin)}: {type(error).__name__}: {_said(error)}") from None
    return module


def _imported(name: str) -> ModuleType:
    """Raises InputError."""
    try:
        return import_module(name)
    except (KeyboardInterrupt, Terminated):
        raise
    except BaseException as error:
        last = _frames(error)[-1] if _frames(error) else None
        where = f"{last[0]}:{last[1]}: " if last and not last[0].startswith("<") else ""
        raise InputError(f"{name}: cannot be imported: {where}{type(error).__name__}: {_said(error)}") from None


def _installed(module: ModuleType) -> Plugin:
    """Raises InputError for a module that lies in no file."""
    if getattr(module, "__file__", None) is None:
        raise InputError(f"{module.__name__}: lies in no file of its own; name a Python file or a module of one")
    file = Path(str(module.__file__))
    files = sorted(file.parent.rglob("*.py")) if hasattr(module, "__path__") else [file]
    digest = hashlib.sha256()
    for one in files:
        if len(files) > 1:
            digest.update(one.relative_to(file.parent).as_posix().encode() + b"\0")
        digest.update(one.read_bytes())
    return Plugin(str(file), digest.hexdigest(), None, module.__name__)


def _place(plugin: Plugin, key: object) -> str:
    """FILE:LINE where the file's table has a key; FILE alone where that is not written out."""
    path = Path(plugin.path)
    tree = ast.parse(path.read_bytes() if plugin.text is None else plugin.text)
    tables = [node for node in ast.walk(tree) if isinstance(node, ast.Assign | ast.AnnAssign) and _is_table(node)]
    lines = [
        node.lineno
        for table in tables
        for node in ast.walk(table)
        if isinstance(node, ast.Constant) and node.value == key
    ] or [table.lineno for table in tables]
    return f"{shown(path)}:{lines[0]}" if lines else shown(path)


def _is_table(node: ast.Assign | ast.AnnAssign) -> bool:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return any(isinstance(target, ast.Name) and target.id == TABLE for target in targets)


def _place_of(error: BaseException, plugin: Plugin) -> str:
    """Where a file that was run went wrong."""
    if isinstance(error, SyntaxError) and error.filename == plugin.path:
        return f"{shown(Path(plugin.path))}:{error.lineno}"
    return _place_in(error, {plugin.path}) or shown(Path(plugin.path))


def _place_in(error: BaseException, paths: set[str]) -> str | None:
    """The innermost line of these files that an error, or what it came from, went through; None: none of them."""
    seen = [f"{shown(Path(path))}:{line}" for path, line in _frames(error) if path in paths]
    if seen:
        return seen[-1]
    # SimPy raises a copy.
    return None if error.__cause__ is None else _place_in(error.__cause__, paths)


def _frames(error: BaseException) -> list[tuple[str, int]]:
    found, at = [], error.__traceback__
    while at is not None:
        found.append((at.tb_frame.f_code.co_filename, at.tb_lineno))
        at = at.tb_next
    return found


def _said(error: BaseException) -> str:
    return (error.msg if isinstance(error, SyntaxError) else str(error)) or "without a word"
