"""What gives way where a project asks for what no cell can have."""

from __future__ import annotations

from envsmith.cli.flags import RequestFlags
from envsmith.errors import ContradictionError, LockError
from envsmith.model.cell import Cell
from envsmith.model.finding import UnsatisfiableError
from envsmith.model.lock import Artifact, Lock, Pin
from envsmith.project.code.needs import settle, settle_lock
from envsmith.solver import solve


def request_of(wishes, date=None):
    lines = tuple(f"{name}{'' if spec == '*' else spec}" for name, spec in wishes.items())
    return RequestFlags(package=lines, python="3.11", date=date).request()


def test_wishes_that_go_together_stay():
    wishes = {"torch": "==2.0.1", "peft": "==0.4.0"}
    assert settle(wishes, {}, request_of) == (wishes, ())


def test_a_pin_gives_way_to_what_the_code_needs():
    wishes = {"torch": "==2.0.0", "xformers": "==0.0.20"}
    settled, sentences = settle(wishes, {"torch": "*", "xformers": "*"}, request_of)
    assert settled == {"torch": "==2.0.0", "xformers": "*"}
    assert sentences == ("xformers ==0.0.20 gives way: no cell has it together with the rest",)


def test_what_must_be_compiled_does_not_move_torch_by_years():
    settled, sentences = settle({"torch": "*", "flash-attn": "*"}, {}, lambda w: request_of(w, "2023-05-01"))
    assert settled == {"torch": "*"}
    assert "flash-attn is left out" in sentences[0]


def test_where_nothing_helps_the_wishes_stay_for_the_refusal():
    wishes = {"torch": "==2.0.0"}
    assert (
        settle(
            wishes,
            {"torch": "==2.0.0"},
            lambda w: RequestFlags(torch="2.1", package=("torch==2.0.0",), nccl="1").request(),
        )[0]
        == wishes
    )


CELL = Cell(components={"torch": "2.0.1", "python": "3.11"}, chosen=("torch",))


def lock_with(*pins: Pin) -> Lock:
    return Lock(cell=CELL, request="", exclude_newer="2026-11-20", python_version="3.11", pins=pins)


def source(name: str, version: str, requires: tuple[str, ...] = ()) -> Pin:
    file = Artifact(filename=f"{name}-{version}.tar.gz", sha256="0" * 64, url="")
    return Pin(name=name, version=version, layer="framework", artifacts=(file,), requires=requires, sdist=True)


def locking(name: str, spec: str, error: LockError):
    """A lock that fails as long as a wish stands."""

    def lock_of(wishes):
        if wishes.get(name) == spec:
            raise error
        return lock_with()

    return lock_of


def contradiction(*names: str, required: tuple[str, ...] = ()) -> ContradictionError:
    message = "Cannot resolve the packages of cell: they contradict each other."
    return ContradictionError(message, names=names, required=required)


def never(_name, _version, _cell):
    return None


def test_a_pin_that_uv_cannot_meet_gives_way_to_any_release():
    error = contradiction("tokenizers")
    lock_of = locking("tokenizers", "==0.12.1", error)

    wishes, sentences = settle_lock({"tokenizers": "==0.12.1", "fire": "==0.5.0"}, {}, lock_of, never)

    assert wishes == {"tokenizers": "*", "fire": "==0.5.0"}
    assert sentences == ("tokenizers ==0.12.1 gives way: they contradict each other",)


def test_of_a_contradiction_the_further_package_gives_way_before_the_component():
    error = contradiction("transformers", "zzz")
    lock_of = locking("zzz", "==1.0", error)

    wishes, _ = settle_lock({"transformers": "==4.30.0", "zzz": "==1.0"}, {}, lock_of, never)

    assert wishes == {"transformers": "==4.30.0", "zzz": "*"}


def test_a_package_of_which_no_release_can_be_had_is_left_out():
    error = LockError("Cannot resolve the packages of cell: scann is not on the package index.", names=["scann"])
    lock_of = locking("scann", "*", error)

    wishes, sentences = settle_lock({"scann": "*", "tqdm": "*"}, {}, lock_of, never)

    assert wishes == {"tqdm": "*"}
    assert sentences == ("scann is left out: scann is not on the package index",)


def test_a_package_that_fits_no_cell_is_left_out():
    error = contradiction("scipy", required=("numpy", "scann"))
    lock_of = locking("scann", "*", error)

    assert settle_lock({"numpy": "*", "scann": "*"}, {}, lock_of, never)[0] == {"numpy": "*"}


def test_where_something_else_is_in_the_way_the_wishes_stay():
    error = contradiction("other", required=("other",))

    assert settle_lock({"torch": "*"}, {}, locking("torch", "*", error), never) == ({"torch": "*"}, ())


def later_of(**releases: str):
    return lambda name, _version, _cell: releases.get(name)


def test_what_keeps_a_package_at_a_release_without_a_wheel_gives_way():
    user = Pin(name="transformers", version="4.19.2", layer="framework", artifacts=(), requires=("tokenizers",))

    def lock_of(wishes):
        return lock_with(user, source("tokenizers", "0.12.1")) if "==" in wishes["transformers"] else lock_with()

    wishes, sentences = settle_lock({"transformers": "==4.19.2"}, {}, lock_of, later_of(tokenizers="0.13.2"))

    assert wishes == {"transformers": "*"}
    assert sentences == (
        "transformers ==4.19.2 gives way: tokenizers 0.12.1 has no wheel for Python 3.11, 0.13.2 has one",
    )


def test_a_component_without_a_wheel_for_this_python_is_wanted_from_the_next_release_on():
    def lock_of(wishes):
        return lock_with() if wishes["numpy"] == ">=1.23.2" else lock_with(source("numpy", "1.22.4"))

    wishes, _ = settle_lock({"numpy": "*"}, {}, lock_of, later_of(numpy="1.23.2"))

    assert wishes == {"numpy": ">=1.23.2"}


def test_where_no_cell_has_the_next_release_the_earlier_one_is_compiled():
    def lock_of(wishes):
        if wishes["numpy"] != "*":
            raise UnsatisfiableError("Cannot solve this request: no cell has it.")
        return lock_with(source("numpy", "1.22.4"))

    assert settle_lock({"numpy": "*"}, {}, lock_of, later_of(numpy="1.23.2"))[0] == {"numpy": "*"}


def test_a_wish_that_no_cell_can_have_beside_one_that_gave_way_gives_way_too():
    def lock_of(wishes):
        if wishes["torch"] == "==2.0.0":
            raise ContradictionError("no wheel of torch==2.0.0", names=["torch"])
        solve(request_of(wishes))
        return lock_with()

    wishes = {"torch": "==2.0.0", "torchvision": "==0.15.1"}
    settled, _ = settle_lock(wishes, {"torch": ">=2.1.0", "torchvision": "*"}, lock_of)

    assert settled == {"torch": ">=2.1.0", "torchvision": "*"}
