"""What refining a prompt costs.

`byte-large` is the cloud: it reads a whole prompt, and what its attention shows decides what of it is kept
(policies/assist/refiner.py). `byte-small` is the device: it reads what was kept, as text that closes up, and the
question, and is made to say the answer. Probes:

needle   eight facts between the lines of a text; the question asks for one of them
copy     eight lines of random letters between them; the question is one's first half, the answer its second

Refiners choose at a ratio r of the prompt, question included; the observation window is the question. Columns, in the
mean over prompts, with the least and largest mean of a seed where they differ:

exact    answers whose every byte was likeliest
bytes    bytes of answers that were likeliest
agree    bytes of answers whose likeliest is that of the device with the whole prompt
KL       mean divergence of the next byte's distribution from that of the device with the whole prompt, in nats
held     prompts whose kept part holds the whole fact, or line
"""

import sys
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from transformers import PreTrainedModel

from kvferry.backends.live.quality.full_attention import apart
from kvferry.backends.live.quality.tasks import CODE, FACT, NEEDLES, QUESTION
from kvferry.model.decoder import Decoder
from kvferry.model.models import load_model
from kvferry.model.prompts import Prompts
from kvferry.model.whole_prefill import prefill_layer
from kvferry.policies.assist.refiner import REFINERS, Refiner, Shown, best_sentences, content_tokens

RATIOS = (0.25, 0.4, 0.6, 0.8)
LETTERS = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz", np.uint8)


@dataclass(frozen=True)
class RandomSentences:
    """A Refiner that any sentence is as good for as another."""

    seed: int

    def kept(self, shown: Shown, tokens: int) -> np.ndarray:
        names = np.unique(shown.sentences)
        drawn = np.random.default_rng([11, self.seed]).random(int(names.max()) + 1)
        return best_sentences(shown.sentences, drawn[shown.sentences], tokens)


@dataclass(frozen=True)
class Probe:
    """`content` may be refined; `fact` lies in it from that byte to that."""

    kind: str
    seed: int
    content: bytes
    question: bytes
    answer: bytes
    fact: tuple[int, int]


def needles(prompts: Prompts, context: int, seed: int) -> Iterator[Probe]:
    random = np.random.default_rng([7, seed])
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    facts = [("".join(random.choice(letters, 7)), str(random.integers(10**5, 10**6))) for _ in range(NEEDLES)]
    content, places = strewn(prompts, context, 100 + seed, [FACT.format(*fact).encode() for fact in facts])
    for (key, value), place in zip(facts, places, strict=True):
        yield Probe("needle", seed, content, b"\n" + QUESTION.format(key).encode(), value.encode() + b".", place)


def copies(prompts: Prompts, context: int, seed: int) -> Iterator[Probe]:
    random = np.random.default_rng([8, seed])
    codes = [bytes(random.choice(LETTERS, 2 * CODE).tolist()) for _ in range(NEEDLES)]
    content, places = strewn(prompts, context, 200 + seed, [code + b"\n" for code in codes])
    for code, (a, b) in zip(codes, places, strict=True):
        yield Probe("copy", seed, content, b"\n" + code[:CODE], code[CODE:], (a, b - 1))


def strewn(prompts: Prompts, context: int, text: int, facts: list[bytes]) -> tuple[bytes, list[tuple[int, int]]]:
    """A text with facts between its lines, evenly, so that each is a sentence of its own; and where they lie."""
    lines = bytes(prompts.tokens(text, context, 0)[0]).splitlines(keepends=True)
    cuts = np.linspace(0, len(lines), len(facts) + 2).astype(int)
    content, places = b"", []
    for fact, a, b in zip(facts, cuts, cuts[1:], strict=False):
        content += b"".join(lines[a:b])
        content += b"" if content.endswith(b"\n") else b"\n"
        places.append((len(content), len(content) + len(fact)))
        content += fact
    return content + b"".join(lines[cuts[-2] :]), places


def sentences_of(content: bytes) -> np.ndarray:
    """int[bytes]: a sentence ends with a line, or with a full stop before a space."""
    text = np.frombuffer(content, np.uint8)
    ends = text == ord("\n")
    ends[:-1] |= (text[:-1] == ord(".")) & (text[1:] == ord(" "))
    return np.concatenate([[0], np.cumsum(ends)[:-1]])


@torch.no_grad()
def shown_by(model: PreTrainedModel, probe: Probe) -> Shown:
    """The attention of every query head of every layer, by prefill of the whole prompt."""
    decoder = Decoder(model)
    ids = torch.tensor([list(probe.content + probe.question)])
    n, content = ids.shape[1], len(probe.content)
    rotary, hidden = decoder.rotary(n), decoder.embed(ids)
    later = torch.ones(n, n, dtype=torch.bool).triu(1)
    window, whole = [], []
    for layer in range(decoder.layers):
        hidden, queries, keys, _ = prefill_layer(decoder, layer, hidden, rotary)
        grouped = queries[0].unflatten(0, (decoder.heads, -1)).float() * decoder.head_dim**-0.5
        weights = (grouped @ keys[0].float()[:, None].mT).masked_fill(later, -torch.inf).softmax(-1).flatten(0, 1)
        window.append(weights[:, content:, :content].sum(1))
        whole.append(weights[:, :, :content].sum(1))
    return Shown(torch.cat(window).numpy(), torch.cat(whole).numpy(), sentences_of(probe.content))


@torch.no_grad()
def said(model: PreTrainedModel, content: bytes, probe: Probe) -> torch.Tensor:
    """float[bytes of the answer, vocabulary]: logarithms of probabilities before each of them, behind this content."""
    ids = torch.tensor([list(content + probe.question + probe.answer)])
    logits: torch.Tensor = model(ids).logits
    return logits[0, -len(probe.answer) - 1 : -1].float().log_softmax(-1)


def judged(own: torch.Tensor, full: torch.Tensor, probe: Probe, held: bool) -> dict[str, float]:
    right = own.argmax(-1) == torch.tensor(list(probe.answer))
    return {
        "exact": float(right.all()),
        "bytes": float(right.float().mean()),
        **apart(own, full),
        "held": float(held),
    }


def measured(
    probe: Probe, cloud: PreTrainedModel, device: PreTrainedModel
) -> Iterator[tuple[str, float, dict[str, float]]]:
    """Who chose, the ratio, and figures."""
    whole = said(device, probe.content, probe)
    yield "the cloud, whole prompt", 1.0, judged(said(cloud, probe.content, probe), whole, probe, True)
    yield "whole prompt", 1.0, judged(whole, whole, probe, True)
    yield "question alone", 0.0, judged(said(device, b"", probe), whole, probe, False)
    shown = shown_by(cloud, probe)
    text, fixed = np.frombuffer(probe.content, np.uint8), len(probe.question)
    refiners: dict[str, Refiner] = {**REFINERS, "random sentences": RandomSentences(probe.seed)}
    for name, refiner in refiners.items():
        for ratio in RATIOS:
            kept = refiner.kept(shown, content_tokens(len(text) + fixed, fixed, ratio))
            held = bool(kept[slice(*probe.fact)].all())
            yield name, ratio, judged(said(device, text[kept].tobytes(), probe), whole, probe, held)


def figures_of(found: list[tuple[int, dict[str, float]]]) -> dict[str, list[float]]:
    """Mean, and least and largest mean of a seed, of each column."""
    seeds = sorted({seed for seed, _ in found})
    columns: dict[str, list[float]] = {}
    for name in found[0][1]:
        means = [float(np.mean([one[name] for of, one in found if of == seed])) for seed in seeds]
        columns[name] = [float(np.mean([one[name] for _, one in found])), min(means), max(means)]
    return columns


def drawn(rows: list[dict[str, Any]], probes: list[str]) -> Figure:
    figure = Figure(figsize=(9, 6.5), layout="constrained")
    axes = figure.subplots(2, len(probes), squeeze=False, sharex=True)
    for column, probe in enumerate(probes):
        for row, (name, label) in enumerate(
            (("exact", "answers that are right"), ("KL", "KL from the whole prompt, nats"))
        ):
            panel = axes[row][column]
            for who in dict.fromkeys(one["by"] for one in rows):
                of = [one for one in rows if one["by"] == who and one["probe"] == probe]
                points = sorted((one["ratio"], one["figures"][name]) for one in of)
                x, y = [ratio for ratio, _ in points], np.array([values for _, values in points])
                if len(x) > 1:
                    spread = np.abs(y[:, 1:].T - y[:, 0])
                    panel.errorbar(x, y[:, 0], yerr=spread, marker="o", markersize=4, capsize=2, label=str(who))
                elif name == "exact":
                    style = {"the cloud, whole prompt": ":", "whole prompt": "--", "question alone": "-."}[str(who)]
                    panel.axhline(y[0, 0], color="grey", linestyle=style, linewidth=1, label=str(who))
            panel.set_title(f"{probe} probes" if row == 0 else "")
            panel.set_ylabel(label if column == 0 else "")
            panel.set_xlabel("ratio r" if row else "")
            panel.set_ylim(bottom=-0.02 if name == "exact" else 0)
            panel.grid(alpha=0.3)
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=8)
    return figure


def measure(asked: Namespace, cloud: PreTrainedModel, prompts: Prompts) -> dict[str, Any]:
    began_s, device = perf_counter(), load_model(asked.device, "float32")
    found: dict[tuple[str, str, float], list[tuple[int, dict[str, float]]]] = {}
    for seed in range(asked.seeds):
        for probe in (*needles(prompts, asked.context, seed), *copies(prompts, asked.context, seed)):
            for by, ratio, figures in measured(probe, cloud, device):
                found.setdefault((probe.kind, by, ratio), []).append((seed, figures))
        print(f"seed {seed}: {perf_counter() - began_s:.0f} s", file=sys.stderr)
    in_order = sorted(found.items(), key=lambda one: (one[0][0] != "needle", one[0][1], one[0][2]))
    rows: list[dict[str, Any]] = [
        {"probe": probe, "by": by, "ratio": ratio, "prompts": len(of), "figures": figures_of(of)}
        for (probe, by, ratio), of in in_order
    ]
    print(
        f"{'probe':7}{'by':26}{'r':>5}" + "".join(f"{name:>20}" for name in ("exact", "bytes", "agree", "KL", "held"))
    )
    for row in rows:
        cells = "".join(f"{mean:8.2f} ({least:.2f}-{most:.2f})" for mean, least, most in row["figures"].values())
        print(f"{row['probe']:7}{row['by']:26}{row['ratio']:5.2f}{cells}")
    if asked.picture:
        drawn(rows, ["needle", "copy"]).savefig(asked.picture, dpi=110)
    return {"rows": rows}
