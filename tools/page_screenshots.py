#!/usr/bin/env python3
"""Take the screenshots of the page that docs/page holds: both themes, at the width of a phone, a tablet and a desk.

``python tools/page_screenshots.py [FOLDER]`` renders the page from the knowledge of this checkout and shows it in
Chromium. It needs ``playwright`` and ``pillow``, and Chromium or Chrome on PATH.
"""

from __future__ import annotations

import io
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Literal

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

from envsmith.base.files import write_folder, write_whole
from envsmith.knowledge.graph.location import find_matrix
from envsmith.matrix.site.page import SITE, read_page, site_texts

# Name, width and height. README shows the one without a prefix.
VIEWS = (("phone-", 390, 844), ("", 1024, 1320), ("wide-", 1600, 1200))
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update")
Theme = Literal["light", "dark"]
THEMES: tuple[Theme, ...] = ("light", "dark")


def main(folder: Path) -> int:
    """Write ``[phone-|wide-]light.png`` and ``dark.png`` into ``folder``."""
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as playwright:
        write_folder(Path(scratch), SITE, site_texts(read_page(find_matrix())))
        browser = playwright.chromium.launch(executable_path=chromium, args=list(FLAGS))
        for theme in THEMES:
            for prefix, width, height in VIEWS:
                picture = _shoot(browser, Path(scratch) / "index.html", theme, width, height)
                write_whole(folder / f"{prefix}{theme}.png", picture)
                print(f"{prefix}{theme}.png", len(picture))
        browser.close()
    return 0


def _shoot(browser: Browser, index: Path, theme: Theme, width: int, height: int) -> bytes:
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=theme)
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
    sys.exit(main(Path(sys.argv[1]) if sys.argv[1:] else Path(__file__).parents[1] / "docs/page"))
