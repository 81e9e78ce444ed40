"""Print the address of the default index of a uv.toml, for pip. An image before Python 3.11 has pip's own parser."""

import sys
from pathlib import Path

try:
    import tomllib
except ImportError:
    from pip._vendor import tomli as tomllib  # type: ignore[import-not-found,no-redef]

settings = tomllib.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
addresses = [index["url"] for index in settings.get("index", []) if index.get("default")]
sys.stdout.write((addresses or [settings.get("index-url", "")])[0])
