"""Systems by name: which loader with which settings, over which encoding of the stored context."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kvferry.policies.loading.loader import Loader
from kvferry.policies.loading.single_path import LocalPrefill, StreamOnly
from kvferry.specs.errors import InputError, unknown_name


@dataclass(frozen=True, kw_only=True)
class System:
    """A composition: everything a published system is, as far as loading a context goes."""

    loader: Callable[..., Loader]
    codec: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    about: str

    def with_policies(self, policies: Mapping[str, Any]) -> "System":
        """The same system with some of its policies replaced, as a scenario's `policies` asks.

        Keys are `codec` and the loader's own settings. Raises InputError for any other.
        """
        known = {"codec", *inspect.signature(self.loader).parameters}
        settings = dict(self.settings)
        codec = self.codec
        for key, value in policies.items():
            if key not in known:
                raise unknown_name("policy", key, known)
            if key == "codec":
                codec = str(value)
            else:
                settings[key] = value
        return System(loader=self.loader, codec=codec, settings=settings, about=self.about)

    def new_loader(self) -> Loader:
        """A loader for one request. Raises InputError when a setting has a value it cannot have."""
        try:
            return self.loader(**self.settings)
        except (TypeError, ValueError) as error:
            raise InputError(f"policies: {error}") from error


SYSTEMS: dict[str, System] = {
    "stream-only": System(loader=StreamOnly, codec="huffman", about="fetch all, compute nothing"),
    "local-prefill": System(loader=LocalPrefill, codec="huffman", about="compute all, fetch nothing"),
}
