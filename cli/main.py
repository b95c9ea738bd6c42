"""The ``kvferry`` command: its subcommands, and how their errors become messages and exit codes.

Nothing heavy is imported here or at the top of a command's file, so that ``--help`` stays quick.
"""

import atexit
import errno
import gc
import os
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated

import typer
from typer.core import TyperGroup

from kvferry.analysis.compared import COMPARED, COMPARED_ASSISTED, COMPARED_DECODING
from kvferry.analysis.figures import FIGURES, explained
from kvferry.cli.advise import advise
from kvferry.cli.artefact import pack, unpack
from kvferry.cli.calibrate import calibrate
from kvferry.cli.capacity import capacity
from kvferry.cli.compare import compare
from kvferry.cli.devices import devices
from kvferry.cli.encode import encode
from kvferry.cli.fidelity import fidelity
from kvferry.cli.kv_file import kv_file
from kvferry.cli.listings import models, runtimes, scenarios, systems
from kvferry.cli.new import app as new
from kvferry.cli.plot import plot
from kvferry.cli.report import report
from kvferry.cli.reproduce import reproduce
from kvferry.cli.run import run
from kvferry.cli.schedule import schedule
from kvferry.cli.schema import schema
from kvferry.cli.search import search
from kvferry.cli.serve import serve
from kvferry.cli.serve_cloud import serve_cloud
from kvferry.cli.sweep import sweep
from kvferry.cli.tune import tune
from kvferry.specs.errors import InputError, KvferryError, Terminated, quoted
from kvferry.specs.version import VERSION
from kvferry.system import signals


class _Commands(TyperGroup):
    """All commands. What typer has pydantic check is refused in our words."""

    def invoke(self, ctx: typer.Context) -> object:  # type: ignore[override]
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            error.message = _refused(error)
            raise


def _refused(error: typer.BadParameter) -> str:
    # Before typer 0.26 the values are checked by click, whose words say what came and what would do.
    found = getattr(error.__cause__, "errors", None)
    if found is None:
        return error.message
    from kvferry.specs.findings import rule_of

    first = found()[0]
    came = quoted(f"{first['input']:.60}") if isinstance(first["input"], str | int | float) else ""
    return f"{rule_of(first)}, not {came}" if came else rule_of(first)


app = typer.Typer(
    cls=_Commands,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class _Traces(TyperGroup):
    """The trace commands, imported when one of them is asked for."""

    def list_commands(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]
        return self._group().list_commands(ctx)

    def get_command(self, ctx: typer.Context, cmd_name: str):  # type: ignore[no-untyped-def, override]
        return self._group().get_command(ctx, cmd_name)

    def _group(self) -> TyperGroup:
        from kvferry.cli.traces import app as traces_app

        group = typer.main.get_command(traces_app)
        assert isinstance(group, TyperGroup)
        return group


def _version(wanted: bool) -> None:
    if wanted:
        print(f"kvferry {VERSION}")
        raise typer.Exit()


@app.callback()
def kvferry(
    debug: Annotated[bool, typer.Option("--debug", help="Show the stack trace of any error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """How long until the first token, how fast afterwards, at what energy and memory?

    With this device, this link, this model and this policy. Start with: kvferry compare quickstart
    """


_COMMANDS: dict[str, tuple[Callable[..., None], ...]] = {
    "Simulate": (run, compare, advise, schedule, sweep, search, capacity, tune, reproduce),
    "Show and share": (report, plot, pack, unpack),
    "Measure": (calibrate, fidelity, encode, serve, serve_cloud),
    "Look up": (scenarios, systems, devices, models, runtimes, schema, kv_file),
}
_EPILOGS = {
    run: explained(FIGURES),
    compare: explained(sorted({*COMPARED, *COMPARED_ASSISTED, *COMPARED_DECODING}, key=list(FIGURES).index)),
}
for panel, commands in _COMMANDS.items():
    for command in commands:
        app.command(rich_help_panel=panel, epilog=_EPILOGS.get(command))(command)
app.add_typer(new, name="new", help="Files to begin with: a policy of your own.", rich_help_panel="Look up")
app.add_typer(
    typer.Typer(cls=_Traces, no_args_is_help=True),
    name="traces",
    help="Bandwidth and load over time: list, show, import, plot, fetch, fit.",
    rich_help_panel="Look up",
)


# What the command leaves with behind Ctrl-C and SIGTERM.
_SIGNALLED = (130, 143)


def main() -> None:
    """Run the command and leave with its exit code.

    0: a result; 1: the run failed; 2: the input is wrong; 130: interrupted, what was finished kept; 143: terminated.
    """
    if sys.stderr is None:  # closed: what is said there is lost, and must not end up in the result
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    if sys.stdout is None:
        print("kvferry: standard output is closed; results need somewhere to go", file=sys.stderr)
        sys.exit(1)
    if threading.current_thread() is threading.main_thread():
        signals.listen()
        sys.unraisablehook = signals.send_again
    _leave(_exit_code("--debug" in sys.argv))


def _leave(code: int) -> None:
    """End the process, also while an op of a live run is still under way, as it can be after an error or a signal.

    As Python exits, it ends such a thread at the moment it comes back from torch, which aborts the process: exit code
    134 in place of `code`. Waiting for the op could take a minute. So does compiled code that a signal left in its
    middle, as once in drawing: behind a signal nothing is torn down but what was registered for the end.
    """
    if not any(thread.name.startswith("kvferry ") for thread in threading.enumerate()):
        if code in _SIGNALLED:
            # Ends the processes of a sweep, as Python would first of all.
            with suppress(KeyboardInterrupt, Terminated):
                threading._shutdown()  # type: ignore[attr-defined]
        else:
            # All memory goes with the process: looking for cycles among torch's objects takes a second of processor
            # time.
            atexit.register(gc.freeze)
            sys.exit(code)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(code)


def _exit_code(debug: bool) -> int:
    try:
        try:
            app(prog_name="kvferry")
        except SystemExit as leave:
            # Flush here, where a closed pipe can still be distinguished from a fault.
            sys.stdout.flush()
            return leave.code if isinstance(leave.code, int) else 1
        return 0
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader has closed the pipe (kvferry ... | head): no message, and no second error when Python exits.
        _drop_output()
        return 1
    except Exception as error:
        stopped = _stopped_by(error)
        if stopped is None and not isinstance(error, KvferryError) and (came := signals.last()) is not None:
            stopped = 128 + came
        return _told(error, debug) if stopped is None else stopped


def _stopped_by(error: BaseException | None) -> int | None:
    """The exit code of a signal that lies behind an error: where a class is made (``__set_name__``), Python raises a
    RuntimeError from it."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return 130
        if isinstance(error, Terminated):
            return 128 + signal.SIGTERM
        error = error.__cause__
    return None


def _told(error: Exception, debug: bool) -> int:
    """Say what is wrong; returns the exit code."""
    if isinstance(error, KvferryError):
        if debug:
            traceback.print_exc()
        # A line for each fault, which says whose it is.
        print("\n".join(f"kvferry: {line}" for line in str(error).split("\n")), file=sys.stderr)
        return 2 if isinstance(error, InputError) else 1
    if debug:
        traceback.print_exc()
        return 1
    if isinstance(error, MemoryError):
        print(f"kvferry: this machine has too little memory for it: {quoted(str(error))}", file=sys.stderr)
        return 1
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        print(f"kvferry: {quoted(str(error.filename))[:80]}...: this name is too long for a file", file=sys.stderr)
        return 2
    if isinstance(error, OSError) and error.filename is None and not _output_works():
        print(f"kvferry: cannot write to standard output: {error.strerror}", file=sys.stderr)
        _drop_output()
        return 1
    print(f"kvferry: a fault of its own, {type(error).__name__}: {quoted(str(error))}\n{_report()}", file=sys.stderr)
    return 1


def _output_works() -> bool:
    try:
        sys.stdout.write("\n")
        sys.stdout.flush()
    except OSError:
        return False
    return True


def _drop_output() -> None:
    """Discard buffered output, so that Python does not report the same error again as it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _report() -> str:
    try:
        handle, path = tempfile.mkstemp(prefix="kvferry-", suffix=".log", text=True)
        with os.fdopen(handle, "w") as log:
            log.write(f"kvferry {VERSION}, {' '.join(sys.argv[1:])}\n{traceback.format_exc()}")
    except OSError:
        return "see the details with: kvferry --debug ..."
    return f"the details are in {path}, or shown with: kvferry --debug ..."
