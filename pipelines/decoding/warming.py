"""Decoding on a device that warms up: how fast a token comes depends on all tokens before it, so none is skipped."""

from kvferry.specs.base import BadKey
from kvferry.specs.errors import InputError
from kvferry.specs.scenario import Scenario

ALL_DECODED = "all tokens are decoded, whatever workload.decoded says: each leaves the device warmer"


def warms_up(scenario: Scenario) -> bool:
    """Returns whether the heat of the scenario's device is modelled."""
    return scenario.backend == "sim" and scenario.device.heat is not None


def check_whole(scenario: Scenario) -> None:
    """Raises InputError where the whole output is too long to be decoded token by token."""
    try:
        scenario.decode.workload.model_copy(update={"decoded": None}).check_size(scenario.model, per_head=False)
    except BadKey as error:
        what = str(error).partition(", and workload.decoded")[0]
        why = f"{scenario.device.name} warms up, so every token is decoded, and {what}"
        raise InputError(f"{error.key}: {why}; or device.heat of null, which keeps it cool") from None
