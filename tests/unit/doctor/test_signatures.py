"""Messages of the software lead to their cause, in bounded time whatever the text; a broken catalogue is refused."""

from __future__ import annotations

import html
import json
import re
import time
from pathlib import Path

import pytest

from envsmith.doctor.judge_facts import diagnose
from envsmith.doctor.rank_failures import KINDS
from envsmith.doctor.read import read_texts
from envsmith.doctor.read.pasted import clean
from envsmith.doctor.signatures import catalogue, find_hits, needle_of, read_signatures
from envsmith.errors import DataError
from envsmith.knowledge.graph.load import knowledge

CASES = json.loads((Path(__file__).parents[2] / "cases" / "doctor" / "messages.json").read_text())["cases"]


def judged(text: str):
    return diagnose(read_texts([("log", text)]), [("log", clean(text))])


@pytest.mark.parametrize(("message", "cause", "severity"), CASES, ids=[f"{c[1]}-{i}" for i, c in enumerate(CASES)])
def test_a_message_of_the_software_gives_its_root_cause(message, cause, severity):
    first = judged(f"some line before\n{message}\n").diagnosed[0]
    assert (first.taxonomy.cause, first.finding.severity.value) == (cause, severity)
    assert first.finding.fix
    assert first.finding.evidence
    assert first.where == "log:2"


@pytest.mark.parametrize(
    ("around", "cause"),
    [
        ("    self.f.write(data)", "disk-full"),
        ("[rank0]: step 100 loss 2.31 in DataLoader", "container-shm-too-small"),
    ],
)
def test_a_full_disk_is_told_where_nothing_speaks_of_shared_memory(around, cause):
    diagnosed = judged(f"{around}\nOSError: [Errno 28] No space left on device\n").diagnosed

    assert [each.taxonomy.cause for each in diagnosed][:1] == [cause]


@pytest.mark.parametrize(("message", "cause", "severity"), CASES, ids=[f"{c[1]}-{i}" for i, c in enumerate(CASES)])
def test_the_cause_is_found_in_a_long_log_with_ansi_codes_and_prefixes(message, cause, severity):
    filler = "[rank0]: step 100 loss 2.31 lr 1e-4\n" * 300
    text = f"{filler}\x1b[31mnode-1: [rank3]: {message}\x1b[0m\r\n{filler}"
    assert judged(text).diagnosed[0].taxonomy.cause == cause


@pytest.mark.parametrize(
    ("message", "component"),
    [
        ("No module named 'torchvision.models.utils'", "torch"),
        ("cannot import name 'get_num_classes' from 'torchmetrics.utilities.data'", "torch"),
        ("cannot import name 'InferResult' from 'tritonclient.http'", "triton"),
    ],
)
def test_a_module_whose_name_only_begins_like_a_component_is_not_that_component(message, component):
    assert all(component not in d.finding.components for d in judged(message).diagnosed)
    assert all(f"(package {component})" not in d.finding.message for d in judged(message).diagnosed)


FORMS = {
    "the last line is cut before its closing quote": lambda m: m[:-1] if m[-1] in "'\"`" else m,
    "a page took the escape character of colours": lambda m: "[1;31m" + m.replace(": ", "[0m: ") + "[0m",
    "colours are written in letters": lambda m: r"\x1b[31m" + m.replace(": ", r"^[[0m: "),
    "a mail programme curls the quotes": lambda m: re.sub(
        r'"([^"]*)"', "\u201c\\1\u201d", re.sub("'([^']*)'", "\u2018\\1\u2019", m)
    ),
    "a page writes entities": html.escape,
    "a logger quotes it as JSON": json.dumps,
    "a logger quotes it as Python": lambda m: repr(f"{m} '\""),
    "another program prefers double quotes": lambda m: m.replace("'", '"'),
    "a person marks names with backticks": lambda m: re.sub("'([^']*)'", r"`\1`", m),
    "the symbol is quoted": lambda m: re.sub(r"(undefined symbol: )(\w+)", r'\1"\2"', m),
    "a page quotes it": lambda m: re.sub("^", "> ", m, flags=re.MULTILINE),
    "pytest marks it": lambda m: re.sub("^", "E   ", m, flags=re.MULTILINE),
    "a logger dates it": lambda m: re.sub("^", "2026-11-28 10:15:02,123 - ERROR - ", m, flags=re.MULTILINE),
    "it comes from Windows": lambda m: m.replace("\n", "\r\n") + "\r\n",
}


def copies_of(form):
    return [(form(message), cause) for message, cause, _ in CASES if form(message) != message]


def missed(copies):
    return [
        (copy, cause)
        for copy, cause in copies
        if (diagnosed := judged(copy).diagnosed) == () or (diagnosed[0].taxonomy.cause != cause)
    ]


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_some_messages_are_known_in_the_form_in_which_they_were_copied(form):
    copies = copies_of(form)
    assert copies
    assert not missed(copies[::5])


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_every_message_is_known_in_the_form_in_which_it_was_copied(form):
    assert not missed(copies_of(form))


@pytest.mark.parametrize(
    "message",
    [
        "cannot import name 'prepare_model_for_int8_training' from 'peft' (/x/peft/__init__.py)",
        "AttributeError: module 'transformers' has no attribute 'LLaMATokenizer'",
        "AttributeError: 'DataFrame' object has no attribute 'append'",
        "ModuleNotFoundError: No module named 'torch._six'",
        "TypeError: TrainingArguments.__init__() got an unexpected keyword argument 'evaluation_strategy'",
    ],
)
def test_a_name_is_known_without_the_quotes_around_it(message):
    first, bare = (judged(text).diagnosed[0] for text in (message, message.replace("'", "")))
    assert (bare.finding.rule, bare.finding.message) == (first.finding.rule, first.finding.message)


@pytest.mark.parametrize(
    "text", ["Trainer object has no attribute called x", "cannot import name from the transformers"]
)
def test_a_word_of_a_sentence_is_no_name_that_is_missing(text):
    assert not judged(text).diagnosed


def test_an_import_below_its_error_says_which_module_lacks_the_name():
    text = "ImportError: cannot import name 'joblib'\n    from sklearn.externals import joblib"
    assert judged(text).diagnosed[0].finding.rule == "sklearn-externals"


def test_a_module_that_lacks_a_name_is_one_without_the_word_module():
    text = "'transformers.modeling_utils' has no attribute 'no_such_name' for transformers <= 4.30"
    assert judged(text).diagnosed[0].finding.components.keys() == {"transformers"}


@pytest.mark.parametrize("word", ["is", "this", "version", "at", "it"])
def test_no_word_of_english_is_the_package_that_a_message_asks_for(word):
    text = f"RuntimeError: jaxlib {word} version 0.3.25, but this version of jax requires version >= 0.4.14."
    assert all(word not in d.finding.needs for d in judged(text).diagnosed)


def test_the_package_before_a_word_of_english_is_asked_for():
    text = "RuntimeError: jaxlib is version 0.3.25, but this version of jax requires version >= 0.4.14."
    assert judged(text).diagnosed[0].finding.needs == {"jaxlib": ">=0.4.14"}


def test_a_message_over_several_lines_is_known_where_ranks_write_in_turn():
    message = ["    from contextlib import nullcontext", "ImportError: cannot import name nullcontext"]
    text = "\n".join(f"[rank{rank}]: {line}" for line in message for rank in range(4))
    first = judged(f"start\n{text}\n").diagnosed[0]
    assert (first.finding.rule, first.where) == ("python-too-old", "log:6")


@pytest.mark.parametrize(
    "text",
    [
        "ImportError: cannot import name 'get_args' from 'megatron' (/x/megatron/__init__.py)",
        "    from megatron import get_args\nImportError: cannot import name 'get_args'",
    ],
)
def test_a_name_of_a_third_party_is_not_taken_for_one_of_python(text):
    assert "python-too-old" not in {d.finding.rule for d in judged(text).diagnosed}


@pytest.mark.parametrize(
    ("module", "fix"),
    [
        ("lightening", "Write lightning where that is meant."),
        ("nn", "Write torch.nn in the import."),
        ("fairseq2", "python -m pip install fairseq2"),
        ("wandb", "python -m pip install wandb"),
    ],
)
def test_a_misspelt_module_is_not_installed_from_the_index(module, fix):
    finding = judged(f"ModuleNotFoundError: No module named '{module}'").diagnosed[0].finding
    assert fix in finding.fix
    assert ("pip install" in finding.fix) == ("pip install" in fix)


def test_a_part_of_an_installed_package_that_is_missing_is_not_the_package():
    diagnosis = judged("flash-attn: 2.8.3\nModuleNotFoundError: No module named 'flash_attn.ops.triton'")
    assert [d.finding.rule for d in diagnosis.diagnosed if d.confirmed] == ["installed-is-another"]


@pytest.mark.parametrize("line", ['requires-python = ">=3.11, <3.13"', "Requires-Python: >=3.8"])
def test_what_a_lock_or_its_metadata_declares_of_python_is_not_a_failure(line):
    assert "pip-requires-python" not in {d.finding.rule for d in judged(f"{line}\n[[package]]").diagnosed}


def test_releases_that_pip_ignores_for_their_python_are_a_failure():
    text = (
        "ERROR: Ignored the following versions that require a different python version: 0.18.6 Requires-Python >=3.11"
    )
    assert "pip-requires-python" in {d.finding.rule for d in judged(text).diagnosed}


def test_every_signature_has_a_needle_and_evidence():
    for signature in catalogue().signatures:
        assert signature.evidence or signature.rule, signature.id
        for pattern in signature.match:
            assert min(map(len, needle_of(pattern))) >= 4


def test_consequence_of_names_signatures_that_exist():
    ids = {s.id for s in catalogue().signatures} | KINDS
    assert not [c for s in catalogue().signatures for c in s.consequence_of if c not in ids]


def cpu_seconds(text: str) -> float:
    started = time.process_time()
    find_hits(text, "x", catalogue().signatures)
    return time.process_time() - started


@pytest.mark.parametrize(
    "stuff",
    ["a" * 15, "No module named '", "NCCL WARN ", "error: ", "cannot import name 'x' from '", "((((" * 4],
)
def test_the_time_of_the_patterns_grows_with_a_hostile_line_and_not_with_its_square(stuff):
    line = stuff * 4000
    cpu_seconds(line[: len(line) // 4])  # compiles what it uses

    short, whole = cpu_seconds(line[: len(line) // 4]), cpu_seconds(line)

    assert whole < max(8 * short, 1.0)  # 4 times as long: 4 times the time, 16 times its square


def test_a_broken_signature_file_is_refused_with_every_problem():
    text = b"""
evidence: {a: {kind: documented, source: x, date: 2026-11-21}}
signatures:
- {id: one, kind: cause, match: ["abc"], message: m, fix: f, stage: s, group: g, cause: c, pattern: p, evidence: [a]}
- {id: two, kind: nonsense, match: ["abcdef"], message: m, fix: f, stage: s, group: g, cause: c, pattern: p, evidence: [a]}
- {id: three, kind: cause, match: ["abcdef"], message: m, fix: f, stage: s, group: g, cause: c, pattern: p, evidence: []}
- {id: four, kind: cause, colour: red, match: ["abcdef"], message: m, fix: f, stage: s, group: g, cause: c, pattern: p, evidence: [a]}
"""
    with pytest.raises(DataError) as raised:
        read_signatures(text)
    assert len(raised.value.details) == 4


def test_accepted_mismatch_of_deepspeed_is_no_finding():
    text = "Installed CUDA version 11.4 does not match the version torch was compiled with 11.5 but since the APIs are compatible, accepting this combination"
    assert not [d for d in judged(text).diagnosed if d.finding.severity.value == "error"]


def _written() -> list[tuple[str, str]]:
    """Every symptom of a rule that is a message of its own, with the rule: 'undefined symbol' is one of many."""
    lacks = re.compile(r"cannot import name|No module named|has no attribute|unexpected keyword|undefined symbol")
    rows = [(rule.id, row.symptom or "") for rule in knowledge().rules for row in rule.rows]
    return [(rule, text) for rule, text in dict.fromkeys(rows) if len(text) >= 18 and not lacks.search(text)]


@pytest.mark.parametrize(
    "printed",
    [
        pytest.param("{}", id="plain"),
        pytest.param("[rank0]: {}", id="rank"),
        pytest.param("(TrainWorker pid=812, ip=10.0.0.2) \x1b[31m{}\x1b[0m", id="colour"),
        pytest.param("E       {}", id="pytest"),
        pytest.param('  File "train.py", line 3, in <module>\n{}\nroot@host:~#', id="within other lines"),
    ],
)
def test_every_literal_symptom_of_a_rule_is_recognised_as_its_program_prints_it(printed):
    every = catalogue().signatures
    written = _written()

    missed = [
        rule
        for rule, symptom in written
        if rule not in {hit.signature.id for hit in find_hits(clean(printed.format(symptom)), "log", every)}
    ]

    assert len(written) > 100
    assert missed == []


SYMPTOM = "NotImplementedError: Loading a dataset cached in a LocalFileSystem is not supported."


def test_a_symptom_confirms_the_rule_that_the_versions_break():
    diagnosis = judged(f"datasets==2.14.5\nfsspec==2023.10.0\n{SYMPTOM}\n")

    assert {d.finding.rule for d in diagnosis.diagnosed if d.confirmed} >= {"datasets-local-filesystem"}


def test_a_symptom_that_names_no_component_of_its_rule_says_nothing_by_itself():
    diagnosis = judged("IndexError: list index out of range")

    assert "megatron-unified-memory-no-gpu" not in {d.finding.rule for d in diagnosis.diagnosed}


def test_the_message_of_a_rule_that_the_stated_releases_do_not_break_is_a_note():
    message = "ImportError: pyarrow requires NumPy 2.0 or newer"

    def spoken(text: str) -> list[tuple[str, str]]:
        return [
            (d.finding.severity.value, d.confidence)
            for d in judged(text).diagnosed
            if d.finding.rule == "pyarrow-numpy1"
        ]

    assert spoken(message) == [("error", "medium")]
    assert spoken(f"pyarrow==21.0.0\nnumpy==2.2.0\n{message}") == [("note", "low")]


def test_what_a_warning_misses_comes_after_the_error_that_ends_the_run():
    log = (
        "WARNING _custom_ops.py:15] Failed to import from vllm._C with ImportError('libcudart.so.12: cannot open shared"
        " object file: No such file or directory')\n"
        "ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0."
    )

    first, second = judged(log).diagnosed[:2]

    assert first.taxonomy.cause == "bf16-on-pre-ampere"
    assert (second.finding.severity.value, second.taxonomy.cause) == ("warning", "cuda-library-missing")


def test_a_rendezvous_that_nobody_reached_is_said_once():
    log = "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 clients joined."

    (only,) = judged(log).diagnosed

    assert only.finding.message.startswith("1 of 2 processes came")


def test_an_architecture_that_nvcc_dropped_is_not_said_to_be_too_new_for_it():
    (only,) = judged("nvcc fatal   : Unsupported gpu architecture 'compute_35'").diagnosed

    assert only.finding.needs == {"toolkit": "<12"}


@pytest.mark.parametrize(
    ("log", "cause", "toolkit"),
    [
        (
            "Ubuntu 16.04 and an Nvidia P6000 with Cuda 10.1.\n{}61\nerror: command '/usr/bin/nvcc' failed",
            "nvcc-too-old-for-arch",
            ">=8.0,<13",
        ),
        ("{}61'\nerror: command '/usr/bin/nvcc' failed with exit status 1", "nvcc-too-old-for-arch", ">=8.0,<13"),
        ("nvcc: 13.0\n{}61'", "nvcc-too-new-for-arch", "<13"),
        ("nvcc: 7.5\n{}61'", "nvcc-too-old-for-arch", ">=8.0"),
        ("{}70'", "nvcc-too-new-for-arch", ">=9.0,<13"),
        ("nvcc: 12.4\n{}35'", "nvcc-too-new-for-arch", "<12"),
        ("I have CUDA 11.8 here.\n{}35'\nerror: command '/usr/bin/nvcc' failed", "nvcc-too-old-for-arch", "<12"),
    ],
)
def test_an_old_architecture_is_too_new_or_dropped_by_the_cuda_that_is_stated(log, cause, toolkit):
    root = judged(log.format("nvcc fatal   : Unsupported gpu architecture 'compute_")).root

    assert (root.taxonomy.cause, root.finding.needs) == (cause, {"toolkit": toolkit})


def test_a_part_that_open_mpi_leaves_out_by_itself_is_no_fault():
    log = "unable to open mca_btl_openib: librdmacm.so.1: cannot open shared object file: No such file or directory (ignored)"

    assert not judged(log).diagnosed


def test_the_compiler_to_take_is_the_newest_that_the_message_names():
    log = "host_config.h:139:2: error: #error -- unsupported GNU version! gcc versions later than 10 are not supported!"

    (only,) = judged(log).diagnosed

    assert only.finding.needs == {"gcc": "<11"}
    assert all("gcc-10" in text for text in (only.finding.fix, *only.lines))


@pytest.mark.parametrize(
    "text",
    [
        "nginx: [emerg] bind() to 0.0.0.0:80 failed (98: Address already in use)",
        "Caused by: java.net.BindException: Address already in use\n\tat sun.nio.ch.Net.bind0(Native Method)",
        "redis.exceptions.ConnectionError: Error 111 connecting to localhost:6379. Connection refused.",
        "Error: EADDRINUSE, Address already in use\n    at HTTPServer._doListen (net.js:1098:5)",
        "error: RPC failed; curl 56 OpenSSL SSL_read: Connection reset by peer, errno 104",
        "error: linking with `cc` failed: exit status: 1",
        (
            "W tensorflow/stream_executor/platform/default/dso_loader.cc:64] Could not load dynamic library"
            " 'libcudnn.so.8'; dlerror: libcudnn.so.8: cannot open shared object file: No such file or directory"
        ),
    ],
    ids=["nginx", "Java", "Redis", "Node.js", "git", "Rust", "TensorFlow"],
)
def test_what_programs_of_every_kind_print_is_not_said_of_a_training(text):
    assert not judged(text).diagnosed


@pytest.mark.parametrize(
    "text",
    [
        '    parser.add_argument(\n        help="Choose"\n        "between fp16 and bf16. Bf16 requires an Ampere GPU.",\n    )',
        "from huggingface_hub.utils import GatedRepoError, RepositoryNotFoundError",
        '    if not ok:\n        raise ImportError("Megatron is not installed. please build it from source.")',
        '    "zero_allow_untested_optimizer": false,',
        "If you get `CUDA error: invalid device function` errors, only one of these files may be in the paths.",
        "* `--mixed_precision`: BF16 training is only supported on Nvidia Ampere GPUs and PyTorch 1.10 or later.",
    ],
    ids=["help of an option", "an import", "a raise", "a configuration", "a hint", "documentation"],
)
def test_what_nobody_said_is_no_message(text):
    assert not judged(f"loss 0.68, GPU 0\n{text}\n").diagnosed


def test_the_source_that_a_traceback_quotes_did_run():
    text = 'Traceback (most recent call last):\n  File "a.py", line 3, in f\n    raise ImportError("DeepSpeed is not available'

    assert judged(f'{text} => install it using `pip3 install deepspeed`")').diagnosed


@pytest.mark.parametrize(
    ("stated", "fix"),
    [
        ("numpy==1.19.2\n", "Install a newer numpy of the same major"),
        ("Numpy Version：numpy-1.22.4\n", "Install a newer numpy of the same major"),  # noqa: RUF001 - as it was typed
        ("numpy==2.0.0\n", "Install numpy<2"),
        ("", "ends both"),
    ],
)
def test_numbers_of_numpy_that_torch_does_not_know_ask_for_the_numpy_that_fits(stated, fix):
    finding = judged(f"{stated}RuntimeError: Could not infer dtype of numpy.uint8").diagnosed[0].finding

    assert finding.rule == "torch-without-numpy"
    assert fix in finding.fix


def test_numpy_1_that_is_stated_where_numpy_2_runs_is_another_copy_or_an_old_kernel():
    message = (
        "numpy.dtype size changed, may indicate binary incompatibility. Expected 96 from C header, got 88 from PyObject"
    )
    finding = judged(f"!pip install numpy==1.26.4\nValueError: {message}").diagnosed[0].finding

    assert "Restart the kernel" in finding.fix


def test_a_release_that_has_wheels_for_the_python_lacks_them_for_the_platform():
    message = "Unable to find installation candidates for torch (2.3.1)"
    finding = judged(f"python -V\nPython 3.11.7\nRuntimeError: {message}").diagnosed[0].finding

    assert "none for this platform" in finding.message


def test_builds_of_another_platform_that_libmamba_does_not_find_are_named():
    text = "Platform: osx-arm64\nLibMambaUnsatisfiableError: Encountered problems while solving:\n"
    finding = judged(f"{text}  - nothing provides requested zlib ==1.2.13 h5eee18b_0\n").diagnosed[0].finding

    assert finding.rule == "conda-package-unknown"
    assert "zlib==1.2.13=h5eee18b_0 was exported on another platform" in finding.message


@pytest.mark.parametrize(
    ("command", "rule"),
    [
        ("docker run -it image bash", "container-without-gpus"),
        ("docker run -it --gpus all image bash", "no-driver"),
        ("docker run -it \\\n  --gpus all image bash", "no-driver"),
    ],
)
def test_a_container_that_is_started_without_gpus_sees_none(command, rule):
    text = f"{command}\nRuntimeError: Found no NVIDIA driver on your system."

    assert judged(text).diagnosed[0].finding.rule == rule


def test_a_step_of_an_image_s_build_has_no_gpu():
    finding = judged("#0 0.895 RuntimeError: Found no NVIDIA driver on your system.").diagnosed[0].finding

    assert "docker build gives its steps none" in finding.message


def test_a_number_in_visible_devices_that_is_not_there_is_named():
    text = "export CUDA_VISIBLE_DEVICES=2\nRuntimeError: No CUDA GPUs are available"

    assert "CUDA_VISIBLE_DEVICES=2 names a GPU" in judged(text).diagnosed[0].finding.message


def test_no_release_helps_where_the_index_offers_none_for_this_python():
    message = (
        "Could not find a version that satisfies the requirement torch>=2.1.0 (from ltx-video) (from versions: none)"
    )
    finding = judged(f"Python 3.13.2\nERROR: {message}").diagnosed[0].finding

    assert "no release of torch at all" in finding.message
    assert not finding.needs


@pytest.mark.parametrize(
    ("stated", "word"), [("torch: 2.4.0\n", "2.4.0"), ("torch: 2.3.1\n", "vcomp140.dll"), ("", "2.4.0")]
)
def test_the_release_whose_fbgemm_asks_for_another_library_is_told_apart(stated, word):
    message = 'OSError: [WinError 126] Error loading "C:\\venv\\lib\\site-packages\\torch\\lib\\fbgemm.dll" or one of its dependencies.'

    assert word in judged(f"{stated}{message}").diagnosed[0].finding.message
