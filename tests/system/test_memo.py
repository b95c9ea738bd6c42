"""What is remembered is asked for once, and little is."""

from kvferry.system.memo import Memo


def test_a_result_is_remembered_by_all_that_it_depends_on() -> None:
    memo, asked = Memo[int](2), list[int]()

    def doubled(value: int, further: str = "") -> int:
        return memo.of((value, further), lambda: asked.append(value) or 2 * value)

    assert [doubled(1), doubled(2), doubled(1), doubled(1, "other")] == [2, 4, 2, 2]
    assert asked == [1, 2, 1]
    # The first has left.
    assert (memo.known((1, "")), memo.known((2, ""))) == (None, 4)
