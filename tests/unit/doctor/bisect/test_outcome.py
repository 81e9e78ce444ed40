"""What came of a run: its error line, and whether two errors are one."""

from __future__ import annotations

import pytest

from envsmith.doctor.bisect.outcome import TrialOutcome, outcome_of


@pytest.mark.parametrize(
    ("status", "output", "passed", "error"),
    [
        (0, "ValueError: printed only", True, ""),
        (
            1,
            "Traceback …\nImportError: cannot import name 'x' from 'y'",
            False,
            "ImportError: cannot import name 'x' from 'y'",
        ),
        (
            1,
            "[rank0]: torch.distributed.DistBackendError: NCCL error",
            False,
            "torch.distributed.DistBackendError: NCCL error",
        ),
        (
            1,
            'Traceback (most recent call last):\n  File "a.py", line 3, in <module>\n    get()\nrequests.exceptions.InvalidURL: no host',
            False,
            "requests.exceptions.InvalidURL: no host",
        ),
        (3, "", False, "exit status 3"),
        (-11, "", False, "ended by SIGSEGV"),
        (125, "", None, "exit status 125: the command asks to skip it"),
    ],
)
def test_a_status_and_an_output_are_an_outcome(status, output, passed, error):
    outcome = outcome_of(status, output, 1.0)

    assert (outcome.passed, outcome.error) == (passed, error)


def test_an_error_without_a_class_is_the_last_line_of_stderr():
    errors = "reading\nextension error: it needs at least Sphinx v5.0\n\n"

    assert outcome_of(1, f"{errors}1 of 3 done", 1.0, errors).error == "extension error: it needs at least Sphinx v5.0"
    assert outcome_of(1, "1 of 3 done", 1.0).error == "exit status 1"


@pytest.mark.parametrize(
    ("one", "other", "is_like"),
    [
        (
            "ImportError: cannot import name 'x' from 'y' (/a/b.py)",
            "ImportError: cannot import name 'x' from 'y' (/c/d.py)",
            True,
        ),
        (
            "ImportError: cannot import name 'x' from 'y'",
            "ImportError: cannot import name 'HybridCache' from 'transformers'",
            False,
        ),
        ("ImportError: no", "ValueError: no", False),
        ("ended by SIGSEGV", "ended by SIGSEGV", True),
        ("ended by SIGSEGV", "exit status 3", False),
    ],
)
def test_errors_that_differ_in_paths_and_numbers_only_are_one(one, other, is_like):
    assert TrialOutcome(passed=False, error=one).is_like(other) is is_like
