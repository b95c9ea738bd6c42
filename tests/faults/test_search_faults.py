"""Searches that are killed."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from tiny import STREAMED, as_yaml

SEARCH = (
    as_yaml({"base": STREAMED})
    + """\
space:
  link.rtt: {from: 1 ms, to: 100 ms, log: true}
  workload.context: [1Ki, 2Ki, 4Ki, 8Ki]
objectives: [ttft_s, load_s]
points: 60
at_once: 5
"""
)
# Stand-ins for runs, which take NAP seconds each.
SCRIPT = """\
import os, sys, time
from pathlib import Path
from kvferry.analysis.executors.choice import executor_for
from kvferry.analysis.search import load_search, run_search
from kvferry.analysis.search_result import write_result
from kvferry.pipelines.record import RequestRecord, Run

def run(scenario):
    time.sleep(float(os.environ["NAP"]))
    loaded_s = 1000.0 / scenario.workload.context
    request = RequestRecord(request=0, arrival_s=0.0, loaded_s=loaded_s, first_token_s=scenario.link.rtt_s)
    return Run(outcome="done", requests=(request,))

if __name__ == "__main__":
    search, folder = load_search("search.yaml"), Path(sys.argv[1])
    print("ran", flush=True)
    tried, _ = run_search(search, folder, executor_for(None, int(sys.argv[2])), run=run)
    write_result(search, tried, folder, plots=False)
"""


def start(folder: Path, name: str, workers: int, nap_s: float) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "search_script.py", name, str(workers)],
        env=dict(os.environ, NAP=str(nap_s)),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def found(folder: Path) -> list[bytes]:
    return [(folder / name).read_bytes() for name in ("search.json", "points.parquet")]


@pytest.mark.long
def test_killed_again_and_again_it_ends_with_the_same_bytes(tmp_path: Path) -> None:
    (tmp_path / "search.yaml").write_text(SEARCH)
    (tmp_path / "search_script.py").write_text(SCRIPT)
    chance = Random(7)
    for _ in range(8):
        process = start(tmp_path, "cut", chance.choice([1, 2]), nap_s=0.2)
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(chance.uniform(0.1, 2.0))
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    for name, workers in (("cut", 2), ("whole", 1)):
        process = start(tmp_path, name, workers, nap_s=0.0)
        _, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
    assert found(tmp_path / "cut") == found(tmp_path / "whole")
    assert json.loads(found(tmp_path / "cut")[0])["solutions"] == 60
