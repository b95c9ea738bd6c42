"""What decoding came to: figures over a whole output, of which only a part may have been carried out."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from kvferry.backends.world import DecodeWorld
from kvferry.machine.span import Span
from kvferry.pipelines.decoding.decode import DecodeRecord, OffloadedDecode
from kvferry.pipelines.decoding.in_memory import InMemoryDecode
from kvferry.specs.scenario import Scenario

# Spans of a run that are kept, for pictures: some hundred tokens of 32 layers. All are counted.
MOST_SPANS = 20_000
# Ops of a block while decoding.
DECODING = ("Select", "Bookkeep", "Reconstruct", "DecodeAttention", "FeedForward")
Decoding = InMemoryDecode | OffloadedDecode


class Tally:
    """Counts every span by resource and label, and keeps the first ones."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        # By resource and label.
        self.busy_s: defaultdict[tuple[str, str], float] = defaultdict(float)
        self.n_bytes: defaultdict[tuple[str, str], float] = defaultdict(float)

    def __call__(self, span: Span) -> None:
        key = span.resource, span.label
        self.busy_s[key] += span.end_s - span.start_s
        self.n_bytes[key] += span.n_bytes
        if len(self.spans) < MOST_SPANS:
            self.spans.append(span)


@dataclass(frozen=True)
class Totals:
    """Everything that adds up over a run, by name; ``energy_j`` by component."""

    sums: Mapping[str, float]
    energy_j: Mapping[str, float]

    @classmethod
    def of(cls, scenario: Scenario, world: DecodeWorld, tally: Tally, record: DecodeRecord) -> "Totals":
        """Up to now."""
        now_s, main = world.machine.env.now, scenario.device.main
        sums = {
            "duration_s": now_s,
            "read_bytes": tally.n_bytes["storage", "Read"],
            "write_bytes": tally.n_bytes["storage", "Write"],
            "reading_s": tally.busy_s["storage", "Read"],
            "block_ops_s": sum(tally.busy_s[main, label] for label in DECODING),
            "computing_s": sum(busy_s for (resource, _), busy_s in tally.busy_s.items() if resource == main),
            "storing_s": now_s * world.storage_utilisation(now_s),
            "units_wanted": record.units_wanted,
            "units_reused": record.units_reused,
        }
        return cls(sums, world.energy_j(now_s))

    def extended(self, since: "Totals", times: float) -> "Totals":
        """With what came since then, so many times more."""

        def more(now: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
            return {name: value + times * (value - before.get(name, 0.0)) for name, value in now.items()}

        return Totals(more(self.sums, since.sums), more(self.energy_j, since.energy_j))


@dataclass(frozen=True)
class Paces:
    """Steps that were carried out, over all sequences, and what a whole output comes to."""

    totals: Totals
    batch: int
    # Tokens after each sequence's first, and seconds in which they were decoded.
    tokens: float
    decoding_s: float
    tpot_s: float


def paces_of(
    scenario: Scenario, flow: Decoding, batch: int, half: Totals | None, end: Totals, *, interrupted: bool
) -> Paces | None:
    """The whole output's: tokens that were not decoded follow at the pace of the second half of those that were, and
    take as much of everything (left out: what reads all of a growing cache reads and attends more towards the end).
    Interrupted, only what was decoded. None where no sequence has two tokens.

    `half`: the totals as that half began; None where everything was decoded.
    """
    if isinstance(flow, InMemoryDecode):
        tokens = sum(n * len(steps_s) for n, steps_s in flow.waves)
        if not tokens:
            return None
        decoding_s = sum(sum(steps_s) for _, steps_s in flow.waves)
        tpot_s = sum(n * sum(steps_s) for n, steps_s in flow.waves) / tokens
        return Paces(end, batch, tokens, decoding_s, tpot_s)
    times_s = flow.record.token_times_s
    done = len(times_s) - 1
    if done < 1:
        return None
    decoding_s, rest = times_s[-1] - times_s[0], scenario.workload.output - 1 - done
    if interrupted or half is None or rest <= 0:
        return Paces(end, batch, batch * done, decoding_s, decoding_s / done)
    late = done - half_of(done + 1)
    decoding_s += rest / late * (times_s[-1] - times_s[-1 - late])
    return Paces(end.extended(half, rest / late), batch, batch * (done + rest), decoding_s, decoding_s / (done + rest))


def half_of(tokens: int) -> int:
    """The step with which the second half of so many tokens' steps begins."""
    return (tokens - 1) // 2


def decoded_of(flow: Decoding, batch: int, output: int) -> str:
    """For the user: how many tokens there are, of how many."""
    if isinstance(flow, InMemoryDecode):
        tokens = sum(n * (1 + len(steps_s)) for n, steps_s in flow.waves)
        return f"{tokens:,} of {batch * output:,} tokens of {_sequences(batch)}"
    each = len(flow.record.token_times_s)
    return f"{each:,} of {output:,} tokens of {_sequences(flow.plan.sequences)}{' each' if batch > 1 else ''}"


def _sequences(n: int) -> str:
    return f"{n} sequence{'s' if n > 1 else ''}"


def figures_of(scenario: Scenario, flow: Decoding, paces: Paces) -> dict[str, float]:
    """``block_s``: TPOT over layers. ``io_to_compute``: time in reads over time in a block's ops, both while decoding.
    Throughput counts all sequences' tokens, over the time spent decoding (``measure: decode``) or all of it. All but
    ``tokens_decoded``, which were really decoded, is of the whole output."""
    sums, batch = paces.totals.sums, paces.batch
    total_s, tokens = paces.decoding_s, paces.tokens
    if scenario.measure != "decode":
        # The first tokens come from prefill.
        total_s, tokens = sums["duration_s"], tokens + _first_tokens(flow, batch)
    figures = {
        "throughput_tokens_per_s": tokens / total_s,
        "seconds_per_token": total_s / tokens,
        "tpot_s": paces.tpot_s,
        "block_s": paces.tpot_s / scenario.model.layers,
        "batch": float(batch),
        "tokens_decoded": float(len(flow.record.token_times_s)),
        "read_bytes": sums["read_bytes"],
        "write_bytes": sums["write_bytes"],
        "storage_utilisation": sums["storing_s"] / sums["duration_s"],
        "compute_utilisation": sums["computing_s"] / sums["duration_s"],
    }
    if sums["reading_s"] and sums["block_ops_s"]:
        figures["io_to_compute"] = sums["reading_s"] / sums["block_ops_s"]
    if isinstance(flow, OffloadedDecode):
        plan = flow.plan
        figures["kv_metadata_bytes"] = plan.sequences * plan.metadata_bytes
        figures["kv_buffer_bytes"] = plan.sequences * plan.buffer_bytes
        if sums["units_wanted"] and plan.slots:
            figures["reuse_rate"] = sums["units_reused"] / sums["units_wanted"]
    return figures


def _first_tokens(flow: Decoding, batch: int) -> int:
    return sum(n for n, _ in flow.waves) if isinstance(flow, InMemoryDecode) else batch
