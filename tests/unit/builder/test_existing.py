"""When the lock of an earlier run is old."""

from __future__ import annotations

import dataclasses

import pytest

from envsmith.base.progress import Clock
from envsmith.builder import existing, locking
from envsmith.builder.arrow import lock_only
from envsmith.lock import store
from envsmith.model.cell import Machine


def test_a_lock_is_kept_when_the_same_archive_lies_elsewhere_and_knows_where(given, tmp_path, monkeypatch):
    first = lock_only(given(tmp_path, "one"))
    assert existing.lock_difference(given(tmp_path, "two", conda=None)) == ()
    monkeypatch.setattr(locking, "lock_cell", lambda *_a, **_k: pytest.fail("locked again"))
    second = lock_only(given(tmp_path, "two"))
    assert second.lock.digest == first.lock.digest
    assert second.lock.pin("my-ops").artifacts[0].url == "file:///two/x.tar.gz"


def test_compiling_in_another_way_makes_a_lock_old(given, tmp_path, monkeypatch):
    options = given(tmp_path, "one", conda=None)
    lock_only(options)
    now = locking.lock_cell

    def lock_cell(*a, **k):
        made = now(*a, **k)
        return dataclasses.replace(made, compiled=(dataclasses.replace(made.compiled[0], toolkit=True),))

    monkeypatch.setattr(locking, "lock_cell", lock_cell)
    assert existing.lock_difference(options) == ("compiled from source: in another way",)


def test_a_given_lock_says_whose_code_runs_before_it_is_built(given, tmp_path):
    first = lock_only(given(tmp_path, "one", conda=None))
    source = dataclasses.replace(first.lock.pin("my-ops"), sdist=True)
    others = (pin for pin in first.lock.pins if pin.name != "my-ops")
    path = tmp_path / "lock.json"
    path.write_text(dataclasses.replace(first.lock, pins=(*others, source)).text())
    events = []

    existing.given_lock(path, tmp_path / "given", Clock(events.append))

    assert "built from source, which runs their code: my-ops" in [event.text for event in events]


def test_a_lock_is_compared_for_its_own_machine_and_not_for_the_one_at_hand(given, tmp_path, monkeypatch):
    options = given(tmp_path, "one", conda=None)
    lock_only(options)
    lock = store.need(options.output, options.request_text)[1]
    machines, agreed = [], locking.agreed

    def listen(request, *a, **k):
        machines.append(request.machine)
        return agreed(request, *a, **k)

    monkeypatch.setattr(locking, "agreed", listen)
    here = Machine(driver="470.256.02", architectures=("sm_75",))

    differences = existing.lock_difference(
        dataclasses.replace(options, request=dataclasses.replace(options.request, machine=here))
    )

    assert differences == ()
    assert [machine.driver for machine in machines] == [lock.cell.components.get("driver")]


def _grow(path):
    path.write_text(path.read_text() + "# edited\n")


def _link_to_another(path):
    path.with_name("another").write_text(path.read_text() + "# edited\n")
    path.unlink()
    path.symlink_to("another")


@pytest.mark.parametrize(
    ("name", "edit"),
    [
        *(
            (name, _grow)
            for name in ("pylock.toml", "requirements.txt", "cell.json", "Dockerfile", "apptainer.def", "steps/cell.sh")
        ),
        ("Dockerfile", _link_to_another),
        ("steps/cell.sh", lambda path: path.write_bytes(b"\xff")),
        ("steps/json.py", lambda path: path.write_text("import os\n")),
    ],
)
def test_a_file_that_no_longer_says_what_the_lock_says_makes_it_old_until_it_is_locked_again(
    given, tmp_path, name, edit
):
    options = given(tmp_path, "one", conda=None)
    directory = lock_only(options).directory
    edit(directory / name)

    differences = existing.lock_difference(options)

    assert [line for line in differences if line.startswith(f"{name}: ")] == list(differences) != []


@pytest.mark.parametrize("name", ["requirements.txt", "steps/cell.sh"])
def test_what_was_edited_is_written_again(given, tmp_path, name):
    options = given(tmp_path, "one", conda=None)
    directory = lock_only(options).directory
    _grow(directory / name)

    lock_only(options)

    assert existing.lock_difference(options) == ()


def test_what_is_not_there_and_what_others_put_beside_it_makes_no_lock_old(given, tmp_path):
    options = given(tmp_path, "one", conda=None)
    directory = lock_only(options).directory
    for name in ("Dockerfile", "steps/cell.sh", "requirements.txt"):
        (directory / name).unlink()
    (directory / "notes.txt").write_text("mine")

    assert existing.lock_difference(options) == ()
