"""The page offers what the solver solves, gives a reason for what cannot be, and shows hostile logs as text."""

from __future__ import annotations

import datetime as dt
import html
import json
import re
from dataclasses import replace

import pytest
from packaging.version import Version

from envsmith.base.files import write_folder
from envsmith.frameworks import FRAMEWORKS
from envsmith.knowledge.graph.expiry import latest
from envsmith.knowledge.graph.location import find_matrix
from envsmith.matrix.cells import LOCKED, TOOLS, commands_of
from envsmith.matrix.site.figures import KINDS, freshness_plot
from envsmith.matrix.site.page import FIRST, SITE, STATIC, read_page, site_texts
from envsmith.matrix.site.script_data import Hosts, make_choices
from envsmith.model.cell import Platform, Request
from envsmith.model.finding import UnsatisfiableError
from envsmith.model.record import Rung, read_record
from envsmith.model.version import Spec, public
from envsmith.solver import default_solver, solve

HOSTILE = "</script><script>alert(1)</script>\u2028<img src=x onerror=alert(2)>"


HOSTS = Hosts(gpus=("b200", "gb200", "a100"), drivers=("535.54.03",))


@pytest.fixture(scope="module")
def page():
    return read_page(find_matrix(), hosts=HOSTS)


@pytest.fixture(scope="module")
def site(page, tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    write_folder(folder, SITE, site_texts(page))
    return folder


def _script(folder, name):
    return json.loads((folder / name).read_text(encoding="utf-8").partition("=")[2].rstrip(";\n"))


def _data(folder):
    """Return the shared data with that of each framework in its place, as the script has it when all are loaded."""
    data = _script(folder, "data.js")
    return data | {"frameworks": [f | _script(folder, f"{f['name']}.js") for f in data["frameworks"]]}


def _cells(data):
    """Return the row of each record with the name of its cell in place of what it shares, and the words for its end."""
    rows = []
    for framework in data["frameworks"]:
        name = ""
        for shared, rest, *row in framework["records"]:
            name = name[:shared] + rest
            rows.append([name, *row[:3], *(framework["whys"][number] for number in row[3:])])
    return rows


def _masks(framework, release):
    return framework["rows"][framework["row"][release]].split(".")


def _grids(index):
    """Return the letters of each framework's table, row by row, as a reader without a script would find them."""
    tables = re.findall(r'class="framework" id="grid-([\w-]+)".*?<tbody>(.*?)</table>', index, re.DOTALL)
    letters = re.compile(r'<td(?: class="?(\w))?')
    return {
        name: [[letter or "o" for letter in letters.findall(row)] for row in body.split("<tr>")[1:]]
        for name, body in tables
    }


def test_what_a_browser_loads_before_it_shows_the_page_is_small(site):
    index = (site / "index.html").read_text(encoding="utf-8")
    loaded = re.findall(r'(?:src|href)="([\w.]+\.(?:js|css))"', index)
    assert ["index.html", *loaded] == list(FIRST)
    assert sum((site / name).stat().st_size for name in FIRST) <= 100_000


def test_no_line_of_the_page_s_scripts_is_longer_than_those_of_the_house():
    lines = [line for path in STATIC.glob("*.js") for line in path.read_text(encoding="utf-8").splitlines()]
    assert max(map(len, lines)) <= 120


def test_the_script_of_another_framework_brings_the_grid_that_the_tables_have(site):
    tables = (site / "tables.html").read_text(encoding="utf-8")
    first, *others = _data(site)["frameworks"]
    assert "grid" not in first
    assert all(framework["grid"] in tables for framework in others)


def test_the_grids_stand_in_pages_without_a_script(site):
    data = _data(site)
    grids = _grids((site / "tables.html").read_text(encoding="utf-8"))
    assert list(grids) == [framework["name"] for framework in data["frameworks"]]
    assert _grids((site / "index.html").read_text(encoding="utf-8")) == dict(list(grids.items())[:1])
    for framework in data["frameworks"]:
        grid = grids[framework["name"]]
        assert len(grid) == len(framework["releases"])
        assert {len(row) for row in grid} == {len(data["torches"])}


def test_a_pair_that_a_rule_forbids_and_nothing_proved_is_marked_as_bad(site):
    data = _data(site)
    grids = _grids((site / "tables.html").read_text(encoding="utf-8"))
    for framework in data["frameworks"]:
        for row, reasons in zip(grids[framework["name"]], framework["why"], strict=True):
            marks = [letter for letter, reason in zip(row, reasons.split("."), strict=True) if reason]
            assert set(marks) <= {"x", "c", "g"}


def test_a_mark_shows_the_best_run_of_its_pair(page, site):
    data = _data(site)
    grids = _grids((site / "tables.html").read_text(encoding="utf-8"))
    for framework in data["frameworks"]:
        for record in latest(page.records):
            release = record.components.get(framework["name"])  # a yanked release is in no table
            if record.passed and record.rung is Rung.FRAMEWORK_CPU and release in framework["releases"]:
                r = framework["releases"].index(release)
                t = data["torches"].index(record.components["torch"].split("+")[0])
                assert grids[framework["name"]][r][t] in ("c", "g")


def test_the_legend_explains_each_kind_in_words(site):
    index = (site / "index.html").read_text(encoding="utf-8")
    legend = html.unescape(index[index.index('<ul class="legend">') : index.index("</ul>")])
    for letter, (_, words) in KINDS.items():
        assert f'<span class="m {letter}" aria-hidden="true"></span>{words}' in legend


def test_what_the_table_offers_is_what_the_solver_solves(site):
    """Every entry of a seeded draw: a Python in the table is solvable with that release and build, one that is not in it is refused."""
    import random

    data = _data(site)
    draw = random.Random(20261121)
    solver = default_solver()
    index = solver.compiled.torch_index["linux-64"]
    assert {v.split("+")[0] for v in solver.compiled.torch_index["linux-aarch64"]} <= {v.split("+")[0] for v in index}
    for framework in data["frameworks"]:
        for _ in range(12):
            r = draw.randrange(len(framework["releases"]))
            b = draw.randrange(len(data["builds"]))
            p = draw.randrange(len(data["pythons"]))
            torch, _, tag = data["builds"][b]
            masks = _masks(framework, r)
            mask = int(masks[b], 16) if masks[b] else 0
            version = data["torches"][torch]
            build = next(
                v
                for v in index
                if v.split("+")[0] == version and (v.endswith("+" + tag) if tag else index[v] == "default")
            )
            python = Spec.parse(f"=={data['pythons'][p]}.*")
            own = framework["name"] if framework["axis"] == "release" else framework["axis"]
            row = {own: Spec.exactly(framework["releases"][r])}
            if own == "python" and framework["releases"][r] != data["pythons"][p]:
                assert not mask >> p & 1
                continue
            request = Request(constraints={"torch": Spec.parse(f"=={build}"), "python": python, **row})
            solvable = solver.best(solver.pose(request)) is not None
            assert solvable == bool(mask >> p & 1), (
                framework["name"],
                framework["releases"][r],
                build,
                data["pythons"][p],
            )


def test_what_can_be_chosen_for_a_gpu_a_driver_and_a_python_is_what_has_an_answer(site):
    from itertools import product

    data = _data(site)
    pythons = range(-1, len(data["pythons"]))
    hosts = list(product([None, *data["gpus"]], [None, *data["hostDrivers"]], pythons))

    def offers(masks, gpu, driver, python):
        old = gpu and driver and Version(driver) < Version(data["gpuDrivers"][gpu])
        return not old and any(
            int(mask or "0", 16) >> max(python, 0) & (1 if python >= 0 else -1)
            for (_, cuda, _), runs, needs, mask in zip(
                data["builds"], data["runs"], data["drivers"], masks, strict=True
            )
            if not ((gpu or driver) and cuda == "cpu")
            and not (gpu and data["archs"].index(data["gpus"][gpu]) not in runs)
            and not (driver and needs and Version(driver) < Version(needs))
        )

    for framework in data["frameworks"]:
        rows = [row.split(".") for row in framework["rows"]]
        for (gpu, driver, python), answer in zip(hosts, framework["answers"], strict=True):
            if gpu not in data["armGpus"]:
                offered = any(offers(row, gpu, driver, python) for row in rows)
                assert offered == (answer >= 0), (framework["name"], gpu, driver, python)


@pytest.mark.parametrize("number", [10, pytest.param(60, marks=pytest.mark.slow)])
def test_the_page_gives_the_answer_of_solve_for_seeded_requests(site, number):
    """A framework, a GPU, a driver and a Python, each of them or none."""
    import random

    data = _data(site)
    draw = random.Random(20261127)
    gpus, drivers, pythons = ([None, *each] for each in (data["gpus"], data["hostDrivers"], data["pythons"]))
    for _ in range(number):
        framework = draw.choice(data["frameworks"])
        gpu, driver, python = draw.choice(gpus), draw.choice(drivers), draw.choice(pythons)
        asked = (gpus.index(gpu) * len(drivers) + drivers.index(driver)) * len(pythons) + pythons.index(python)
        answer = framework["answers"][asked]

        try:
            cell = solve(
                Request(
                    frameworks=[framework["name"]],
                    constraints={"python": python} if python else {},
                    driver=driver,
                    gpus=(data["gpus"][gpu],) if gpu else (),
                )
            ).cell
        except UnsatisfiableError:
            assert answer == -1, (framework["name"], gpu, driver, python)
            continue

        row, build, place = framework["cells"][answer]
        torch, cuda, _ = data["builds"][build]
        axis = framework["name"] if framework["axis"] == "release" else framework["axis"]
        shown = (framework["releases"][row], data["torches"][torch], cuda, data["pythons"][place])
        parts = cell.components
        assert shown == (parts[axis], public(parts["torch"]), parts["cuda"], parts["python"]), (gpu, driver, python)


def test_the_page_gives_the_answer_of_solve_for_arm_hosts(site):
    import random

    data, arm = _data(site), _script(site, "arm.js")
    draw = random.Random(20261127)
    gpus, drivers, pythons = ([None, *each] for each in (data["gpus"], data["hostDrivers"], data["pythons"]))
    for _ in range(8):
        number = draw.randrange(len(data["frameworks"]))
        framework, tables = data["frameworks"][number], arm["frameworks"][number]
        gpu, driver, python = draw.choice(gpus), draw.choice(drivers), draw.choice(pythons)
        asked = (gpus.index(gpu) * len(drivers) + drivers.index(driver)) * len(pythons) + pythons.index(python)
        answer = tables["answers"][asked]

        try:
            cell = solve(
                Request(
                    frameworks=[framework["name"]],
                    constraints={"python": python} if python else {},
                    driver=driver,
                    gpus=(data["gpus"][gpu],) if gpu else (),
                    platform=Platform.LINUX_AARCH64,
                )
            ).cell
        except UnsatisfiableError:
            assert answer == -1, (framework["name"], gpu, driver, python)
            continue

        row, build, place = tables["cells"][answer]
        axis = framework["name"] if framework["axis"] == "release" else framework["axis"]
        shown = (framework["releases"][row], data["torches"][data["builds"][build][0]], data["pythons"][place])
        assert shown == (cell.components[axis], public(cell.components["torch"]), cell.components["python"])
        assert int(tables["rows"][tables["row"][row]].split(".")[build], 16) >> place & 1


def test_the_page_says_what_failed_on_purpose_the_stacks_and_when_support_ends(page, site):
    index = (site / "index.html").read_text(encoding="utf-8")
    assert re.search(r"\d+ failed on purpose: a rule had foretold it\.", index)
    for stack in page.stacks:
        assert html.escape(stack.title) in index
    for cell in re.findall(r'href="cell/([^"]+)\.html"', index):
        assert (site / "cell" / f"{cell}.html").is_file()
    ends = _script(site, "data.js")["ends"]
    assert (ends["python"]["3.12"], ends["driver"]["580"]) == ("2028-10", "2028-06")


def test_the_table_of_stacks_links_the_newest_torch_and_says_what_was_never_run(page, site):
    rows = re.findall(
        r"<td>(not run|\d+ of \d+)</td><td class='id'>(.*?)</td>", (site / "index.html").read_text("utf-8")
    )
    grpo = next(link for _, link in rows if "trl" in link and "vllm" in link)
    torches = [r.components["torch"] for r in page.records if r.passed and {"trl", "vllm"} <= r.components.keys()]
    newest = max(torches, key=Version)
    assert f"torch{public(newest)}-" in grpo
    assert all((runs == "not run") == (link == "") for runs, link in rows)


def test_a_gpu_that_comes_with_an_arm_host_is_marked(site):
    assert _script(site, "data.js")["armGpus"] == ["gb200"]


def test_every_pair_that_cannot_be_has_a_reason(site):
    data = _data(site)
    for framework in data["frameworks"]:
        for r, reasons in enumerate(framework["why"]):
            masks = _masks(framework, r)
            for t, reason in enumerate(reasons.split(".")):
                possible = any(m for m, (of, _, _) in zip(masks, data["builds"], strict=True) if of == t)
                assert possible == (reason == "")
                assert possible or len(framework["reasons"][int(reason)]) > 15


def test_drivers_and_gpus_agree_with_the_solver(site):
    data = _data(site)
    for torch, cuda, tag in data["builds"]:
        if tag or cuda == "cpu":
            continue
        number = data["builds"].index([torch, cuda, tag])
        archs = {data["archs"][a] for a in data["runs"][number]}
        version = data["torches"][torch]
        for arch in ("sm_70", "sm_90", "sm_120"):
            request = Request(frameworks={}, constraints={"torch": Spec.parse(f"=={version}")}, gpus=(arch,))
            solver = default_solver()
            found = {
                a.cell.components["cuda"]
                for a in solver.cells(solver.pose(request))
                if a.cell.components["torch"].split("+")[0] == version
            }
            assert (cuda in found) == (arch in archs), (version, cuda, arch)
        if data["drivers"][number]:
            cell = solve(
                Request(
                    constraints={"torch": Spec.parse(f"=={version}"), "cuda": Spec.parse(f"=={cuda}")},
                    driver=data["drivers"][number],
                )
            ).cell
            assert cell.components["cuda"] == cuda


def test_every_run_cell_has_a_page_and_data(page, site):
    for record in page.records:
        text = (site / "cell" / f"{record.cell}.html").read_text(encoding="utf-8")
        assert f'<h1 class="cell">{record.cell}</h1>' in text
        for value in record.components.values():
            assert html.escape(value) in text


def test_a_row_of_the_data_says_what_its_record_says(page, site):
    data = _data(site)
    rows = {(row[0], row[1], bool(row[2] & 1), bool(row[2] & 2), data["days"][row[3]]): row for row in _cells(data)}
    for record in latest(page.records):
        rung = data["ladder"].index(record.rung.value)
        row = rows[record.cell, rung, record.passed, record.of_host, record.day]
        assert row[4:] == ([record.failure.symptom[:160]] if record.failure else [])


def test_the_search_has_the_known_bad_symptoms_and_their_rules(site):
    search = _script(site, "search.js")
    assert len(search["errors"]) >= 150
    assert all(symptom for _, _, symptom in search["errors"])
    rules = {search["rules"][number][0] for _, number, symptom in search["errors"] if "torch._six" in symptom}
    assert "deepspeed-torch-six" in rules


def test_a_failed_run_is_found_under_the_rule_whose_symptom_it_shows(page, site):
    search = _script(site, "search.js")
    (record,) = [r for r in page.records if r.cell == "ds0.8.1-torch2.15.0-cu132-py312"]
    (number,) = [number for cell, number, _ in search["errors"] if cell == record.cell]
    assert len(record.rules) > 1
    assert search["rules"][number][0] == "deepspeed-torch-six"


def test_the_causes_of_rules_and_warnings_are_sentences(site):
    search = _script(site, "search.js")
    causes = [cause for _, cause, *_ in search["rules"]] + [cause for _, _, cause, *_ in search["warnings"]]
    assert "Compiled from source when the cell is built (6 minutes of one processor)." in causes
    assert [cause for cause in causes if cause and not cause.endswith(".")] == []


def test_the_sources_of_a_rule_are_links_or_left_out(site):
    assert all(source.startswith("https://") for rule in _script(site, "search.js")["rules"] for source in rule[3])


@pytest.mark.parametrize(
    ("release", "torch", "rule", "applies"),
    [
        ("0.18.2", "2.7.1", "deepspeed-zero2-gradients", True),
        ("0.18.5", "2.7.1", "deepspeed-zero2-gradients", False),
        ("0.15.4", "2.6.0", "deepspeed-weights-only", True),
        ("0.15.4", "2.5.1", "deepspeed-weights-only", False),
        ("0.19.8", "2.8.0", "deepspeed-torch-features", True),
        ("0.19.8", "2.9.1", "deepspeed-torch-features", False),
    ],
)
def test_a_warning_is_shown_with_the_releases_that_it_is_about(site, release, torch, rule, applies):
    data, search = _data(site), _script(site, "search.js")
    f, framework = next((f, x) for f, x in enumerate(data["frameworks"]) if x["name"] == "deepspeed")
    here = {"f": f, "r": framework["releases"].index(release), "t": data["torches"].index(torch)}
    shown = {
        search["rules"][number][0]
        for number, _, _, _, where in search["warnings"]
        if all(here.get(axis, -1) in numbers for axis, numbers in where.items())
    }
    assert (rule in shown) == applies


def test_a_hostile_log_stays_text(page, tmp_path):
    record = page.records[0]
    data = record.to_json() | {
        "passed": False,
        "summary": HOSTILE,
        "failure": {"rung": "imported", "symptom": HOSTILE, "of_host": False, "log": [HOSTILE]},
        "steps": [{"name": HOSTILE, "verdict": "error", "detail": HOSTILE}],
        "notes": [HOSTILE],
    }
    stored = read_record("x.json", json.dumps(data).encode())
    search = {"rules": [[HOSTILE, HOSTILE, HOSTILE, []]], "errors": [[HOSTILE, 0, HOSTILE]], "warnings": []}
    write_folder(tmp_path, SITE, site_texts(replace(page, records=(stored,), search=search)))
    for path in tmp_path.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        assert "<img src=x" not in text
        assert text.count("<script") == len(re.findall(r'<script src="[\w./]+"></script>', text))
    for name in ("data.js", f"{next(iter(FRAMEWORKS))}.js", "search.js"):
        text = (tmp_path / name).read_text(encoding="utf-8")
        assert "</script" not in text
        assert "\u2028" not in text


def test_stale_proofs_are_shown_as_such(page, tmp_path):
    write_folder(tmp_path, SITE, site_texts(replace(page, today=dt.date(2028, 1, 1))))
    assert all(row[2] & 4 for row in _cells(_data(tmp_path)))
    record = page.records[0]
    assert "stale: counts only as locked" in (tmp_path / "cell" / f"{record.cell}.html").read_text(encoding="utf-8")


def test_what_was_run_is_kept_in_the_choices():
    choices = make_choices(default_solver(), keep={"deepspeed": {"0.19.7"}}, hosts=Hosts(gpus=(), drivers=()))
    (deepspeed,) = [f for f in choices["frameworks"] if f["name"] == "deepspeed"]
    assert {"0.19.8", "0.19.7"} <= set(deepspeed["releases"])


@pytest.mark.parametrize(
    ("passed", "of_host", "kind", "told"),
    [
        (True, False, "fresh", "1 passed, 0 stale, 0 failed, 0 not shown"),
        (False, True, "unshown", "0 passed, 0 stale, 0 failed, 1 not shown"),
        (False, False, "failed", "0 passed, 0 stale, 1 failed, 0 not shown"),
    ],
)
def test_what_a_host_could_not_show_is_no_failure_in_the_plot(page, passed, of_host, kind, told):
    failure = None if passed else {"rung": "imported", "symptom": "no GPU", "of_host": of_host, "log": []}
    data = page.records[0].to_json() | {
        "passed": passed,
        "failure": failure,
        "started": f"{page.today}T12:00:00+00:00",
    }
    plot = freshness_plot([read_record("x.json", json.dumps(data).encode())], page.expiry, page.today)
    assert told in plot
    assert re.findall(r"rect class='(\w+)'", plot) == [kind]


def test_the_commands_of_a_cell_name_its_companions():
    commands = commands_of("mc0.8.0-torch2.5.1-cu124-py311-numpy2.5.5", TOOLS)
    ask = "--framework megatron-core==0.8.0 --with numpy==2.5.5 --torch 2.5.1 --cuda 12.4 --python 3.11"
    assert commands["venv"] == f"envsmith build {ask} --engine venv"
    assert commands["uv"].startswith(f"envsmith lock {ask}\n")


@pytest.mark.parametrize("templates", [TOOLS, LOCKED])
def test_pip_and_uv_install_what_a_lock_holds_and_nothing_that_is_compiled_against_torch(templates):
    old = commands_of("ds0.13.5-torch2.1.2-cu121-py311", templates)
    compiled = commands_of("hvd0.28.1-torch2.0.1-cu117-py311", templates)
    assert "--require-hashes --no-deps" in old["pip"]
    assert old["uv"].endswith("uv pip sync envsmith-build/ds0.13.5-torch2.1.2-cu121-py311/pylock.toml")
    assert compiled.keys() == templates.keys() - {"pip", "uv"}


def test_the_page_fills_in_the_commands_of_a_cell_page(page, site):
    tools = _data(site)["tools"]
    cell = page.records[0].cell
    text = html.unescape((site / "cell" / f"{cell}.html").read_text(encoding="utf-8"))
    for tool, template in TOOLS.items():
        assert tools[tool] == template
        assert commands_of(cell, TOOLS)[tool] in text
