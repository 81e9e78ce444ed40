"""The page in a real browser: choose, copy, search, follow a permalink. axe has no finding, at any width."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest

from envsmith.base.files import write_folder
from envsmith.knowledge.graph.location import find_matrix
from envsmith.matrix.site.page import SITE, read_page, site_texts
from envsmith.model.record import read_record

pytestmark = pytest.mark.integration
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    write_folder(folder, SITE, site_texts(read_page(find_matrix())))
    return folder


@pytest.fixture(scope="module")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (pip install playwright)")
    if BROWSER is None:
        pytest.skip("no chromium on this machine (Debian: apt-get install chromium)")
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=BROWSER, args=FLAGS)
        yield opened
        opened.close()


@pytest.fixture
def page(browser, site):
    context = browser.new_context(viewport={"width": 1200, "height": 900})
    opened = context.new_page()
    errors: list[str] = []
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.on("console", lambda message: errors.append(message.text) if message.type in ("error", "warning") else None)
    show(opened, site / "index.html")
    yield opened
    assert not errors
    context.close()


def show(page, path, fragment=""):
    """Show the page, with all that it loads after it is shown."""
    page.goto("about:blank")
    page.goto(path.as_uri() + fragment)
    page.wait_for_selector("#grid td[aria-label]", state="attached")


def cell_of_grid(page, framework, release, torch):
    row = page.locator(f"#grid-{framework} tbody tr").filter(
        has=page.get_by_role("rowheader", name=release, exact=True)
    )
    return row.locator("td").nth(int(_number(page, "torches", torch)))


def test_choosing_leads_to_a_cell_and_its_command(page):
    page.get_by_role("radio", name="Megatron-core").check(force=True)
    page.locator("#torch-" + _number(page, "torches", "2.13.0")).check(force=True)
    page.locator("#gpu-h100").check(force=True)
    page.locator("[id='driver-580.65.06']").check(force=True)
    assert page.locator("#permalink").inner_text().startswith("mc")
    assert "torch2.13.0" in page.locator("#permalink").inner_text()
    page.get_by_role("tab", name="uv").click()
    assert "uv pip sync" in page.locator("#command").inner_text()
    page.get_by_role("radio", name="Horovod").check(force=True)
    assert page.get_by_role("tab").all_inner_texts() == ["venv", "Docker", "Conda"]
    assert "--engine venv" in page.locator("#command").inner_text()


def test_a_gpu_with_an_arm_host_brings_it_and_another_takes_it_away(page):
    page.locator("#gpu-gb200").check(force=True)
    assert page.locator("#permalink").inner_text().endswith("-aarch64")
    assert "--platform linux-aarch64" in page.locator("#command").inner_text()
    page.locator("#gpu-h100").check(force=True)
    assert not page.locator("#permalink").inner_text().endswith("-aarch64")


def test_what_nvidia_smi_prints_chooses_gpu_and_driver(page):
    page.locator(".paste summary").click()
    page.locator("#smi").fill("Driver Version: 535.183.01   CUDA Version: 12.2\n| 0  NVIDIA A100-SXM4-80GB |")
    assert page.locator("#smi-said").inner_text() == "Read: A100, driver 535.183.01."
    assert "gpu=a100&driver=535.54.03" in page.url
    page.locator("#smi").fill("nothing of use")
    assert page.locator("#smi-said").inner_text() == "Neither a GPU nor a driver stands in it."


def test_what_cannot_be_is_dimmed_and_says_why(page):
    page.locator("[id='driver-535.54.03']").check(force=True)
    label = page.locator("label[for='cuda-13.0']")
    assert "no" in (label.get_attribute("class") or "")
    label.hover()
    assert "driver" in page.locator("#reason").inner_text()
    page.locator("[id='cuda-13.0']").focus()
    assert "driver" in page.locator("#reason").inner_text()
    page.keyboard.press("Space")
    assert not page.locator("[id='cuda-13.0']").is_checked()


def test_a_driver_that_is_older_than_the_gpu_refuses_every_cuda_and_says_so(page, site):
    page.locator("#gpu-b200").check(force=True)
    page.locator("label[for='driver-525.60.13']").hover()
    assert "B200 needs driver 570.26 or newer." in page.locator("#reason").inner_text()
    show(page, site / "index.html", "#framework=torch&gpu=b200&driver=525.60.13")
    assert "B200 needs driver 570.26 or newer." in page.locator("#answer").inner_text()
    assert page.locator("label[for='cuda-12.8']").get_attribute("class") == "no"


def test_a_refused_choice_can_be_made_without_what_stands_in_its_way(page):
    page.locator("[id='driver-535.54.03']").check(force=True)
    page.locator("label[for='cuda-13.0']").hover()
    page.get_by_role("button", name="Choose it without 535.54.03").click()
    assert page.locator("[id='cuda-13.0']").is_checked()
    assert page.locator("#driver-any").is_checked()


def test_a_choice_can_be_taken_back(page):
    page.locator("#gpu-a100").check(force=True)
    assert page.locator("#gpu-a100").is_checked()
    page.locator("#gpu-any").check(force=True)
    assert not page.locator("#gpu-a100").is_checked()
    page.locator("#gpu-a100").check(force=True)
    page.get_by_role("button", name="Clear choices").click()
    assert not page.locator("#gpu-a100").is_checked()


def test_the_command_is_copied(browser, site):
    context = browser.new_context()
    page = context.new_page()
    show(page, site / "index.html")
    command = page.locator("#command").inner_text()
    page.locator("#copy").click()
    page.locator("#copy", has_text="Copied").wait_for()
    page.locator("#search").focus()
    page.keyboard.press("Control+V")
    assert page.locator("#search").input_value() == command
    context.close()


def test_an_error_text_finds_its_rule(page):
    page.locator("#search").fill(
        "ImportError: cannot import name 'log' from 'torch.distributed.elastic.agent.server.api' (/usr/lib/x.py)"
    )
    page.locator("#results li a").first.click()
    assert "deepspeed-elastic-log" in page.locator("#results").inner_text()
    assert page.url.endswith("#rule=deepspeed-elastic-log")
    page.locator("#search").fill("zzzz qqqq wwww")
    assert "Nothing here matches" in page.locator("#results").inner_text()


def test_releases_are_found_in_the_same_box_with_the_keyboard_alone(page):
    page.keyboard.press("/")
    page.keyboard.type("megatron-core 0.12 torch 2.7 h100")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.locator("#permalink", has_text="mc0.12.3-torch2.7.1-").wait_for()
    assert page.locator("#gpu-h100").is_checked()
    assert page.locator("#results").is_hidden()


def test_a_release_that_is_not_on_the_page_leads_to_its_series(page):
    page.locator("#search").fill("deepspeed 0.14.2")

    first = page.locator("#results li").first.inner_text()
    assert "DeepSpeed 0.14.5" in first
    assert "Not on this page: deepspeed 0.14.2." in first
    assert "Stacks" not in page.locator("#results").inner_text()


@pytest.mark.parametrize("query", ["CUDA out of memory", "out of memory", "KeyError: 'loss'"])
def test_one_common_word_finds_no_error(page, query):
    page.locator("#search").fill(query)

    text = page.locator("#results").inner_text()
    assert "OverflowError" not in text
    assert "Adafactor" not in text


@pytest.mark.parametrize("query", ["grpo", "GRPO vllm"])
def test_a_stack_is_found_by_its_name_with_the_command_that_builds_it(page, query):
    page.locator("#search").fill(query)

    assert "envsmith build --stack grpo" in page.locator("#results").inner_text()


def test_a_rule_is_found_by_what_it_says(page):
    page.locator("#search").fill("gradients accumulated wrong ZeRO stage 2")
    assert "deepspeed-zero2-gradients" in page.locator("#results").inner_text()
    page.keyboard.press("Escape")
    assert page.locator("#results").is_hidden()


def test_a_permalink_of_a_cell_leads_back_to_the_choice(page, site):
    cell = page.locator("#permalink").inner_text()
    show(page, site / "index.html", "#ds0.19.8-torch2.10.0-cu128-py312")
    assert page.locator("#permalink").inner_text() == "ds0.19.8-torch2.10.0-cu128-py312" != cell
    page.get_by_role("link", name="Record and log").click()
    page.wait_for_selector("h1.cell")
    assert page.locator("h1.cell").inner_text() == "ds0.19.8-torch2.10.0-cu128-py312"
    page.get_by_role("link", name="All combinations").click()
    page.wait_for_selector("#permalink")


CHOICES = [
    "framework=deepspeed",
    "framework=megatron-core&gpu=h100&driver=550.54.14&tool=conda",
    "framework=colossalai&release=0.5.0&torch=2.5.1&python=3.11&cuda=12.4",
    "framework=deepspeed&release=0.8.1&torch=2.15.0",
]


@pytest.mark.parametrize("choice", CHOICES)
def test_the_link_of_every_choice_leads_back_to_it(page, site, choice):
    show(page, site / "index.html", "#" + choice)
    first = page.locator("#answer").inner_text()
    # Any choice writes the address again: the tool is taken back afterwards.
    framework = page.locator("input[name=framework]:checked").get_attribute("id")
    page.locator(f"label[for={framework}]").click()
    page.locator("#answer").evaluate(
        "(answer) => answer.querySelector('.copy') && answer.querySelector('.copy').click()"
    )
    copied = page.evaluate("(document.querySelector('#answer .copy') || { dataset: {} }).dataset.copy")
    if copied:
        assert sorted(copied.split("#")[1].split("&")) == sorted(choice.split("&"))
    show(page, site / "index.html", "#" + choice)
    assert page.locator("#answer").inner_text() == first


def test_choosing_writes_the_address(page, site):
    page.locator("#gpu-a100").check(force=True)
    page.get_by_role("tab", name="Docker").click()
    address, cell = page.url, page.locator("#permalink").inner_text()
    show(page, site / "index.html", "#" + address.split("#")[1])
    assert page.locator("#gpu-a100").is_checked()
    assert page.get_by_role("tab", name="Docker").get_attribute("aria-selected") == "true"
    assert page.locator("#permalink").inner_text() == cell


def test_a_permalink_of_what_does_not_work_says_why_and_what_does(page, site):
    show(page, site / "index.html", "#ds0.8.1-torch2.15.0-cu132-py312")
    text = page.locator("#answer").inner_text()
    assert "Known not to work" in text
    assert "torch._six" in text
    page.locator("#answer .id a").first.click()
    page.wait_for_selector("#permalink")
    assert page.locator("#permalink").inner_text().startswith("ds0.8.1-torch1.13.1-")


@pytest.mark.parametrize("address", ["#framework=nothing&gpu=x", "#%", "#rule=nothing", "#zz1-torch2-cpu-py312", "#q="])
def test_an_address_that_names_nothing_shows_the_page(page, site, address):
    show(page, site / "index.html", address)
    assert page.locator("#permalink").is_visible()


def test_a_cell_of_the_grid_says_why_on_pointing_and_on_a_click(page):
    cell = cell_of_grid(page, "deepspeed", "0.8.1", "2.0.1")
    cell.hover()
    assert "torch._six" in page.locator("#reason").inner_text()
    page.mouse.move(0, 0)
    page.wait_for_selector("#reason", state="hidden")
    cell_of_grid(page, "deepspeed", "0.16.4", "2.7.1").click()
    page.mouse.move(0, 0)
    assert "Proved on CPU" in page.locator("#reason").inner_text()
    page.get_by_role("button", name="Show command").click()
    assert page.locator("#permalink").inner_text().startswith("ds0.16.4-torch2.7.1-")


def test_every_cell_of_the_grid_that_is_marked_as_run_says_when(page):
    marked = page.locator(":is(td.g, td.c)[aria-label]")
    assert marked.count() > 100
    assert [
        label for label in marked.evaluate_all("cells => cells.map(c => c.ariaLabel)") if "passed on" not in label
    ] == []


def test_the_grid_is_used_with_the_keyboard(page):
    cell_of_grid(page, "deepspeed", "0.19.8", "2.15.0").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    assert "DeepSpeed 0.18.9 with PyTorch 2.14.1" in page.locator("#reason").inner_text()
    assert "Not run yet. No known conflict." in page.locator("#reason").inner_text()
    page.keyboard.press("Escape")
    page.wait_for_selector("#reason", state="hidden")
    page.keyboard.press("Enter")
    assert page.locator("#permalink").inner_text().startswith("ds0.18.9-torch2.14.1-")


def test_head_and_first_column_stay_in_sight(browser, site):
    context = browser.new_context(viewport={"width": 390, "height": 844})
    page = context.new_page()
    show(page, site / "index.html")
    page.locator("#grid-deepspeed .scroll").evaluate("(box) => { box.scrollIntoView(); box.scrollTo(400, 400); }")
    box = page.locator("#grid-deepspeed .scroll").bounding_box()
    assert page.locator("#grid-deepspeed thead th").nth(9).bounding_box()["y"] - box["y"] < 4
    assert page.locator("#grid-deepspeed tbody th").nth(15).bounding_box()["x"] - box["x"] < 4
    context.close()


def test_nothing_is_cut_at_the_edge_of_a_phone(browser, site):
    context = browser.new_context(viewport={"width": 390, "height": 844})
    page = context.new_page()
    cut = "(all) => all.filter((box) => box.scrollWidth > box.clientWidth).map((box) => box.innerText.slice(0, 80))"

    show(page, site / "index.html")
    stacks = page.locator(".scroll:has(.stacks)").evaluate_all(cut)
    address = page.locator(".stacks a").first.get_attribute("href")
    page.goto((site / address).as_uri())

    assert stacks == []
    assert page.locator("pre").evaluate_all(cut) == []
    context.close()


def test_a_tap_on_a_phone_shows_the_reason(browser, site):
    context = browser.new_context(viewport={"width": 390, "height": 844}, has_touch=True)
    page = context.new_page()
    show(page, site / "index.html")
    cell_of_grid(page, "deepspeed", "0.16.4", "2.11.0").tap()
    assert "Proved on CPU" in page.locator("#reason").inner_text()
    assert page.get_by_role("link", name="Record and log").last.is_visible()
    context.close()


def test_without_a_script_the_grid_is_there(browser, site):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto((site / "index.html").as_uri())
    assert page.locator("#grid-deepspeed table").is_visible()
    assert page.locator("#search").is_hidden()
    assert "need JavaScript" in page.locator("main").inner_text()
    page.locator("noscript a").click()
    assert page.locator("#grid-megatron-core table").is_visible()
    context.close()


def test_hostile_texts_stay_texts_whatever_shows_them(browser, tmp_path):
    hostile = "<img src=x onerror=alert(1)></script><script>alert(2)</script> javascript:alert(3)"
    page_of_matrix = read_page(find_matrix())
    record = next(r for r in page_of_matrix.records if r.cell == "ds0.19.8-torch2.15.0-cu132-py312")
    failure = {"rung": "imported", "symptom": hostile, "of_host": False, "log": [hostile]}
    steps = [{"name": hostile, "verdict": "error", "detail": hostile}]
    data = record.to_json() | {
        "passed": False,
        "summary": hostile,
        "failure": failure,
        "steps": steps,
        "notes": [hostile],
    }
    search = {
        "rules": [["x", hostile, hostile, []]],
        "errors": [[hostile, 0, hostile]],
        "warnings": [[0, False, hostile, hostile, {"f": [0]}]],
        "stacks": [[hostile, hostile, hostile]],
    }
    records = (read_record("x.json", json.dumps(data).encode()),)
    write_folder(tmp_path / "site", SITE, site_texts(replace(page_of_matrix, records=records, search=search)))
    page = browser.new_page()
    page.on("dialog", lambda dialog: pytest.fail(dialog.message))
    show(page, tmp_path / "site" / "index.html", "#" + record.cell)
    page.locator("#search").fill("onerror alert")
    cell_of_grid(page, "deepspeed", "0.19.8", "2.15.0").hover()
    page.locator("#results li a").first.click()
    assert "<img src=x" in page.locator("#answer").inner_text()
    assert page.locator("img").count() == 0
    page.goto((tmp_path / "site" / "cell" / f"{record.cell}.html").as_uri())
    assert "<img src=x" in page.locator("main").inner_text()
    assert page.locator("img").count() == 0
    page.close()


def test_the_arrow_keys_pass_over_what_is_refused(page, site):
    show(page, site / "index.html", "#framework=deepspeed&driver=535.54.03")
    page.locator("#cuda-any").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("#cuda-any").is_checked()
    assert "driver" in page.locator("#reason").inner_text()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert page.locator("[id='cuda-12.9']").is_checked()


def test_the_theme_is_switched_and_kept(page):
    before = page.evaluate("document.documentElement.dataset.theme")
    page.locator("#theme").click()
    after = page.evaluate("document.documentElement.dataset.theme")
    assert {before, after} == {"light", "dark"}
    page.reload()
    assert page.evaluate("document.documentElement.dataset.theme") == after


STATES = [
    "",
    "#framework=megatron-core",
    "#ds0.8.1-torch2.15.0-cu132-py312",
    "#ds0.15.4-torch2.6.0-cu124-py312",
    "#rule=deepspeed-elastic-log",
]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1024, 1600])
def test_axe_finds_nothing_and_nothing_overflows(browser, site, width, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()

    def check():
        violations = axe.Axe().run(page).response["violations"]
        assert not violations, [(v["id"], v["impact"], v["nodes"][0]["html"][:200]) for v in violations]
        assert page.evaluate("document.documentElement.scrollWidth") <= width

    for state in STATES:
        show(page, site / "index.html", state)
        check()
    page.locator("#search").fill("deepspeed 0.16 torch No module named")
    check()
    page.keyboard.press("Escape")
    cell_of_grid(page, "deepspeed", "0.16.4", "2.11.0").click()
    check()
    for name in (
        "figures.html",
        "cell/ds0.19.8-torch2.10.0-cu128-py312.html",
        "cell/ds0.8.1-torch2.15.0-cu132-py312.html",
    ):
        page.goto((site / name).as_uri())
        page.wait_for_selector("h1")
        check()
    context.close()


def _number(page, table, value):
    return str(page.evaluate(f"window.ENVSMITH.{table}.indexOf({value!r})"))
