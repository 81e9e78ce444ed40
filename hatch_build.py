"""What the build backend does beside packing files: it makes the tables that a wheel brings along."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class TablesHook(BuildHookInterface[Any]):
    """Makes ``envsmith/_tables`` of a wheel. An editable installation, whose files change, has none."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Make the tables from the files that are about to be packed."""
        if version == "editable":
            return
        self.folder = Path(tempfile.mkdtemp())
        # Neither another matrix nor what a user's cache holds goes into a wheel.
        os.environ.pop("ENVSMITH_MATRIX", None)
        os.environ["XDG_CACHE_HOME"] = str(self.folder / "cache")
        sys.path.insert(0, self.root)
        from envsmith.doctor.tables import every_table

        for table in every_table():
            path = self.folder / table.kind
            path.write_bytes(table.entry())
            build_data["force_include"][str(path)] = f"envsmith/_tables/{table.kind}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """Remove what is packed now."""
        if version != "editable":
            shutil.rmtree(self.folder, ignore_errors=True)
