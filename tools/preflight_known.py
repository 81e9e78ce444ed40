"""Write ``envsmith/preflight/known.json``: what the preflight needs of the matrix, in a form that is read in a millisecond.

    python tools/preflight_known.py [--check]

Variables come from ``matrix/environment.yaml``, the least driver of each CUDA major from the rule ``cuda-driver-floor``, and
frameworks from their registry.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import yaml

from envsmith.frameworks import added_frameworks

ROOT = Path(__file__).parents[1]
TARGET = ROOT / "envsmith" / "preflight" / "known.json"


def text() -> str:
    """The file as it should be: one variable a line, sorted."""
    document: dict[str, Any] = yaml.safe_load((ROOT / "matrix" / "environment.yaml").read_text(encoding="utf-8"))
    variables = {
        row["name"].split()[0]: [row["reads"], row.get("since"), row.get("until"), row.get("renamed")]
        for row in document["variables"]
    }
    rows = [f"  {json.dumps(name)}: {json.dumps(line)}" for name, line in sorted(variables.items())]
    head = f' "drivers": {json.dumps(drivers())},\n "frameworks": {json.dumps(list(added_frameworks()))},\n "variables": {{\n'
    return "{\n" + head + ",\n".join(rows) + "\n }\n}\n"


def drivers() -> dict[str, str]:
    """``{"13": "580", "12": …}``: rows that speak of a whole CUDA major."""
    document = yaml.safe_load((ROOT / "matrix" / "rules" / "driver.yaml").read_text(encoding="utf-8"))
    rule = next(rule for rule in document["rules"] if rule["id"] == "cuda-driver-floor")
    found = {}
    for row in rule["rows"]:
        major = re.fullmatch(r"==(\d+)\.\*", row["when"].get("cuda", ""))
        floor = re.fullmatch(r">=([\d.]+)", row["needs"].get("driver", ""))
        if major and floor:
            found[major[1]] = floor[1]
    return found


def main() -> int:
    """Write, or with ``--check`` say whether the file is up to date (exit code 1)."""
    new, old = text(), TARGET.read_text(encoding="utf-8") if TARGET.exists() else ""
    if "--check" in sys.argv[1:]:
        print("up to date" if new == old else f"{TARGET.name} is not up to date: run {Path(__file__).name}")
        return int(new != old)
    TARGET.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
