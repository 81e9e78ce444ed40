"""What an error that nothing known explains says to do itself."""

from __future__ import annotations

import pytest

from envsmith.doctor.judge_facts import diagnose
from envsmith.doctor.read import read_texts
from envsmith.model.rule import Severity

HEAD = 'Traceback (most recent call last):\n  File "/home/me/train.py", line 3, in <module>\n    main()\n'


def root_of(text: str):
    diagnosis = diagnose(read_texts([("log", text)]), [("log", text)])
    return diagnosis, diagnosis.root


def test_the_sentence_that_tells_what_to_do_is_repeated_and_called_a_lead():
    message = "ValueError: The frobnicator is of another shape. Please set `frob_size=8` in the plan."

    diagnosis, root = root_of(f"{HEAD}{message}\nthe run ends\n")

    assert (root.finding.rule, root.finding.severity, root.confidence) == ("error-says-itself", Severity.WARNING, "low")
    assert root.finding.fix == "Please set `frob_size=8` in the plan."
    assert (root.where, root.quote) == ("log:4", message)
    assert diagnosis.status == "unknown"


@pytest.mark.parametrize(
    ("message", "advice"),
    [
        ("FrobError: frobs (7) must be divisible by quux (2).", "frobs (7) must be divisible by quux (2)."),
        ("RuntimeError: no quux.\nYou can enable it by setting QUUX=1.", "You can enable it by setting QUUX=1."),
        ("my.lib.QuuxError: gone. Install quux-extra, or pass --plain.", "Install quux-extra, or pass --plain."),
        ("[rank3]: QuuxError: gone. Try to pass --plain.", "Try to pass --plain."),
        ("QuuxError: gone.\nPlease try one of these:\n(1) Set QUUX to 8.", "Please try one of these: Set QUUX to 8."),
    ],
)
def test_a_duty_a_setting_and_a_command_are_advice_in_every_form_of_an_error(message, advice):
    _, root = root_of(f"{HEAD}{message}\n")

    assert root.finding.fix == advice


@pytest.mark.parametrize(
    "message",
    [
        "ValueError: quux is 7",
        "RuntimeError: quux failed. Please open an issue on the project's page.",
        "RuntimeError: quux failed. For more details set QUUX_VERBOSE=1.",
        "TypeError: quux() argument 'x' must be float, not None",
        "the quux is bad: please set it",
        "ValueError: quux is 7\nSteps to reproduce:\n1. Install latest quux",
    ],
)
def test_a_report_more_of_the_log_and_what_is_no_error_are_no_advice(message):
    _, root = root_of(f"{HEAD}{message}\n")

    assert root is None


def test_an_error_of_which_something_is_known_is_not_said_again():
    text = (
        f"{HEAD}torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.50 GiB. If reserved memory is >> "
        "allocated memory try setting max_split_size_mb to avoid fragmentation.\n"
    )

    diagnosis, _ = root_of(text)

    assert "error-says-itself" not in {each.finding.rule for each in diagnosis.diagnosed}
