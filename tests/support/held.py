"""What a machine holds before any KV."""

import math

from kvferry.policies.engine_memory import engine_holdings
from kvferry.policies.ledger import Ledger
from kvferry.specs.machine import DEVICE
from kvferry.specs.scenario import Scenario


def engine_bytes(scenario: Scenario, machine: str = DEVICE) -> int:
    """The sum of its holdings, each in whole bytes."""
    return sum(map(math.ceil, Ledger(engine_holdings(scenario.seen_by(machine))).at(0).values()))
