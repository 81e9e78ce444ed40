"""How two images differ, by layer and file."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Mapping
from typing import Any

from envsmith.files import sha256_of
from envsmith.oci.layers import member_name
from envsmith.oci.layout import OciImage, open_layer

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


def _config(one: Mapping[str, Any], two: Mapping[str, Any]) -> list[str]:
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
