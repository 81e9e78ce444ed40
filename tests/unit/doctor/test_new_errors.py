"""An exception that a package made of late is answered with the releases that do not have it."""

from __future__ import annotations

import pytest

from envsmith.doctor.judge_facts import diagnose
from envsmith.doctor.read import read_texts


def root_of(text: str):
    diagnosis = diagnose(read_texts([("log", text)]), [("log", text)])
    return diagnosis.root and diagnosis.root.finding


def test_the_releases_before_an_exception_that_is_new_are_named():
    text = (
        "transformers/models/gemma4_unified/modeling_gemma4_unified.py:249, in compute_default_rope_parameters\n"
        "AmbiguousGlobalPerLayerAttributeError: 'head_dim' is a per-layer attribute and may vary across layers."
    )

    finding = root_of(text)

    assert (finding.rule, dict(finding.needs)) == ("error-since-release", {"transformers": "<5.14.0"})


@pytest.mark.parametrize(
    "text",
    [
        "import transformers\nMySpecialThingError: no",
        "torch._dynamo.exc.InternalTorchDynamoError: list index out of range",
        "AmbiguousGlobalPerLayerAttributeError: nothing here speaks of a package",
    ],
)
def test_an_exception_of_ones_own_or_of_long_ago_names_no_release(text):
    finding = root_of(text)

    assert finding is None or finding.rule != "error-since-release"
