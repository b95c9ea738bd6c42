"""How much of a model's weights leaves the processor's memory, and in which layers."""

from collections.abc import Callable
from dataclasses import dataclass

from kvferry.policies.ledger import Holding
from kvferry.specs.model import ModelSpec
from kvferry.specs.offload import OffloadSpec

# Layers whose weights are in the processor's memory on their way: one that is computed with, one that comes.
ON_THEIR_WAY = 2


@dataclass(frozen=True)
class Offload:
    """The weights of ``layers`` layers lie elsewhere, as ``spec`` says: all of a layer's, or its routed experts'."""

    spec: OffloadSpec
    model: ModelSpec
    layers: int

    @classmethod
    def fitting(
        cls, spec: OffloadSpec, model: ModelSpec, room_bytes: float, kv_bytes: Callable[[ModelSpec], float]
    ) -> "Offload":
        """Returns as few layers as leave room in `room_bytes` for all other weights and the KV of the layers that
        stay, `kv_bytes` of them; the most there can be where no number does. A number that is said is taken."""
        if spec.layers != "auto":
            return cls(spec, model, spec.layers)
        every = [cls(spec, model, layers) for layers in range(cls(spec, model, 0).most + 1)]
        return next((one for one in every if one.near_bytes + kv_bytes(one.near_model) <= room_bytes), every[-1])

    @property
    def most(self) -> int:
        """Returns how many layers can be elsewhere. Where the CPU computes, one layer stays: all of them on the CPU is
        `processor: cpu`."""
        mixture = self.model.experts
        if self.spec.what == "experts":
            return self.model.layers - (mixture.dense_layers if mixture else 0)
        return self.model.layers - (self.spec.to == "cpu")

    @property
    def layer_bytes(self) -> float:
        """Returns what of one layer lies elsewhere."""
        mixture = self.model.experts
        parameters = self.model.matrices.layer_parameters
        if self.spec.what == "experts":
            parameters = 0.0 if mixture is None else mixture.routed * 3.0 * self.model.hidden * mixture.ffn
        return parameters * self.model.matrices.layer_bits / 8

    @property
    def away_bytes(self) -> float:
        """Returns what lies elsewhere."""
        return self.layers * self.layer_bytes

    @property
    def near_bytes(self) -> float:
        """Returns what the weights take of the processor's memory, with what is on its way there."""
        return self.model.weight_bytes - self.away_bytes + min(ON_THEIR_WAY, self.layers) * self.layer_bytes

    @property
    def kv_layers(self) -> int:
        """Returns the layers whose KV is in the processor's memory: KV is where attention is computed."""
        return self.model.layers - (self.layers if self.moves_kv else 0)

    @property
    def near_model(self) -> ModelSpec:
        """Returns the model as far as its KV is in the processor's memory."""
        moved = self.model.layers - self.kv_layers
        full = tuple(layer - moved for layer in self.model.full_layers if layer >= moved)
        return self.model.model_copy(update={"layers": self.kv_layers, "full_layers": full})

    @property
    def moves_kv(self) -> bool:
        """Returns whether attention of these layers is computed elsewhere."""
        return self.spec.to == "cpu" and self.spec.what == "layers"

    @property
    def away(self) -> tuple[int, ...]:
        """Returns the layers, ascending. The CPU's are the first, so that hidden states cross once. Others are spread
        evenly, the last layer among them: while layers between them compute, the next one's weights come."""
        if self.moves_kv:
            return tuple(range(self.layers))
        return tuple((n + 1) * self.model.layers // self.layers - 1 for n in range(self.layers))

    @property
    def holdings(self) -> tuple[Holding, ...]:
        """Returns what the weights take of each tier."""
        on_their_way = min(ON_THEIR_WAY, self.layers) * self.layer_bytes
        away_bytes, tier = self.away_bytes, self.spec.tier
        found = [Holding.of("weights", self.model.weight_bytes - away_bytes)]
        if self.layers:
            found.append(Holding("weights", lambda tokens: away_bytes, tier=tier))
            found.append(Holding.of("workspace: weights on their way", on_their_way))
        return tuple(found)
