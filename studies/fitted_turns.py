"""A session workload that is fitted to a log of conversations, and its statistics beside the log's.

    python studies/fitted_turns.py mooncake_conversation.jsonl

As many turns of the log, drawn by whole conversations, stand beside as many generated ones.
"""

import argparse
import json
from pathlib import Path

from kvferry.specs.session import SessionSpec
from kvferry.traces.fitted_turns import SHOWN, fitted, statistics
from kvferry.traces.turn_logs import read_recorded
from kvferry.traces.turns import turns_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log", type=Path)
    parser.add_argument("--turns", type=int, default=5000)
    parser.add_argument("--users", type=int, default=100, help="users of the generated turns")
    asked = parser.parse_args()
    recorded = read_recorded(asked.log)
    turns = min(asked.turns, len(recorded))
    keys = fitted(recorded)
    think = {"think": f"{keys['think_s']:g} s"} if "think_s" in keys else {}
    said = {"kind": "session", "turns": turns, **keys, **think}
    said.pop("think_s", None)
    print("workload:", json.dumps(said))
    block = {} if recorded.block is None else {"block": recorded.block}
    drawn = SessionSpec(kind="session", turns=turns, at_once=asked.users, **keys, **block)
    real = SessionSpec(kind="session", turns=turns, trace=str(asked.log))
    both = [statistics(turns_of(one, seed=1)) for one in (real, drawn)]
    print(f"{'percentiles ' + ', '.join(map(str, SHOWN)):24s} {'recorded':>28s} {'generated':>28s}")
    for key, values in both[0].items():
        print(f"{key:24s} {_shown(values):>28s} {_shown(both[1][key]):>28s}")


def _shown(values: list[float]) -> str:
    return ", ".join(f"{value:,.3g}" if value < 100 else f"{value:,.0f}" for value in values) or "none"


if __name__ == "__main__":
    main()
