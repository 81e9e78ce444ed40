"""The labels of an image: what a registry's page and ``docker inspect`` can say of a cell without running it."""

from __future__ import annotations

from envsmith.model.lock import Lock

__all__ = ["labels"]


def labels(lock: Lock) -> dict[str, str]:
    """OCI's own keys, then ``io.envsmith.*``: the cell id, the lock's digest and one key per component of the cell.

    There is no creation time among them: it would make two builds of one lock differ.
    """
    cell = str(lock.cell.id)
    base = (
        {}
        if lock.base is None
        else {
            "org.opencontainers.image.base.name": lock.base.name.split("@")[0],
            "org.opencontainers.image.base.digest": lock.base.digest,
        }
    )
    components = {f"io.envsmith.{name}": version for name, version in lock.cell.components.items() if name not in _HOST}
    return {
        "org.opencontainers.image.title": f"envsmith cell {cell}",
        "org.opencontainers.image.version": cell,
        **base,
        "io.envsmith.cell": cell,
        "io.envsmith.lock": lock.digest,
        "io.envsmith.flavour": lock.flavour,
        "io.envsmith.platform": lock.cell.platform.value,
        **components,
    }


# What the host has is no property of the image.
_HOST = frozenset({"driver", "gpu", "toolkit", "gcc", "glibc"})
