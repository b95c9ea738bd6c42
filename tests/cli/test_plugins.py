"""Policies of the user's own at the command line: wherever a scenario is named, and in every process."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from command import SMALL, Call
from plugin import FAULTY, LOADER, none_left, written  # noqa: F401
from tiny import DECODING

from kvferry.analysis.code_version import code_version
from kvferry.analysis.point import Point, Work
from kvferry.pipelines.plugins import drop, use, used
from kvferry.pipelines.run import run_scenario
from kvferry.scenarios.loader import load_scenario

LOUD = """\
from kvferry.policies.loading.chain import chain_plan
from kvferry.policies.loading.single_path import StreamOnly

print("as it is loaded")


class Loud(StreamOnly):
    def next_stream(self, progress, facts):
        print("as it is asked")
        return super().next_stream(progress, facts)


def loud(problem, bytes_per_s):
    print("as it is asked")
    return chain_plan(problem, bytes_per_s)


KVFERRY = {"loader": {"loud": Loud}, "schedule": {"loud-plan": loud}}
"""
STUDY = """\
base: small.yaml
axes:
  system: [mine, stream-only]
  workload.context: [2Ki, 4Ki]
"""


@pytest.fixture(autouse=True)
def files(small_here: None) -> None:
    Path("study.yaml").write_text(STUDY)
    written(LOADER)


@pytest.mark.parametrize(
    "command",
    [
        ("run", "small.yaml", "--system", "mine"),
        ("run", "small.yaml", "--set", "system=mine"),
        ("compare", "small.yaml", "--systems", "mine,stream-only"),
        ("sweep", "study.yaml", "--jobs", "1", "--output", "swept"),
        ("schedule", "small.yaml"),
    ],
    ids=" ".join,
)
def test_a_command_that_takes_a_scenario(call: Call, command: tuple[str, ...]) -> None:
    code, out, err = call(*command, "--plugin", "mine.py", "--json")
    assert code == 0, err
    assert json.loads(out)


@pytest.mark.parametrize(
    "command",
    [
        ("run", "small.yaml", "--system", "loud"),
        ("compare", "small.yaml", "--systems", "loud,stream-only"),
        ("sweep", "study.yaml", "--executor", "in-process", "--output", "swept"),
        ("sweep", "study.yaml", "--jobs", "2", "--output", "swept"),
        ("schedule", "small.yaml"),
    ],
    ids=" ".join,
)
def test_what_a_plugin_prints_is_not_part_of_the_result(command: tuple[str, ...]) -> None:
    Path("loud.py").write_text(LOUD)
    Path("study.yaml").write_text(STUDY.replace("mine", "loud"))
    asked = [
        sys.executable,
        "-c",
        "from kvferry.cli.main import main; main()",
        *command,
        "--plugin",
        "loud.py",
        "--json",
    ]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)
    assert "as it is loaded" in done.stderr
    assert "as it is asked" in done.stderr


def test_tuning_knows_them(call: Call) -> None:
    Path("tiny.yaml").write_text(json.dumps(DECODING))
    code, _, err = call("tune", "tiny.yaml", "--least-context", "512", "--plugin", "mine.py")
    assert code == 0, err


def test_no_scenario_runs_code(call: Call) -> None:
    code, _, err = call("run", "small.yaml", "--set", "system=mine")
    assert code == 2
    assert "unknown system 'mine'" in err
    code, _, err = call("run", "small.yaml", "--set", "plugin=mine.py")
    assert code == 2
    assert "unknown key" in err
    assert used() == ()


def test_what_it_has_is_listed(call: Call) -> None:
    code, out, _ = call("systems", "--plugin", "mine.py")
    assert code == 0
    assert "mine (mine)" in out and "Streams all, as a test does" in out
    code, out, _ = call("systems", "--plugin", "mine.py", "--json")
    listed = json.loads(out)
    assert [row["plugin"] for row in listed["systems"] if row["name"] == "mine"] == ["mine"]
    assert not any("plugin" in row for row in listed["systems"] if row["name"] != "mine")
    assert "greedy" in listed["policies"]["schedule"]


def test_results_have_its_hash(call: Call) -> None:
    _, out, _ = call("run", "small.yaml", "--system", "mine", "--plugin", "mine.py", "--json")
    (plugin,) = used()
    assert json.loads(out)["provenance"]["plugins"] == {"mine": f"sha256:{plugin.sha256}"}
    drop(plugin)
    _, out, _ = call("run", "small.yaml", "--json")
    assert "plugins" not in json.loads(out)["provenance"]


def test_one_worker_or_two_give_the_same_bytes_and_its_hash(call: Call) -> None:
    points = []
    for workers in ("1", "2"):
        code, out, err = call("sweep", "study.yaml", "-j", workers, "-o", workers, "--plugin", "mine.py", "--json")
        assert code == 0, err
        assert json.loads(out)["outcomes"] == {"done": 4}
        points.append((Path(workers) / "points.parquet").read_bytes())
    assert points[0] == points[1]
    (plugin,) = used()
    assert f"mine-{plugin.sha256[:12]}".encode() in points[0]


def test_points_run_again_once_the_file_has_changed(call: Call) -> None:
    sweep = ("sweep", "study.yaml", "--jobs", "1", "--output", "swept", "--plugin", "mine.py", "--no-plots", "--json")
    news = []
    for text in (LOADER, LOADER, LOADER + "# Changed.\n"):
        written(text)
        _, out, _ = call(*sweep)
        news.append(json.loads(out)["new"])
    assert news == [4, 0, 4]


def test_its_errors_are_the_users(call: Call) -> None:
    written("KVFERRY = {'loader': {'ferry': int}}\n", "wrong.py")
    code, out, err = call("run", "small.yaml", "--plugin", "wrong.py")
    assert (code, out, err) == (
        2,
        "",
        "kvferry: wrong.py:1: loader 'ferry' is there already; give yours another name\n",
    )
    written(FAULTY, "faulty.py")
    code, out, err = call("run", "small.yaml", "--plugin", "faulty.py", "--system", "faulty", "--json")
    assert (code, out, err) == (1, "", "kvferry: faulty.py:8: ZeroDivisionError: division by zero\n")


def test_a_machine_elsewhere_is_given_the_file_before_versions_are_compared() -> None:
    plugin = use("mine.py")
    point = Point.of(load_scenario("small.yaml", ["system=mine"]))
    work = pickle.dumps(Work(run_scenario, code_version(), used()))
    drop(plugin)
    Path("mine.py").unlink()
    row = pickle.loads(work).elsewhere(point)  # noqa: S301
    assert (row["outcome"], row["version"]) == ("done", code_version())


def test_the_schema_names_what_it_has(call: Call) -> None:
    Path("plan.py").write_text(
        "from kvferry.policies.loading.chain import chain_plan\nfrom kvferry.sim.costs.roofline import Roofline\n"
        'KVFERRY = {"schedule": {"my-plan": chain_plan}, "cost-model": {"my-costs": Roofline}}\n'
    )
    assert "my-plan" not in call("schema")[1]
    code, out, _ = call("schema", "--plugin", "mine.py", "--plugin", "plan.py")
    assert code == 0
    schema = json.loads(out)
    properties = schema["$defs"]["Scenario.whole"]["properties"]
    assert {"mine", "ferry", "kvswap"} < set(properties["system"]["enum"])
    named, *_with_parameters = schema["$defs"]["Policies"]["properties"]["schedule"]["anyOf"]
    assert {"my-plan", "greedy"} < set(named["enum"])
    jsonschema = pytest.importorskip("jsonschema")
    # Whether it is a schema, a second's work, is asked once.
    jsonschema.Draft202012Validator.check_schema(schema)
    held = jsonschema.Draft202012Validator(schema)
    small = yaml.safe_load(SMALL) | {"system": "mine"}
    held.validate(small | {"costs": "my-costs"})
    small |= {"system": "sparkv"}
    for policies in ({"schedule": "my-plan"}, {"schedule": {"name": "greedy"}}, {"adapt": False}, {"schedule": None}):
        held.validate(small | {"policies": policies, "costs": "my-costs"})
    with pytest.raises(jsonschema.ValidationError):
        held.validate(small | {"system": []})


def test_an_installed_package_needs_no_option() -> None:
    """As pip leaves it: a module, and a folder of what is installed with the entry point."""
    written(LOADER, "module_of_mine.py")
    info = Path("mine-1.0.dist-info")
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[kvferry.plugins]\nmine = module_of_mine\n")
    program = "from kvferry.cli.main import main; main()"
    command = [sys.executable, "-c", program, "run", "small.yaml", "--system", "mine", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": "."})
    assert done.returncode == 0, done.stderr
    assert list(json.loads(done.stdout)["provenance"]["plugins"]) == ["module_of_mine"]
