"""What a finding says and asks for, with the versions at hand: texts made from a signature, its hit and the facts."""

from __future__ import annotations

import re
from collections.abc import Mapping

from envsmith.doctor.diagnosis import Taxonomy
from envsmith.doctor.hits import Hit
from envsmith.doctor.parties import asked
from envsmith.doctor.signatures import Signature
from envsmith.doctor.symbols import symbol_in
from envsmith.model.finding import Finding
from envsmith.sources.reports.facts import Facts
from envsmith.sources.reports.words import fold

__all__ = ["better_fix", "mended", "told", "typed"]

# The first toolkit whose nvcc knows an architecture: NVIDIA's release notes of each toolkit, as in matrix/rules/toolkit.yaml (toolkit-gpu-min).
_NVCC_FLOOR = {
    "70": "9.0",
    "75": "10.0",
    "80": "11.0",
    "86": "11.1",
    "87": "11.4",
    "89": "11.8",
    "90": "11.8",
    "100": "12.8",
    "101": "12.8",
    "120": "12.8",
    "103": "12.9",
    "121": "12.9",
    "110": "13.0",
}
# Signatures whose message tells a requirement: of the package in the group ``need``, or always of the same one.
_TELLS_OF = {"megatron-te-floor": "transformer-engine"}
_TELL = frozenset(
    {"pip-incompatible", "transformers-deepspeed-floor", "release-floor-told", "package-told", *_TELLS_OF}
)
_SPELT = {"pytorch": "torch", "deepspeed": "deepspeed", "flash_attn": "flash-attn", "megatron_core": "megatron-core"}
# Libraries whose own number is CUDA's major.
_MAJOR = re.compile(r"^lib(?:cudart|cublas|cublasLt|nvrtc|nvJitLink|cupti)\.so\.(1[1-9])\b")
# The torch build of each CUDA major that most machines of that major can use.
_BUILD = {"11": "cu118", "12": "cu126", "13": "cu130"}


def better_fix(finding: Finding, taxonomy: Taxonomy, facts: Facts, twin: Hit | None) -> str | None:
    """What the message itself asks for, and the versions that are known here, say more than the rule in general."""
    if twin and {"spec", "floor", "limit"} & set(twin.groups):
        return mended(twin.signature, twin, facts)
    if taxonomy.group == "cuda-torch-mismatch" and {"toolkit", "cuda"} <= set(finding.components):
        return _cuda_fix(facts) or finding.fix
    return finding.fix


def told(signature: Signature, hit: Hit) -> str:
    """The message of a signature with what its hit names."""
    groups = hit.groups
    if signature.id == "pip-incompatible":
        need = groups.get("need", "")
        return f"{groups.get('who')} {groups.get('who_version')} requires {need}{groups.get('spec', '')}" + (
            f", and {groups['have']} {groups['have_version']} is installed."
            if "have" in groups
            else ", which is not installed."
        )
    named = [
        f"{k.replace('_', '-')} {v}"
        for k, v in groups.items()
        if k
        in {"package", "need", "library", "tool", "symbol", "toolkit", "cuda", "gpu", "op", "spec", "owner", "user"}
        and (k != "owner" or "package" not in groups)
    ]
    if symbol := symbol_in(hit.text):
        named.append(f"symbol {symbol.readable}, which is {symbol.component}'s")
    return signature.message + (f" ({', '.join(named)})" if named else "")


def mended(signature: Signature, hit: Hit, facts: Facts) -> str:
    """What to do: the signature's fix, or a nearer one where the message or the facts name versions."""
    groups = hit.groups
    if of_parties := asked(hit, facts):
        return of_parties
    if signature.id == "cuda-library-symbol" and (symbol := symbol_in(hit.text)) and symbol.wheel:
        return (
            f"{signature.fix} Where the library itself is too old for what asks: pip install --upgrade {symbol.wheel}."
        )
    if signature.id == "shared-library-missing" and (major := _MAJOR.search(groups.get("library", ""))):
        return f"{groups['library']} belongs to CUDA {major[1]}: install the build of what asks for it that is made for the CUDA of this torch (its name or extra says cu12 or cu13), or a torch for CUDA {major[1]}; where torch itself asks: pip install --force-reinstall torch brings its nvidia wheels back."
    if signature.id == "pip-resolution" and "needs" in groups:
        return f"{signature.fix} What was asked for stands against: {groups['needs']}."
    if asks := _needed(signature, groups):
        return f"{asks}: pip install '{asks}'" + (
            f", or another release of {groups['who']}." if "who" in groups else "."
        )
    if signature.id == "te-flash-attn-range" and ("spec" in groups or "limit" in groups):
        spec = groups.get("spec", "").strip().rstrip(",.") or f"<={groups.get('limit')}"
        return f"Install flash-attn{spec.replace(' ', '')}: pip install --no-build-isolation 'flash-attn{spec.replace(' ', '')}'; or NVTE_FLASH_ATTN=0 (on GPUs before Ampere uninstall it)."
    if signature.id == "optional-missing" and "package" in groups:
        return f"pip install {fold(groups['package'].split('.')[0]) if groups['package'] != 'megatron.core' else 'megatron-core'} in this environment."
    if signature.id == "pip-requires-python" and "spec" in groups:
        return f"Use a Python that satisfies {groups['spec']}: uv venv --python 3.12."
    if signature.id == "cxx-std-torch":
        std = groups.get("std")
        if std == "20":
            return "deepspeed>=0.19.5 (it asks for C++20 with torch 2.12 and later), or torch<2.12; g++ 11 or later."
        return "deepspeed>=0.11.0 (0.9.3 for the optimizer ops; async_io asks for C++17 from 0.11.0), or torch<2.1."
    if signature.id == "nvcc-arch-unknown" and (floor := _NVCC_FLOOR.get(groups.get("gpu", ""))):
        return f"nvcc>={floor}: compute_{groups['gpu']} needs a toolkit of CUDA {floor} or later (set CUDA_HOME to it; same major as torch's CUDA). If no such GPU is in use, leave it out: export TORCH_CUDA_ARCH_LIST to the GPUs at hand."
    if signature.group == "cuda-torch-mismatch" and (aligned := _cuda_fix(facts)):
        return aligned
    if signature.id == "driver-too-old" and (level := facts.host.get("driver_cuda")):
        return f"{signature.fix} The driver here supports CUDA {level}."
    return signature.fix


def _cuda_fix(facts: Facts) -> str | None:
    """The two ways out of a toolkit that is not of torch's CUDA, with the versions at hand."""
    toolkit, cuda = facts.version("toolkit"), facts.version("cuda")
    if not toolkit or not cuda or cuda == "cpu":
        return None
    have, want = ".".join(toolkit.split(".")[:2]), ".".join(cuda.split(".")[:2])
    if have == want:  # they are not what is wrong
        return None
    build = _BUILD.get(have.split(".")[0], "cu" + have.replace(".", ""))
    return (
        f"Align nvcc and torch: install the CUDA toolkit {want} beside {have} and export CUDA_HOME=/usr/local/cuda-{want}; or install the torch build of the toolkit's"
        f" major ({have.split('.')[0]}.x): uv pip install torch --torch-backend={build} (pip: PyTorch's index for {build})."
    )


def typed(signature: Signature, hit: Hit) -> tuple[str, ...]:
    """The exact lines to type."""
    asks = _needed(signature, hit.groups)
    return (f"pip install '{asks}'",) if asks else signature.lines


def _needed(signature: Signature, groups: Mapping[str, str]) -> str | None:
    """The requirement that a message tells, as pip takes it: ``torch>=2.3``; where it names no release, the package alone."""
    need = _TELLS_OF.get(signature.id) or groups.get("need")
    if signature.id not in _TELL or not need:
        return None
    spec = groups.get("spec") or (f">={groups['floor']}" if "floor" in groups else "")
    if signature.id in _TELLS_OF and not spec:
        return None
    return f"{_SPELT.get(need.lower(), need)}{spec.replace(' ', '')}"
