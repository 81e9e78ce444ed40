"""Whether files that differ from their ``RECORD`` are those of the wheel: some are repaired after it was written."""

from __future__ import annotations

import hashlib
import io
import zipfile
import zlib
from collections.abc import Callable, Mapping

from envsmith.errors import EnvsmithError
from envsmith.lock.index.archives import fetch_archive
from envsmith.model.lock import Artifact, Pin


def is_published(pin: Pin, digests: Mapping[str, str], fetch: Callable[[str, Artifact], bytes] = fetch_archive) -> bool:
    """Tell whether a wheel of ``pin``, read from where the lock found it, has files of these digests.

    ``digests`` maps paths in the wheel to SHA-256 in hex. pynvvideocodec 2.0.4 was published with two libraries that its
    RECORD does not know. ``False`` where the wheel cannot be had.
    """
    wheels = (artifact for artifact in pin.artifacts if artifact.filename.endswith(".whl"))
    return any(_has(artifact, digests, lambda wheel: fetch(pin.name, wheel)) for artifact in wheels)


def _has(artifact: Artifact, digests: Mapping[str, str], fetch: Callable[[Artifact], bytes]) -> bool:
    try:
        with zipfile.ZipFile(io.BytesIO(fetch(artifact))) as wheel:
            return all(hashlib.sha256(wheel.read(path)).hexdigest() == digest for path, digest in digests.items())
    except (EnvsmithError, KeyError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError):
        return False
