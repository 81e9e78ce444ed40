"""For all tests: a cache of their own, the same examples each time, files that are no modules of a package, Ctrl-C that means Ctrl-C."""

from __future__ import annotations

import gc
import importlib.util
import os
import re
import signal
import sys
import tempfile
from collections.abc import Callable, Generator
from pathlib import Path
from types import ModuleType

import hypothesis
import pytest
from hypothesis.internal.conjecture import providers

ROOT = Path(__file__).parents[1]
# Settings of Python that a machine may have for its own reasons, and that hide faults: unbuffered output is never left for the end.
_OF_THE_SHELL = ("PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE", "PYTHONUTF8", "PYTHONIOENCODING", "PYTHONWARNINGS")

# A property is held to the same examples in every run, whatever ran before it. ENVSMITH_FUZZ_EXAMPLES asks for new ones: `make fuzz`.
hypothesis.settings.register_profile("same", derandomize=True, database=None, deadline=None)
hypothesis.settings.register_profile("new", database=None, deadline=None, print_blob=True)
if os.environ.get("ENVSMITH_FUZZ_EXAMPLES"):
    hypothesis.settings.load_profile("new")
else:
    hypothesis.settings.load_profile("same")
    # Nor do examples hold words of the modules that happen to be imported, which change with the order and with any edit.
    providers.is_local_module_file = lambda _path: False


def pytest_configure(config: pytest.Config) -> None:
    """Give a run one cache, empty at first: no test sees the user's, and what one worker of xdist compiles the others read."""
    if not hasattr(config, "workerinput"):
        for name in _OF_THE_SHELL:
            os.environ.pop(name, None)
        folder = tempfile.TemporaryDirectory(prefix="envsmith-tests-", ignore_cleanup_errors=True)
        config.add_cleanup(folder.cleanup)
        os.environ["XDG_CACHE_HOME"] = folder.name
        # The GPUs of the machine that tests decide nothing.
        os.environ["ENVSMITH_MACHINE"] = "none"
        # Nor does git read the user's settings: a name, a key that signs, hooks.
        os.environ.update(GIT_CONFIG_GLOBAL=os.devnull, GIT_CONFIG_NOSYSTEM="1")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs an interpreter with torch where none is named."""
    if item.get_closest_marker("torch") and not os.environ.get("ENVSMITH_TEST_TORCH_PYTHON"):
        pytest.skip("ENVSMITH_TEST_TORCH_PYTHON names no interpreter with torch")


def pytest_xdist_auto_num_workers() -> int:
    """Start one worker more than there are CPUs with ``-n auto``: many tests wait for a program or a clock."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cpus + 1


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Make the tables of the knowledge once for all workers, while these collect."""
    if getattr(session.config.option, "numprocesses", None):
        from envsmith.doctor.tables import every_table

        for table in every_table():
            table.load()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for garbage neither while ten thousand tests are collected nor among them afterwards: a third of that time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.fixture(scope="session")
def load_file() -> Callable[[str], ModuleType]:
    """Imports a helper, a tool or a bench by its path from the root, once: --import-mode=importlib keeps their folders off ``sys.path``."""

    def load(path: str) -> ModuleType:
        name = "envsmith_tests_" + re.sub(r"\W", "_", path.removesuffix(".py"))
        if name not in sys.modules:
            spec = importlib.util.spec_from_file_location(name, ROOT / path)
            assert spec is not None
            assert spec.loader is not None
            # A dataclass looks its module up by name.
            sys.modules[name] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(sys.modules[name])
        return sys.modules[name]

    return load


@pytest.fixture(scope="session")
def golden() -> Callable[[str, str], None]:
    """Compares a text with the file of that name in tests/golden, which ENVSMITH_UPDATE_GOLDEN=1 writes again for a review."""

    def compare(name: str, text: str) -> None:
        path = ROOT / "tests/golden" / name
        if os.environ.get("ENVSMITH_UPDATE_GOLDEN"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert text == path.read_text(encoding="utf-8")

    return compare


# Also where the runner was started in the background, whose shell ignores it.
signal.signal(signal.SIGINT, signal.default_int_handler)
