"""How many blocks of KV a device may keep between turns."""

from math import inf

from kvferry.policies.keep.kept import Room
from kvferry.sessions.answering import AnswerStage, whole_prompt
from kvferry.sessions.systems import SessionSystem
from kvferry.specs.scenario import Scenario
from kvferry.traces.turn import Turns


def block_bytes_of(scenario: Scenario, turns: Turns) -> float:
    """Returns what a block takes in memory."""
    return float(turns.block * scenario.model.kv_bytes_per_token)


def memory_room(scenario: Scenario, turns: Turns) -> int:
    """Returns how many blocks the budget lets any system keep in memory."""
    kept_bytes = scenario.session.budget.kept_memory_bytes or scenario.device.memory.free_bytes
    return int(kept_bytes // block_bytes_of(scenario, turns))


def room_for(scenario: Scenario, system: SessionSystem, stage: AnswerStage, turns: Turns) -> Room:
    """Returns as much as the budgets say; on flash no more than the longest turn leaves free there."""
    budget, device, places = scenario.session.budget, scenario.device, system.places
    capacity = inf if device.storage is None else device.storage.capacity_bytes or inf
    file_bytes = stage.file_bytes(whole_prompt(turns.longest))
    flash = max(0.0, min(budget.kept_flash_bytes or inf, capacity - file_bytes))
    return Room(
        memory=memory_room(scenario, turns) if "memory" in places else 0,
        flash=int(min(flash / stage.flash_bytes(turns.block), 2**53)) if "flash" in places else 0,
        cloud="cloud" in places,
    )
