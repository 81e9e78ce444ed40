"""Names of the standard library that went: what this Python says of each."""

from __future__ import annotations

import subprocess
import sys

import pytest

from envsmith.knowledge.names.python_names import SINCE, gone_name, may_take_gone

# Modules that some builds of Python leave out, and one that setuptools brings.
_UNSURE = frozenset({"nis", "ossaudiodev", "spwd", "distutils"})
_ASK = """
import importlib, sys, warnings
warnings.simplefilter("ignore")
for path in sys.argv[1:]:
    parts = path.split(".")
    try:
        value = importlib.import_module(".".join(parts[:-1]) or path)
        importlib.import_module(path) if len(parts) == 1 else getattr(value, parts[-1])
    except (ImportError, AttributeError):
        continue
    print(path)
"""


def test_a_name_is_there_before_the_python_that_lost_it_and_not_after():
    expected = {".".join(chain) for chain, minor in SINCE.items() if sys.version_info[:2] < (3, minor)}
    names = [".".join(chain) for chain in SINCE]

    run = subprocess.run([sys.executable, "-c", _ASK, *names], capture_output=True, text=True, check=True)

    assert {*run.stdout.split()} - _UNSURE == expected - _UNSURE


@pytest.mark.parametrize(
    ("chain", "name"),
    [
        (("collections", "Mapping", "register"), ("collections.Mapping", 10)),
        (("typing", "io", "IO"), ("typing.io", 13)),
        (("distutils", "version"), ("distutils", 12)),
        (("collections", "abc", "Mapping"), None),
        (("imports",), None),
    ],
)
def test_a_chain_goes_through_the_name_that_went(chain, name):
    assert gone_name(chain) == name


def test_a_source_is_worth_reading_where_it_has_such_a_name():
    assert may_take_gone(b"\nimport os, imp\n", 12)
    assert not may_take_gone(b"\nimport os, imp\n", 11)
    assert not may_take_gone(b"\nimport importlib\n", 13)
