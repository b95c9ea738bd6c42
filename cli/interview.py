"""Questions on a terminal, where ``kvferry advise`` was told nothing: six at most, each with a default."""

from collections.abc import Callable
from typing import Any

import typer


def interview() -> dict[str, Any]:
    """Returns what was answered, as arguments of ``advise``. An answer that will not do is asked for again."""
    from kvferry.advice.question import NO_LINK, check_link
    from kvferry.advice.use import load_use
    from kvferry.scenarios.library import names
    from kvferry.scenarios.loader import load_device, load_model
    from kvferry.specs.units import quantity

    def size(text: str) -> Any:
        return text == "all" or quantity(text, "size")

    def time(text: str) -> Any:
        return text == "any" or quantity(text, "time")

    uses = ", ".join(names("use"))
    found = {
        "device": _asked("device, by name (kvferry devices) or file", "rtx-4060", load_device),
        "model": _asked("model, by name (kvferry models) or GGUF file", "llama-3.1-8b", load_model),
        "link": _asked("link to a cloud: a trace, a rate such as 100 Mbit/s, or none", NO_LINK, check_link),
        "use": _asked(f"use: {uses}, or a file", "chat", load_use),
        "memory": _asked("memory that it may take, such as 6 GiB, or all", "all", size),
        "ttft": _asked("longest wait for a first token, such as 2 s, or any", "any", time),
    }
    return {key: value for key, value in found.items() if value not in ("all", "any", NO_LINK)}


def _asked(what: str, default: str, check: Callable[[str], Any]) -> str:
    from kvferry.specs.errors import InputError, quoted

    while True:
        try:
            said: str = typer.prompt(what, default=default, err=True)
        except typer.Abort:
            # Ctrl-C, or the end of what is typed; typer would leave with 1.
            raise typer.Exit(130) from None
        try:
            check(said)
        except (InputError, ValueError) as error:
            typer.echo(quoted(str(error)), err=True)
        else:
            return said
