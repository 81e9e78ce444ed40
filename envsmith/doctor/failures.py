"""Failure classes of rules over facts: what the study's taxonomy says of each cause."""

from __future__ import annotations

from envsmith.doctor.diagnosis import Taxonomy

__all__ = ["failure"]

_COMM = "comm-or-launch-setup"
_SETUP = "environment-or-toolchain-setup"
_TUNING = "distributed-feature-api-communication-tuning"
_PAIRING = "version-and-dependency-management"
_CODE = "framework-code-fix"
# Cause -> stage at which it shows, group of causes, pattern of the fix.
_CLASSES = {
    "apex-missing": ("import", "missing-optional-package", _SETUP),
    "apex-without-cuda-ext": ("import", "missing-optional-package", _SETUP),
    "broken-installation": ("import", "stale-or-foreign-binary", _PAIRING),
    "container-shm-too-small": ("comm-setup", _COMM, _SETUP),
    "cpu-only-torch": ("setup", "cuda-torch-mismatch", _PAIRING),
    "cuda-device-max-connections": ("setup", _COMM, _TUNING),
    "cuda-home-malformed": ("install", "toolchain-missing", _SETUP),
    "cuda-toolkit-missing": ("build", "toolchain-missing", _SETUP),
    "cuda-visible-devices-vs-launcher": ("launch", _COMM, _CODE),
    "driver-too-old": ("setup", "driver", _PAIRING),
    "extension-built-for-other-torch": ("import", "stale-or-foreign-binary", _PAIRING),
    "geforce-no-p2p": ("comm-setup", _COMM, _TUNING),
    "hostname-resolution-or-nccl-version": ("comm-setup", _COMM, _SETUP),
    "launcher-env-not-set-mpi4py": ("comm-setup", _COMM, _SETUP),
    "libcurand-not-on-link-path": ("build", "toolchain-missing", _SETUP),
    "libstdcxx-too-old": ("load", "stale-or-foreign-binary", _SETUP),
    "memlock-limit": ("comm-setup", _COMM, _SETUP),
    "missing-system-tool": ("build", "toolchain-missing", _SETUP),
    "more-ranks-than-gpus": ("launch", _COMM, _SETUP),
    "nccl-wrong-interface": ("comm-setup", _COMM, _TUNING),
    "ninja-not-usable": ("build", "toolchain-missing", _SETUP),
    "nvcc-too-old-for-arch": ("build", "gpu-arch", _PAIRING),
    "nvls-fabric-manager": ("comm-setup", _COMM, _SETUP),
    "open-files-limit": ("comm-setup", _COMM, _SETUP),
    "package-missing": ("setup", "missing-optional-package", _SETUP),
    "pdsh-or-ssh-not-usable": ("launch", _COMM, _SETUP),
    "stale-torch-extensions-cache": ("load", "stale-or-foreign-binary", _SETUP),
    "torch-not-installed-at-build": ("install", "toolchain-missing", _SETUP),
    "torch-too-old": ("import", "python-version-pair", _PAIRING),
    "triton-version-mismatch": ("train", "python-version-pair", _PAIRING),
    "variable-not-read": ("comm-setup", _COMM, _TUNING),
    "wrong-headers-nvhpc": ("build", "compiler", _SETUP),
    "wrong-nccl-loaded": ("import", "stale-or-foreign-binary", _PAIRING),
}


def failure(cause: str, stage: str | None = None) -> Taxonomy:
    """The class of a cause; ``stage`` where it shows at another stage than usual. ``KeyError`` for a cause that is not in the table."""
    usual, group, pattern = _CLASSES[cause]
    return Taxonomy(stage=stage or usual, group=group, cause=cause, pattern=pattern)
