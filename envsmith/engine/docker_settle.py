"""The same layers give the same image id: the configuration that BuildKit wrote is replaced by one without the hour of the build.

An image's id is the sha256 of its configuration. The engine is handed an archive with the new configuration and no layers: those that
the configuration names are in its store already, so that this takes a fraction of a second whatever the image's size.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from typing import Any

from envsmith.engine.oci import canonical, canonical_config

__all__ = ["settle"]


def settle(client: Any, image: str, *, base_layers: int, epoch: int) -> str:
    """The id of the image with the settled configuration; ``image`` itself where the engine does not keep a configuration as it is given.

    ``client`` is the SDK's. Since version 29 an engine may keep images in containerd, whose ids are manifests': the digest of the
    exported layout is the same on a rebuild all the same.
    """
    from docker.errors import DockerException
    from requests.exceptions import RequestException

    with contextlib.suppress(DockerException, RequestException):
        attributes = client.images.get(image).attrs
        config = _settled(attributes, base_layers, epoch)
        blob = canonical(config)
        wanted = f"sha256:{hashlib.sha256(blob).hexdigest()}"
        if wanted == image:
            return image
        for _ in client.api.load_image(_archive(blob, wanted, len(config["rootfs"]["diff_ids"]))):
            pass
        client.images.get(wanted)
        with contextlib.suppress(DockerException, RequestException):
            client.images.remove(image)
        return wanted
    return image


def _settled(attributes: Mapping[str, Any], base_layers: int, epoch: int) -> dict[str, Any]:
    return canonical_config(
        attributes.get("Config") or {},
        architecture=str(attributes.get("Architecture")),
        diff_ids=[str(d) for d in (attributes.get("RootFS") or {}).get("Layers") or []],
        base_layers=base_layers,
        epoch=epoch,
    )


def _archive(blob: bytes, image: str, layers: int) -> bytes:
    """What ``docker load`` reads, without the layers."""
    name = f"{image[7:]}.json"
    manifest = [{"Config": name, "RepoTags": None, "Layers": [f"{n}/layer.tar" for n in range(layers)]}]
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for file, data in ((name, blob), ("manifest.json", json.dumps(manifest).encode())):
            info = tarfile.TarInfo(file)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()
