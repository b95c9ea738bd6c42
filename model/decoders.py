"""The decoder for each family of models."""

from transformers import PreTrainedModel

from kvferry.model.decoder import Decoder
from kvferry.model.decoder_kinds import (
    FusedDecoder,
    MultipliedDecoder,
    NormedBehindDecoder,
    PartlyTurningDecoder,
    WindowedDecoder,
)
from kvferry.model.latent_decoder import LatentDecoder
from kvferry.specs.errors import pick

# With keys and values of heads.
_OF_HEADS = (Decoder, FusedDecoder, PartlyTurningDecoder, MultipliedDecoder, NormedBehindDecoder, WindowedDecoder)


def decoder_of(model: PreTrainedModel, *, latent: bool = True) -> Decoder:
    """Returns the decoder for a model's kind of attention. Raises InputError for a family that has none; without
    `latent` also for one with a latent cache."""
    kinds = (*_OF_HEADS, LatentDecoder) if latent else _OF_HEADS
    by_family = {family: kind for kind in kinds for family in kind.families}
    return pick("model family", by_family, model.config.model_type)(model)
