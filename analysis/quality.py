"""Which systems answer at lower quality than others, by what is known: KV errors of encodings, bits of KV, tokens
attended to, and what of a prompt is kept."""

from collections.abc import Mapping

from kvferry.codecs.sizes import FULL_KV_BITS
from kvferry.specs import human

Metrics = Mapping[str, float]

# Behind the name of such a system.
MARK = "*"
# Explains the mark where no other quality is known.
SPARSE = f"{MARK} attends to a part of the tokens"
COARSER = f"{MARK} streamed coarser KV than others"
ROUNDED = f"{MARK} keeps KV in fewer bits than others"
SHORTENED = f"{MARK} prefills a part of the prompt"
_BITS = "streamed_bits_per_value"
# Systems with less than this share of the most bits are marked, or with this many times the smallest error.
_AS_MANY_BITS = 0.97
_AS_EXACT = 1.1
# This many times the fewest tokens attended to are still as many: blocks are whole.
_AS_MANY_TOKENS = 1.25


def lower_quality(systems: Mapping[str, Metrics]) -> dict[str, str]:
    """Systems whose figures are not those of equal quality, and why: the ones that attend to a part of the tokens, by
    how many that are, that prefill a part of the prompt, that keep KV in fewer bits than another does, and that
    streamed clearly coarser KV, by how coarse it was."""
    sparse = {name: _attended(one) for name, one in systems.items() if _is_sparse(one)}
    found: dict[str, str] = {}
    for whys in (coarser(systems), rounded(systems), sparse, shortened(systems)):
        found |= {name: f"{found[name]}, {why}" if name in found else why for name, why in whys.items()}
    return found


def is_unknown(figure: str, metrics: Metrics) -> bool:
    """Whether this figure of quality applies to the run, and nothing is known of it."""
    if figure in metrics:
        return False
    if figure == "attention_mass":
        return _is_sparse(metrics)
    return figure == "kv_relative_error" and bool(metrics.get(_BITS))


def footnotes(systems: Mapping[str, Metrics]) -> list[str]:
    """What the marks mean."""
    lines = []
    if coarser(systems):
        most = max(one[_BITS] for one in systems.values() if _BITS in one)
        how = f"fewer than {most:.3g} bits per value"
        if errors := _errors(systems):
            how = f"errors of what was streamed above {human.percent(min(errors.values()))}"
        lines.append(f"{MARK} {how}: coarser KV, hence answers of lower quality")
    sparse = [one for one in systems.values() if _is_sparse(one)]
    if sparse:
        measured = (
            " attention mass (± half the difference of two texts), measured on them with the bundled byte-large"
            " model at 4,096 tokens, interpolated, is an indication on other models and lengths"
        )
        if all("agreement_share" in one for one in sparse):
            measured = " how far they are from full attention was measured in these runs"
        lines.append(
            f"{MARK} attends to a part of the tokens: not of equal quality with systems that attend to all;{measured}"
        )
        selected = [one["attended_tokens"] for one in systems.values() if _is_sparse(one)]
        if max(selected) > _AS_MANY_TOKENS * min(selected):
            # In a session the number is a setting of its decode system.
            how = "policies.decode.selected_tokens=N" if "computed_share" in sparse[0] else "--equal-tokens N"
            lines.append(f"{MARK} of these some attend to more tokens than others; {how} gives all the same number")
    if few := rounded(systems):
        lines.append(f"{ROUNDED} ({', '.join(few)}): coarser KV, hence answers of lower quality")
    if part := shortened(systems):
        what = "which the cloud chose: not of equal quality with systems that keep all of it"
        lines.append(f"{SHORTENED} ({', '.join(part)}), {what}")
    return lines


def rounded(systems: Mapping[str, Metrics]) -> dict[str, str]:
    """Systems whose KV has fewer bits than another's, and how many."""
    bits = {name: one.get("kv_bits_per_value", FULL_KV_BITS) for name, one in systems.items() if one}
    return {name: f"{own:.3g}-bit KV" for name, own in bits.items() if own < max(bits.values())}


def shortened(systems: Mapping[str, Metrics]) -> dict[str, str]:
    """Systems whose device prefills a part of the prompt, and how much."""
    kept = {name: one.get("assisted_ratio", 1.0) for name, one in systems.items()}
    return {name: f"{human.percent(own)} of the prompt" for name, own in kept.items() if own < 1}


def _is_sparse(metrics: Metrics) -> bool:
    return metrics.get("attended_share", 1.0) < 1


def _attended(metrics: Metrics) -> str:
    tokens = metrics["attended_tokens"]
    return f"{human.count(tokens)} of {human.count(tokens / metrics['attended_share'])} tokens"


def coarser(systems: Mapping[str, Metrics]) -> dict[str, str]:
    """By the error of what was streamed, which encodings of equally many bits need not share; by bits per value where
    that of a system is not known."""
    if (errors := _errors(systems)) is not None:
        return {
            name: f"KV error {human.percent(own)}"
            for name, own in errors.items()
            if own > _AS_EXACT * min(errors.values())
        }
    bits = {name: one[_BITS] for name, one in systems.items() if _BITS in one}
    return {name: f"{own:.3g} bits" for name, own in bits.items() if own < _AS_MANY_BITS * max(bits.values())}


def _errors(systems: Mapping[str, Metrics]) -> dict[str, float] | None:
    """The KV error of what each system streamed, without what it computed, which has none; None where one is unknown.
    Squared errors add up."""
    streamed = {name: one for name, one in systems.items() if _BITS in one}
    if not all("kv_relative_error" in one and one.get("streamed_share") for one in streamed.values()):
        return None
    return {name: one["kv_relative_error"] / one["streamed_share"] ** 0.5 for name, one in streamed.items()} or None
