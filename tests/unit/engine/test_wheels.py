from __future__ import annotations

import dataclasses
import hashlib

import pytest

from envsmith.engine.wheels import read_wheels, with_wheels
from envsmith.errors import BuildError
from envsmith.model.lock import BuiltWheel


class Builder:
    """An engine with a builder, in the four lines that matter."""

    def __init__(self):
        self.asked = 0

    def wheels(self, lock, *, progress):
        self.asked += 1
        return (BuiltWheel(name="deepspeed", filename="deepspeed-0.19.8-py3-none-any.whl", sha256="1" * 64),)


def test_the_first_build_puts_the_wheel_s_hash_into_the_lock_and_the_second_asks_nobody(locks, events):
    builder = Builder()
    lock = with_wheels(locks.deepspeed(), builder, progress=events)
    assert lock.wheels[0].sha256 == "1" * 64
    assert lock.digest != locks.deepspeed().digest
    assert with_wheels(lock, builder, progress=events) is lock
    assert builder.asked == 1


def test_a_lock_without_source_distributions_or_base_needs_no_builder(locks, events):
    builder = Builder()
    with_wheels(locks.megatron(), builder, progress=events)
    with_wheels(dataclasses.replace(locks.deepspeed(), base=None), builder, progress=events)
    with_wheels(locks.deepspeed(), None, progress=events)
    assert builder.asked == 0


def test_what_the_builder_left_is_hashed(locks, tmp_path):
    (tmp_path / "deepspeed-0.19.8-py3-none-any.whl").write_bytes(b"wheel")
    (wheel,) = read_wheels(locks.deepspeed(), tmp_path)
    assert wheel.sha256 == hashlib.sha256(b"wheel").hexdigest()


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("deepspeed-0.19.7-py3-none-any.whl", "the lock says 0.19.8"),
        ("other-1.0-py3-none-any.whl", "nothing of the lock"),
        ("nonsense.whl", "not a wheel's name"),
        ("x.txt", "no wheel came out"),
    ],
)
def test_anything_else_than_one_wheel_for_each_is_refused(locks, tmp_path, name, told):
    (tmp_path / name).write_bytes(b"wheel")
    with pytest.raises(BuildError) as caught:
        read_wheels(locks.deepspeed(), tmp_path)
    assert any(told in line for line in caught.value.details)
