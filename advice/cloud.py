"""Settings that need a cloud, and with it a link."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import yaml

from kvferry.specs.errors import InputError

AS_IN_LINK = "needs --link, as in --link '100 Mbit/s'"
# By key which values fetch something from a cloud or keep it there.
_OF_CLOUD: Mapping[str, Callable[[str], bool]] = {
    "policies.keep": lambda keep: "cloud" in keep.split("-"),
    "policies.load": lambda load: load not in ("local-prefill", "None"),
    "workload.in_cloud": lambda what: what != "nothing",
}


def check_linked(settings: Sequence[str]) -> None:
    """Raises InputError for a setting that needs a cloud, where there is no link to one."""
    for setting in settings:
        key, _, text = setting.partition("=")
        for leaf, value in _leaves(key, _read(text)):
            if leaf in _OF_CLOUD and _OF_CLOUD[leaf](value):
                raise InputError(f"--set {setting:.100} {AS_IN_LINK}")


def _read(text: str) -> Any:
    """Returns the setting's value; text that is no YAML as it is, since reading the scenario refuses it."""
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text


def _leaves(key: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yields the values in a setting by their keys; a policy's name by the key of the policy."""
    if not isinstance(value, Mapping):
        yield key.removesuffix(".name"), str(value)
        return
    for name, part in value.items():
        yield from _leaves(f"{key}.{name}", part)
