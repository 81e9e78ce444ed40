"""``envsmith matrix site``: the static page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from envsmith.base.files import claim
from envsmith.cli.console import print_out, say, tell_framework
from envsmith.cli.declare import Folder, flag, option, verb
from envsmith.knowledge.graph.location import find_matrix
from envsmith.matrix.site.page import FIRST, SITE, read_page, write_all


@dataclass(frozen=True, kw_only=True, slots=True)
class SiteFlags:
    """The options of ``matrix site``."""

    output: Folder = option("-o", "Folder to write.", default=Path("site"))
    base_url: str = option(
        "URL", "Where it will be published, for the links of the feed.", default="", show_default=False
    )
    opens: bool = flag("--open", "Show it in the browser.")


@verb(SiteFlags)
def site(settings: SiteFlags) -> int:
    """Write the page: selector, grid, search, a page for each cell that was run, and matrix.json beside it.

    Open index.html, or publish the folder: nothing in it needs a server.
    """
    root, output = find_matrix(), settings.output
    claim(output, SITE)  # before the minutes of judging, not after them
    say("judging what can be chosen: about a minute")
    page = read_page(root)
    count = write_all(page, output, root, base_url=settings.base_url, progress=tell_framework())
    first = sum((output / name).stat().st_size for name in FIRST)
    say(f"{count} files, {len(page.records)} records; the first page is {first / 1000:.0f} kB")
    print_out(str(output / "index.html"))
    if settings.opens and click.launch(str(output / "index.html")):
        say("no browser was found: open the file that is named above")
    return 0
