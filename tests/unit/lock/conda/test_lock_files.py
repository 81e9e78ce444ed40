"""Files of Conda's tools are read into the same components, and hostile ones refused in a sentence."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envsmith.errors import DataError
from envsmith.lock.conda.foreign import kind_of, read_conda_file, split_filename
from envsmith.lock.conda.lock import lock_conda
from envsmith.lock.conda.lock_files import files, load_lock
from envsmith.lock.conda.model import CondaRequest

CONDA_LIST = """\
# packages in environment at /opt/conda/envs/train:
#
# Name                    Version                   Build  Channel
_libgcc_mutex             0.1                 conda_forge    conda-forge
cuda-version              12.9                 h4f385c5_3    conda-forge
cudnn                     9.10.2.21            hbcb9cd8_0    conda-forge
deepspeed                 0.18.2                   pypi_0    pypi
nccl                      2.28.9.1             h4d09622_1    conda-forge
python                    3.10.19         h3c07f61_2_cpython    conda-forge
pytorch                   2.8.0           cuda129_mkl_py310_hc78ee88_301    conda-forge
triton                    3.4.0           cuda129py310hc5d9a74_1    conda-forge
"""
EXPECTED = {
    "python": "3.10",
    "torch": "2.8.0",
    "cuda": "12.9",
    "nccl": "2.28.9",
    "cudnn": "9.10.2.21",
    "triton": "3.4.0",
    "deepspeed": "0.18.2",
}


def core(text: str, **kwargs) -> dict[str, str]:
    return {k: v for k, v in read_conda_file(text, **kwargs).components.items() if k in EXPECTED}


def test_conda_list_gives_the_components():
    assert core(CONDA_LIST) == EXPECTED
    assert read_conda_file(CONDA_LIST).pip == {"deepspeed": "0.18.2"}


def test_conda_list_json_gives_the_same():
    rows = []
    for line in CONDA_LIST.splitlines():
        if not line.startswith("#"):
            name, version, build, channel = line.split()
            rows.append(
                {"name": name, "version": version, "build_string": build, "channel": channel, "platform": "linux-64"}
            )
    assert core(json.dumps(rows)) == EXPECTED


def test_every_file_of_a_lock_tells_the_same_components(deepspeed, forge, tmp_path):
    texts = files(lock_conda(*deepspeed, CondaRequest(channels=forge, cache_dir=tmp_path)))
    for name in ("conda-lock.yml", "pixi.lock", "conda-linux-64.lock"):
        assert core(texts[name]) == EXPECTED, name
    wanted = read_conda_file(texts["environment.yml"])
    assert wanted.conda == {"pytorch": "2.8.0", "deepspeed": "0.18.2"}


def test_pip_section_is_read_from_every_file(megatron, forge, tmp_path):
    texts = files(lock_conda(*megatron, CondaRequest(channels=forge, cache_dir=tmp_path)))
    for name in ("conda-lock.yml", "pixi.lock", "conda-linux-64.lock", "environment.yml"):
        assert read_conda_file(texts[name]).pip == {"megatron-core": "0.16.1", "hjson": "3.1.0"}, name


def test_lock_read_back_is_the_lock_as_far_as_the_format_goes(megatron, forge, tmp_path):
    lock = lock_conda(*megatron, CondaRequest(channels=forge, cache_dir=tmp_path))
    again = load_lock(files(lock)["conda-lock.yml"])
    ours = {
        (p.name, p.version, p.build, p.build_number, p.sha256, p.md5, p.url, p.noarch)
        for p in lock.platforms[0].packages
    }
    assert {
        (p.name, p.version, p.build, p.build_number, p.sha256, p.md5, p.url, p.noarch)
        for p in again.platforms[0].packages
    } == ours
    assert (again.cell_id, again.request, again.channels) == (lock.cell_id, lock.request, lock.channels)


def test_environment_file_of_a_user_is_read():
    text = """\
name: train
channels: [pytorch, nvidia]
dependencies:
  - python=3.10
  - pytorch::pytorch=2.4.1=py3.10_cuda12.4_cudnn9.1.0_0
  - pytorch-cuda=12.4
  - nccl>=2.20,<2.22
  - gcc_linux-64=12   # [linux64]
  - gcc_linux-aarch64=12.4.0   # [aarch64]
  - pip
  - pip:
    - deepspeed==0.15.4
    - transformers>=4.40
    - -r requirements.txt
"""
    found = read_conda_file(text)
    assert found.conda == {"pytorch": "2.4.1"}
    assert found.pip == {"deepspeed": "0.15.4"}
    assert found.components["cuda"] == "12.4"


def test_what_pip_installed_over_conda_is_what_counts():
    text = CONDA_LIST + "torch                     2.9.1+cu128              pypi_0    pypi\n"
    text += "nvidia-nccl-cu12          2.27.5                   pypi_0    pypi\n"
    components = read_conda_file(text).components
    assert (components["torch"], components["cuda"], components["nccl"]) == ("2.9.1+cu128", "12.8", "2.27.5")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("# platform: linux-64\n@EXPLICIT\n", "explicit"),
        (CONDA_LIST, "conda-list"),
        ("version: 6\nenvironments:\n  default: {}\n", "pixi-lock"),
        ("version: 1\nmetadata:\n  content_hash: {}\npackage: []\n", "conda-lock"),
        ("dependencies:\n- python\n", "environment"),
        ('[{"base_url": "x", "dist_name": "y"}]', "conda-list-json"),
        ("torch==2.9.1\n", None),
        ("FROM ubuntu\n", None),
        ("", None),
    ],
)
def test_kind_is_recognised(text, kind):
    assert kind_of(text) == kind


def test_file_names_are_split_from_the_right():
    assert split_filename("https://h/c/linux-64/gcc_linux-64-12.4.0-h6b7512a_10.conda#abc") == (
        "gcc_linux-64",
        "12.4.0",
        "h6b7512a_10",
    )
    assert split_filename("file:///x/noarch/a-b-1!2.0-py_0.tar.bz2") == ("a-b", "1!2.0", "py_0")
    assert split_filename("https://h/requirements.txt") is None


BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{c}: &{c} [{','.join(['*' + p] * 9)}]\n" for p, c in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    "text",
    [
        BOMB,
        "dependencies: " + "[" * 5000,
        "dependencies: !!python/object/apply:os.system [true]",
        "dependencies: {a: b",
        "dependencies: 7",
        "dependencies:\n- 3\n",
        "dependencies:\n- '~!@#'\n",
        "version: 1\nmetadata:\n  content_hash: {}\npackage: {}\n",
        "version: 1\nmetadata:\n  content_hash: {}\npackage: [4]\n",
        "version: 1\nmetadata:\n  content_hash: {}\npackage: [{name: '../../x', version: '1', platform: linux-64}]\n",
        "version: 1\nmetadata:\n  content_hash: {}\npackage: [{name: x, version: 3.10, platform: linux-64}]\n",
        "version: 3\nmetadata:\n  content_hash: {}\npackage: []\n",
        "version: 6\nenvironments: []\n",
        "version: 6\nenvironments:\n  default:\n    packages:\n      linux-64: [{pypi: u}]\npackages: []\n",
        "@EXPLICIT\nhttps://host/evil.sh\n",
        "@EXPLICIT\n\x1b[31m\n",
        "# packages in environment at /x:\n",
        '[{"channel": "x", "name": 1, "version": "2"}]',
        '[{"channel": "x"',
        '[{"channel":' + "[" * 100000,
        "nothing of the kind",
        "dependencies: 2001-99-99\n",
    ],
)
def test_hostile_text_is_one_error_without_control_characters(text):
    with pytest.raises(DataError) as caught:
        read_conda_file(text, where="theirs.yml")
    assert "theirs.yml" in str(caught.value)
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"hash": {"md5": "0" * 31 + "a"}}, "hash: `sha256` is missing"),
        ({"hash": {"md5": "x", "sha256": "y"}}, "hash.md5: `x`: no valid md5"),
        ({"url": "ftp://h/linux-64/a-1-0.conda"}, "is not an address"),
        ({"url": "https://h/linux-64/evil-1-0.conda"}, "is not a 1"),
        ({"platform": "win-64"}, "platform: `win-64`: unknown word"),
        ({"manager": "npm"}, "manager: `npm`: unknown word"),
    ],
)
def test_lock_that_cannot_be_installed_safely_is_refused(entry, said):
    base = {
        "name": "a",
        "version": "1",
        "manager": "conda",
        "platform": "linux-64",
        "url": "https://h/linux-64/a-1-0.conda",
        "hash": {"md5": "a" * 32, "sha256": "a" * 64},
    }
    with pytest.raises(DataError) as caught:
        load_lock(json.dumps({"version": 1, "metadata": {}, "package": [base | entry]}))
    assert said in "\n".join(caught.value.details)


@settings(max_examples=300, deadline=None)
@given(
    st.text(max_size=300),
    st.sampled_from([None, "conda-lock", "pixi-lock", "environment", "conda-list", "conda-list-json", "explicit"]),
)
def test_any_text_is_read_or_refused(text, kind):
    try:
        found = read_conda_file(text, kind=kind)
    except DataError:
        return
    assert all(isinstance(v, str) for v in found.components.values())


@settings(max_examples=150, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=8),
        lambda c: (
            st.lists(c, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "version",
                        "package",
                        "packages",
                        "environments",
                        "default",
                        "linux-64",
                        "conda",
                        "pypi",
                        "name",
                        "dependencies",
                        "pip",
                        "url",
                        "hash",
                        "platform",
                    ]
                ),
                c,
                max_size=5,
            )
        ),
        max_leaves=25,
    )
)
def test_any_structure_is_read_or_refused(value):
    text = json.dumps(value)
    for kind in ("conda-lock", "pixi-lock", "environment", "conda-list-json"):
        with contextlib.suppress(DataError):
            read_conda_file(text, kind=kind)
    with contextlib.suppress(DataError):
        load_lock(text)
