"""``envsmith matrix site``: the static page."""

from __future__ import annotations

from pathlib import Path

import click

__all__ = ["site"]


@click.command()
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("site"),
    show_default=True,
    help="Folder to write.",
)
@click.option(
    "--records",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Folder of records. Default: those of the knowledge.",
)
def site(*, output: Path, records: Path | None) -> int:
    """Write the page: selector, grid, search, a page for each cell that was run. Open index.html, or publish the folder."""
    from envsmith.cli.console import say
    from envsmith.graph.data import find_matrix
    from envsmith.matrix.site.source import read_page, write_all

    folder = records or find_matrix() / "records"
    page = read_page(folder)
    files = write_all(page, output)
    first = sum((output / name).stat().st_size for name in ("index.html", "style.css", "theme.js", "data.js", "app.js"))
    say(f"{len(files)} files, {len(page.records)} records; the first page is {first / 1000:.0f} kB")
    click.echo(str(output / "index.html"))
    return 0
