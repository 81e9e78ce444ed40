"""Print the address of the default index of a uv.toml, for pip. Before Python 3.11 pip's own parser reads it."""

import importlib
import sys
from pathlib import Path

parser = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "pip._vendor.tomli")
settings = parser.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
addresses = [index["url"] for index in settings.get("index", []) if index.get("default")]
sys.stdout.write((addresses or [settings.get("index-url", "")])[0])
