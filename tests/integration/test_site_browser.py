"""The page in a real browser: choose, copy, search, follow a permalink; axe finds nothing serious; both themes and a phone's width."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from envsmith.files import write_folder
from envsmith.graph.location import find_matrix
from envsmith.matrix.site.page import SITE, read_page, site_texts

pytestmark = pytest.mark.integration
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
# Where the screenshots go that docs/page holds; unset, they are thrown away.
SHOTS = os.environ.get("ENVSMITH_TEST_SCREENSHOTS")
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
    opened.goto((site / "index.html").as_uri())
    opened.wait_for_selector("#permalink")
    yield opened
    assert not errors
    context.close()


def test_choosing_leads_to_a_cell_and_its_command(page):
    page.get_by_label("Megatron-core", exact=True).check(force=True)
    page.locator("#torch-" + _number(page, "torches", "2.13.0")).check(force=True)
    page.locator("#gpu-h100").check(force=True)
    page.locator("[id='driver-580.65.06']").check(force=True)
    assert page.locator("#permalink").inner_text().startswith("mc")
    assert "torch2.13.0" in page.locator("#permalink").inner_text()
    page.get_by_label("uv", exact=True).check(force=True)
    assert page.locator("#command").inner_text().startswith("uv venv --python")


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


def test_a_choice_can_be_taken_back(page):
    page.locator("#gpu-v100").check(force=True)
    assert page.locator("#gpu-v100").is_checked()
    page.locator("#gpu-v100").click(force=True)
    assert not page.locator("#gpu-v100").is_checked()


def test_the_command_is_copied(browser, site):
    context = browser.new_context()
    page = context.new_page()
    page.goto((site / "index.html").as_uri())
    page.wait_for_selector("#permalink")
    command = page.locator("#command").inner_text()
    page.locator("#answer .copy").click()
    page.wait_for_function("document.querySelector('#answer .copy').textContent.startsWith('copied')")
    page.locator("#search").focus()
    page.keyboard.press("Control+V")
    assert page.locator("#search").input_value() == command
    context.close()


def test_an_error_text_finds_its_rule(page):
    page.locator("#search").fill(
        "ImportError: cannot import name 'log' from 'torch.distributed.elastic.agent.server.api' (/usr/lib/x.py)"
    )
    page.wait_for_selector("#found li code")
    assert "deepspeed-elastic-log" in page.locator("#found").inner_text()
    page.locator("#search").fill("zzzz qqqq wwww")
    page.wait_for_function("document.querySelector('#found').textContent.includes('No known-bad')")


def test_a_permalink_leads_back_to_the_choice(page, site):
    cell = page.locator("#permalink").inner_text()
    page.goto("about:blank")
    page.goto((site / "index.html").as_uri() + "#ds0.19.8-torch2.10.0-cu128-py312")
    page.wait_for_selector("#permalink")
    assert page.locator("#permalink").inner_text() == "ds0.19.8-torch2.10.0-cu128-py312" != cell
    page.get_by_role("link", name="record and log").click()
    page.wait_for_selector("h1.cell")
    assert page.locator("h1.cell").inner_text() == "ds0.19.8-torch2.10.0-cu128-py312"
    page.get_by_role("link", name="all cells").click()
    page.wait_for_selector("#permalink")


def test_the_theme_is_switched_and_kept(page):
    before = page.evaluate("document.documentElement.dataset.theme")
    page.locator("#theme").click()
    after = page.evaluate("document.documentElement.dataset.theme")
    assert {before, after} == {"light", "dark"}
    page.reload()
    assert page.evaluate("document.documentElement.dataset.theme") == after


@pytest.mark.parametrize(
    ("name", "width", "scheme"), [("light", 1200, "light"), ("dark", 1200, "dark"), ("phone", 390, "light")]
)
def test_axe_finds_nothing_serious_and_nothing_overflows(browser, site, name, width, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    context = browser.new_context(viewport={"width": width, "height": 844}, color_scheme=scheme)
    page = context.new_page()
    for part in ("index.html", "cell/ds0.19.8-torch2.10.0-cu128-py312.html"):
        page.goto((site / part).as_uri())
        page.wait_for_selector("h1")
        found = [v for v in axe.Axe().run(page).response["violations"] if v["impact"] in ("serious", "critical")]
        assert not found, [(v["id"], v["nodes"][0]["html"][:200]) for v in found]
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        if SHOTS:
            page.screenshot(path=Path(SHOTS) / f"{name}-{Path(part).stem.split('-')[0]}.png", full_page=name != "phone")
    context.close()


def _number(page, table, value):
    return str(page.evaluate(f"window.ENVSMITH.{table}.indexOf({value!r})"))
