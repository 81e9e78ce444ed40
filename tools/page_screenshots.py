#!/usr/bin/env python3
"""Take the pictures of the page that README shows, in both themes, and write the day of them into README.

``python tools/page_screenshots.py`` renders the page from the knowledge of this checkout and shows it in Chromium, here
or on a CI runner. It needs ``playwright`` and ``pillow``, and Chromium or Chrome on PATH.
"""

from __future__ import annotations

import io
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Literal

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

from envsmith.base.files import now, write_folder, write_whole
from envsmith.knowledge.graph.location import find_matrix
from envsmith.matrix.site.page import SITE, read_page, site_texts

ROOT = Path(__file__).resolve().parents[1]
WIDTH, HEIGHT = 1024, 1320
# What README says of the pictures, with their day.
_DAY = re.compile(r"(?<=matrix site --open`, on )\d{4}-\d\d-\d\d")
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update")
Theme = Literal["light", "dark"]
THEMES: tuple[Theme, ...] = ("light", "dark")


def main() -> int:
    """Write ``light.png`` and ``dark.png`` into ``docs/page``, and their day into README."""
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as playwright:
        write_folder(Path(scratch), SITE, site_texts(read_page(find_matrix())))
        browser = playwright.chromium.launch(executable_path=chromium, args=list(FLAGS))
        for theme in THEMES:
            picture = _shoot(browser, Path(scratch) / "index.html", theme)
            write_whole(ROOT / "docs" / "page" / f"{theme}.png", picture)
            print(f"{theme}.png", len(picture))
        browser.close()
    readme = ROOT / "README.md"
    write_whole(readme, _DAY.sub(now().date().isoformat(), readme.read_text(encoding="utf-8")))
    return 0


def _shoot(browser: Browser, index: Path, theme: Theme) -> bytes:
    context = browser.new_context(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme=theme)
    page = context.new_page()
    page.goto(index.as_uri())
    page.wait_for_selector("#grid td[aria-label]", state="attached")
    shot = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    context.close()
    # The marks of the grid are few pixels, so the palette must not go by how many pixels have a colour.
    box = io.BytesIO()
    shot.quantize(256, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(box, "PNG", optimize=True)
    return box.getvalue()


if __name__ == "__main__":
    sys.exit(main())
