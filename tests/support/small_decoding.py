"""The pipeline of decoding with KV on storage over a small real model, in a folder."""

from pathlib import Path
from typing import Any

import numpy as np
from tiny import LIVE_LATENT_MODEL, LIVE_MODEL

from kvferry.pipelines.decoding.decode import LockStepDecode
from kvferry.pipelines.decoding.plan import DecodePlan
from kvferry.pipelines.decoding.sizing import plan_of
from kvferry.policies.decode.roles import Roles
from kvferry.specs.model import ModelSpec


def small_model() -> Any:
    """Weights so large that attention has something to choose."""
    from kvferry.model.models import random_model

    return random_model("qwen3", ModelSpec.model_validate(LIVE_MODEL), seed=0, spread=0.2)


def small_latent_model(**latent: int) -> Any:
    """The same with a latent cache."""
    from kvferry.model.models import random_model

    spec = {**LIVE_LATENT_MODEL, "latent": {**LIVE_LATENT_MODEL["latent"], **latent}}
    return random_model("deepseek_v3", ModelSpec.model_validate(spec), seed=0, spread=0.2)


class SmallDecoding:
    """``run`` decodes random prompts; ``logits`` has what was said before every token."""

    def __init__(
        self,
        model: Any,
        folder: Path,
        roles: Roles,
        *,
        context: int,
        batch: int = 1,
        output: int = 12,
        free_bytes: float | None = None,
        copies: Any = None,
    ) -> None:
        """`free_bytes` per sequence are for KV beside what manages it; `copies` as KvTiers has them."""
        import torch

        from kvferry.backends.live.decoding.build import format_of
        from kvferry.backends.live.decoding.indexes.table import index_maker
        from kvferry.backends.live.decoding.layers import Layers
        from kvferry.backends.live.decoding.tiers import KvTiers
        from kvferry.backends.live.engine.machine import LiveMachine
        from kvferry.backends.live.engine.stream import streams_of
        from kvferry.disk.direct_storage import Storage
        from kvferry.layouts.cluster_layout import ClusterLayout
        from kvferry.model.decoders import decoder_of
        from kvferry.model.models import spec_of

        spec = spec_of(model)
        self.plan: DecodePlan = plan_of(roles, spec, sequences=batch, context=context, output=output, budget_bytes=1e7)
        if free_bytes is not None:
            self.plan = self.plan.within(self.plan.memory.sequence_bytes + free_bytes)
        self.ids = np.random.default_rng(3).integers(0, 256, (batch, context)).tolist()
        layout, index = self.plan.layout, None
        if self.plan.keys.index is not None:
            index = index_maker(self.plan.keys.index.kind)(
                decoder_of(model),
                torch.tensor(np.random.default_rng(4).integers(0, 256, (1, 200)), device=model.device),
                self.plan.keys.index,
                sequences=batch,
                room_tokens=layout.blocks * self.plan.choice.group_tokens,
            )
        self.logits: list[Any] = []
        by_layer = not isinstance(layout, ClusterLayout)
        self.tiers = KvTiers(self.plan.file_bytes, copies, spec.layers, layers=by_layer)
        self.runner: Any = Layers(
            model,
            self.ids,
            format_of(self.plan, torch.float32),
            output=output,
            slots=self.plan.staying.slots,
            index=index,
            rebuilt_rank=self.plan.keys.rebuilt_rank,
            listen=lambda logits, of: self.logits.append(logits),
            tiers=self.tiers,
        )
        self.storage = Storage.create(folder / "kv.bin", self.plan.file_bytes)
        self.machine = LiveMachine(
            "here",
            self.runner,
            capacity_bytes=1e9,
            host_bytes=1e9,
            storage=self.storage,
            source=self.tiers.source,
            place=self.tiers.place,
            stream=streams_of(str(model.device)),
        )
        self.flow = LockStepDecode(self.machine, self.plan, self.after_each_token)
        self.output = output

    def run(self) -> list[list[int]]:
        with self.storage, self.machine:
            self.machine.env.run(until=self.machine.env.process(self.flow.run(self.output)))
        answers: list[list[int]] = self.runner.answers
        return answers

    def after_each_token(self, tokens: int) -> None:
        """Called as the pipeline reports tokens."""


def exact_logits(model: Any, ids: list[list[int]], answers: list[list[int]]) -> Any:
    """[tokens, sequences, vocabulary]: what the whole model says before each token of the answers."""
    import torch

    said = torch.tensor([one + answer for one, answer in zip(ids, answers, strict=True)])
    with torch.no_grad():
        logits = model(said).logits
    return logits[:, len(ids[0]) - 1 : -1].transpose(0, 1)
