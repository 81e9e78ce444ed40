"""What markers of requirements see on a platform, and where they hold."""

from __future__ import annotations

from collections.abc import Iterable

from packaging.markers import Marker, UndefinedComparison, UndefinedEnvironmentName

from envsmith.model.cell import Platform


def environment_of(python: str, platform: Platform) -> dict[str, str]:
    """Return what markers see on a platform with a minor of Python."""
    return {
        "os_name": "posix",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "platform_machine": platform.machine,
        "platform_release": "",
        "platform_version": "",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "implementation_version": f"{python}.0",
        "python_version": python,
        "python_full_version": f"{python}.0",
        "extra": "",
    }


def holds(marker: Marker | None, python: str, platform: Platform, extra: str = "") -> bool:
    """Return whether a marker holds on a platform with a minor of Python. One that cannot be judged does."""
    try:
        return marker is None or marker.evaluate(environment_of(python, platform) | {"extra": extra})
    except (UndefinedComparison, UndefinedEnvironmentName):
        return True


def holds_somewhere(marker: Marker | None, pythons: Iterable[str], platform: Platform) -> bool:
    """Return whether a marker holds on a platform for one of some minors of Python."""
    return marker is None or any(holds(marker, python, platform) for python in pythons)


def holds_everywhere(marker: Marker | None, pythons: Iterable[str], platform: Platform) -> bool:
    """Return whether a marker holds on a platform for all of some minors of Python."""
    return marker is None or all(holds(marker, python, platform) for python in pythons)
