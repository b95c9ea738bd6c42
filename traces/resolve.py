"""The rates that a scenario's link and load replay."""

from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from kvferry.specs.document import MISSING, expanded, regular_file
from kvferry.specs.errors import InputError
from kvferry.specs.link import LinkSpec, LoadSpec, WaySpec
from kvferry.traces.arrays import peek_arrays
from kvferry.traces.catalogue import catalogue, folder, path_of, recorded_trace, unknown_trace
from kvferry.traces.chance import Source, generator
from kvferry.traces.derived import shifted, with_outages
from kvferry.traces.format import FIRST_LINE, Kind, StoredTrace, read_lines, read_trace
from kvferry.traces.generate import BandwidthModel, LoadModel, generate, read_model
from kvferry.traces.rate import RateTrace

AnyWay = TypeVar("AnyWay", bound=WaySpec)

BUNDLED = Path(__file__).resolve().parent / "bundled"


def link_trace(link: WaySpec) -> RateTrace:
    """Bytes per second of one direction of a link, over the run: its trace or rate, with scale, offset and outages.

    Raises InputError for a trace that is not known, not here, or not one of bandwidth.
    """
    if link.rate_bytes_per_s is not None:
        trace = RateTrace.constant(link.rate_bytes_per_s)
    else:
        trace = _realised(link)
        trace = trace.with_rates(trace.rates * link.scale)
    if link.trace is not None and link.on_end is not None and trace.on_end != link.on_end:
        trace = RateTrace(trace.edges_s, trace.rates, link.on_end)
    try:
        outages = [(outage.start_s, outage.start_s + outage.duration_s) for outage in link.outages]
        return with_outages(shifted(trace, link.begins_s), outages)
    except ValueError as error:
        raise InputError(f"link: {error}") from None


def with_end(way: AnyWay) -> AnyWay:
    """Returns a direction of a link that says itself what follows its trace's end, as the trace's file does where it
    does not. Raises InputError."""
    if way.on_end is not None:
        return way
    # What is generated begins again, as a constant rate does.
    is_made = way.trace is None or way.trace in bundled()
    return way.model_copy(update={"on_end": "loop" if is_made else bandwidth_trace(str(way.trace)).on_end})


def drawn_link(link: LinkSpec, seed: int, *place: int) -> LinkSpec:
    """Returns the link with all that it leaves to chance drawn: where its traces begin, and their realisations. Each
    direction, and each `place` (of another link of the run), has its own. Raises InputError."""
    up = link.up and _drawn(link.up, seed, 1, *place)
    return _drawn(link, seed, 0, *place).model_copy(update={"up": up})


def _drawn(way: AnyWay, seed: int, *place: int) -> AnyWay:
    if way.drawn:
        return way
    chance = generator(Source.LINK_COURSES, seed, *place)
    # Both are drawn always, so that one does not depend on whether the other is asked for.
    instance, share = int(chance.integers(2**62)), float(chance.uniform())
    if way.instance == "seed":
        _generator_of(way)
        way = way.model_copy(update={"instance": instance})
    if way.offset_s == "random":
        way = way.model_copy(update={"offset_s": share * _realised(way).duration_s})
    return way


def _realised(way: WaySpec) -> RateTrace:
    """Returns the trace of a way, of a generated one the realisation that it asks for."""
    if way.instance == "own":
        return bandwidth_trace(str(way.trace))
    assert isinstance(way.instance, int), "a realisation by the run's seed is drawn first"
    return generate(_generator_of(way), way.instance)


def _generator_of(way: WaySpec) -> BandwidthModel:
    """Returns the model that a way's trace is generated from. Raises InputError where there is none."""
    reference = str(way.trace)
    bandwidth_trace(reference)
    path = expanded(reference)
    model = (
        bundled_model(reference)
        if reference in bundled()
        else read_model(path)
        if path.suffix in (".yaml", ".yml")
        else None
    )
    if not isinstance(model, BandwidthModel):
        what = f"{reference!r} is recorded, and has one course alone; link.offset: random begins anywhere in it"
        raise InputError(f"instance: {what}")
    return model


def load_trace(load: LoadSpec) -> RateTrace:
    """The share of a processor that others take over the run's time. Raises InputError."""
    if load.share is not None:
        return RateTrace.constant(load.share)
    return _of_kind("load", str(load.trace))


def bandwidth_trace(reference: str) -> RateTrace:
    """A bundled or recorded trace by name, or the file at a path; bytes per second. Raises InputError."""
    return _of_kind("bandwidth", reference)


def stored_trace(reference: str) -> StoredTrace:
    """A trace of either kind, with its tags. Raises InputError.

    A path may lead to a trace in our format, a model (.yaml) or any log that an importer knows.
    """
    if reference in bundled():
        return _bundled(reference)
    if reference in catalogue():
        return _recorded(reference, folder())
    path = expanded(reference)
    problem = regular_file(path)
    if problem == MISSING:
        raise unknown_trace(reference, [*bundled(), *catalogue()])
    if problem:
        raise InputError(f"{reference!r:.200} {problem}")
    if path.suffix == ".npz":
        raise InputError(f"{reference!r} is a {peek_arrays(path)[0]} trace; one of bandwidth or load is needed here")
    if path.suffix in (".yaml", ".yml"):
        return _generated(read_model(path))
    if (read_lines(path) or [""])[0].rstrip() == FIRST_LINE:
        return read_trace(path)
    from kvferry.traces.importers import import_trace

    return StoredTrace("bandwidth", import_trace(path), {"source": path.name})


def bundled() -> tuple[str, ...]:
    """Names of the generated traces that come with the project."""
    return tuple(sorted(path.stem for path in BUNDLED.glob("*.yaml")))


def trace_file(name: str) -> Path | None:
    """Returns the file of a bundled or fetched trace; None for a name of neither, and for a path."""
    for ending in ("csv", "yaml"):
        if name in bundled() and (BUNDLED / f"{name}.{ending}").is_file():
            return BUNDLED / f"{name}.{ending}"
    return path_of(name) if name in catalogue() else None


def known_traces(kind: Kind) -> list[str]:
    """Names of the traces of one kind, recorded ones whether or not they are here."""
    recorded = catalogue() if kind == "bandwidth" else ()
    return [*(name for name in bundled() if bundled_model(name).kind == kind), *recorded]


def bundled_model(name: str) -> BandwidthModel | LoadModel:
    return read_model(BUNDLED / f"{name}.yaml")


def _of_kind(kind: Kind, reference: str) -> RateTrace:
    stored = stored_trace(reference)
    if stored.kind != kind:
        raise InputError(f"{reference!r} is a {stored.kind} trace; a {kind} trace is needed here")
    return stored.trace


# A sweep asks for the same few traces again and again.
@lru_cache(maxsize=32)
def _bundled(name: str) -> StoredTrace:
    return _generated(bundled_model(name))


@lru_cache(maxsize=32)
def _recorded(name: str, _: Path) -> StoredTrace:
    source, entry = catalogue()[name]
    return StoredTrace("bandwidth", recorded_trace(name), {"source": f"{source}/{entry.file}", "about": entry.about})


def _generated(model: BandwidthModel | LoadModel) -> StoredTrace:
    tags = {"about": model.description, "model": model.name, "seed": str(model.seed), "fitted_to": model.fitted_to}
    return StoredTrace(model.kind, generate(model), {key: value for key, value in tags.items() if value})
