"""The report of a sweep in a real headless Chromium: it loads without an error, sorts, filters and draws."""

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from html import unescape
from pathlib import Path
from time import perf_counter

import pytest

from kvferry.analysis.sweep import run_points
from kvferry.api.report_page.page import report
from kvferry.pipelines.record import RequestRecord, Run
from kvferry.scenarios.loader import load_scenario
from kvferry.specs.scenario import Scenario

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [pytest.mark.long, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")]

N_POINTS = 300
# First in the page: what goes wrong from the first script on.
WATCH = """<script>
const wrong = [];
addEventListener("error", event => wrong.push(String(event.message || event.target.src)), true);
addEventListener("unhandledrejection", event => wrong.push(String(event.reason)));
const said = console.error;
console.error = (...words) => { wrong.push(words.join(" ")); said(...words); };
</script>"""
# As a reader would: by the heading, and in the field for words.
USE = """<script type="module">
const found = { wrong };
const pause = milliseconds => new Promise(done => setTimeout(done, milliseconds));
const until = async holds => { for (let n = 0; n < 400 && !holds(); n++) await pause(50); return holds(); };
// A heading is a field to filter by, with the column's name in it; a scrolled table has its headings twice.
const headings = () => [...document.querySelectorAll(".dt-scroll-head thead tr:first-child th")];
const called = one => one.querySelector("input")?.placeholder ?? one.textContent.trim();
const heading = name => headings().find(one => called(one).startsWith(name));
const column = name => {
  const at = headings().indexOf(heading(name));
  return [...document.querySelectorAll("table.dataTable tbody tr")].map(row => row.cells[at].textContent.trim());
};
const sort = async name => {
  const arrows = heading(name).querySelector(".dt-column-order");
  arrows.dispatchEvent(new MouseEvent("click", { bubbles: true }));
  await pause(300);
  return column(name);
};
try {
  await until(() => document.querySelectorAll("table.dataTable tbody tr").length > 5);
  await until(() => document.querySelectorAll(".js-plotly-plot .main-svg").length > 0);
  found.figures = document.querySelectorAll(".js-plotly-plot").length;
  found.marks = document.querySelectorAll(".js-plotly-plot .point, .js-plotly-plot canvas").length;
  found.headings = headings().map(called);
  found.rising = await sort("ttft");
  found.falling = await sort("ttft");
  const field = document.querySelector("input[type=search]");
  field.value = "local-prefill";
  field.dispatchEvent(new Event("input", { bubbles: true }));
  await pause(500);
  found.systems = column("system");
  found.told = document.querySelector(".dt-info")?.textContent;
} catch (error) { found.wrong.push(String(error)); }
const shown = document.createElement("pre");
shown.id = "found";
shown.textContent = JSON.stringify(found);
document.body.append(shown);
</script>"""


def stand_in(scenario: Scenario) -> Run:
    seconds = 0.5 + scenario.seed * (1.0 if scenario.system == "stream-only" else 1.5)
    request = RequestRecord(request=0, arrival_s=0.0, loaded_s=seconds / 2, first_token_s=seconds)
    return Run(outcome="done", requests=(request,))


def test_a_reader_sorts_filters_and_sees(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    points = [
        load_scenario("quickstart", [f"system={system}", f"seed={seed}", f"workload.context={context}"])
        for system in ("stream-only", "local-prefill")
        for context in ("1Ki", "2Ki")
        for seed in range(N_POINTS // 4)
    ]
    run_points(points, tmp_path / "swept", 1, run=stand_in)
    page = report([tmp_path / "swept"])
    page = page.replace("<head>", f"<head>{WATCH}", 1)
    head, body_end, tail = page.rpartition("</body>")
    (tmp_path / "page.html").write_text(head + USE + body_end + tail)
    began_s = perf_counter()
    opened = subprocess.run(
        [
            str(CHROMIUM),
            *("--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"),
            *("--window-size=1280,2000", "--virtual-time-budget=60000", "--dump-dom"),
            (tmp_path / "page.html").as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=180,
    )
    record_property("opened_and_used_s", perf_counter() - began_s)
    shown = re.search(r'<pre id="found">(.*?)</pre>', opened.stdout, re.DOTALL)
    assert shown, opened.stderr[-2000:]
    found = json.loads(unescape(shown[1]))
    assert found["wrong"] == []
    assert found["figures"] >= 1 and found["marks"] >= 1
    rising, falling = ([float(value) for value in found[key]] for key in ("rising", "falling"))
    assert (rising[0], falling[0]) == (0.5, 0.5 + 1.5 * (N_POINTS // 4 - 1))
    assert rising == sorted(rising) != falling == sorted(falling, reverse=True)
    assert set(found["systems"]) == {"local-prefill"}
