"""``envsmith matrix site``: the static page."""

from __future__ import annotations

from pathlib import Path

import click

__all__ = ["site"]

# What a browser loads before anything is seen.
_FIRST = ("index.html", "style.css", "theme.js", "data.js", "app.js")


@click.command()
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("site"),
    show_default=True,
    help="Folder to write.",
)
@click.option("--base-url", default="", metavar="URL", help="Where it will be published, for the links of the feed.")
def site(*, output: Path, base_url: str) -> int:
    """Write the page: selector, grid, search, a page for each cell that was run, and matrix.json beside it.

    Open index.html, or publish the folder: nothing in it needs a server.
    """
    from envsmith.cli.console import say
    from envsmith.cli.matrix_data import tell_framework
    from envsmith.graph.data import find_matrix
    from envsmith.lock.store import prepare
    from envsmith.matrix.site.source import read_page, write_all

    root = find_matrix()
    prepare(output)  # before the minutes of judging, not after them
    say("reading what can be chosen")
    page = read_page(root)
    count = write_all(page, output, root, base_url=base_url, progress=tell_framework())
    first = sum((output / name).stat().st_size for name in _FIRST)
    say(f"{count} files, {len(page.records)} records; the first page is {first / 1000:.0f} kB")
    click.echo(str(output / "index.html"))
    return 0
