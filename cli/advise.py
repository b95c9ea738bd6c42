"""``kvferry advise``: which system to build or to switch on for a device, a model and a use."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvferry.cli.options import JsonOption, PluginOption, SetOption, as_options
from kvferry.cli.output import MOST_STEM, numbered_folder, results_folder

if TYPE_CHECKING:
    from kvferry.advice.answer import Answer
    from kvferry.advice.question import Question

# Ends of files' names, which a folder's name leaves out.
_FILES = (".yaml", ".yml", ".gguf")
_ARGUMENTS = (
    *("device", "model", "link", "use", "memory", "ttft", "tokens_per_s", "energy", "context", "storage", "helper"),
    "weights",
)


def advise(
    device: Annotated[str | None, typer.Option("--device", metavar="NAME|FILE", help="Where it runs.")] = None,
    model: Annotated[str | None, typer.Option("--model", metavar="NAME|GGUF", help="What answers.")] = None,
    link: Annotated[
        str | None, typer.Option("--link", metavar="TRACE|RATE", help="To a cloud that keeps KV. Default: none.")
    ] = None,
    use: Annotated[
        str | None,
        typer.Option("--use", metavar="USE|FILE", help="chat, documents, agent, long-answers, or a file.  [chat]"),
    ] = None,
    memory: Annotated[str | None, typer.Option("--memory", help="That it may take, as in 4GiB.")] = None,
    ttft: Annotated[str | None, typer.Option("--ttft", help="Longest in 19 of 20 turns, as in 2s.")] = None,
    tokens_per_s: Annotated[float | None, typer.Option("--tokens-per-s", help="Least, as in 8.")] = None,
    energy: Annotated[str | None, typer.Option("--energy", help="Most of an answer, as in 50J.")] = None,
    context: Annotated[str | None, typer.Option("--context", help="Tokens, in place of the use's.")] = None,
    storage: Annotated[str | None, typer.Option("--storage", metavar="NAME|FILE", help="Built in.")] = None,
    helper: Annotated[
        str | None, typer.Option("--helper", metavar="DEVICE", help="A device that may answer along, over the link.")
    ] = None,
    weights: Annotated[
        str | None, typer.Option("--weights", metavar="FORMAT", help="As in q4_k_m. Default: the engine's usual one.")
    ] = None,
    any_quality: Annotated[
        bool, typer.Option("--any-quality", help="What attends to a part of the tokens counts like the rest.")
    ] = False,
    quick: Annotated[bool, typer.Option("--quick", help="The first answer alone, within seconds.")] = False,
    limit: Annotated[
        str | None, typer.Option("--limit", metavar="TIME", help="After which nothing more is begun.  [110 s]")
    ] = None,
    settings: SetOption = None,
    plugins: PluginOption = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="DIR", parser=results_folder, help="Folder for the answer.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Say which system to build or to switch on, with which settings, how sure that is, and what to measure next.

    Compositions of a session (load, decode, keep), and of a device that is helped, are run on the modelled device, and
    the best one that gives up nothing of the answer is taken. On a terminal, without options, six questions are asked.
    The first answer comes within seconds, the refined one within two minutes; Ctrl-C and SIGTERM keep the best so far.

    The folder is runs/advice-USE-DEVICE-MODEL, with a number where the answer to another question has that name, unless
    --output names another; with --json alone, none is written.
    """
    from kvferry.advice.question import question_of
    from kvferry.cli.interview import interview
    from kvferry.cli.progress import say, steps
    from kvferry.pipelines.plugins import naming_plugins
    from kvferry.specs.errors import InputError

    limits: dict[str, Any] = {} if limit is None else {"limit_s": _seconds(limit)}
    given = dict(
        zip(
            _ARGUMENTS,
            (device, model, link, use, memory, ttft, tokens_per_s, energy, context, storage, helper, weights),
            strict=True,
        )
    )
    asked: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    if not asked and sys.stdin is not None and sys.stdin.isatty():
        asked = interview()
    for needed, example in (("device", "rtx-4060"), ("model", "llama-3.1-8b")):
        if needed not in asked:
            raise InputError(f"--{needed}: is missing, as in --{needed} {example}")
    with as_options(*_ARGUMENTS, "limit"), _ended_early() as ran, steps() as progress, naming_plugins():
        from kvferry.advice.advise import answer

        def watched(what: str, done: int, of: int) -> None:
            ran.append(what)
            progress(what, done, of)

        question = question_of(**asked, any_quality=any_quality, settings=settings or [])
        if output is None and not json:
            output = _folder(question, asked)
        found = answer(question, output=output, refine=not quick, **limits, progress=watched, say=say)
    if json:
        sys.stdout.write(found.to_json())
    else:
        _show(found)
    if found.cut_short and found.interrupted is None:
        flags = ["--any-quality"] * any_quality + [word for one in plugins or [] for word in ("--plugin", one)]
        say(f"for longer: {_longer(asked, flags, settings or [], None if quick else limits)}")
    if found.folder is not None:
        say(f"written to {found.folder}")
    if found.interrupted is not None:
        say(f"interrupted {found.interrupted}; this is the best so far")
        raise typer.Exit(128 + found.ended_by)


@contextmanager
def _ended_early() -> Iterator[list[str]]:
    """Says it where a signal ends the command before there is an answer. Gives a list for what has run."""
    from kvferry.cli.progress import say
    from kvferry.specs.errors import Terminated

    ran: list[str] = []
    try:
        yield ran
    except (KeyboardInterrupt, Terminated):
        say(f"interrupted{' before there was an answer' if ran else '; nothing had run'}")
        raise


def _folder(question: Question, asked: Mapping[str, Any]) -> Path:
    from kvferry.advice.folder import answers
    from kvferry.analysis.folder import folder_name

    named = (Path(asked.get(key, "chat")) for key in ("use", "device", "model"))
    parts = (path.stem if path.suffix in _FILES else path.name for path in named)
    stem = folder_name("-".join(("advice", *parts)))[:MOST_STEM].rstrip("-.")
    return numbered_folder(stem, lambda folder: os.path.lexists(folder) and not answers(folder, question))


def _seconds(limit: str) -> float:
    from kvferry.specs.errors import InputError
    from kvferry.specs.units import quantity

    try:
        found = quantity(limit, "time")
    except ValueError as error:
        raise InputError(f"--limit: {error}") from None
    if found <= 0:
        raise InputError(f"--limit: {limit!r:.40} is not above 0, as in 4min")
    return found


def _longer(
    asked: Mapping[str, Any], flags: Sequence[str], settings: Sequence[str], limits: Mapping[str, float] | None
) -> str:
    """The same command with three times as much time; `limits`: None after the first answer alone."""
    from kvferry.advice.advise import LIMIT_S
    from kvferry.advice.words import command

    more = [] if limits is None else ["--limit", f"{3 * limits.get('limit_s', LIMIT_S):g}s"]
    return command(asked, settings, [*flags, *more])


def _show(found: Answer) -> None:
    from kvferry.advice.screen import screen
    from kvferry.analysis.tables import terminal_width
    from kvferry.specs.errors import quoted

    for line in screen(found, terminal_width()):
        print(quoted(line))
