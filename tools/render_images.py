"""Render every generated file of images/ again from its locks, records and digests; show what changes, write it with --write.

Needed after a change of a renderer. A Dockerfile that changes here is no longer the one its image was built from: build and publish the cell again.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from pathlib import Path

from envsmith.lock import store
from envsmith.publish.image_folder import IMAGE_FILE, index_text, read_folder, rendered

IMAGES = Path(__file__).resolve().parent.parent / "images"


def main() -> int:
    """1 when something would change and is not written."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--images", type=Path, default=IMAGES)
    asked = parser.parse_args()
    changed = 0
    for folder in sorted(path.parent for path in asked.images.glob(f"*/{IMAGE_FILE}")):
        lock, told, record = read_folder(folder)
        changed += _compare(folder, rendered(lock, told, record), write=asked.write)
    changed += _compare(asked.images, {"README.md": index_text(asked.images)}, write=asked.write)
    return 1 if changed and not asked.write else 0


def _compare(folder: Path, files: dict[str, str], *, write: bool) -> int:
    changed = {}
    for name, text in sorted(files.items()):
        path = folder / name
        there = path.read_text(encoding="utf-8") if path.is_file() else ""
        if there != text:
            changed[name] = text
            sys.stdout.writelines(
                difflib.unified_diff(
                    there.splitlines(keepends=True), text.splitlines(keepends=True), str(path), str(path)
                )
            )
    if write:
        store.write(folder, changed)
    return len(changed)


if __name__ == "__main__":
    sys.exit(main())
