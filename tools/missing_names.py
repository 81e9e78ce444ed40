#!/usr/bin/env -S uv run --script
# /// script
# requires-python = ">=3.10"
# dependencies = ["envsmith"]
# [tool.uv.sources]
# envsmith = { path = "..", editable = true }
# ///
"""Names that releases of a package take from another package, and releases of that one which do not have them.

    python tools/missing_names.py deepspeed torch [--users '>=0.14'] [--offers '>=2.0'] [--stage import] [--new] [--json]

Reads the Python sources of both on the package index (wheels by range requests; kept in the cache) and runs nothing. Every line is a
measured reason for a rule: "deepspeed >=0.7.0,<0.14.1 · torch >=2.4: torch.distributed.elastic.agent.server.api.log". ``--new`` leaves
out what ``envsmith check`` calls bad already.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # where it is loaded by path, as tests do

from missing.archive import Sources, choose, read_sources
from missing.compare import Gap, gaps, span
from missing.offered import Offered
from missing.reach import Release, Stage
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from envsmith.cache import cache_folder
from envsmith.errors import EnvsmithError
from envsmith.http import HttpClient
from envsmith.python.index import PackageIndex, find_index

# The import name where it is not the distribution's.
IMPORTED = {
    "megatron-core": "megatron.core",
    "transformer-engine": "transformer_engine",
    "transformer-engine-torch": "transformer_engine",
    "flash-attn": "flash_attn",
    "huggingface-hub": "huggingface_hub",
    "setuptools": "pkg_resources",
    "nemo-toolkit": "nemo",
    "pytorch-lightning": "pytorch_lightning",
}


def main(argv: list[str] | None = None) -> int:
    """Print the gaps; 1 when the index cannot be read."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("user", help="the distribution that uses names")
    parser.add_argument("offer", help="the distribution that has them")
    parser.add_argument("--users", default="", help="which releases of the first, as a version specifier")
    parser.add_argument("--offers", default="", help="which releases of the second")
    parser.add_argument(
        "--newest", choices=("user", "offer", "both"), help="of this one only the newest release of each minor"
    )
    parser.add_argument("--stage", choices=[s.value for s in Stage], action="append")
    parser.add_argument(
        "--skip", default=r"xpu|hpu|npu|mlu|musa|sdaa|mps", help="modules that are left out, a regular expression"
    )
    parser.add_argument("--judge", action="store_true", help="say what envsmith check says of the corners of each gap")
    parser.add_argument("--new", action="store_true", help="only what no rule calls bad yet")
    parser.add_argument("--cache", type=Path, default=cache_folder() / "names")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    index = PackageIndex(HttpClient(), find_index())
    try:
        minors = options.newest in {"offer", "both"}
        offers = [Offered(s) for s in releases(index, options.offer, options.offers, options.cache, minors=minors)]
        top = IMPORTED.get(options.user, options.user.replace("-", "_"))
        other = IMPORTED.get(options.offer, options.offer.replace("-", "_"))
        minors = options.newest in {"user", "both"}
        users = {
            s.version: tuple(Release(s, top, (other,), options.skip).places())
            for s in releases(index, options.user, options.users, options.cache, minors=minors)
        }
    except EnvsmithError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    found = [g for g in gaps(users, offers) if not options.stage or g.stage.value in options.stage]
    told = Told(
        options.user, options.offer, list(users), [o.version for o in offers], judged=options.judge or options.new
    )
    if options.new:
        found = [g for g in found if told.known(g) != "bad"]
    told.print(found, as_json=options.json)
    return 0


def releases(index: PackageIndex, name: str, spec: str, cache: Path, *, minors: bool) -> Iterator[Sources]:
    """Final releases that the specifier allows, oldest first; with ``minors`` the newest of each minor."""
    wanted = SpecifierSet(spec)
    known = {v: files for v, files in index.project(name).releases().items() if not Version(v).is_prerelease}
    chosen = [v for v in known if v in wanted and choose(known[v])]
    if minors:
        chosen = list({Version(v).release[:2]: v for v in chosen}.values())
    for version in chosen:
        file = choose(known[version])
        if file is not None:
            print(f"  {name} {version}", file=sys.stderr, end="\r")
            yield read_sources(index, name, file, cache)


class Told:
    """Prints gaps with ranges of both sides."""

    def __init__(
        self, user: str, offer: str, users: Sequence[str], offers: Sequence[str], *, judged: bool = False
    ) -> None:
        self.user, self.offer, self.users, self.offers = user, offer, users, offers
        self._judged = judged
        self._severities: dict[tuple[str, str], set[str]] = {}

    def known(self, gap: Gap) -> str:
        """``bad`` when every pair of the corners of a gap is called bad, ``part`` when some are, else ``new``."""
        pairs = {(u, o) for u in (gap.users[0], gap.users[-1]) for o in (gap.lacking[0], gap.lacking[-1])}
        grave = {"error"} if gap.stage.value == "import" else {"error", "warning", "note"}
        hits = [self._told(u, o) & grave for u, o in sorted(pairs)]
        return "bad" if all(hits) else "part" if any(hits) else "new"

    def _told(self, user: str, offer: str) -> set[str]:
        from envsmith.solve import check

        if (user, offer) not in self._severities:
            findings = check({self.user: user, self.offer: offer}).findings
            self._severities[user, offer] = {
                f.severity.value for f in findings if {self.user, self.offer} & set(f.components)
            }
        return self._severities[user, offer]

    def print(self, found: Sequence[Gap], *, as_json: bool) -> None:
        """A line a gap, import first, or JSON."""
        order = list(Stage)
        rows = sorted(found, key=lambda g: (order.index(g.stage), -len(g.users), g.what))
        if as_json:
            print(json.dumps([self._row(g) for g in rows], indent=1))
            return
        for gap in rows:
            row = self._row(gap)
            print(
                f"{row['stage']:6} {row.get('known', ''):4} {self.user} {row['users']} · {self.offer} {row['lacking']}: {gap.what}"
            )
            print(f"            {', '.join(gap.where[:4])}{' …' if len(gap.where) > 4 else ''}")

    def _row(self, gap: Gap) -> dict[str, object]:
        return {
            "what": gap.what,
            "stage": gap.stage.value,
            **({"known": self.known(gap)} if self._judged else {}),
            "users": span(gap.users, self.users),
            "lacking": span(gap.lacking, self.offers),
            "where": list(gap.where),
        }


if __name__ == "__main__":
    sys.exit(main())
