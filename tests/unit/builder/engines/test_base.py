"""The comparison of what is installed with the lock, and which engine is chosen."""

from __future__ import annotations

import dataclasses

import pytest

from envsmith.builder import engines
from envsmith.builder.engines import base
from envsmith.errors import ContentError, EngineError, UsageError
from envsmith.frameworks import FRAMEWORKS
from envsmith.model.cell import Cell


def installed(**changes):
    found = {
        "torch": "2.13.0",
        "deepspeed": "0.19.8",
        "python": "3.12.14",
        "torch.version": "2.13.0+cu130",
        "cuda.version": "13.0",
    }
    found |= {k.replace("__", ".").replace("_", "-"): v for k, v in changes.items()}
    return {k: v for k, v in found.items() if v is not None}


def test_what_the_lock_says_passes(locks):
    base.verify_content(locks.deepspeed(), installed())


def test_pip_of_the_interpreter_is_not_an_extra(locks):
    base.verify_content(locks.deepspeed(), installed(pip="25.0", setuptools="80.0"))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"torch": "2.12.0"}, "torch: locked 2.13.0, installed 2.12.0"),
        ({"deepspeed": None}, "deepspeed: locked 0.19.8, installed not at all"),
        ({"six": "1.17.0"}, "six: installed 1.17.0, not locked"),
        ({"python": "3.11.2"}, "python: the cell says 3.12, found 3.11.2"),
        ({"python": None}, "found none"),
        ({"torch__version": "2.12.1+cu130"}, "torch itself says 2.12.1"),
        ({"cuda__version": "12.8"}, "torch itself says 12.8"),
        ({"cuda__version": "cpu"}, "torch itself says cpu"),
        ({"nvidia_nccl_cu13": "2.27.5"}, "nvidia-nccl-cu13: the cell says 2.29.7, installed 2.27.5"),
    ],
)
def test_a_difference_is_named(change, told, locks):
    with pytest.raises(ContentError) as caught:
        base.verify_content(locks.deepspeed(), installed(**change))
    assert told in "\n".join(caught.value.details)


def test_a_framework_is_compared_under_the_name_of_its_distribution(locks, monkeypatch):
    renamed = dataclasses.replace(FRAMEWORKS["deepspeed"], distributions=("deepspeed-fork",))
    monkeypatch.setitem(FRAMEWORKS, "deepspeed", renamed)
    lock = locks.deepspeed()
    pins = tuple(dataclasses.replace(p, name="deepspeed-fork") if p.name == "deepspeed" else p for p in lock.pins)
    facts = installed(deepspeed=None) | {"deepspeed-fork": "0.19.8"}
    base.verify_content(dataclasses.replace(lock, pins=pins), facts)


def test_every_difference_is_named_at_once(locks):
    with pytest.raises(ContentError) as caught:
        base.verify_content(locks.deepspeed(), installed(torch="1.0", deepspeed=None, six="1"))
    assert len(caught.value.details) >= 3


def test_spellings_of_one_version_are_equal(locks):
    lock = locks.deepspeed()
    pins = (*lock.pins, locks.pin("certifi", "2024.1", "framework"))
    base.verify_content(dataclasses.replace(lock, pins=pins), installed(certifi="2024.01"))


def test_a_label_without_its_distribution_is_refused(locks):
    lock = locks.deepspeed()
    lock = dataclasses.replace(lock, pins=tuple(p for p in lock.pins if p.name != "torch"))
    with pytest.raises(ContentError, match="differs"):
        base.verify_content(lock, installed(torch=None, torch__version=None, cuda__version=None))


def test_words_are_no_versions(locks):
    cell = Cell(
        components={"torch": "2.13.0", "cuda": "cpu", "python": "3.12", "nccl": "none", "deepspeed": "0.19.8"},
        chosen=("torch", "python"),
    )
    base.verify_content(
        dataclasses.replace(locks.deepspeed(), cell=cell), installed(cuda__version="cpu", torch__version="2.13.0+cpu")
    )


class Fake(base.Engine):
    def __init__(self, name, reason):
        self.word, self.reason = name, reason

    name = property(lambda self: self.word)

    images = property(lambda self: self if self.word in {"docker", "podman", "buildah"} else None)

    def available(self):
        return self.reason

    def pythons(self, base=None):
        return None

    build = inspect = target = None


@pytest.fixture
def use(monkeypatch):
    def use(**reasons):
        monkeypatch.setattr(engines, "load_engine", lambda name, **_settings: Fake(name, reasons[name]))

    return use


@pytest.mark.parametrize("name", engines.ENGINES)
def test_every_engine_of_the_list_can_be_loaded_and_has_its_name(name):
    assert engines.load_engine(name, offline=True, channels=("conda-forge",)).name == name


def test_an_engine_knows_what_the_user_said():
    assert engines.load_engine("venv", offline=True).uv.offline
    conda = engines.load_engine("conda", offline=True, channels=("here",))
    assert (conda.offline, conda.channels) == (True, ("here",))


def test_docker_is_chosen_where_it_answers(use):
    use(docker=None, venv=None)
    assert engines.choose_engine().engine.name == "docker"


def test_the_embedded_engine_is_chosen_otherwise_and_says_why(use):
    use(docker="no engine answers at its socket", podman="not installed", venv=None)
    choice = engines.choose_engine()
    assert choice.engine.name == "venv"
    assert "no engine answers" in choice.why


def test_an_engine_that_was_asked_for_is_not_replaced(use):
    use(docker="no engine answers", podman="not installed", venv=None, buildah="not installed", conda="not installed")
    with pytest.raises(EngineError, match="no engine answers"):
        engines.choose_engine("docker")


@pytest.mark.parametrize(
    ("podman", "hint"),
    [
        ("not installed", "Run envsmith lock with the same flags"),
        (None, "Use --engine podman, which makes the same image"),
    ],
)
def test_an_image_without_its_engine_is_made_by_another_one_or_elsewhere(use, podman, hint):
    use(docker="no engine answers", podman=podman, venv=None, buildah="not installed", conda="not installed")
    with pytest.raises(EngineError) as caught:
        engines.choose_engine("docker")
    assert caught.value.hint.startswith(hint)


def test_an_unknown_engine_is_a_usage_error(use):
    with pytest.raises(UsageError, match="no such engine"):
        engines.choose_engine("lxc")


def test_no_engine_at_all_lists_every_reason(use):
    use(docker="a", podman="c", venv="b")
    with pytest.raises(EngineError) as caught:
        engines.choose_engine()
    assert caught.value.details == ("docker: a", "podman: c", "venv: b")
