"""Refusals of a latent cache (MLA), whose entries are no keys and values of heads."""

from collections.abc import Iterator

from kvferry.policies.decode.blocking import ValueGroups
from kvferry.policies.decode.roles import Roles
from kvferry.policies.decode.scored_keys import CompressedKeys

_LATENT = "the model's cache is latent (model.latent)"


def latent_faults(roles: Roles) -> Iterator[tuple[str, str]]:
    """Roles that cannot be, each with the reason and what would do."""
    if isinstance(roles.selector, CompressedKeys):
        what = "which have no low rank beyond it; retrieval-head, page-bounds, landmarks or all would do"
        yield "selector", f"{_LATENT}: it is scored by its own vectors, {what}"
    elif roles.selector.clusters:
        what = "and clusters are made of a head's keys; retrieval-head, page-bounds, landmarks or all would do"
        yield "selector", f"{_LATENT}: it has one vector for all heads, {what}"
    if isinstance(roles.layout, ValueGroups):
        yield "layout", f"{_LATENT}: it has no values that could be read without keys; groups would do"
    elif roles.layout.clusters:
        yield "layout", f"{_LATENT}: it is not laid out by clusters of keys; groups would do"
