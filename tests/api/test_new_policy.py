"""Policies to begin with: each kind is written, runs, and passes the test that is written beside it."""

import json
import subprocess
import sys
from dataclasses import fields
from importlib import import_module
from pathlib import Path

import pytest
from command import Call
from plugin import none_left  # noqa: F401

import kvferry
from kvferry.api.new_policy import new_policy
from kvferry.pipelines.plugin_kinds import KINDS

pytestmark = pytest.mark.usefixtures("here")


@pytest.mark.parametrize("kind", KINDS)
def test_a_policy_of_each_kind_is_one(call: Call, kind: str) -> None:
    code, out, _ = call("new", "policy", "my-own", "--role", kind)
    assert code == 0
    assert out.split() == ["my_own.py", "test_my_own.py"]
    text = Path("my_own.py").read_text()
    assert "xample" not in text.replace("an example", "")
    assert "--plugin my_own.py" in text and '"my-own": ' in text
    plugin = kvferry.use("my_own.py")
    code, out, _ = call("systems", "--json")
    listed = json.loads(out)
    # An index comes with a selector of its name.
    names = listed["policies"].get("selector" if kind == "index" else kind) or [
        one["name"] for one in listed["systems"] if one.get("plugin") == plugin.name
    ]
    assert "my-own" in names


@pytest.mark.parametrize("kind", ["selector", "residency", "layout", "upkeep", "placement", "batching"])
def test_a_role_writes_four_members_at_most(kind: str) -> None:
    """Its base has the rest; parameters do not count."""
    (example,) = import_module(f"kvferry.api.examples.{kind}").KVFERRY[kind].values()
    own = {name for name in dir(example) if name in vars(example) and not name.startswith("_")} - {
        one.name for one in fields(example)
    }
    assert 1 <= len(own) <= 4, own


@pytest.mark.parametrize("name", ["numpy", "json", "kvferry", "random"])
def test_a_module_is_not_hidden_by_a_policy(name: str, call: Call) -> None:
    code, out, err = call("new", "policy", name, "--role", "loader")
    assert (code, out) == (2, "")
    assert f"'{name}' is a module of Python's or an installed one; give the policy another name" in err
    assert list(Path().iterdir()) == []


def test_their_own_tests_pass() -> None:
    """All in one pytest, as a user would run them."""
    for kind in KINDS:
        new_policy(f"my-{kind}", kind)
    command = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", ".")
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert f"{len(KINDS)} passed" in done.stdout


def test_its_commands_run(call: Call) -> None:
    """Those that stand at the top of an example, in a small scenario."""
    new_policy("my-own", "loader")
    new_policy("my-plan", "schedule")
    small = ("--set", "model=tiny", "--set", "workload.context=2Ki", "--json")
    assert call("run", "quickstart", "--plugin", "my_own.py", "--system", "my-own", *small)[0] == 0
    code, out, _ = call("schedule", "quickstart", "--plugin", "my_plan.py", *small)
    assert code == 0
    assert "my-plan" in [row["schedule"] for row in json.loads(out)["schedules"]]
    streamed = []
    for share in (0, 1):
        plan = f"policies.schedule={{name: my-plan, share: {share}.0}}"
        _, out, _ = call("run", "quickstart", "--plugin", "my_plan.py", "--system", "sparkv", "--set", plan, *small)
        streamed.append(json.loads(out)["metrics"]["streamed_share"])
    assert streamed[0] > streamed[1]


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_every_command_of_an_example_runs(call: Call, kind: str) -> None:
    file, _ = new_policy("my-own", kind)
    commands = [line.split()[1:] for line in file.read_text().splitlines() if line.startswith("    kvferry ")]
    assert commands
    for command in commands:
        code, _, err = call(*command, "--json")
        assert code == 0, err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("my-own", "--role", "nonsense"), "unknown role 'nonsense'; known: attention, "),
        (("My own", "--role", "loader"), "'My own' is no name for a policy: small letters"),
        (("ferry", "--role", "loader"), "loader 'ferry' is there already"),
        (("quest", "--role", "system"), "system 'quest' is there already"),
        (("there", "--role", "loader"), "there.py is there already"),
    ],
)
def test_what_it_refuses(call: Call, arguments: tuple[str, ...], says: str) -> None:
    Path("there.py").write_text("# mine")
    code, out, err = call("new", "policy", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith(f"kvferry: {says}")
    assert Path("there.py").read_text() == "# mine"
    assert not Path("test_there.py").exists()
