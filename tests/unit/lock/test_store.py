"""A lock is written after its files; what is read back is hostile."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lock_helpers import bad, fine

from envsmith.errors import DataError
from envsmith.lock import store
from envsmith.lock.pip_files import pylock_text
from envsmith.model.lock import BaseImage, BuiltWheel, Lock, OsPackage, parse_lock


def files(lock: Lock) -> dict[str, str]:
    return {"lock.json": lock.text(), "pylock.toml": pylock_text(lock)}


def test_a_lock_reads_back_equal_with_addresses_and_edges(lock: Lock, tmp_path: Path) -> None:
    store.write(tmp_path / "cell", files(lock))
    back = store.read(tmp_path / "cell")
    assert back is not None
    assert back.pins == lock.pins
    assert files(back) == files(lock)


def test_the_image_part_reads_back(lock: Lock) -> None:
    base = BaseImage(
        name="python:3.11-slim",
        digest="sha256:" + "1" * 64,
        origin="registry",
        python="/usr/local/bin/python3",
        distribution="bookworm",
    )
    full = dataclasses.replace(
        lock,
        base=base,
        os_packages=(OsPackage(name="g++", version="4:12.2.0-3"),),
        constraints=(("numpy<2", "a-rule"),),
    )
    back = parse_lock(full.text(), where="lock.json")
    assert (back.base, back.os_packages, back.constraints, back.digest) == (
        base,
        full.os_packages,
        full.constraints,
        full.digest,
    )


@pytest.mark.parametrize("content", ["", "c" * 64])
def test_a_built_wheel_reads_back_with_the_digest_of_its_files_or_as_older_locks_have_it(
    lock: Lock, content: str
) -> None:
    wheel = BuiltWheel(name="tiny", filename="tiny-1-py3-none-any.whl", sha256="d" * 64, content=content)
    full = dataclasses.replace(lock, wheels=(wheel,))
    assert ("content" in full.text()) is bool(content)
    assert parse_lock(full.text(), where="lock.json").wheels == (wheel,)
    with pytest.raises(DataError) as caught:
        parse_lock(full.text().replace("d" * 64, "d"), where="lock.json")
    assert any("wheels[0].sha256" in line for line in caught.value.details)


def test_no_lock_is_none(tmp_path: Path) -> None:
    assert store.read(tmp_path) is None


def test_the_lock_takes_its_name_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order = []
    real = Path.replace
    monkeypatch.setattr(Path, "replace", lambda self, target: (order.append(target.name), real(self, target))[1])
    store.write(tmp_path, {"lock.json": "{}", "a": "1", "requirements.txt": ""})
    assert order[-1] == "lock.json"


def test_a_lock_is_reused_for_the_same_question_only(lock: Lock, tmp_path: Path) -> None:
    store.write(tmp_path, files(lock))

    def reused(**other: Any) -> bool:
        asked = {"cell": lock.cell, "request": lock.request, "exclude_newer": lock.exclude_newer, **other}
        return store.reusable(tmp_path, **{"judge": fine, **asked}) is not None

    assert reused()
    assert not reused(request="another")
    assert not reused(judge=bad)
    assert not reused(exclude_newer="2026-11-21")
    assert not reused(cell=dataclasses.replace(lock.cell, components={**lock.cell.components, "nccl": "2.28.9"}))
    (tmp_path / "pylock.toml").unlink()
    assert not reused()


BASE = "--framework deepspeed==0.16.* --with numpy<2 --with transformers>=4.40 --python 3.11 --gpu h100 --platform linux-64"


@pytest.mark.parametrize(
    "request_text",
    [
        "--with transformers>=4.40 --with numpy<2 --framework deepspeed==0.16.* --gpu h100 --python 3.11",
        "--framework DeepSpeed==0.16.* --with numpy<2.0 --with Transformers>=4.40.0 --python ==3.11.* --gpu H-100",
        "--framework deepspeed0.16 --with numpy<2 --with transformers>=4.40 --with python==3.11.* --gpu sm_90".replace(
            "0.16", " 0.16"
        ),
        BASE + " --flavour runtime",
    ],
)
def test_a_request_that_asks_for_the_same_in_other_words_finds_the_lock(
    lock: Lock, tmp_path: Path, request_text: str
) -> None:
    store.write(tmp_path / "cell", files(dataclasses.replace(lock, request=BASE)))
    existing = store.find(tmp_path, request_text)
    assert existing is not None
    assert existing[1].request == BASE


@pytest.mark.parametrize(
    "request_text",
    [
        BASE.replace("h100", "a100"),
        BASE.replace("3.11", "3.12"),
        BASE.replace("numpy<2", "numpy<=2"),
        BASE.replace("0.16.*", "0.16"),
        BASE.replace("linux-64", "linux-aarch64"),
        BASE + " --flavour devel",
        BASE + " --compile deepspeed:DS_BUILD_OPS=1",
        BASE + " --with triton",
        "",
    ],
)
def test_a_request_that_asks_for_something_else_does_not_find_it(lock: Lock, tmp_path: Path, request_text: str) -> None:
    store.write(tmp_path / "cell", files(dataclasses.replace(lock, request=BASE)))
    assert store.find(tmp_path, request_text) is None


def test_a_pylock_of_another_lock_is_not_believed(lock: Lock, tmp_path: Path) -> None:
    other = pylock_text(dataclasses.replace(lock, request="another"))
    store.write(tmp_path, {"lock.json": lock.text(), "pylock.toml": other})
    back = store.read(tmp_path)
    assert back is not None
    assert back.pins[0].artifacts[0].url is None


@pytest.mark.parametrize("text", ["", "[]", "nonsense", '{"schema": 2}', "[" * 100_000, '"\\ud800"'])
def test_a_file_that_is_no_lock_is_a_data_error(text: str) -> None:
    with pytest.raises(DataError) as caught:
        parse_lock(text, where="somewhere/lock.json")
    assert "somewhere/lock.json" in caught.value.message


def _set(path: str, value: object) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        *heads, last = path.split(".")
        target: Any = document
        for head in heads:
            target = target[int(head) if head.isdigit() else head]
        target[int(last) if last.isdigit() else last] = value

    return change


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("packages.0.files.0.sha256", "00", "packages[0].files[0].sha256"),
        ("packages.0.files", [], "packages[0].files: no file"),
        ("packages.0.version", "latest", "packages[0].version"),
        ("packages.0.name", "Not_Normal", "packages[0].name"),
        ("packages.0.layer", "top", "packages[0].layer"),
        ("packages.0.sdist", "yes", "packages[0].sdist"),
        ("packages.0.files.0.filename", "../../etc/passwd", "packages[0].files[0].filename"),
        ("packages", {}, "packages: a list"),
        ("cell", 3, "cell: `3`: a mapping"),
        ("cell.id", "ds9.9.9-torch1.0", "cell.id"),
        ("cell.components", {}, "python is missing"),
        ("cell.platform", "amiga", "cell"),
        ("cell.index", "elsewhere", "cell.index"),
        ("exclude_newer", "soon", "exclude_newer"),
        ("python_version", 3.11, "python_version"),
        ("constraints", [["a"]], "constraints[0]"),
        ("base", {"digest": "latest"}, "base.digest"),
        ("os_packages", [1], "os_packages[0]"),
    ],
)
def test_every_broken_field_is_told_by_its_key_path(lock: Lock, path: str, value: object, told: str) -> None:
    document = json.loads(lock.text())
    _set(path, value)(document)
    with pytest.raises(DataError) as caught:
        parse_lock(json.dumps(document), where="lock.json")
    assert any(told in line for line in caught.value.details), caught.value.details


def test_a_package_that_is_pinned_twice_is_told(lock: Lock) -> None:
    document = json.loads(lock.text())
    document["packages"].append(document["packages"][0])
    with pytest.raises(DataError) as caught:
        parse_lock(json.dumps(document), where="lock.json")
    assert any("stands in this file twice" in line for line in caught.value.details)


def test_a_lock_that_was_edited_is_refused(lock: Lock) -> None:
    with pytest.raises(DataError, match="changed by hand"):
        parse_lock(lock.text().replace('"schema": 1', '"schema":  1'), where="lock.json")
