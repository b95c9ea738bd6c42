"""Ways of decoding, as a scenario would write them."""

from typing import Any

from kvferry.pipelines.decoding.systems import DECODE_SYSTEMS
from kvferry.policies.decode.roles import Roles


def roles_of(system: str, **policies: Any) -> Roles:
    """Those of a system, some of its policies replaced."""
    return DECODE_SYSTEMS[system].with_policies(policies).roles
