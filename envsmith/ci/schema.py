"""The JSON Schema of ``envsmith.yaml``, made from the same words that its reader accepts; a test holds the two together."""

from __future__ import annotations

from envsmith.ci.library import FRAMEWORK_STEP, GRAINS, JOB_LIMIT
from envsmith.model.component import ComponentTable, Role
from envsmith.model.platform import Platform

__all__ = ["config_schema"]

_SPEC = {
    "oneOf": [
        {"type": "string", "minLength": 1, "maxLength": 400},
        {"type": "array", "items": {"type": "string"}, "minItems": 1},
    ]
}


def _described(what: str, **schema: object) -> dict[str, object]:
    return {"description": what, **schema}


def config_schema(table: ComponentTable) -> dict[str, object]:
    """JSON Schema (draft 2020-12) of ``envsmith.yaml`` and of ``[tool.envsmith]``."""
    names = sorted({spelling for c in table.by_name.values() for spelling in (c.name, *c.aliases, *c.distributions)})
    axes = [n for n in names if (c := table.find(n)) and c.role is not Role.HOST]
    component = {"enum": names}
    labels = {"oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "envsmith.yaml",
        "description": "Which cells a library supports, and how its CI proves it.",
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "schema": _described("Version of this format.", const=1),
            "library": _described("Name of the library; left out, that of its metadata.", type="string", maxLength=100),
            "requires": _described(
                "Component -> spec, beside what the library's own files declare: narrows it, or says what metadata cannot.",
                type="object",
                propertyNames=component,
                additionalProperties=_SPEC,
            ),
            "python": _described("Pythons that are supported; left out, requires-python.", **_SPEC),
            "axes": _described(
                "Components that the matrix varies. Default: python, torch and the frameworks that are required. With cuda, builds that are "
                "only on PyTorch's own index are used too.",
                type="array",
                items={"enum": axes},
                minItems=1,
                uniqueItems=True,
            ),
            "values": _described(
                "Component -> the releases of an axis, instead of the newest of each minor series.",
                type="object",
                propertyNames=component,
                additionalProperties={"type": "array", "items": {"type": "string"}, "minItems": 1},
            ),
            "grain": _described(
                "minor: the newest release of each minor series; release: every release.", enum=list(GRAINS)
            ),
            "platform": _described("Where the jobs run.", enum=[p.value for p in Platform]),
            "gpu": _described("GPUs that the GPU runners have: h100, v100, sm_90.", **labels),
            "driver": _described("NVIDIA driver of the GPU runners.", type="string"),
            "smoke": _described(
                f"Command that tests the library in a job, or {FRAMEWORK_STEP}: envsmith's own smoke test.",
                type="string",
                maxLength=1000,
            ),
            "runners": _described(
                "Labels of the runners.",
                type="object",
                additionalProperties=False,
                properties={"cpu": labels, "gpu": labels},
            ),
            "limit": _described("Most jobs.", type="integer", minimum=1, maximum=JOB_LIMIT),
            "known_bad": _described(
                "Most jobs that are expected to fail (known-bad combinations that the ranges admit).",
                type="integer",
                minimum=0,
                maximum=JOB_LIMIT,
            ),
            "ignore": _described(
                "Findings of `envsmith ci check` that are not told.", type="array", items={"type": "string"}
            ),
        },
    }
