"""What machines cannot do together for real is refused before a model is loaded."""

import pytest

pytest.importorskip("torch")

from kvferry.backends.live.parts import check_needs
from kvferry.backends.needs import NoKv, Prompts
from kvferry.specs.errors import InputError

pytestmark = pytest.mark.torch


def test_one_instance_of_a_cloud() -> None:
    check_needs({"device": Prompts(), "cloud": Prompts(), "phone": NoKv()})
    for others in (("prefill", "decode"), ("cloud.0", "cloud.1")):
        with pytest.raises(InputError, match=f"machines: {', '.join(others)}: KV of real sessions .* count: 1"):
            check_needs(dict.fromkeys(("device", *others), Prompts()))
