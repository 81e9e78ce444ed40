"""Install this checkout, editable, into the environment whose Python runs this file.

    .venv/bin/python tools/install.py [--group NAME]

envsmith runs uv here as it does everywhere, with the index and the certificates that uv or pip are configured for. That
part of it needs the standard library alone, so it works before anything but uv is installed. What an interrupted run
has left is installed again.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from envsmith.errors import EnvsmithError  # noqa: E402 - of this checkout
from envsmith.lock.index.uv import Uv  # noqa: E402
from envsmith.net.index_settings import pip_values  # noqa: E402


def arguments_of_uv(groups: Sequence[str], environ: Mapping[str, str], *, again: bool) -> list[str]:
    """Return uv's arguments. Places of wheels stand in no index, so pip's settings of them are arguments."""
    pip = pip_values(environ)
    places = [place for place in pip.get("find-links", "").split() if "://" in place or Path(place).exists()]
    return [
        *("pip", "install", "--python", sys.executable, "--editable", f"{ROOT}[all]"),
        *(word for group in groups for word in ("--group", f"{ROOT / 'pyproject.toml'}:{group}")),
        *(word for place in places for word in ("--find-links", place)),
        *(["--no-index"] if pip.get("no-index", "").lower() in {"1", "true", "yes", "on"} else []),
        *(["--reinstall"] if again else []),
    ]


def main() -> int:
    """Install, and leave no mark when it is done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--group", action="append", default=[], help="a dependency group of pyproject.toml")
    groups = parser.parse_args().group
    mark = Path(sys.prefix) / ".installing"
    arguments = arguments_of_uv(groups, os.environ, again=mark.exists())
    try:
        mark.touch()
        finished = Uv().check(arguments, work="install envsmith")
    except EnvsmithError as error:
        lines = (f"error: {error.message}", *error.details, *([f"hint: {error.hint}"] if error.hint else ()))
        sys.stderr.write("".join(f"{line}\n" for line in lines))
        return error.exit_code
    mark.unlink()
    sys.stdout.write("".join(f"{line}\n" for line in finished.lines if line.startswith("Installed ")))
    return 0


if __name__ == "__main__":
    sys.exit(main())
