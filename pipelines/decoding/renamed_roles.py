"""A role that a scenario replaces by its own name: it keeps the name and loses the system's parameters."""

from collections.abc import Iterator, Mapping

from kvferry.pipelines.decoding.systems import DECODE_SYSTEMS, ROLES
from kvferry.specs.node import brief
from kvferry.specs.scenario import Scenario


def lost_parameters(scenario: Scenario) -> Iterator[str]:
    """A note for each role under `policies` that names the policy of the system itself, and so has other parameters
    than it."""
    own_roles = DECODE_SYSTEMS[scenario.system].roles
    for role in (role for role in ROLES if role in scenario.policies):
        value, own = scenario.policy_values[role], getattr(own_roles, role)
        given = dict(value) if isinstance(value, Mapping) else {"name": value}
        name = given.pop("name", None)
        if name is None or ROLES[role].get(name) is not type(own):
            continue
        plain = type(own)()
        lost = [
            f"{key} is {brief(getattr(plain, key))}, not {brief(getattr(own, key))}"
            for key in vars(own)
            if key not in {*given, *scenario.policies} and getattr(plain, key) != getattr(own, key)
        ]
        if lost:
            yield (
                f"{role} {name} replaces {scenario.system}'s own and its parameters: {', '.join(lost)};"
                f" without the name, --set policies.{role}.KEY=VALUE keeps them"
            )
