"""How well the releases of packages are told by the lines of code in the tracebacks of bug reports.

    python bench/traced.py CORPUS.jsonl... [--longest SECONDS]

Of each package under ``site-packages`` in a record's tracebacks the releases on the package index are read that have its lines at their numbers. Right is a
range that holds the release which the record states. The range is narrow where it lies in one line of releases (``4.35``).
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

from doctor import text_of
from packaging.version import InvalidVersion, Version

from envsmith.doctor.read.pasted import clean
from envsmith.doctor.traced_releases import lines_in
from envsmith.errors import EnvsmithError
from envsmith.lock.index.asked_lines import releases_with
from envsmith.lock.index.asked_names import AskedReleases
from envsmith.lock.index.index import quick_index
from envsmith.model.project_name import normal_name
from envsmith.model.version import minor_of


def stated(record: dict[str, Any], project: str) -> Version | None:
    """The release of a project that the record states or calls bad."""
    known = {**(record.get("env") or {}), **record.get("releases", {}).get("bad", {})}
    for name, version in known.items():
        if normal_name(name) == normal_name(project):
            try:
                return Version(str(version))
            except InvalidVersion:
                return None
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpora", type=Path, nargs="+")
    parser.add_argument("--longest", type=float, default=25, help="seconds for one package")
    options = parser.parse_args()
    counts: Counter[str] = Counter()
    started = time.monotonic()
    records = [
        json.loads(line) for corpus in options.corpora for line in corpus.read_text().splitlines() if line.strip()
    ]
    for record in records:
        text = clean(text_of(record))
        for project, lines in lines_in([("report", text)]).items():
            counts["packages"] += 1
            try:
                with AskedReleases(quick_index(), project, longest=options.longest) as releases:
                    told = releases_with(releases, lines)
            except EnvsmithError as error:
                counts["not read"] += 1
                print(f"{record['id']}: {error.message}")
                continue
            if not told:
                continue
            counts["told"] += 1
            counts["narrow"] += minor_of(told[0]) == minor_of(told[-1])
            if release := stated(record, project):
                is_right = Version(told[0]) <= release <= Version(told[-1])
                counts["right" if is_right else "wrong"] += 1
                if not is_right:
                    print(f"{record['id']}: {project} {release} is stated, {told[0]} to {told[-1]} told")
    print(f"{dict(counts)}; {(time.monotonic() - started) / max(1, counts['packages']):.1f} s a package")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
