"""A device that has no storage, under a scenario that reads from it."""

from kvferry.scenarios.library import names
from kvferry.scenarios.resolve import Complaint
from kvferry.specs.scenario import Scenario


def without_storage(scenario: Scenario, what: str, or_else: str = "") -> Complaint:
    """The fault of its key, with the line to type; `or_else` is what would do besides."""
    whole = [name for name in names("storage") if not name.endswith("-two-reads")]
    first, *others = sorted(whole, key=lambda name: name != "nvme")
    would = f"--set device.storage={first} (or {', '.join(others)}){or_else}"
    return Complaint(("device", "storage"), f"{what}, and {scenario.device.name} has none; {would}")
