"""How long a device waits for a cloud that says nothing."""

import pytest

from kvferry.policies.assist.help import patience_of


@pytest.mark.parametrize(
    ("own_s", "cloud_s", "planned", "waits_s"),
    [
        # As long as its own prefill takes, so that asking makes it at most twice as late.
        (20.0, 1.0, False, 20.0),
        # A cloud that is as busy as planned for is not given up.
        (20.0, 50.0, False, 100.0),
        (20.0, 1.0, True, 60.0),
        (20.0, 50.0, True, 100.0),
        (300.0, 50.0, True, 300.0),
    ],
)
def test_by_hand(own_s: float, cloud_s: float, planned: bool, waits_s: float) -> None:
    found = patience_of(own_prefill_s=own_s, cloud_ttft_s=cloud_s, planned=planned)
    assert found.answer_s == waits_s
    # There is no queue between tokens.
    assert found.token_s == max(own_s, 2 * cloud_s)
