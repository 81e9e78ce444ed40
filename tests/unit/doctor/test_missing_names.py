"""What the doctor says of a missing name, module, member or argument, from an index of releases."""

from __future__ import annotations

from pathlib import Path

import pytest

from envsmith.doctor.judge_facts import diagnose
from envsmith.doctor.read import read_texts
from envsmith.doctor.read.pasted import clean
from envsmith.doctor.read.tracebacks import frames_before
from envsmith.knowledge.names.name_index import SUMMARY, NameIndex
from envsmith.knowledge.names.names_file import Head, MeasuredRelease, Table, encode
from envsmith.knowledge.names.source import read_module
from envsmith.model.rule import Severity

SOURCES = {
    "datasets": {
        "1.0": {
            "datasets": "from .core import Loader, Store\nfrom . import old",
            "datasets.core": "def merge(a, b): ...\nclass Loader:\n  def __init__(self, batch): ...\n  def seek(self): ...\nclass Store:\n  def get(self, key): ...\n  def put(self, scope=1): ...",
            "datasets.old": "gone = 1\nstays = 2",
        },
        "2.0": {
            "datasets": "from .core import Loader, Store\nfrom . import new",
            "datasets.core": "def merge(a, b, c=1): ...\nclass Loader:\n  def __init__(self, size): ...\nclass Store:\n  def get(self, key, scope): ...\n  def put(self, scope): ...\n  def open(self): self.engine = 1",
            "datasets.new": "fresh = 1",
        },
    },
    "peft": {
        "1.0": {
            "peft": "class Loader:\n  def __init__(self, rank): ...\nclass Tuner:\n  def __init__(self, gpus): ..."
        },
        "2.0": {
            "peft": "class Loader:\n  def __init__(self, rank): ...\nclass Tuner:\n  def __init__(self, cards): ..."
        },
    },
    "trl": {
        "1.0": {"trl": "class Tuner:\n  def __init__(self, gpus): ...\n  def share(self, wide=1): ..."},
        "2.0": {"trl": "class Tuner:\n  def __init__(self): ...\n  def share(self): ..."},
    },
    "vllm": {
        "1.0": {
            "vllm": "class Engine:\n  def step(self, a): ...\n  def on_end(self, out): ...\n  def share(self): ...\n  def run(self, a, b, c): ...\ndef launch(queue=1): ..."
        },
        "2.0": {
            "vllm": "class Engine:\n  def step(self, a, pace=1): ...\n  def on_end(self): ...\n  def share(self, wide=1): ...\n  def run(self, a, b): ...\ndef launch(): ..."
        },
    },
}


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> NameIndex:
    """An index of two packages with releases 1.0 and 2.0 each."""
    folder: Path = tmp_path_factory.mktemp("names")
    for name, releases in SOURCES.items():
        table: Table = {}
        for bit, modules in enumerate(releases.values()):
            for module, source in modules.items():
                lines = table.setdefault(module, {})
                for line in {"", *read_module(source.encode(), module, package=module == name)}:
                    lines[line] = lines.get(line, 0) | 1 << bit
        measured = tuple(MeasuredRelease(version=v, date="2024-05-01", filename="", sha256="") for v in releases)
        head = Head(distribution=name, reader=1, roots=(name,), releases=measured)
        (folder / f"{name}.names").write_bytes(encode(head, table))
    (folder / SUMMARY).write_text("distribution\troots\n" + "".join(f"{name}\t{name}\n" for name in SOURCES))
    return NameIndex(folder)


def first(text: str, index: NameIndex):
    """The first finding on a text."""
    diagnosis = diagnose(read_texts([("log", text)]), [("log", clean(text))], names=index)
    return diagnosis.root or next(iter(diagnosis.diagnosed), None)


@pytest.mark.parametrize(
    ("message", "spec"),
    [
        ("ImportError: cannot import name 'gone' from 'datasets.old'", "<2.0"),
        ("ImportError: cannot import name 'fresh' from 'datasets.new' (/x/datasets/new.py)", ">=2.0"),
        ("ImportError: cannot import name \u2018gone\u2018 from \u2018datasets.old.", "<2.0"),
        ("AttributeError: module 'datasets' has no attribute 'new'", ">=2.0"),
        ("ModuleNotFoundError: No module named 'datasets.new'", ">=2.0"),
        ("AttributeError: 'Loader' object has no attribute 'seek'\nimport datasets", "<2.0"),
        ("AttributeError: type object 'Loader' has no attribute 'seek'\nimport datasets", "<2.0"),
        ("TypeError: Loader.__init__() got an unexpected keyword argument 'batch'", "<2.0"),
        ("loader = datasets.Loader(batch=1)\nTypeError: __init__() got an unexpected keyword argument 'size'", ">=2.0"),
        ("import datasets\nTypeError: Store.get() missing 1 required positional argument: 'scope'", "<2.0"),
        ("import datasets\nTypeError: Store.put() missing 1 required positional argument: 'scope'", "<2.0"),
        ("ImportError: 无法从 'datasets.old' 导入名称 'gone'", "<2.0"),
        ("ModuleNotFoundError: Kein Modul namens 'datasets.new'", ">=2.0"),
        ("loader = datasets.Loader(batch=1)\nTypeError: Unexpected keyword argument 'batch'", "<2.0"),
        ("AttributeError: 'datasets.core.Loader' object has no attribute 'seek'", "<2.0"),
    ],
)
def test_a_name_that_some_releases_have_names_them(message, spec, index):
    finding = first(message, index).finding

    assert (finding.rule, dict(finding.needs)) == ("name-not-in-release", {"datasets": spec})
    assert f"datasets{spec}" in finding.fix


def test_the_installed_release_that_lacks_it_makes_the_finding_certain(index):
    diagnosed = first("datasets: 2.0\nImportError: cannot import name 'gone' from 'datasets.old'", index)

    assert diagnosed.confidence == "high"
    assert diagnosed.finding.message.startswith("datasets 2.0 does not have datasets.old.gone: it is in datasets<2.0.")


def test_what_is_installed_wins_over_what_a_text_says(index):
    text = "pip list\nPackage Version\n------- -------\ndatasets 2.0\n\nI think datasets 1.0\n"
    diagnosed = first(text + "ImportError: cannot import name 'gone' from 'datasets.old'", index)

    assert diagnosed.finding.components["datasets"] == "2.0"


TRACEBACK = """Traceback (most recent call last):
  File "/w/train.py", line 3, in <module>
    import peft
  File "/v/lib/python3.11/site-packages/peft/__init__.py", line 1, in <module>
    from datasets.old import gone
ImportError: cannot import name 'gone' from 'datasets.old' (/v/lib/python3.11/site-packages/datasets/old.py)
"""


def test_the_calls_say_which_package_asks_and_that_a_newer_one_may_not(index):
    finding = first(TRACEBACK, index).finding

    assert finding.message.endswith("peft asks for it.")
    assert "or a newer release of peft" in finding.fix


def test_of_two_packages_with_the_class_the_one_whose_releases_differ_is_meant(index):
    finding = first(
        "import peft, datasets\nTypeError: Loader.__init__() got an unexpected keyword argument 'batch'", index
    )

    assert set(finding.finding.needs) == {"datasets"}


def test_a_name_of_no_release_is_no_matter_of_versions(index):
    finding = first("datasets: 2.0\nImportError: cannot import name 'gonne' from 'datasets.core'", index).finding

    assert (finding.rule, finding.severity, dict(finding.needs)) == ("name-in-no-release", Severity.WARNING, {})
    assert "No release of datasets from 1.0 to 2.0 has datasets.core.gonne" in finding.message


@pytest.mark.parametrize(
    ("message", "fix", "needs"),
    [
        ("AttributeError: module transformers has no attribute LLaMATokenizer", "Write LlamaTokenizer in the place of LLaMATokenizer", {"transformers": ">=4.28.0"}),
        ("ImportError: cannot import name 'TrainingArgument' from 'transformers' (/e/transformers/__init__.py)", "Write TrainingArguments in the place of TrainingArgument", {}),
    ],
)  # fmt: skip
def test_a_name_of_no_release_that_differs_in_case_or_a_letter_is_told_with_the_right_one(message, fix, needs):
    finding = first(message, NameIndex.installed()).finding

    assert finding.fix.startswith(fix)
    assert dict(finding.needs) == needs


@pytest.mark.parametrize("name", ["Qwen9ForCausalLM", "SomethingElse"])
def test_a_name_that_differs_in_a_digit_is_another_model_and_not_misspelt(name):
    text = f"ImportError: cannot import name '{name}' from 'transformers' (/e/transformers/__init__.py)"

    assert first(text, NameIndex.installed()).finding.rule == "name-in-no-release"


HANDED = """  File "/home/me/lora.py", line 80, in add_lora
    PeftModel.from_pretrained(model, path, **params)
  File "/env/lib/python3.10/site-packages/peft/utils/config.py", line 114, in from_pretrained
    config = cls(**kwargs)
TypeError: PeftConfig.__init__() got an unexpected keyword argument 'dtype'
"""


@pytest.mark.parametrize(
    ("text", "needs"),
    [
        (HANDED, {}),
        ("Upgrading to trl>0.9 throws TypeError: SFTConfig.__init__() got an unexpected keyword argument 'cache_dir'", {"trl": "<0.9.2"}),
    ],
)  # fmt: skip
def test_an_argument_of_no_release_that_the_package_was_given_is_no_matter_of_spelling(text, needs):
    diagnosed = first(text, NameIndex.installed())

    assert "it comes from what" in diagnosed.finding.message
    assert (diagnosed.taxonomy.cause, dict(diagnosed.finding.needs)) == ("package-version-pair", needs)


def test_a_call_of_ones_own_with_an_argument_of_no_release_is_a_matter_of_spelling():
    text = "TypeError: SFTConfig.__init__() got an unexpected keyword argument 'cache_dir'"

    assert "it is misspelt" in first(text, NameIndex.installed()).finding.message


def test_a_name_that_the_stated_release_has_means_another_copy(index):
    finding = first("datasets: 1.0\nImportError: cannot import name 'gone' from 'datasets.old'", index).finding

    assert finding.rule == "installed-is-another"
    assert "datasets 1.0 has datasets.old.gone: what is imported is another copy" in finding.message
    assert "print(m.__file__)" in finding.fix


@pytest.mark.parametrize(("stated", "needs"), [("", {}), ("datasets: 0.5\n", {"datasets": ">=1.0"})])
def test_a_name_of_every_release_is_not_said_to_be_in_one_that_was_not_measured(stated, needs, index):
    finding = first(f"{stated}ImportError: cannot import name 'Loader' from 'datasets'", index).finding

    assert (finding.rule, dict(finding.needs)) == ("name-not-in-release", needs)
    assert "Every release of datasets from 1.0 to 2.0 has datasets.Loader" in finding.message


@pytest.mark.parametrize(("folder", "rule"), [("trlx", "module-shadowed"), ("work", "name-missing")])
def test_a_checkout_around_the_script_may_stand_in_the_place_of_its_package(index, folder, rule):
    text = (
        f'Traceback (most recent call last):\n  File "/home/me/{folder}/main.py", line 4, in <module>\n    trlx.train()\n'
        "AttributeError: module 'trlx' has no attribute 'train'"
    )

    assert first(text, index).finding.rule == rule


def test_a_script_that_a_package_called_asks_itself(index):
    text = (
        'Traceback (most recent call last):\n  File "/env/lib/python3.11/site-packages/fire/core.py", line 4, in _Fire\n'
        '    component = fn()\n  File "/w/run.py", line 9, in main\n    datasets.Loader()\n'
        "AttributeError: module 'datasets' has no attribute 'Loader'"
    )

    assert "fire" not in first(text, index).finding.message


def test_where_a_script_that_collects_a_report_lacks_a_name_what_the_report_is_about_comes_first(index):
    text = (
        "WARNING: ImportError('/env/x/_C.abi3.so: undefined symbol: _ZNK3c1011StorageImpl27throw_data_ptr_access_errorEv')\n"
        'Traceback (most recent call last):\n  File "/w/collect_env.py", line 9, in main\n'
        "    from datasets.old import gone\nImportError: cannot import name 'gone' from 'datasets.old'"
    )
    diagnosis = diagnose(read_texts([("log", text)]), [("log", text)], names=index)
    root, script = diagnosis.diagnosed[:2]

    assert root.finding.rule == "torch-abi-symbol"
    assert "Take /w/collect_env.py from the source tree" in script.finding.fix


def test_a_file_of_ones_own_in_the_place_of_a_package_is_named(index):
    text = (
        'Traceback (most recent call last):\n  File "/w/datasets.py", line 1, in <module>\n    import datasets\n'
        "AttributeError: partially initialized module 'datasets' has no attribute 'Loader'"
        " (most likely due to a circular import)"
    )
    finding = first(text, index).finding

    assert finding.rule == "module-shadowed"
    assert "/w/datasets.py" in finding.message


def test_an_attribute_that_a_package_lacks_in_itself_while_it_is_imported_means_damaged_files(index):
    text = (
        "File /opt/conda/lib/python3.10/site-packages/datasets/parquet/core.py:33\n     32 try:\n"
        "---> 33     import datasets._parquet as _parquet\n\n"
        "AttributeError: module 'datasets.lib' has no attribute 'ListViewType'"
    )

    assert first(text, index).finding.rule == "broken-installation"


@pytest.mark.parametrize("cell", ["Cell In[10], line 14", "<ipython-input-3-34ecfe73cb1a> in <module>", "In [4]"])
def test_a_package_that_differs_in_itself_in_a_notebook_may_have_been_installed_while_the_kernel_ran(index, cell):
    text = (
        f"{cell}\n---> 14 import datasets.parquet\n\nFile /opt/conda/lib/python3.10/site-packages/datasets/parquet.py:33\n"
        "---> 33 from datasets.parts import Part\n\nImportError: cannot import name 'Part' from 'datasets.parts'"
    )

    finding = first(text, index).finding

    assert finding.rule == "broken-installation"
    assert finding.fix.startswith("Restart the kernel")


def test_a_package_that_is_said_to_be_none_is_a_file_of_ones_own(index):
    finding = first("ModuleNotFoundError: No module named 'datasets.old'; 'datasets' is not a package", index).finding

    assert finding.rule == "module-shadowed"
    assert "datasets.py" in finding.message


def test_a_name_that_a_file_of_ones_own_lacks_is_no_matter_of_releases(index):
    text = (
        'Traceback (most recent call last):\n  File "/w/train.py", line 5, in <module>\n    from utils.metrics import bleu'
        "\nImportError: cannot import name 'bleu' from 'utils.metrics' (/w/utils/metrics.py)"
    )
    finding = first(text, index).finding

    assert (finding.rule, finding.severity, dict(finding.components)) == ("name-not-in-file", Severity.WARNING, {})
    assert finding.message.startswith("/w/utils/metrics.py does not have bleu.")


def test_a_package_without_an_index_is_said_to_be_unmeasured(index):
    finding = first("ImportError: cannot import name 'x' from 'frobnicator'", index).finding

    assert finding.rule == "name-missing"
    assert "It is not known here which releases fit." in finding.message
    assert not finding.needs


def test_a_class_of_ones_own_is_no_finding(index):
    assert first("AttributeError: 'MyModel' object has no attribute 'seek'", index) is None


@pytest.mark.parametrize(
    ("frame", "package", "source"),
    [
        ("File ~/v/lib/python3.11/site-packages/peft/a.py:16, in f(x)\n---> 16 return g(x)", "peft", "return g(x)"),
        ("[/usr/lib/python3.10/dist-packages/peft/a.py](https://localhost:8080/#) in f(x)\n--> 3 g(", "peft", "g("),
        ("│ /v/lib/python3.10/site-packages/peft/a.py │\n│ ❱ 163 g(x)      │", "peft", "g(x)"),
    ],
)
def test_frames_of_notebooks_and_boxes_are_read(frame, package, source):
    text = f"Error\n{frame}\nTypeError: x"

    (call,) = frames_before(text, len(text))

    assert (call.package, call.source) == (package, source)


OVERRIDE = """Traceback (most recent call last):
  File "/home/me/train.py", line 9, in <module>
    store.run()
  File "/venv/lib/python3.11/site-packages/datasets/core.py", line 7, in run
    self.get(key, scope=1)
TypeError: MyStore.get() got an unexpected keyword argument 'scope'
"""


def test_a_method_of_ones_own_that_lacks_an_argument_is_told_from_which_release_on_the_package_gives_it(index):
    finding = first(OVERRIDE, index).finding
    assert finding.rule == "override-lacks-argument"
    assert finding.needs == {"datasets": "<2.0"}
    assert finding.message.startswith("MyStore.get stands in the place of datasets.core.Store.get")


def test_a_method_of_ones_own_that_wants_an_argument_is_told_until_which_release_the_package_gives_it():
    finding = first(
        "TypeError: MyTrainer._save_checkpoint() missing 1 required positional argument: 'metrics'",
        NameIndex.installed(),
    ).finding

    assert (finding.rule, dict(finding.needs)) == ("override-lacks-argument", {"transformers": ">=3.4.0,<4.47.0"})
    assert "wants metrics, which transformers does not give it" in finding.message


def test_an_argument_that_no_release_of_the_package_gives_is_the_scripts_own(index):
    assert first(OVERRIDE.replace("scope", "colour"), index).finding.rule == "name-missing"


@pytest.mark.parametrize(
    "text",
    [
        "Error in call to target 'datasets.core.Loader':\nTypeError(\"__init__() got an unexpected keyword argument 'batch'\")",
        "import datasets as ds\nwhen I run ds.Loader(batch=1), __init__() got an unexpected keyword argument 'batch'",
    ],
    ids=["the path of a class in a configuration", "the call on the line of the message"],
)
def test_what_was_called_is_named_beside_a_message_of_a_constructor(text, index):
    assert dict(first(text, index).finding.needs) == {"datasets": "<2.0"}


@pytest.mark.parametrize(
    ("message", "spec"),
    [
        ("import datasets\nTypeError: merge() takes 2 positional arguments but 3 were given", ">=2.0"),
        ("import datasets\nTypeError: Store.get() takes 2 positional arguments but 3 were given", ">=2.0"),
        ("import datasets\nTypeError: Store.get() takes from 1 to 2 positional arguments but 3 were given", ">=2.0"),
    ],
)
def test_a_function_that_takes_fewer_arguments_by_position_is_of_another_release(message, spec, index):
    finding = first(message, index).finding

    assert (finding.rule, dict(finding.needs)) == ("name-not-in-release", {"datasets": spec})
    assert "3 arguments by position" in finding.message


@pytest.mark.parametrize(
    "message",
    [
        "TypeError: forward() takes 2 positional arguments but 3 were given",
        "import datasets\nTypeError: merge() takes 5 positional arguments but 6 were given",
        "import datasets\nTypeError: merge() takes 0 positional arguments but 2 were given",
    ],
)
def test_of_a_function_with_another_number_of_arguments_nothing_is_said(message, index):
    assert first(message, index) is None


def test_where_nothing_says_whose_class_it_is_every_package_with_such_releases_is_named(index):
    finding = first("TypeError: Tuner.__init__() got an unexpected keyword argument 'gpus'", index).finding

    assert dict(finding.needs) == {"peft": "<2.0", "trl": "<2.0"}
    assert "does not say of which package" in finding.message


def test_an_import_says_whose_class_it_is(index):
    text = "from trl import Tuner\nTypeError: Tuner.__init__() got an unexpected keyword argument 'gpus'"

    assert dict(first(text, index).finding.needs) == {"trl": "<2.0"}


@pytest.mark.parametrize(
    "line", ["!git clone https://github.com/me/shaper", "-e git+https://github.com/me/shaper.git@b7db6f9#egg=shaper"]
)
def test_a_package_that_is_cloned_beside_the_script_may_be_the_folder_of_the_clone(index, line):
    text = f"{line}\nAttributeError: module 'shaper' has no attribute 'train'"

    finding = first(text, index).finding

    assert finding.rule == "module-shadowed"
    assert "pip install -e ." in finding.fix


def test_a_folder_in_the_place_of_a_package_is_no_matter_of_releases(index):
    finding = first("ImportError: cannot import name 'Loader' from 'datasets' (unknown location)", index).finding

    assert (finding.rule, dict(finding.needs)) == ("broken-installation", {})
    assert "a folder without __init__.py" in finding.message
    assert "run pip install . in it again" in finding.fix


WRAPPED = """trl==0.24.0
Traceback (most recent call last):
  File "/w/train.py", line 61, in <module>
    trainer = SFTTrainer(
  File "/v/lib/python3.11/site-packages/transformers/utils/deprecation.py", line 172, in wrapped_func
    return func(*args, **kwargs)
TypeError: SFTTrainer.__init__() got an unexpected keyword argument 'tokenizer'
"""


def test_ones_own_code_comes_first_where_an_argument_moved_and_no_decorator_is_said_to_ask():
    diagnosed = first(WRAPPED, NameIndex.installed())

    assert "Your own code asks for it (/w/train.py)" in diagnosed.finding.message
    assert diagnosed.finding.fix.startswith(
        "Write processing_class in the place of tokenizer in /w/train.py. Or install"
    )
    assert not diagnosed.lines


@pytest.mark.parametrize(
    ("message", "fix"),
    [
        (
            "trl==0.24.0\nTypeError: SFTTrainer.__init__() got an unexpected keyword argument 'max_seq_length'",
            "Give max_length to trl.SFTConfig",
        ),
        (
            "trl==0.24.0\nTypeError: DPOTrainer.__init__() got an unexpected keyword argument 'beta'",
            "Give beta to trl.DPOConfig",
        ),
        (
            "accelerate==1.2.0\nTypeError: Accelerator.__init__() got an unexpected keyword argument 'dispatch_batches'",
            "Give dispatch_batches to accelerate.utils.DataLoaderConfiguration",
        ),
        (
            "transformers==4.52.0\nTypeError: TrainingArguments.__init__() got an unexpected keyword argument 'evaluation_strategy'",
            "Write eval_strategy in the place of",
        ),
    ],
)
def test_what_took_the_place_of_an_argument_is_named_as_the_installed_release_has_it(message, fix):
    finding = first(message, NameIndex.installed()).finding

    assert finding.fix.startswith(fix)


def test_an_older_release_is_not_offered_where_another_package_does_not_bear_it():
    text = "trl==0.24.0\ntransformers==5.2.0\nTypeError: SFTTrainer.__init__() got an unexpected keyword argument 'dataset_text_field'"

    finding = first(text, NameIndex.installed()).finding

    assert (
        finding.fix
        == "Give dataset_text_field to trl.SFTConfig in your code, not to the call that refuses it. trl>=0.4.2,<0.13.0 has it, but not beside what else is stated."
    )


def test_a_package_of_several_distributions_is_not_said_to_be_damaged():
    text = "ImportError: cannot import name 'get_args' from 'megatron' (unknown location)"

    finding = first(text, NameIndex.installed()).finding

    assert finding.rule == "megatron-module-moved"


def test_the_bound_of_a_name_gives_way_to_what_else_its_importer_needs():
    text = (
        "peft==0.14.0\ntransformers==4.35.2\n"
        '  File "/v/lib/python3.11/site-packages/peft/peft_model.py", line 37, in <module>\n'
        "ImportError: cannot import name 'Cache' from 'transformers' (/v/transformers/__init__.py)"
    )

    finding = first(text, NameIndex.installed()).finding

    assert dict(finding.needs) == {"transformers": ">=4.43.0,<5.0.0", "peft": "<0.14.0"}


@pytest.mark.parametrize(
    ("message", "needs"),
    [
        ("ValueError: The checkpoint you are trying to load has model type `qwen3` but Transformers does not recognize this architecture.", {"transformers": ">=4.51.0"}),
        ("KeyError: 'qwen2'", {"transformers": ">=4.37.0"}),
        ("ValueError: Tokenizer class Qwen2Tokenizer does not exist or is not currently imported.", {"transformers": ">=4.37.0"}),
        ("ValueError: Model architectures ['Qwen3ForCausalLM'] are not supported for now.", {"vllm": ">=0.8.4"}),
        ("ValueError: The checkpoint you are trying to load has model type `of_my_own` but Transformers does not recognize this architecture.", {}),
    ],
)  # fmt: skip
def test_a_model_that_a_release_does_not_know_is_told_with_the_releases_that_do(message, needs):
    found = diagnose(read_texts([("log", message)]), [("log", clean(message))]).root
    assert found
    assert found.finding.needs == needs


def test_a_member_is_looked_for_where_the_package_says_it_without_quotes():
    text = "AttributeError: Qwen2Tokenizer has no attribute sanitize_special_tokens"
    found = diagnose(read_texts([("log", text)]), [("log", clean(text))]).diagnosed[0].finding
    assert set(found.components) == {"transformers"}


def test_before_python_310_the_call_says_that_a_method_of_ones_own_stands_in_the_place_of_the_packages():
    text = """
  File "/env/lib/python3.9/site-packages/transformers/trainer.py", line 3045, in _maybe_log_save_evaluate
    self.log(logs, start_time)
TypeError: log() takes 2 positional arguments but 3 were given
"""
    found = diagnose(read_texts([("log", text)]), [("log", clean(text))]).root
    assert found
    assert found.finding.rule == "override-lacks-argument"
    assert found.finding.needs["transformers"].endswith("<4.47.0")


def test_a_class_of_many_packages_is_first_looked_for_in_the_one_that_most_people_use():
    diagnosed = first(
        "TypeError: Trainer.__init__() got an unexpected keyword argument 'tokenizer'", NameIndex.installed()
    )

    assert "the argument tokenizer of transformers.Trainer" in diagnosed.finding.message
    assert diagnosed.finding.fix.startswith("Write processing_class in the place of tokenizer in your code.")


def test_the_command_installs_the_releases_that_have_the_name():
    text = "ImportError: cannot import name 'is_offline_mode' from 'huggingface_hub' (/e/huggingface_hub/__init__.py)"
    diagnosed = first(text, NameIndex.installed())

    assert diagnosed.lines == ("pip install 'huggingface-hub>=1.2.1'",)


@pytest.mark.parametrize("name", ["FSDP", "FullyShardedDataParallel"])
def test_a_class_of_torch_is_known_by_its_own_name_and_by_the_one_that_people_import_it_as(name):
    diagnosed = first(
        f"TypeError: {name}.__init__() got an unexpected keyword argument 'device_mesh'", NameIndex.installed()
    )

    assert dict(diagnosed.finding.needs) == {"torch": ">=2.2.0"}


@pytest.mark.parametrize("stated", ["", "datasets: 2.0\n"])
def test_a_member_that_a_method_sets_is_not_said_to_be_missing_from_a_release(stated, index):
    diagnosed = first(f"{stated}AttributeError: 'Store' object has no attribute 'engine'\nimport datasets", index)

    assert "what sets it has not run for this one" in diagnosed.finding.message
    assert dict(diagnosed.finding.needs) == ({} if stated else {"datasets": ">=2.0"})


def test_a_member_that_its_own_package_asks_for_was_not_set_yet_though_later_releases_have_no_such_member():
    frame = 'Traceback (most recent call last):\n  File "/e/site-packages/deepspeed/runtime/zero/stage_1_and_2.py", line 9, in f\n'
    message = "AttributeError: 'DeepSpeedZeroOptimizer' object has no attribute 'extra_large_param_to_reduce'"
    diagnosed = first(frame + message, NameIndex.installed())

    assert "what sets it has not run for this one" in diagnosed.finding.message


def test_a_member_that_the_stated_release_does_not_set_is_missing_from_it(index):
    diagnosed = first("datasets: 1.0\nAttributeError: 'Store' object has no attribute 'engine'\nimport datasets", index)

    assert diagnosed.finding.message.startswith("datasets 1.0 does not have")


@pytest.mark.parametrize("name", ["bool", "int", "object"])
def test_a_name_of_pythons_own_that_numpy_handed_on_is_told_by_the_release_that_dropped_it(name):
    diagnosed = first(f"AttributeError: module 'numpy' has no attribute '{name}'.", NameIndex.installed())

    assert diagnosed.finding.rule == "numpy-alias-removed"
    assert diagnosed.lines == ("pip install 'numpy<1.24'",)


def test_a_name_that_python_has_as_a_function_is_answered_by_the_releases_that_have_it():
    finding = first("AttributeError: module 'torch' has no attribute 'compile'", NameIndex.installed()).finding

    assert dict(finding.needs) == {"torch": ">=2.0.0"}


def test_a_command_stays_whose_releases_all_have_the_name():
    text = "ImportError: cannot import name 'packaging' from 'pkg_resources' (/e/pkg_resources/__init__.py)"

    assert first(text, NameIndex.installed()).lines == ("pip install 'setuptools<70'",)


def of_committed(text: str):
    """The root of a text, over the committed index."""
    return diagnose(read_texts([("log", text)]), [("log", clean(text))]).root


def test_a_name_that_every_release_has_asked_for_in_the_midst_of_an_import_is_a_circle():
    finding = of_committed("AttributeError: partially initialized module 'torch' has no attribute 'cuda'").finding

    assert (finding.rule, dict(finding.needs)) == ("imported-in-a-circle", {})


def test_the_file_in_the_message_that_has_the_name_of_the_package_is_ones_own():
    text = "ImportError: cannot import name 'pipeline' from 'transformers' (/home/me/work/transformers.py)"

    assert "/home/me/work/transformers.py" in of_committed(text).finding.message


def test_a_package_that_misses_a_name_in_a_module_of_its_own_is_of_two_releases():
    text = """  File "/v/lib/python3.10/site-packages/torch/_dynamo/convert_frame.py", line 22, in <module>
    from torch._utils_internal import maybe_upload_prof_stats_to_manifold
ImportError: cannot import name 'maybe_upload_prof_stats_to_manifold' from 'torch._utils_internal'"""

    assert of_committed(text).finding.rule == "broken-installation"


def test_an_argument_that_few_classes_of_the_calling_package_take_names_its_releases():
    text = """  File "/v/lib/python3.8/site-packages/lightning/fabric/strategies/fsdp.py", line 229, in setup_module
    module = FullyShardedDataParallel(
TypeError: __init__() got an unexpected keyword argument 'activation_checkpointing_policy'"""

    assert of_committed(text).finding.needs == {"lightning": ">=2.1.0"}


def test_a_model_of_another_package_that_lacks_what_the_stated_release_asks_for_is_older():
    text = "transformers: 5.1.0\nAttributeError: 'ColBERTModel' object has no attribute 'all_tied_weights_keys'"

    assert of_committed(text).finding.needs == {"transformers": "<5.0.0"}


def test_a_lazy_module_names_what_it_lacks_without_quotes():
    text = "AttributeError: module diffusers has no attribute FluxPipeline"

    assert of_committed(text).finding.needs == {"diffusers": ">=0.30.0"}


def test_a_signature_that_names_releases_says_more_than_an_index_that_knows_no_such_name():
    text = "TypeError: Qwen2ForCausalLM.__init__() got an unexpected keyword argument 'dtype'"

    assert of_committed(text).finding.needs == {"transformers": ">=4.56.0"}


def test_pip_is_given_the_name_of_the_package_and_none_for_a_part_of_a_project():
    package, part = (of_committed(f"ModuleNotFoundError: No module named '{name}'") for name in ("cv2", "utils"))

    assert package.lines == ("python -m pip install opencv-python",)
    assert part.lines == ()


def test_a_class_below_its_package_that_wants_an_argument_is_asked_of_the_releases_that_have_it():
    text = "TypeError: LlamaRotaryEmbedding.__init__() missing 1 required positional argument: 'config'"
    assert dict(first(text, NameIndex.installed()).finding.needs) == {"transformers": ">=4.28.0,<4.48.0"}


def test_the_package_that_a_class_belongs_to_wins_over_one_that_has_a_class_of_that_name():
    text = "AttributeError: 'MessageFactory' object has no attribute 'GetPrototype'"
    assert dict(first(text, NameIndex.installed()).finding.needs) == {"protobuf": "<6.30.0"}


def test_numpys_name_of_a_type_of_python_2_is_not_said_to_be_in_every_release():
    text = "AttributeError: module 'numpy' has no attribute 'long'. Did you mean: 'log'?"
    assert "Every release" not in first(text, NameIndex.installed()).finding.message


def test_an_operator_that_no_library_registered_is_no_name_of_its_package():
    text = "AttributeError: '_OpNamespace' 'torchvision' object has no attribute 'nms'"
    assert first(text, NameIndex.installed()).finding.rule == "torchvision-pair"


@pytest.mark.parametrize(
    ("method", "argument", "spec"),
    [
        ("LlavaLlamaForCausalLM.forward", "cache_position", "<4.38.0"),
        ("forward", "cache_position", "<4.38.0"),
        ("MyAttention.forward", "position_embeddings", "<4.43.0"),
        ("compute_loss", "num_items_in_batch", "<4.46.0"),
    ],
)
def test_an_argument_that_one_package_alone_gives_tells_whose_method_is_overridden(method, argument, spec):
    text = f"TypeError: {method}() got an unexpected keyword argument '{argument}'"

    finding = first(text, NameIndex.installed()).finding

    assert (finding.rule, dict(finding.needs)) == ("override-lacks-argument", {"transformers": spec})


def test_a_function_that_is_named_like_a_module_is_not_one_that_can_be_imported():
    text = "timm: 0.9.2\nModuleNotFoundError: No module named 'timm.models.layers.conv2d_same'"
    assert first(text, NameIndex.installed()).finding.message.startswith("timm 0.9.2 does not have the module")


def test_a_compiled_module_that_is_not_there_is_a_matter_of_the_files():
    text = "ImportError: cannot import name '_imaging' from 'PIL' (/venv/lib/python3.11/site-packages/PIL/__init__.py)"
    assert first(text, NameIndex.installed()).finding.rule == "broken-installation"


def test_what_is_imported_is_looked_at_by_the_root_of_the_package_in_a_folder_of_several():
    text = "ImportError: cannot import name 'descriptor' from 'google.protobuf'"
    assert "import google.protobuf as m" in first(text, NameIndex.installed()).finding.fix


def test_a_class_has_an_argument_also_in_releases_in_which_only_its_own_module_has_the_class():
    text = "TypeError: VaeImageProcessor.preprocess() got an unexpected keyword argument 'resize_mode'"
    assert dict(first(text, NameIndex.installed()).finding.needs) == {"diffusers": ">=0.25.0"}


def test_a_member_of_a_base_is_not_said_of_a_class_that_came_later():
    text = "AttributeError: 'Qwen2TokenizerFast' object has no attribute 'additional_special_tokens'"
    assert dict(first(text, NameIndex.installed()).finding.needs) == {"transformers": ">=4.37.0,<5.0.0"}


def test_of_the_calls_the_innermost_one_says_what_is_called():
    text = r"""Traceback (most recent call last):
  File "/venv/lib/python3.9/site-packages/timm/models/factory.py", line 71, in create_model
    model = create_fn(pretrained=pretrained, pretrained_cfg=pretrained_cfg, **kwargs)
  File "/home/me/modeling.py", line 566, in icolorit_base
    model = IColoriT(
TypeError: __init__() got an unexpected keyword argument 'pretrained_cfg'
"""

    finding = first(text, NameIndex.installed()).finding

    assert dict(finding.needs) == {"timm": "<0.6.5"}
    assert "stands in the place of" not in finding.message


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("Support for `validation_epoch_end` has been removed in v2.0.0. `RAVE` implements this method.", "<2.0"),
        ("RuntimeError: The `LightningModule.on_epoch_end` hook was removed in v1.8. Please use another.", "<1.8"),
    ],
)
def test_lightnings_message_about_a_hook_names_the_releases_before(text, spec):
    assert dict(first(text, NameIndex.installed()).finding.needs) == {"lightning": spec}


@pytest.mark.parametrize(
    ("message", "spec"),
    [
        ("TypeError: launch() got an unexpected keyword argument 'queue'", "<2.0"),
        ("TypeError: step() got an unexpected keyword argument 'pace'", ">=2.0"),
        ("TypeError: run() takes 3 positional arguments but 4 were given", "<2.0"),
        ("TypeError: on_end() missing 1 required positional argument: 'out'", "<2.0"),
    ],
)
def test_an_argument_that_one_package_alone_gained_or_lost_names_it_as_a_guess(message, spec, index):
    finding = first(message, index).finding

    assert (finding.severity, dict(finding.needs)) == (Severity.WARNING, {"vllm": spec})
    assert "Nothing here names vllm: it is a guess" in finding.message


def test_a_package_that_the_text_names_is_no_guess(index):
    finding = first("import vllm\nTypeError: launch() got an unexpected keyword argument 'queue'", index).finding

    assert (finding.severity, "guess" in finding.message) == (Severity.ERROR, False)


def test_of_two_packages_that_fit_both_are_said_and_none_is_recommended(index):
    finding = first("TypeError: share() got an unexpected keyword argument 'wide'", index).finding

    assert not finding.needs
    assert "trl.Tuner.share, which the call fits in trl<2.0 or vllm.Engine.share" in finding.message


def test_a_method_of_ones_own_is_told_by_the_argument_that_its_package_gives_it(index):
    text = "vllm: 2.0\nTypeError: FastEngine.step() got an unexpected keyword argument 'pace'"
    finding = first(text, index).finding

    assert (finding.rule, dict(finding.needs)) == ("override-lacks-argument", {"vllm": "<2.0"})


def test_an_argument_without_quotes_is_read():
    text = "accelerate: 0.23.0\nAccelerator.__init__() got an unexpected keyword argument use_seedable_sampler"

    assert of_committed(text).finding.needs == {"accelerate": ">=0.26.0,<1.0.0"}


def test_the_function_that_hands_on_what_it_does_not_know_lacks_the_argument():
    text = """torchvision: 0.9.1
  File "/v/lib/python3.7/site-packages/torchvision/models/resnet.py", line 277, in resnet18
    **kwargs)
  File "/v/lib/python3.7/site-packages/torchvision/models/resnet.py", line 260, in _resnet
    model = ResNet(block, layers, **kwargs)
TypeError: __init__() got an unexpected keyword argument 'weights'"""

    assert of_committed(text).finding.needs == {"torchvision": ">=0.13.0"}


def test_a_member_of_a_compiled_class_is_known_by_its_stub():
    text = "AttributeError: 'tokenizers.Tokenizer' object has no attribute 'encode_batch_fast'"

    assert of_committed(text).finding.needs == {"tokenizers": ">=0.20.0"}


def test_the_name_of_every_constructor_tells_no_package():
    text = "TypeError: __init__() got an unexpected keyword argument 'n_classes'"

    finding = of_committed(text).finding

    assert finding.rule == "name-missing"
    assert "the call is wrong" in finding.message


def test_the_stated_package_that_imports_a_name_is_named_with_the_releases_that_it_needs():
    text = "peft == 0.14.0\nImportError: cannot import name 'Cache' from 'transformers' (/e/transformers/__init__.py)"

    finding = first(text, NameIndex.installed()).finding

    assert finding.needs["peft"] == "<0.14.0"
    assert finding.needs["transformers"].startswith(">=4.43.0")  # for peft 0.14.0 imports EncoderDecoderCache too


ASKS = """  File "/env/lib/python3.11/site-packages/{package}/modeling.py", line 4774, in _move_missing_keys
    self.all_tied_weights_keys.keys()
  File "/env/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1965, in __getattr__
    raise AttributeError(
"""


@pytest.mark.parametrize(
    ("text", "needs"),
    [
        (ASKS.format(package="transformers") + "AttributeError: 'Enformer' object has no attribute 'all_tied_weights_keys'", {"transformers": "<5.0.0"}),
        ("AttributeError: 'LLaDAModelLM' object has no attribute 'all_tied_weights_keys'", {"transformers": "<5.0.0"}),
        ("AttributeError: 'PromptForGeneration' object has no attribute 'can_generate'", {"transformers": "<4.26.0"}),
        ("AttributeError: 'XGRPOTrainer' object has no attribute 'num_iterations'", {"trl": "<0.16.0"}),
        ("AttributeError: 'FooLM' object has no attribute 'get_head_mask'", {"transformers": "<5.0.0"}),
        ("transformers: 4.20.0\nAttributeError: 'FooLM' object has no attribute 'can_generate'", {"transformers": ">=4.26.0"}),
    ],
)  # fmt: skip
def test_a_member_that_a_package_asks_of_a_class_of_ones_own_is_told_by_its_base(text, needs):
    assert dict(first(text, NameIndex.installed()).finding.needs) == needs


CACHE = """  File "/env/lib/python3.11/site-packages/{package}/modeling.py", line 402, in forward
    kv_seq_len += past_key_value.get_usable_length(kv_seq_len, self.layer_idx)
"""
EARLY = """  File "/home/me/tokenization_my.py", line 70, in __init__
    super().__init__(**kwargs)
  File "/env/lib/python3.11/site-packages/transformers/tokenization_utils.py", line 367, in __init__
    self._add_tokens(
  File "/home/me/tokenization_my.py", line 97, in vocab_size
    return self.{member}.get_piece_size()
"""


@pytest.mark.parametrize(
    ("text", "severity"),
    [
        ("AttributeError: 'BaichuanTokenizer' object has no attribute 'sp_model'", Severity.WARNING),
        ("AttributeError: 'ChatGLMTokenizer' object has no attribute 'tokenizer'", Severity.WARNING),
        (EARLY.format(member="enc") + "AttributeError: 'MyTokenizer' object has no attribute 'enc'", Severity.ERROR),
    ],
)
def test_a_tokenizer_of_ones_own_that_its_base_asks_too_early_is_told_with_the_releases_before(text, severity):
    finding = first(text, NameIndex.installed()).finding

    assert (dict(finding.needs), finding.severity) == ({"transformers": "<4.34.0"}, severity)
    assert "before it calls super().__init__()" in finding.fix


@pytest.mark.parametrize(
    ("text", "severity"),
    [
        (CACHE.format(package="transformers") + "AttributeError: 'list' object has no attribute 'get_usable_length'", Severity.ERROR),
        ("transformers: 4.40.0\nAttributeError: 'tuple' object has no attribute 'get_seq_length'", Severity.WARNING),
        ("AttributeError: 'tuple' object has no attribute 'to_legacy_cache'", Severity.WARNING),
    ],
)  # fmt: skip
def test_an_object_of_pythons_own_in_the_place_of_a_class_that_came_is_told_with_the_releases_before(text, severity):
    finding = first(text, NameIndex.installed()).finding

    assert (dict(finding.needs), finding.severity) == ({"transformers": "<4.36.0"}, severity)


@pytest.mark.parametrize(
    "text",
    [
        "transformers: 4.30.0\nAttributeError: 'MyTokenizer' object has no attribute 'sp_model'",
        "  File \"/home/me/model.py\", line 3, in encode\n    self.enc\nAttributeError: 'MyTokenizer' object has no attribute 'enc'",
        "AttributeError: 'Tokenizer' object has no attribute 'sp_model'",
        CACHE.format(package="mine") + "AttributeError: 'list' object has no attribute 'get_usable_length'",
        "transformers: 4.30.0\nAttributeError: 'tuple' object has no attribute 'get_seq_length'",
        "import torch\nAttributeError: 'dict' object has no attribute 'load_state_dict'",
        "import transformers\nAttributeError: 'str' object has no attribute 'to_json_string'",
        "import transformers\nAttributeError: 'NoneType' object has no attribute 'get_seq_length'",
        "AttributeError: '_SentencePieceTokenizer' object has no attribute 'eod'\nmegatron-core 0.8",
        "AttributeError: 'SimpleTokenizer' object has no attribute 'context_length'",
        "import transformers\nAttributeError: 'list' object has no attribute 'apply_chat_template'",
        "import pydantic\nAttributeError: 'dict' object has no attribute 'model_dump'",
    ],
)  # fmt: skip
def test_of_an_object_that_another_release_may_not_help_no_release_is_named(text):
    found = diagnose(read_texts([("log", text)]), [("log", clean(text))]).root

    assert found is None or not found.finding.needs


@pytest.mark.parametrize(
    "text",
    [
        "AttributeError: 'MyWrapper' object has no attribute 'generate'\nimport transformers",
        "AttributeError: 'Session' object has no attribute 'model'",
    ],
)
def test_a_member_with_a_word_that_many_have_tells_no_package(text):
    found = diagnose(read_texts([("log", text)]), [("log", clean(text))]).root

    assert found is None or not found.finding.needs


def test_a_module_that_is_wherever_its_package_is_was_not_imported_and_no_release_is_named():
    text = "AttributeError: module 'pydantic._internal' has no attribute '_fields'"
    finding = diagnose(read_texts([("log", text)]), [("log", text)]).root.finding

    assert "nothing imported it" in finding.message
    assert not finding.needs


@pytest.mark.parametrize(("stated", "rule"), [("", "name-missing"), ("\nray==2.3.1", "name-not-in-release")])
def test_a_module_that_its_package_does_not_import_is_to_be_imported_where_the_release_may_have_it(stated, rule):
    text = f"AttributeError: module 'ray.train' has no attribute 'lightning'{stated}"

    assert diagnose(read_texts([("log", text)]), [("log", text)]).root.finding.rule == rule


def test_a_rule_over_versions_says_more_than_that_a_module_was_not_imported():
    text = "AttributeError: module 'pydantic._internal' has no attribute '_model_construction'"
    finding = diagnose(read_texts([("log", text)]), [("log", text)]).root.finding

    assert (finding.rule, finding.fix) == ("ray-pydantic2", "Use pydantic below 2, or ray 2.9 or later.")


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("ImportError: cannot import name 'AdamW' from 'transformers' (/e/transformers/__init__.py)", "Write torch.optim.AdamW in the place of AdamW"),
        ("ModuleNotFoundError: No module named 'pytorch_lightning.metrics'", "Write torchmetrics in the place of pytorch_lightning.metrics"),
    ],
)  # fmt: skip
def test_a_name_that_went_to_another_package_is_told_with_its_new_place(text, fix):
    assert first(text, NameIndex.installed()).finding.fix.startswith(fix)


def test_a_package_that_is_known_by_another_name_than_its_distribution_is_told_too():
    text = "transformers: 4.30.0\nImportError: cannot import name 'Callback' from 'pytorch_lightning' (/e/pytorch_lightning/__init__.py)"

    assert first(text, NameIndex.installed()).finding.components


@pytest.mark.parametrize(
    ("text", "needs"),
    [
        (
            "Using `timm-0.3.2` is throwing `ImportError: cannot import name 'container_abcs'`.",
            {"torch": "<1.9.0", "timm": ">=0.4.5"},
        ),
        (
            "    from torch._six import container_abcs\nImportError: cannot import name 'container_abcs'",
            {"torch": "<1.9.0"},
        ),
        ("when i install mmcv==2.0.x, find that mmcv remove runner from 2.0.x", {"mmcv": "<2.0.0"}),
        ("PyTorch 2.0 removed `torch._six`, so the training script fails", {"torch": "<2.0.0"}),
        ("there is no load_metric in datasets", {"datasets": "<3.0.0"}),
        ("cannot find mmcv.runner in mmcv 2.0.1", {"mmcv": "<2.0.0"}),
        ("It seems that `mmcv.runner` does not exist any more.", {"mmcv": "<2.0.0"}),
    ],
)
def test_a_name_without_its_module_and_peoples_own_words_are_borne_out_by_the_releases_that_lack_it(text, needs):
    assert dict(first(text, NameIndex.installed()).finding.needs) == needs


@pytest.mark.parametrize(
    "text",
    [
        "ImportError: cannot import name 'helper'",
        "We removed dropout from the model. The optimizer.step was dropped.",
        "mmcv==1.7.1: I removed mmcv.runner from my own checkout",
        "there is no loss in train",
    ],
)
def test_of_what_no_releases_differ_in_nothing_is_told(text):
    diagnosed = first(text, NameIndex.installed())

    assert diagnosed is None or diagnosed.finding.rule != "name-not-in-release"


def test_a_class_that_has_the_name_of_a_part_of_python_in_other_letters_is_none_of_python():
    diagnosed = first("ImportError: cannot import name 'Cache'", NameIndex.installed())

    assert diagnosed.finding.rule != "python-too-old"
