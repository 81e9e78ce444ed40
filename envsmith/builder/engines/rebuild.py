"""The same lock built a second time, without a cache: the same image, or the files that differ."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from envsmith.base.files import sha256_of
from envsmith.base.json_types import JsonFields
from envsmith.base.progress import EventKind, Progress, ProgressEvent, silent
from envsmith.base.schema import AsJson
from envsmith.builder.engines.base import Engine
from envsmith.errors import EngineError
from envsmith.model.lock import Lock
from envsmith.net.oci.image import OciImage, open_layer
from envsmith.net.oci.layers import member_name

# The OCI layout of a cell, in its own folder.
LAYOUT = "oci"


@dataclass(frozen=True, kw_only=True, slots=True)
class RebuildReport(AsJson):
    """Both digests of the configuration, and what differs: one line a file, or key of the configuration."""

    same: bool
    first: str
    second: str
    differences: tuple[str, ...] = ()


def rebuild(
    lock: Lock,
    identity: str,
    fetch: Callable[[Path], OciImage],
    scratch: Path,
    *,
    engine: Engine,
    progress: Progress = silent,
) -> RebuildReport:
    """Build the lock of a published image anew and compare the digest of its configuration with ``identity``.

    ``scratch`` is an empty folder. ``fetch`` writes the published image as a layout. It is called only when the digests
    differ, to name the files. Raises ``EngineError`` for an engine that makes no images, or when the lock's base cannot
    be had here.
    """
    if engine.images is None:
        raise EngineError(
            f"Cannot rebuild with the engine {engine.name}: it makes no images.",
            hint="Start a container engine, or name one with --engine docker, podman or buildah.",
        )
    progress(ProgressEvent(kind=EventKind.START, step="rebuild", text=f"{lock.cell.id} without a cache"))
    again = engine.images.build_again(lock, scratch / LAYOUT, progress=progress)
    same = again.identity == identity
    differences = () if same else difference(fetch(scratch / "published" / LAYOUT), again)
    text = "the same digest" if same else f"{len(differences)} differences"
    progress(ProgressEvent(kind=EventKind.DONE, step="rebuild", text=text))
    return RebuildReport(same=same, first=identity, second=again.identity, differences=differences)


# How two images differ, by layer and file.

# Of one layer: more would be noise, the number of all is shown.
_SHOWN = 40
_KINDS = {tarfile.DIRTYPE: "folder", tarfile.SYMTYPE: "link", tarfile.LNKTYPE: "hard link"}


def difference(first: OciImage, second: OciImage) -> tuple[str, ...]:
    """Return one line a difference, the configuration's first, and none when both are the same image."""
    if first.identity == second.identity:
        return ()
    lines = _config(first.config, second.config)
    if len(first.diff_ids) != len(second.diff_ids):
        lines.append(f"layers: {len(first.diff_ids)} and {len(second.diff_ids)}")
    for number, (one, two) in enumerate(zip(first.diff_ids, second.diff_ids, strict=False)):
        if one != two:
            lines += _layer(f"layer {number + 1}", _members(first, number), _members(second, number))
    return tuple(lines or ["configuration: another spelling of the same image"])


def _config(one: JsonFields, two: JsonFields) -> list[str]:
    flat = [_flat({k: v for k, v in c.items() if k not in {"rootfs", "history"}}) for c in (one, two)]
    names = sorted({*flat[0], *flat[1]})
    return [
        f"configuration {n}: {flat[0].get(n, 'absent')} and {flat[1].get(n, 'absent')}"
        for n in names
        if flat[0].get(n) != flat[1].get(n)
    ]


def _flat(value: object, path: str = "") -> dict[str, str]:
    if isinstance(value, dict) and value:
        return {k: v for key, inner in value.items() for k, v in _flat(inner, f"{path}.{key}".strip(".")).items()}
    return {path: json.dumps(value, sort_keys=True)[:200]}


def _members(image: OciImage, number: int) -> dict[str, dict[str, str]]:
    """Return what can differ about each path, each said in a word."""
    members: dict[str, dict[str, str]] = {}
    with open_layer(image, number) as file, tarfile.open(fileobj=file, mode="r:") as layer:
        for member in layer:
            content = member.linkname
            if member.isreg():
                data = layer.extractfile(member)
                content = f"sha256 {sha256_of(data).hex()[:12]}" if data else content
            members[member_name(member.name)] = {
                "kind": _KINDS.get(member.type, "file"),
                "content": content,
                "bytes": str(member.size),
                "mode": oct(member.mode & 0o7777),
                "owner": f"{member.uid}:{member.gid}",
                "time": str(int(member.mtime)),
                "attributes": json.dumps(dict(sorted(member.pax_headers.items()))),
            }
    return members


def _layer(name: str, one: Mapping[str, Mapping[str, str]], two: Mapping[str, Mapping[str, str]]) -> list[str]:
    lines = []
    for path in sorted({*one, *two}):
        if path not in one or path not in two:
            lines.append(f"{name}: /{path}: only in the {'second' if path in two else 'first'}")
        elif one[path] != two[path]:
            changes = [f"{k} {one[path][k]} and {two[path][k]}" for k in one[path] if one[path][k] != two[path][k]]
            lines.append(f"{name}: /{path}: {', '.join(changes)}")
    if not lines:
        return [f"{name}: the same files in another order or spelling"]
    tail = [f"{name}: and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []
    return [*lines[:_SHOWN], *tail]
