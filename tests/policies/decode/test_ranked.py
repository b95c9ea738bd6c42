"""What a selector is shown of a machine's answer, and how blocks are forced into it, by hand."""

import numpy as np
import pytest

from kvferry.policies.decode.ranked import Ranked
from kvferry.policies.decode.rows import BlockRows

IDS = BlockRows(np.array([[0, 3, 5, 8], [2, 4, 6, 9]]))
SCORES = np.array([[0.9, 0.1, 0.3, 0.2], [0.5, 0.4, 0.1, 0.6]], np.float32)


def test_sinks_and_the_newest_take_the_places_of_the_worst() -> None:
    ranked = Ranked(IDS, 0, 16, stored_blocks=10, stored_tokens=165, scores=SCORES)
    # Block 0 was answered already, 9 was not: the worst, 3, goes. In the second row 9 was, and 6 goes for 0.
    assert ranked.best_with(np.array([0, 9])).ids.tolist() == [[0, 5, 8, 9], [0, 2, 4, 9]]
    assert ranked.best_with(np.array([9, 0, 0, 9])).ids.tolist() == [[0, 5, 8, 9], [0, 2, 4, 9]]
    # As many as the answer has: nothing else.
    assert ranked.best_with(np.array([1, 7, 8, 9])).ids.tolist() == [[1, 7, 8, 9]] * 2
    with pytest.raises(ValueError, match="5 blocks are forced, a row has 4"):
        ranked.best_with(np.arange(5))


def test_without_scores_the_oldest_goes() -> None:
    ranked = Ranked(IDS, 0, 16, stored_blocks=10, stored_tokens=165)
    assert ranked.best_with(np.array([0, 1])).ids.tolist() == [[0, 1, 5, 8], [0, 1, 6, 9]]
