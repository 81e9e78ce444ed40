"""What uv prints, parsed: recorded outputs, host names replaced."""

from __future__ import annotations

import pytest

from envsmith.errors import LockError
from envsmith.lock.uv_output import closure, is_of_torch, only_allowed, parse_edges, parse_pylock, to_pins
from envsmith.model.lock import Artifact, Pin

HASH = "a" * 64
PYLOCK = f"""
lock-version = "1.0"
created-by = "uv"
requires-python = ">=3.11"

[[packages]]
name = "torch"
version = "2.9.1"
wheels = [{{ url = "https://me:secret@example.invalid/packages/ab/torch-2.9.1-cp311-cp311-manylinux_2_28_x86_64.whl", upload-time = 2026-01-26T04:13:18Z, hashes = {{ sha256 = "{HASH}" }} }}]

[[packages]]
name = "deepspeed"
version = "0.19.8"
sdist = {{ url = "https://example.invalid/packages/bc/deepspeed-0.19.8.tar.gz", size = 12, hashes = {{ sha256 = "{HASH}" }} }}

[[packages]]
name = "einops"
version = "0.8.2"
sdist = {{ url = "https://example.invalid/e/einops-0.8.2.tar.gz", hashes = {{ sha256 = "{HASH}" }} }}
wheels = [{{ url = "https://example.invalid/e/einops-0.8.2-py3-none-any.whl", hashes = {{ sha256 = "{HASH}" }} }}]
"""
ANNOTATED = """deepspeed==0.19.8
    # via -r request.in
einops==0.8.2
    # via deepspeed
ninja==1.13.2
    # via
    #   -r request.in
    #   deepspeed
nvidia-cublas==13.4.1.3
    # via
    #   cuda-toolkit
    #   nvidia-cudnn-cu13
torch==2.15.0
    # via
    #   -r request.in
    #   deepspeed
cuda-toolkit==13.2.2
    # via torch
nvidia-cudnn-cu13==9.26.0.51
    # via torch
"""


def test_packages_are_sorted_and_a_wheel_makes_the_sdist_unnecessary() -> None:
    found = parse_pylock(PYLOCK)
    assert [(r.name, r.version, r.sdist, [a.filename for a in r.artifacts]) for r in found] == [
        ("deepspeed", "0.19.8", True, ["deepspeed-0.19.8.tar.gz"]),
        ("einops", "0.8.2", False, ["einops-0.8.2-py3-none-any.whl"]),
        ("torch", "2.9.1", False, ["torch-2.9.1-cp311-cp311-manylinux_2_28_x86_64.whl"]),
    ]
    assert found[0].artifacts[0].size == 12


def test_credentials_of_an_address_do_not_get_into_a_lock() -> None:
    torch = parse_pylock(PYLOCK)[-1]
    assert torch.artifacts[0].url == (
        "https://example.invalid/packages/ab/torch-2.9.1-cp311-cp311-manylinux_2_28_x86_64.whl"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = [", "Cannot read pylock.toml"),
        ("lock-version = '1.0'", "Cannot read pylock.toml"),
        (
            PYLOCK.replace(f'size = 12, hashes = {{ sha256 = "{HASH}" }}', 'hashes = { md5 = "00" }'),
            "deepspeed.*no sha256",
        ),
        (PYLOCK.replace(HASH, "zz"), "no sha256"),
        (PYLOCK.split("sdist", maxsplit=1)[0].replace("wheels", "#"), "Cannot read pylock.toml"),
    ],
)
def test_what_is_broken_or_not_hashed_is_refused(text: str, message: str) -> None:
    with pytest.raises(LockError, match=message):
        parse_pylock(text)


def test_a_package_from_a_repository_is_refused() -> None:
    text = PYLOCK.split("[[packages]]", maxsplit=1)[0] + (
        "[[packages]]\nname = 'x'\nvcs = { type = 'git', url = 'https://example.invalid/x', commit-id = 'abc' }\n"
    )
    with pytest.raises(LockError, match="Cannot pin x: it comes from a repository"):
        parse_pylock(text)


def test_edges_come_from_the_annotations() -> None:
    edges = parse_edges(ANNOTATED)
    assert edges["deepspeed"] == ("einops", "ninja", "torch")
    assert edges["cuda-toolkit"] == ("nvidia-cublas",)
    assert edges["ninja"] == ()


def test_the_closure_ends_on_cycles() -> None:
    assert closure(["a"], {"a": ["b"], "b": ["a", "c"], "d": ["a"]}) == {"a", "b", "c"}


def test_pins_know_their_layer() -> None:
    pins = to_pins(parse_pylock(PYLOCK), {"torch": ("einops",), "deepspeed": ("torch",), "einops": ()})
    assert {p.name: p.layer for p in pins} == {"deepspeed": "framework", "einops": "framework", "torch": "torch"}


def test_hashes_of_a_requirement_leave_only_the_files_that_they_name():
    files = tuple(Artifact(filename=f"{n}.whl", sha256=n * 64) for n in "ab")
    pin = Pin(name="wandb", version="1", layer="framework", artifacts=files)
    (checked,) = only_allowed([pin], [f"Wandb==1 --hash=sha256:{'b' * 64}", "torch"])
    assert [a.filename for a in checked.artifacts] == ["b.whl"]
    with pytest.raises(LockError, match="Cannot pin wandb 1"):
        only_allowed([pin], [f"wandb==1 --hash=sha256:{'c' * 64}"])


@pytest.mark.parametrize(
    ("name", "belongs"),
    [("torch", True), ("nvidia-nccl-cu13", True), ("triton", True), ("nvidia-ml-py", False), ("numpy", False)],
)
def test_the_bindings_of_nvml_are_not_torchs(name: str, belongs: bool) -> None:
    assert is_of_torch(name) is belongs
