"""Known figures of how good a selection is, for a way of decoding as a system composes it."""

from kvferry.pipelines.decoding.systems import ROLES
from kvferry.policies.decode.attention_mass import AttentionMass, attention_mass
from kvferry.policies.decode.roles import Roles
from kvferry.policies.decode.window import Window


def attention_mass_of(roles: Roles, attended_share: float, block_tokens: int) -> AttentionMass | None:
    """Returns the share of attention mass on that share of the tokens, as measured for this selector; None where it is
    not known, as of a selector of a plugin."""
    selector = _name("selector", roles.selector)
    if isinstance(roles.selector, Window) and roles.selector.sink_tokens:
        selector += "+sinks"
    upkeep, per_head = _name("upkeep", roles.upkeep), roles.selector.per_head
    return attention_mass(selector, attended_share, per_head=per_head, upkeep=upkeep, block_tokens=block_tokens)


def _name(role: str, part: object) -> str:
    """Returns the name by which a scenario calls it; empty without one."""
    return next((name for name, maker in ROLES[role].items() if maker is type(part)), "")
