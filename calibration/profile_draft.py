"""A device profile in the making: what was measured stands over what a base profile says, each with its source."""

from typing import Any

import yaml

from kvferry.specs.device import DeviceSpec


class Draft:
    """Keys are the paths of a profile (`processors.cpu.dispatch_s`); values carry units as in a file."""

    def __init__(self, name: str, base: DeviceSpec) -> None:
        """Everything of the base but its processors: other hardware than what is measured."""
        self.base = base
        content = base.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
        self.profile: dict[str, Any] = {**content, "name": name, "processors": {}}
        self.sources = {
            key: f"not measured; {base.name}: {source}"
            for key, source in base.sources.items()
            if not key.startswith(("processors", "contention"))
        }
        if base.storage is not None:
            self.sources.setdefault("storage", f"not measured; {base.name}")
        for key in ("contention", "calibration", "sources"):
            self.profile.pop(key, None)

    def put(self, key: str, value: Any, source: str) -> None:
        *path, last = key.split(".")
        holder = self.profile
        for part in path:
            holder = holder.setdefault(part, {})
        holder[last] = value
        self.tell(key, source)

    def tell(self, key: str, source: str) -> None:
        """Where the value at this key, and all below it, come from."""
        self.sources = {old: text for old, text in self.sources.items() if not f"{old}.".startswith(f"{key}.")}
        self.sources[key] = source

    def checked(self) -> DeviceSpec:
        """The profile as a scenario would read it. Raises pydantic's ValidationError."""
        return DeviceSpec.model_validate({**self.profile, "sources": self.sources}, context={"from_file": True})

    def yaml(self, heading: str) -> bytes:
        self.checked()
        order = (
            "name",
            "main",
            "processors",
            "memory",
            "decompressor",
            "network",
            "storage",
            "contention",
            "base_w",
            "calibration",
        )
        content = {key: self.profile[key] for key in order if key in self.profile} | {"sources": self.sources}
        text: str = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=110)
        return f"# {heading}\n{text}".encode()
