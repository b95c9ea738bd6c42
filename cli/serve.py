"""``kvferry serve``: serves encoded contexts as the cloud does."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from kvferry.specs.link import LinkSpec

_MOST_TOKEN_BYTES = 4096
HostOption = Annotated[str, typer.Option("--host", help="Address to listen on; any but localhost needs a token.")]
PortOption = Annotated[int, typer.Option("--port", min=0, max=65535, help="Port to listen on; 0 picks a free one.")]


def serve(
    store: Annotated[Path, typer.Argument(metavar="STORE", help="A store (NAME.kvs), or a folder of them.")],
    host: HostOption = "127.0.0.1",
    port: PortOption = 8100,
    trace: Annotated[str | None, typer.Option("--trace", help="A bandwidth trace to replay, by name or path.")] = None,
    rate: Annotated[
        str | None, typer.Option("--rate", help="A constant rate instead of a trace, as in '850 Mbit/s'.")
    ] = None,
    rtt: Annotated[str, typer.Option("--rtt", help="Round-trip time to add, as in '4 ms'.")] = "0 s",
    scale: Annotated[float, typer.Option("--scale", help="Factor by which the trace's rates are multiplied.")] = 1.0,
    offset: Annotated[str, typer.Option("--offset", help="Time in the trace at which to begin, as in '30 s'.")] = "0 s",
    on_end: Annotated[
        str | None,
        typer.Option(
            "--on-end", help="What follows the end of the trace: loop, hold or end; left out: as its file says."
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option("--token-file", help="File with the token that clients must send; or set KVFERRY_TOKEN."),
    ] = None,
) -> None:
    """Serve encoded contexts over HTTP at the rate of a replayed link. Ctrl-C stops it.

    Prints the URL on standard output once it accepts requests.
    """
    from kvferry.cli.progress import say
    from kvferry.specs.errors import InputError, MissingExtra
    from kvferry.traces.resolve import link_trace

    token = token_of(token_file)
    if trace is not None and rate is not None:
        raise InputError("--trace and --rate: one of the two says how fast to be")
    paced = trace is not None or rate is not None
    asked = {"trace": trace, "rate": rate} if paced else {"rate": "1e14 B/s"}
    link = _link(asked | {"rtt": rtt, "scale": scale, "offset": offset, "on_end": on_end})
    replayed = link_trace(link) if paced or link.rtt_s else None
    try:
        from kvferry.cloud import server
    except ImportError as error:
        raise MissingExtra(f"serving needs {error.name}: pip install '.[torch]'") from None

    def tell(url: str) -> None:
        print(url, flush=True)
        pace = f"as {trace or rate} allows" if paced else "as fast as it goes"
        say(f"serving {store} {pace}, round trip {rtt}{', to clients with the token' if token else ''}; Ctrl-C stops")

    server.serve(store, trace=replayed, rtt_s=link.rtt_s, host=host, port=port, token=token, tell=tell)


def _link(asked: dict[str, object]) -> "LinkSpec":
    from pydantic import ValidationError

    from kvferry.specs.errors import InputError
    from kvferry.specs.findings import rule_of
    from kvferry.specs.link import LinkSpec

    try:
        return LinkSpec.model_validate(asked, context={"from_file": True})
    except ValidationError as error:
        faults = ((".".join(map(str, fault["loc"])), rule_of(fault)) for fault in error.errors())
        raise InputError("; ".join(f"--{key.replace('_', '-')}: {what}" for key, what in faults)) from None


def token_of(file: Path | None) -> str | None:
    """The token from the file, or else from the environment: other users of the machine can see neither. It is never
    shown."""
    from kvferry.specs.errors import InputError

    where = "KVFERRY_TOKEN" if file is None else str(file)
    try:
        with open(os.devnull if file is None else file, "rb") as opened:
            read = opened.read(_MOST_TOKEN_BYTES)
    except OSError as error:
        raise InputError(f"--token-file: {file}: {error.strerror}") from None
    token = os.environ.get("KVFERRY_TOKEN", "") if file is None else read.decode("latin-1").strip()
    if file is None and not token:
        return None
    if not (8 <= len(token) < _MOST_TOKEN_BYTES and token.isascii() and token.isprintable() and " " not in token):
        raise InputError(f"{where}: a token has at least 8 letters, digits or signs, and no spaces")
    return token
