"""Links packages into a prefix, in a process of its own: ``python -m envsmith.lock.conda.linker < order.json``.

When rattler gives up on one package its other workers go on writing for a while. Only when their process is gone can
the prefix be cleared and the old environment be put back; and a crash of native code ends this process, not the
program.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from envsmith.lock.conda.channels import Access


def main() -> int:
    """Install what the order on stdin says. A failure is one JSON object on stdout, and 1."""
    order = json.load(sys.stdin)
    try:
        asyncio.run(_install(order))
    except KeyboardInterrupt:
        return 130
    except BaseException as error:  # noqa: BLE001 - rattler's panics are no Exceptions; the parent tells the user
        json.dump({"error": f"{error}"}, sys.stdout)
        return 1
    return 0


async def _install(order: dict[str, Any]) -> None:
    import rattler

    await rattler.install(
        [_record(rattler, package) for package in order["packages"]],
        target_prefix=Path(order["prefix"]),
        cache_dir=Path(order["cache"]),
        installed_packages=[],
        platform=rattler.Subdir(order["platform"]),
        execute_link_scripts=False,  # post-link scripts are programs of strangers
        show_progress=False,
        client=Access(**order["access"]).client(),
    )


def _record(rattler: Any, package: dict[str, Any]) -> Any:
    record = rattler.PackageRecord(
        name=package["name"],
        version=package["version"],
        build=rattler.BuildString(package["build"]),
        build_number=package["build_number"],
        subdir=package["subdir"],
        noarch=package["noarch"],
        depends=package["depends"],
        constrains=package["constrains"],
        sha256=bytes.fromhex(package["sha256"]),
        md5=bytes.fromhex(package["md5"]),
        size=package["size"],
        license=package["license"],
        python_site_packages_path=package["python_site_packages_path"],
    )
    return rattler.RepoDataRecord(record, file_name=package["filename"], url=package["url"], channel=package["channel"])


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    # An orderly exit does not wait: rattler's workers would call into an interpreter that is being taken down, and
    # crash.
    os._exit(code)
