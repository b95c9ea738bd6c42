"""What decoding said and attended to beside full attention, gathered step by step: the figures of runs and studies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from kvferry.backends.live.quality.full_attention import divergence, same_token
from kvferry.backends.live.quality.tasks import Task

# Metrics by key.
Figures = dict[str, float]


@dataclass
class Measured:
    """Gathers steps of all sequences: next tokens that are the same, divergence from full attention in nats, hits and
    mass held by layer and step, nats of text that was said, and answers that are right."""

    same: list[torch.Tensor] = field(default_factory=list)
    apart: list[torch.Tensor] = field(default_factory=list)
    hits: list[float] = field(default_factory=list)
    held: list[float] = field(default_factory=list)
    nats: list[torch.Tensor] = field(default_factory=list)
    full_nats: list[torch.Tensor] = field(default_factory=list)
    right: list[bool] = field(default_factory=list)
    full_right: list[bool] = field(default_factory=list)

    def add_steps(self, task: Task, own: torch.Tensor, full: torch.Tensor) -> None:
        """Adds a sequence's log probabilities [steps, vocabulary] of all tokens but the first, which prefill says."""
        self.same.append(same_token(own, full))
        self.apart.append(divergence(own, full))
        given = task.said[1 : len(own) + 1]
        for each, nats, right in ((own, self.nats, self.right), (full, self.full_nats, self.full_right)):
            if task.answers:
                right += task.right(np.array([task.said[0], *each.argmax(-1).tolist()]))
            elif given:
                nats.append(-each[torch.arange(len(each)), torch.tensor(given)])

    def add_attended(self, hits: Sequence[float], held: Sequence[float]) -> None:
        """Adds both figures of each step of a layer (``AttendedTokens.hits_and_mass``)."""
        self.hits += hits
        self.held += held

    def figures(self) -> Figures:
        """Returns metrics by key; none where no step was added."""
        if not self.same:
            return {}
        # Below 0 by rounding alone.
        apart = torch.cat(self.apart).clamp(min=0).numpy()
        figures = {
            "agreement_share": float(torch.cat(self.same).float().mean()),
            "kl_nats": float(apart.mean()),
            "kl_p95_nats": float(np.percentile(apart, 95)),
            "attention_mass": float(np.mean(self.held)) if self.held else 1.0,
        }
        if self.hits and not np.isnan(self.hits).all():
            figures["recall_share"] = float(np.nanmean(self.hits))
        if self.nats:
            own, full = (float(torch.cat(nats).mean()) for nats in (self.nats, self.full_nats))
            figures |= {"perplexity": math.exp(own), "perplexity_over_full": math.exp(own - full)}
        if self.right:
            figures["right_share"] = float(np.mean(self.right))
            figures["full_attention_right_share"] = float(np.mean(self.full_right))
        return figures
