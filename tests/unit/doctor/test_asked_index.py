"""The doctor and a package whose names were not measured: whether it is asked for, and what is said then."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet
from release_index import Index

from envsmith.doctor.asked_index import AskedIndex
from envsmith.doctor.judge_facts import diagnose
from envsmith.doctor.read import read_texts
from envsmith.errors import NetworkError
from envsmith.knowledge.names.name_index import NameIndex
from envsmith.model.rule import Severity

HEAD = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    {line}\n'
INSTALLED = "(/env/lib/python3.11/site-packages/bmtrain/__init__.py)"


@pytest.fixture
def index() -> Index:
    """An index of forty releases of bmtrain, of which those from 0.13 on have what is asked for."""
    index = Index()
    for minor in range(40):
        source = "def init(seed, level): ...\nfresh = 1" if minor >= 13 else "def init(seed): ..."
        index.release(f"0.{minor}", {"bmtrain/__init__.py": source})
    return index


def root_of(text: str, index: Index, said: list[str] | None = None, *, names: NameIndex | None = None):
    heard = [] if said is None else said
    diagnosis = diagnose(
        read_texts([("log", text)]),
        [("log", text)],
        names=names or NameIndex(Path("nowhere")),
        published=lambda: AskedIndex(lambda: index, heard.append),
    )
    return diagnosis.root and diagnosis.root.finding


def test_a_name_of_a_package_that_was_not_measured_has_an_exact_range(index):
    text = HEAD.format(line="import bmtrain") + f"ImportError: cannot import name 'fresh' from 'bmtrain' {INSTALLED}"

    finding = root_of(text, index)

    assert finding.rule == "name-not-in-release"
    assert finding.needs == {"bmtrain": ">=0.13"}
    assert "releases, read now" in finding.evidence[0].source
    assert len({url for url, _ in index.fetcher.sent}) < 20


def test_an_argument_of_a_call_by_the_name_of_its_package_has_one_too(index):
    text = (
        HEAD.format(line="bmtrain.init(seed=1, level=3)")
        + "TypeError: init() got an unexpected keyword argument 'level'\n\nbmtrain==0.4"
    )

    assert root_of(text, index).needs == {"bmtrain": ">=0.13"}


def test_a_name_that_none_has_is_said_to_be_in_none_of_those_that_were_read(index):
    text = HEAD.format(line="x") + f"ImportError: cannot import name 'no' from 'bmtrain' {INSTALLED}"

    finding = root_of(text, index)

    assert finding.rule == "name-in-no-release"
    assert finding.message.startswith("None of 27 releases of bmtrain from 0.1 to 0.39 ")


@pytest.mark.parametrize(
    "message",
    [
        "ImportError: cannot import name 'fresh' from 'bmtrain' (/home/me/bmtrain/__init__.py)",
        "ImportError: cannot import name 'fresh' from 'bmtrain.core' (/home/me/bmtrain/core.py)",
        "ImportError: cannot import name 'fresh' from 'bmtrain'",
        "AttributeError: 'Thing' object has no attribute 'fresh'",
    ],
)
def test_a_module_that_nothing_shows_to_be_installed_is_not_asked_for(index, message):
    said: list[str] = []

    root_of(HEAD.format(line="import bmtrain") + message, index, said)

    assert said == []
    assert index.fetcher.sent == []


def test_an_index_without_the_project_leaves_the_answer_as_it_was():
    said: list[str] = []
    text = HEAD.format(line="x") + f"ImportError: cannot import name 'no' from 'bmtrain' {INSTALLED}"

    finding = root_of(text, Index(), said)

    assert finding.rule == "name-missing"
    assert said == []


def test_what_all_releases_of_the_last_years_have_is_missing_because_another_copy_is_imported():
    index = Index()
    index.release("0.1", {"wandb/__init__.py": ""}, day="2015-01-01")
    for minor in range(2, 6):
        index.release(f"0.{minor}", {"wandb/__init__.py": "def init(): ..."}, day=f"202{minor}-01-01")
    text = HEAD.format(line="wandb.init()") + "AttributeError: module 'wandb' has no attribute 'init'"

    finding = root_of(text, index)

    assert finding.severity is Severity.WARNING
    assert finding.message.startswith("Every release of wandb from 0.2 to 0.5 has wandb.init: ")


def test_a_module_inside_of_another_is_asked_for_and_believed_where_the_project_has_that_one():
    index = Index()
    index.release("0.1", {"gym/__init__.py": "", "gym/wrappers/__init__.py": "class Monitor: ..."})
    index.release("0.2", {"gym/__init__.py": "", "gym/wrappers/__init__.py": ""})

    theirs = root_of(HEAD.format(line="x") + "AttributeError: module 'gym.wrappers' has no attribute 'Monitor'", index)
    own = root_of(HEAD.format(line="x") + "AttributeError: module 'gym.tricks' has no attribute 'Monitor'", index)

    assert theirs.needs == {"gym": "<0.2"}
    assert own.rule == "name-missing"


def test_releases_that_make_names_when_they_are_imported_may_have_it_and_the_others_do_not():
    index = Index()
    index.release("0.1", {"bmtrain/__init__.py": "import numpy\nglobals().update(vars(numpy))"})
    index.release("0.2", {"bmtrain/__init__.py": "x = 1"})
    text = HEAD.format(line="x") + f"ImportError: cannot import name 'diff' from 'bmtrain' {INSTALLED}"

    finding = root_of(text, index)

    assert finding.message.startswith("bmtrain>=0.2 does not have bmtrain.diff. Its other releases make names when")
    assert finding.needs == {"bmtrain": "<0.2"}


@pytest.fixture
def moved() -> Index:
    """An index of twenty releases of torch-geometric, whose class moves at 0.5 and has no norm from 0.12 on."""
    index = Index()
    for minor in range(20):
        place = "old" if minor < 5 else "conv/new"
        norm = "  @staticmethod\n  def norm(): ..." if minor < 12 else "  def forward(self, norm): self.norm = norm"
        sources = {f"torch_geometric/{place}.py": f"class FastConv:\n{norm}\n  def __init__(self, size): ..."}
        index.release(f"0.{minor}", {"torch_geometric/__init__.py": "", **sources})
    return index


PATH = "/env/lib/python3.10/site-packages/torch_geometric/data.py"


@pytest.mark.parametrize(
    "before",
    [
        "from torch_geometric.old import FastConv\n",
        "I use torch_geometric of last year.\n",
        "torch-geometric==0.15\n",
        f'Traceback (most recent call last):\n  File "{PATH}", line 2, in norm\n    FastConv.norm()\n',
    ],
)
def test_a_class_whose_package_the_text_tells_is_looked_for_in_it_wherever_releases_keep_it(moved, before):
    finding = root_of(f"{before}AttributeError: type object 'FastConv' has no attribute 'norm'", moved)

    assert finding.needs == {"torch-geometric": "<0.12"}


def test_an_argument_of_a_constructor_is_asked_of_the_package_in_the_path_beside_it():
    index = Index()
    for minor in range(20):
        arguments = "size, fast=False" if minor >= 7 else "size"
        index.release(f"0.{minor}", {"bmtrain/deep/net.py": f"class Net:\n  def __init__(self, {arguments}): ..."})
    text = "TypeError: __init__() got an unexpected keyword argument 'fast'\n\n.../site-packages/bmtrain/deep/net.py"

    assert root_of(text, index).needs == {"bmtrain": ">=0.7"}


def test_a_member_that_the_package_itself_asks_of_an_object_and_sets_since_a_release_is_told_with_those_before():
    index = Index()
    for minor in range(9):
        level = "self.level = 1" if minor >= 5 else "pass"
        index.release(f"0.{minor}", {"bmtrain/net.py": f"class Net:\n  def __init__(self):\n    {level}"})
    frame = '  File "/env/lib/python3.11/site-packages/bmtrain/net.py", line 9, in f\n    if self.level:\n'

    finding = root_of(f"{HEAD.format(line='x')}{frame}AttributeError: 'Net' object has no attribute 'level'", index)

    assert finding.needs == {"bmtrain": "<0.5"}
    assert "Make the object anew with the installed bmtrain" in finding.fix


def test_of_releases_that_time_did_not_reach_none_is_said_to_come_before_the_attribute():
    index = Index()
    for minor in range(40):
        level = "self.level = 1" if minor >= 13 else "pass"
        index.release(f"0.{minor}", {"bmtrain/net.py": f"class Net:\n  def __init__(self):\n    {level}"})
    now = iter([0.0] * 8 + [99.0] * 50)
    frame = '  File "/env/lib/python3.11/site-packages/bmtrain/net.py", line 9, in f\n    if self.level:\n'
    text = f"bmtrain==0.30\n{HEAD.format(line='x')}{frame}AttributeError: 'Net' object has no attribute 'level'"

    diagnosis = diagnose(
        read_texts([("log", text)]),
        [("log", text)],
        names=NameIndex(Path("nowhere")),
        published=lambda: AskedIndex(lambda: index, print, clock=lambda: next(now)),
    )

    before = SpecifierSet(diagnosis.root.finding.needs["bmtrain"])
    assert before.contains("0.0")
    assert not before.contains("0.13")


def test_a_package_that_explains_nothing_of_an_object_of_ones_own_leaves_it_unexplained(moved):
    text = f'{HEAD.format(line="x")}  File "{PATH}", line 2, in f\n    g.h\nAttributeError: '

    assert root_of(f"{text}'Graph' object has no attribute 'norm'", moved) is None
    assert root_of(f"{text}'NoneType' object has no attribute 'norm'", moved) is None


@pytest.mark.parametrize(
    ("old", "new", "fix"),
    [
        (
            "def read_frames(path): ...",
            "def read_frame(path): ...",
            "Write bmtrain.read_frame in the place of read_frames",
        ),
        ("def read_frames(path): ...", "def other(path): ...", "Install bmtrain<0.5."),
        ("read_frames = 1; read_frame = 1", "read_frame = 1", "Install bmtrain<0.5."),
    ],
)
def test_a_name_much_like_it_that_came_in_the_release_in_which_another_went_is_named_beside_the_bound(old, new, fix):
    index = Index()
    for minor in range(9):
        index.release(f"0.{minor}", {"bmtrain/__init__.py": old if minor < 5 else new})
    text = HEAD.format(line="x") + f"ImportError: cannot import name 'read_frames' from 'bmtrain' {INSTALLED}"

    finding = root_of(text, index)

    assert finding.needs == {"bmtrain": "<0.5"}
    assert finding.fix.startswith(fix)


def test_a_name_whose_module_the_message_leaves_out_is_asked_of_the_import_beside_it():
    index = Index()
    for minor in range(9):
        index.release(f"0.{minor}", {"sklearn/externals/__init__.py": "import loky" if minor < 4 else ""})
    text = "ImportError: cannot import name 'loky'\n    from sklearn.externals import loky"

    assert root_of(text, index).needs == {"scikit-learn": "<0.4"}


def test_where_time_runs_out_only_releases_that_were_seen_to_have_it_are_named(index):
    now = iter([0.0, 0.0, 1.0, 1.0] + [2.0] * 4 + [99.0] * 50)
    text = HEAD.format(line="import bmtrain") + f"ImportError: cannot import name 'fresh' from 'bmtrain' {INSTALLED}"
    said: list[str] = []

    diagnosis = diagnose(
        read_texts([("log", text)]),
        [("log", text)],
        names=NameIndex(Path("nowhere")),
        published=lambda: AskedIndex(lambda: index, said.append, clock=lambda: next(now)),
    )

    assert diagnosis.root.finding.needs == {"bmtrain": ">=0.14"}
    assert said[-1].startswith("not read to the end: ")


def test_a_release_of_which_a_part_cannot_be_read_is_left_out_and_the_others_answer():
    index = Index()
    for minor in range(40):
        source = "def init(seed, level): ...\nfresh = 1" if minor >= 13 else "def init(seed): ..."
        index.release(f"0.{minor}", {"bmtrain/__init__.py": source, "bmtrain/large.bin": "\0" * 100_000})
    whole = index.fetcher.open_range

    def open_range(url: str, start: int, stop: int | None = None):
        if "0.39-" in url and start >= 0:
            raise NetworkError("Cannot read it: the server is silent.")
        return whole(url, start, stop)

    index.fetcher.open_range = open_range
    text = HEAD.format(line="import bmtrain") + f"ImportError: cannot import name 'fresh' from 'bmtrain' {INSTALLED}"

    assert root_of(text, index).needs == {"bmtrain": ">=0.13"}


FRAME = '  File "/env/lib/python3.11/site-packages/bmtrain/__init__.py", line {line}, in init\n    {code}\n'


@pytest.fixture
def growing() -> Index:
    """An index of forty releases of bmtrain, whose file grows by a line each, and that has no slip since 0.30."""
    index = Index()
    for minor in range(40):
        slip = "    level = config['level']\n" if minor < 30 else "    level = config.get('level')\n"
        index.release(f"0.{minor}", {"bmtrain/__init__.py": "import os\n" * minor + f"def init(config):\n{slip}"})
    return index


def facts_of(text: str, index: Index, said: list[str]):
    return diagnose(
        read_texts([("log", text)]), [("log", text)], published=lambda: AskedIndex(lambda: index, said.append)
    )


def test_a_traceback_tells_the_release_that_printed_it_where_nothing_else_does(growing):
    text = (
        HEAD.format(line="bmtrain.init({})")
        + FRAME.format(line=12, code="level = config['level']")
        + "KeyError: 'level'"
    )

    diagnosis = facts_of(text, growing, [])

    assert diagnosis.facts.distributions["bmtrain"] == "0.10"
    assert "of bmtrain 0.10" in [kind for read in diagnosis.facts.read for kind in read.kinds]


def test_a_slip_of_a_package_that_a_later_release_no_longer_has_is_said_with_that_release(growing):
    text = (
        HEAD.format(line="bmtrain.init({})")
        + FRAME.format(line=12, code="level = config['level']")
        + "KeyError: 'level'"
    )

    finding = facts_of(text, growing, []).root.finding

    assert (finding.rule, finding.needs) == ("line-changed-since", {"bmtrain": ">=0.30"})
    assert finding.message.startswith("bmtrain 0.10 fails in its own code, at `level = config['level']`")


@pytest.mark.parametrize(
    ("frame", "error"),
    [
        (FRAME.format(line=1, code="raise KeyError(level)"), "KeyError: 'level'"),
        ('  File "/home/me/mine.py", line 12, in init\n    level = config["level"]\n', "KeyError: 'level'"),
        (FRAME.format(line=42, code="level = config.get('level')"), "KeyError: 'level'"),
        (FRAME.format(line=12, code="level = config['level']"), "KeyError: 'level'\n\nOSError: another error ended it"),
    ],
)
def test_a_check_and_code_of_ones_own_and_what_the_newest_still_has_are_no_slip_that_was_mended(growing, frame, error):
    text = (
        ("bmtrain==0.10\n" if "another" in error else "bmtrain==0.39\n")
        + HEAD.format(line="bmtrain.init({})")
        + frame
        + error
    )

    assert facts_of(text, growing, []).root is None


def test_no_release_is_asked_for_where_the_error_says_its_cause(growing):
    said: list[str] = []
    frame = FRAME.format(line=12, code="level = config['level']")

    facts_of(f"{HEAD.format(line='x')}{frame}torch.cuda.OutOfMemoryError: CUDA out of memory.", growing, said)

    assert said == []


def test_a_release_that_the_text_states_is_not_asked_for(index):
    said: list[str] = []

    facts_of(
        "bmtrain==0.7\n" + HEAD.format(line="x") + FRAME.format(line=1, code="def init(seed): ...") + "OSError: x",
        index,
        said,
    )

    assert said == []


def test_of_a_package_that_asks_the_release_that_goes_with_the_wish_is_read_in_metadata():
    index = Index()
    for minor in range(30):
        metadata = f"Metadata-Version: 2.1\nName: asker\nVersion: 4.{minor}\nRequires-Dist: part>=0.{minor}; python_version >= '3.8'\n"
        index.release(f"4.{minor}", {f"asker-4.{minor}.dist-info/METADATA": metadata})
    text = "The conflict is caused by:\n    The user requested part==0.13.2\n    asker 4.25 depends on part>=0.25"

    finding = root_of(text, index)

    assert (finding.fix or "").startswith(
        "asker 4.13 goes with part==0.13.2, by its metadata on the package index. Or ask for part>=0.25"
    )
    assert finding.needs == {"part": ">=0.25", "asker": "==4.13"}
    assert len({url for url, _ in index.fetcher.sent}) < 20


def test_where_no_release_goes_with_the_wish_or_the_index_has_no_such_project_the_conflict_is_said_alone():
    text = "The conflict is caused by:\n    The user requested part==0.13.2\n    asker 4.25 depends on part>=0.25"
    index = Index()

    assert root_of(text, index).needs == {"part": ">=0.25"}
