"""Wheels built from source archives: their hash goes into the lock and is asked for from then on."""

from __future__ import annotations

import dataclasses
import hashlib
import zipfile

import pytest

from envsmith.builder.engines.container import ContainerEngine, read_wheels
from envsmith.builder.engines.content import wheel_content
from envsmith.errors import BuildError
from envsmith.model.lock import BuiltWheel


class Builder(ContainerEngine):
    """An engine whose builder always makes the same wheel."""

    def __init__(self):
        super().__init__()
        self.asked = 0

    def wheels(self, lock, *, progress):
        self.asked += 1
        return (BuiltWheel(name="deepspeed", filename="deepspeed-0.19.8-py3-none-any.whl", sha256="1" * 64),)


def some_wheel(path):
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("deepspeed/__init__.py", "")


def test_the_first_build_puts_the_wheel_s_hash_into_the_lock_and_the_second_asks_nobody(locks, events):
    builder = Builder()
    lock = builder.pin_wheels(locks.deepspeed(), progress=events)
    assert lock.wheels[0].sha256 == "1" * 64
    assert lock.digest != locks.deepspeed().digest
    assert builder.pin_wheels(lock, progress=events) is lock
    assert builder.asked == 1


def test_a_lock_without_source_distributions_or_base_needs_no_builder(locks, events):
    builder = Builder()
    builder.pin_wheels(locks.megatron(), progress=events)
    builder.pin_wheels(dataclasses.replace(locks.deepspeed(), base=None), progress=events)
    assert builder.asked == 0


def test_what_the_builder_left_is_hashed(locks, tmp_path):
    path = tmp_path / "deepspeed-0.19.8-py3-none-any.whl"
    some_wheel(path)
    (wheel,) = read_wheels(locks.deepspeed(), tmp_path)
    assert wheel.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert wheel.content == wheel_content(path)


def test_a_file_that_is_no_wheel_is_refused(locks, tmp_path):
    (tmp_path / "deepspeed-0.19.8-py3-none-any.whl").write_bytes(b"wheel")
    with pytest.raises(BuildError) as caught:
        read_wheels(locks.deepspeed(), tmp_path)
    assert any("it is not a wheel" in line for line in caught.value.details)


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
    some_wheel(tmp_path / name)
    with pytest.raises(BuildError) as caught:
        read_wheels(locks.deepspeed(), tmp_path)
    assert any(told in line for line in caught.value.details)


def wheel_that_requires(folder, *requirements):
    metadata = "Metadata-Version: 2.1\nName: flash-attn\nVersion: 2.8.3\n"
    metadata += "".join(f"Requires-Dist: {r}\n" for r in requirements)
    some_wheel(folder / "deepspeed-0.19.8-py3-none-any.whl")
    with zipfile.ZipFile(folder / "flash_attn-2.8.3-cp312-cp312-linux_x86_64.whl", "w") as wheel:
        wheel.writestr("flash_attn-2.8.3.dist-info/METADATA", metadata)


def given(locks):
    lock = locks.compiled()
    return dataclasses.replace(lock, compiled=(dataclasses.replace(lock.compiled[0], archive="file"),))


def test_the_wheel_of_an_archive_may_require_what_the_lock_has(locks, tmp_path):
    wheel_that_requires(tmp_path, "torch>=2", "deepspeed", "einops; extra == 'dev'", "tomli; python_version < '3.11'")
    assert [w.name for w in read_wheels(given(locks), tmp_path)] == ["deepspeed", "flash-attn"]


def test_what_the_wheel_of_an_archive_requires_beside_the_lock_is_named(locks, tmp_path):
    wheel_that_requires(tmp_path, "rich>=13", "torch<2")
    with pytest.raises(BuildError) as caught:
        read_wheels(given(locks), tmp_path)
    told = "\n".join(caught.value.details)
    assert "requires rich>=13, which the lock does not have" in told
    assert "requires torch<2, the lock has 2.13.0" in told
    assert read_wheels(locks.compiled(), tmp_path)  # of what the index has the resolver knew the requirements


def test_a_wheel_of_an_archive_without_metadata_is_told(locks, tmp_path):
    some_wheel(tmp_path / "deepspeed-0.19.8-py3-none-any.whl")
    some_wheel(tmp_path / "flash_attn-2.8.3-cp312-cp312-linux_x86_64.whl")
    with pytest.raises(BuildError) as caught:
        read_wheels(given(locks), tmp_path)
    assert "its metadata cannot be read" in caught.value.details[0]
