"""Prompts go to the instance with the fewest tokens in hand."""

from random import Random
from typing import Any

from kvferry.pipelines.assist.balance import Balance


class Dealt:
    """An instance as far as prompts are dealt to it."""

    def __init__(self) -> None:
        self.prefilling, self.is_up = 0, True


def test_the_one_with_the_fewest_tokens_is_chosen() -> None:
    """Three get 5, 3 and 4 in turn; the second ends first, then has 6, and the third is the next. One that is down is
    not chosen, though it loses what it had; where all are down, any may wait."""
    instances: list[Any] = [Dealt() for _ in range(3)]
    first, second, third = instances
    balance = Balance(instances)
    for tokens, chosen in ((5, first), (3, second), (4, third), (6, second)):
        if tokens == 6:
            balance.add(second, -3)
        assert balance.least() is chosen
        balance.add(chosen, tokens)
    assert balance.least() is third
    assert [one.prefilling for one in instances] == [5, 6, 4]
    third.is_up = False
    balance.look()
    balance.add(third, -4)
    assert balance.least() is first
    first.is_up = second.is_up = False
    balance.look()
    assert balance.least() is third
    first.is_up = True
    balance.look()
    assert balance.least() is first


def test_hundreds_of_instances_are_chosen_from_as_if_each_was_looked_at() -> None:
    drawn, instances = Random(1), [Dealt() for _ in range(20)]
    balance, in_hand = Balance(list[Any](instances)), list[tuple[Any, int]]()
    for _ in range(2_000):
        chosen = balance.least()
        assert chosen is min(instances, key=lambda one: one.prefilling)
        tokens = drawn.randrange(1, 9)
        balance.add(chosen, tokens)
        in_hand.append((chosen, tokens))
        while len(in_hand) > drawn.randrange(60):
            instance, tokens = in_hand.pop(drawn.randrange(len(in_hand)))
            balance.add(instance, -tokens)
