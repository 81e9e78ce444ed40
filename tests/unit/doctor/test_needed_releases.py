"""Which releases end a finding, over the committed matrix: what the message asks for, and what rules leave."""

from __future__ import annotations

import pytest

from envsmith.doctor.judge_facts import diagnose
from envsmith.doctor.needed_releases import left_by_rules
from envsmith.doctor.read import read_texts
from envsmith.doctor.signatures import catalogue
from envsmith.knowledge.graph.load import knowledge
from envsmith.knowledge.graph.tables import one_state
from envsmith.model.cell import Platform

NO_KERNEL = "RuntimeError: CUDA error: no kernel image is available for execution on the device"
TOO_OLD = "RuntimeError: The NVIDIA driver on your system is too old (found version {}). Please update"
GNU = "/usr/local/cuda/include/crt/host_config.h:129:2: error: #error -- unsupported GNU version!"
CONFLICT = """ERROR: Cannot install torch=={} because these package versions have conflicting dependencies.
The conflict is caused by:
    The user requested torch=={}
    {}"""


def root(text: str):
    """The root of a diagnosis."""
    return diagnose(read_texts([("log", text)]), [("log", text)]).root


def needs(text: str) -> dict[str, str]:
    """The releases that end the root of a diagnosis."""
    return dict(root(text).finding.needs)


def test_of_a_gpu_without_code_the_releases_of_torch_with_code_for_it_are_named():
    assert needs(f"NVIDIA GeForce RTX 5090\n{NO_KERNEL}")["torch"] == ">=2.7.0"


def test_a_release_of_torch_that_is_known_does_not_change_the_answer():
    assert needs(f"torch: 2.5.1\nNVIDIA GeForce RTX 5090\n{NO_KERNEL}")["torch"] == ">=2.7.0"


def test_no_release_of_torch_is_named_where_the_gpu_is_not_known():
    assert needs(NO_KERNEL) == {}


@pytest.mark.parametrize(
    ("found", "driver"),
    [("10010", ">=450.36.06"), ("11000", ">=450.80.02"), ("11040", ">=525.60.13"), ("12040", ">=580")],
)
def test_a_driver_that_is_too_old_needs_the_next_floor_above_what_it_supports(found, driver):
    assert needs(TOO_OLD.format(found))["driver"] == driver


def test_a_torch_of_an_older_cuda_does_not_lower_the_floor_that_the_message_speaks_of():
    assert needs(f"torch: 2.1.2+cu118\n{TOO_OLD.format('11080')}")["driver"] == ">=525.60.13"


@pytest.mark.parametrize(
    ("text", "gcc"),
    [(f"{GNU} gcc versions later than 7 are not supported!", "<8"), (f"nvcc: release 12.1, V12.1.105\n{GNU}", "<13")],
)
def test_the_compiler_that_nvcc_takes_is_said_by_the_message_or_by_the_toolkit(text, gcc):
    assert needs(text)["gcc"] == gcc


def test_a_pair_of_releases_that_a_rule_forbids_names_the_other_releases():
    finding = root("torch: 2.1.0\nhorovod: 0.28.1").finding

    assert (finding.rule, dict(finding.needs)) == (
        "horovod-torch-cxx17",
        {"horovod": ">=0.28.2.dev25", "torch": "<2.1.0"},
    )


def test_what_the_packages_agree_on_against_a_wish_is_what_fits():
    text = CONFLICT.format("1.10.2", "1.10.2", "torchvision 0.11.2 depends on torch==1.10.1")

    assert needs(text) == {"torch": "==1.10.1", "torchvision": "==0.11.3"}


def test_a_build_that_an_index_does_not_have_names_its_release_where_the_index_has_that():
    text = (
        "Could not find a version that satisfies the requirement torch==1.10.0+cu113 (from versions: 1.9.1, {}1.10.1)"
    )

    assert needs(text.format("1.10.0, "))["torch"] == "==1.10.0"
    assert needs(text.format(""))["torch"] == ">=1.10.1"


@pytest.mark.parametrize("torchvision", ["torchvision: 0.17.1\n", ""])
def test_a_floor_that_another_release_of_the_partner_has_is_not_asked_of_a_pair(torchvision):
    assert "torch" not in needs(f"torch: 2.2.1\n{torchvision}RuntimeError: operator torchvision::nms does not exist")


def test_where_the_packages_themselves_disagree_no_release_is_named():
    sides = "torchvision 0.21.0 depends on torch==2.6.0\n    torchaudio 2.6.0 depends on torch==2.7.0"

    assert needs(CONFLICT.format("2.6.0", "2.6.0", sides)) == {}


def test_what_a_message_requires_is_what_ends_it():
    text = "torchvision 0.18.0 requires torch==2.3.0, but you have torch 2.2.1 which is incompatible."

    assert needs(text)["torch"] == "==2.3.0"


def test_a_rule_that_asks_for_a_component_again_beside_another_ends_nothing_with_an_error():
    text = "PydanticUserError: If you use `@root_validator` with pre=False (the default) you MUST specify `skip_on_failure=True`."

    assert needs(f"pydantic: 2.9.2\ndeepspeed: 0.8.1\n{text}")["pydantic"] == "<2.0"
    assert root(f"pydantic: 2.9.2\ndeepspeed\n{text}") is not None


def test_no_pair_of_a_signature_and_the_rules_over_its_components_ends_with_an_error():
    pairs = {s.components for s in catalogue().signatures if len(s.components) > 1}
    newest = {name: releases[-1].version for name, releases in knowledge().releases.items() if releases}

    with one_state():
        for names in pairs:
            known = {name: newest[name] for name in names if name in newest}
            for missing in ("", *known):
                versions = {name: version for name, version in known.items() if name != missing}
                assert isinstance(left_by_rules(names, versions, Platform.LINUX_64), dict)


@pytest.mark.parametrize(("library", "spec"), [("128", ">=0.45.3"), ("130", ">=0.48.0"), ("126", ">=0.45.0")])
def test_of_a_library_of_bitsandbytes_the_releases_that_carry_it_are_named(library, spec):
    text = f"Could not find the bitsandbytes CUDA binary at PosixPath('/x/site-packages/bitsandbytes/libbitsandbytes_cuda{library}.so')"

    assert needs(text)["bitsandbytes"] == spec


@pytest.mark.parametrize(
    ("pin", "python", "spec"),
    [
        ("1.13.1", "", ">=3.7,<3.12"),
        ("1.13.1+cu117", "", ">=3.7,<3.12"),
        ("1.13.1", "Python version: 3.12.3\n", ">=3.7,<3.12"),
        ("1.13.1", "Python version: 3.10.1\n", None),
    ],
)
def test_a_pinned_torch_that_pip_does_not_find_needs_a_python_of_its_wheels(pin, python, spec):
    text = f"{python}ERROR: Could not find a version that satisfies the requirement torch=={pin} (from versions: none)"

    assert needs(text).get("python") == spec


@pytest.mark.parametrize(
    ("pin", "offered", "torch"),
    [
        ("1.2.0", "1.13.0, 2.0.0, 2.1.0+cu121", ">=1.13.0"),
        ("2.0.1", "1.13.0, 2.0.0, 2.1.0+cu121", ">=2.1.0"),
        ("99.0", "1.13.0, 2.0.0", "<=2.0.0"),
        ("1.2.0", "none", None),
    ],
)
def test_of_the_releases_that_an_index_offers_the_nearest_to_the_pinned_one_are_named(pin, offered, torch):
    text = f"ERROR: Could not find a version that satisfies the requirement torch=={pin} (from versions: {offered})"

    assert needs(text).get("torch") == torch


def test_what_a_signature_says_to_end_its_fault_is_what_ends_it():
    assert needs("libtorch_cpu.so: undefined symbol: iJIT_NotifyEvent") == {"mkl": "<2024.1"}


RAY = """RuntimeError: Version mismatch: The cluster was started with:
    Ray: {}
    Python: {}
This process on node 10.1.1.1 was started with:
    Ray: {}
    Python: {}
"""


@pytest.mark.parametrize(
    ("versions", "ends"),
    [
        (("2.2.0", "3.8.10", "2.3.0", "3.8.10"), {"ray": "==2.2.0"}),
        (("2.9.3", "3.10.13", "2.9.3", "3.10.12"), {"python": "==3.10.13"}),
        (("2.12.0", "3.11.11", "2.42.0", "3.9.21"), {}),
    ],
)
def test_of_a_process_that_joins_a_cluster_of_another_ray_what_differs_alone_is_named(versions, ends):
    finding = root(RAY.format(*versions)).finding

    assert dict(finding.needs) == ends
    assert f"Install ray=={versions[0]} into an environment with Python {versions[1]}" in finding.fix


def test_of_two_nodes_with_another_cloudpickle_that_of_the_cluster_is_named():
    versions = ("0.2.2", "3.5.2\n    Cloudpickle: 0.5.2", "0.2.2", "3.5.2\n    Cloudpickle: 0.2.2")

    finding = root(RAY.format(*versions)).finding

    assert dict(finding.needs) == {"cloudpickle": "==0.5.2"}
    assert "cloudpickle==0.5.2" in finding.fix


def test_of_a_process_whose_releases_are_cut_off_none_is_named():
    finding = root(RAY.partition("This process")[0].format("2.9.3", "3.10.13")).finding

    assert not finding.needs


XFORMERS = """WARNING[XFORMERS]: xFormers can't load C++/CUDA extensions. xFormers was built for:
    PyTorch {} with CUDA {} (you have {})
    Python  3.10.13 (you have 3.10.12)"""


@pytest.mark.parametrize(
    ("built", "cuda", "have", "cause"),
    [
        ("2.1.2+cu121", "1201", "2.1.2+cpu", "cpu-only-torch"),
        ("2.1.0+cu121", "1201", "2.1.0+cu118", "extension-built-for-other-torch"),
        ("2.0.0+cu118", "1108", "2.4.0+cu121", "extension-built-for-other-torch"),
    ],
)
def test_the_torch_that_xformers_was_built_for_is_the_one_it_needs(built, cuda, have, cause):
    found = root(XFORMERS.format(built, cuda, have))

    assert found.taxonomy.cause == cause
    assert dict(found.finding.needs) == {"torch": f"=={built}"}


def test_of_an_xformers_that_was_built_for_this_torch_no_other_torch_is_named():
    text = XFORMERS.format("2.0.1+cu118", "1108", "2.0.1")

    assert diagnose(read_texts([("log", text)]), [("log", text)]).root is None


def test_a_range_that_a_pinned_release_fulfils_does_not_stand_against_a_wish():
    sides = "kornia 0.6.0 depends on torch>=1.8.1\n    torchvision 0.13.0 depends on torch==1.12.0"

    found = root(CONFLICT.format("1.12.1", "1.12.1", sides))

    assert dict(found.finding.needs) == {"torch": "==1.12.0", "torchvision": "==0.13.1"}
    assert ">=1.8.1" not in found.finding.fix


@pytest.mark.parametrize(
    ("host", "nccl", "ends"),
    [
        ("OS: Ubuntu through WSL 2", "2.7.8", {"nccl": ">=2.10"}),
        ("OS: Ubuntu through WSL 2", "2.20.5", {}),
        ("OS: Ubuntu 20.04", "2.7.8", {}),
    ],
)
def test_an_nccl_that_does_not_know_wsl_needs_a_newer_one(host, nccl, ends):
    text = f"{host}\nNCCL version {nccl}\nncclSystemError: System call (socket, malloc, munmap, etc) failed"

    assert needs(text) == ends


def test_a_build_of_too_old_a_cuda_for_the_gpu_is_told_the_cuda_that_has_code_for_it():
    told = needs(f"GPU: NVIDIA GeForce RTX 5080\nPyTorch Version: 2.7.0.dev20250310+cu124\n{NO_KERNEL}")

    assert told["cuda"] == ">=12.8"


def test_a_range_that_pip_writes_with_spaces_is_read_to_its_end():
    line = "The user requested tokenizers==0.10.3\n    transformers 4.32.0 depends on tokenizers!=0.11.3, <0.14 and >=0.11.1"

    assert needs(CONFLICT.format("2.1.0", "2.1.0", line))["tokenizers"] == "!=0.11.3,<0.14,>=0.11.1"


def test_a_placeholder_on_the_index_is_not_recommended():
    text = "ERROR: Could not find a version that satisfies the requirement torch==1.1.0 (from versions: 0.1.2, 0.1.2.post1, 0.1.2.post2)"

    assert "torch" not in needs(text)
