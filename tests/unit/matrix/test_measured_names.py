"""The refresh of names: what was read is not read again, and a new release is added to what is there."""

from __future__ import annotations

from pathlib import Path

import pytest
from release_index import Index

from envsmith.errors import UsageError
from envsmith.knowledge.names.name_index import NameIndex
from envsmith.knowledge.names.names_file import NamesFile
from envsmith.matrix.refresh.measured_names import plan_names
from envsmith.matrix.refresh.shared import RefreshRun
from envsmith.matrix.refresh.updates import apply
from envsmith.model.component import ComponentTable


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "packages.yaml").write_text("packages: {pkg: {}}\n")
    return tmp_path


def plan(folder: Path, index: Index, chosen: tuple[str, ...] = ()):
    context = RefreshRun(index=index, components=ComponentTable.of(()), today="2026-01-01", cache=folder)
    return plan_names(folder, context, chosen, folder / "store")


def test_a_second_run_writes_nothing(folder):
    index = Index()
    index.release("1.0", {"pkg/__init__.py": "def f(): ..."})

    first = plan(folder, index)
    apply(first)

    assert [change.path.name for change in first] == ["pkg.names", "summary.tsv"]
    assert plan(folder, index) == ()


def test_a_new_release_is_added_and_an_older_one_that_comes_late_too(folder):
    index = Index()
    index.release("1.0", {"pkg/__init__.py": "def f(): ..."})
    index.release("3.0", {"pkg/__init__.py": "def g(): ..."})
    apply(plan(folder, index))

    index.release("2.0", {"pkg/__init__.py": "def f(): ...\ndef g(): ..."})
    apply(plan(folder, index))

    answer = NameIndex(folder).ask("pkg.f")
    assert answer.releases == ("1.0", "2.0", "3.0")
    assert (answer.present, answer.absent) == ({"1.0", "2.0"}, {"3.0"})
    assert NameIndex(folder).ask("pkg.g").spec() == ">=2.0"


def test_adding_says_the_same_as_measuring_everything_and_leaves_what_is_there(folder, tmp_path_factory):
    index = Index()
    index.release("1.0", {"pkg/__init__.py": "class Thing: ...", "pkg/a.py": ""})
    apply(plan(folder, index))
    before = (folder / "pkg.names").read_bytes()
    index.release("2.0", {"pkg/__init__.py": "", "pkg/a.py": "class Thing: ..."})
    apply(plan(folder, index))
    fresh = tmp_path_factory.mktemp("fresh")
    (fresh / "packages.yaml").write_text("packages: {pkg: {}}\n")

    apply(plan(fresh, index))

    added, measured = NamesFile(folder / "pkg.names"), NamesFile(fresh / "pkg.names")
    assert added.head == measured.head
    assert added.table() == measured.table()
    assert added.content.startswith(before)
    assert NameIndex(folder).ask("pkg.Thing").successor == "pkg.a.Thing"


def test_a_file_that_did_not_change_is_not_fetched_again(folder):
    index = Index()
    large = "".join(f"def f{at}(): ...\n" for at in range(20_000))
    index.release("1.0", {"pkg/large.py": large, "pkg/__init__.py": ""})
    index.release("2.0", {"pkg/large.py": large, "pkg/__init__.py": "x = 1"})

    apply(plan(folder, index))

    sent = {url: sum(size for at, size in index.fetcher.sent if at == url) for url, _ in index.fetcher.sent}
    assert sent["pkg-1.0-py3-none-any.whl"] > len(large)
    assert sent["pkg-2.0-py3-none-any.whl"] < len(large) / 2


def test_releases_before_the_day_and_prereleases_are_left_out(folder):
    index = Index()
    index.release("0.9", {"pkg/__init__.py": ""}, day="2020-01-01")
    index.release("1.0", {"pkg/__init__.py": ""})
    index.release("1.1rc1", {"pkg/__init__.py": ""})

    apply(plan(folder, index))

    assert NameIndex(folder).ask("pkg").releases == ("1.0",)


def test_a_package_that_is_not_listed_is_refused(folder):
    with pytest.raises(UsageError, match="Cannot measure other"):
        plan(folder, Index(), ("other",))


def test_a_stub_beside_a_source_adds_no_names_and_one_alone_is_no_module(folder):
    index = Index()
    sources = {"pkg/__init__.py": "def f(): ...", "pkg/__init__.pyi": "def f(): ...\ndef g(): ..."}
    index.release("1.0", {**sources, "pkg/_c.so": "", "pkg/_c.pyi": "def run(): ...", "pkg/_types.pyi": "x: int"})

    apply(plan(folder, index))

    asked = NameIndex(folder)
    assert asked.ask("pkg.g").absent == {"1.0"}
    assert asked.ask("pkg._c.run").present == {"1.0"}
    assert asked.ask("pkg._types").absent == {"1.0"}


def test_what_the_import_takes_is_measured_with_the_names_of_a_release(folder):
    (folder / "packages.yaml").write_text("packages: {pkg: {entries: [pkg, pkg.far]}}\n")
    index = Index()
    index.release("1.0", {"pkg/__init__.py": "from torch.a import b", "pkg/far.py": "from torch.a import b, c"})
    apply(plan(folder, index))
    index.release("2.0", {"pkg/__init__.py": "from torch.a import d"})
    apply(plan(folder, index))

    table = NamesFile(folder / "pkg.takes").table()

    assert table["pkg"] == {"torch.a.b =pkg :": 0b01, "torch.a.d =pkg :": 0b10}
    assert table["pkg.far"] == {"torch.a.c =pkg.far :": 0b01}


def test_of_a_package_without_names_only_what_its_import_takes_is_measured(folder):
    (folder / "packages.yaml").write_text("packages: {pkg: {names: false, entries: [pkg]}}\n")
    index = Index()
    index.release("1.0", {"pkg/__init__.py": "from other import thing\n"})

    first = plan(folder, index)
    apply(first)

    assert [change.path.name for change in first] == ["pkg.takes"]
    assert plan(folder, index) == ()


def test_a_package_that_lists_its_folder_brings_what_the_packages_in_it_list(folder):
    lazy = "from lazy import _LazyModule\nif TYPE_CHECKING:\n    from {0} import *\nelse:\n    import sys\n    _file = __file__\n"
    lazy += "    sys.modules[__name__] = _LazyModule(__name__, _file, define_import_structure(_file))"
    index = Index()
    index.release(
        "1.0",
        {
            "pkg/__init__.py": "from .models import *",
            "pkg/models/__init__.py": lazy.format(".bert"),
            "pkg/models/bert/__init__.py": lazy.format(".modeling"),
            "pkg/models/bert/modeling.py": "__all__ = ['Bert']\nclass Bert: ...",
            "pkg/models/glm/__init__.py": lazy.format(".modeling"),
            "pkg/models/glm/modeling.py": "__all__ = ['Glm']\nclass Glm: ...\nclass Inner: ...",
            "pkg/models/convert.py": "def run(): ...",
        },
    )
    apply(plan(folder, index))

    names = NameIndex(folder)

    assert [bool(names.ask(f"pkg.{name}").present) for name in ("Bert", "Glm", "Inner", "run")] == [
        True,
        True,
        False,
        False,
    ]


@pytest.mark.parametrize(
    "source",
    [
        "import pkg\ndef start(module):\n    for name in ['load', 'save']:\n        setattr(pkg, name, getattr(module, name))",
        "MOVED = {'pkg:load': 'pkg.new:load', 'pkg:save': 'pkg.new:save'}",
        "MOVED = {f'pkg:{name}': f'pkg.new:{name}' for name in ('load', 'save')}",
    ],
    ids=["setattr", "table", "table that is made"],
)
def test_a_name_that_another_module_of_the_package_puts_there_may_be_there(folder, source):
    index = Index()
    index.release("1.0", {"pkg/__init__.py": "", "pkg/start.py": source})
    apply(plan(folder, index))

    names = NameIndex(folder)

    assert [names.ask(f"pkg.{name}").unknown for name in ("load", "save")] == [{"1.0"}, {"1.0"}]
    assert names.ask("pkg.other").absent == {"1.0"}


def test_an_attribute_that_others_of_the_package_give_an_object_named_like_a_class_is_one_of_that_class(folder):
    index = Index()
    trainer = "class Trainer:\n    def __init__(self): self.data = None"
    connector = "class Connector:\n    def attach(self, data):\n        self.trainer.data = data\n        self.other.last = data"
    index.release("1.0", {"pkg/__init__.py": trainer})
    index.release("2.0", {"pkg/__init__.py": "class Trainer: ...\nclass Loader: ...", "pkg/connector.py": connector})
    apply(plan(folder, index))

    names = NameIndex(folder)

    assert names.ask("pkg.Trainer.data").absent == frozenset()
    assert names.ask("pkg.Trainer.more").absent == {"1.0", "2.0"}
    assert names.ask("pkg.Loader.data").absent == {"1.0", "2.0"}


def test_an_attribute_that_others_give_any_object_may_be_one_of_a_class_that_has_it_in_another_release(folder):
    index = Index()
    index.release("1.0", {"pkg/__init__.py": "class Model:\n    def save(self): self.initial = 1\nclass Loader: ..."})
    index.release(
        "2.0",
        {
            "pkg/__init__.py": "class Model: ...\nclass Loader: ...",
            "pkg/saving.py": "def save(obj):\n    obj.initial = 1",
        },
    )
    apply(plan(folder, index))

    names = NameIndex(folder)

    assert names.ask("pkg.Model.initial").absent == frozenset()
    assert names.ask("pkg.Loader.initial").absent == {"1.0", "2.0"}


def test_nothing_is_said_of_an_ending_for_which_a_class_of_modules_has_its_own_answer(folder):
    index = Index()
    source = "class _LazyModule(ModuleType):\n    def __getattr__(self, name):\n        if name.endswith('Fast'): return self.slow(name)"
    index.release("1.0", {"pkg/__init__.py": "class OneFast: ...", "pkg/lazy.py": ""})
    index.release("2.0", {"pkg/__init__.py": "class One: ...", "pkg/lazy.py": source})
    apply(plan(folder, index))

    answer = NameIndex(folder).ask("pkg.OneFast")

    assert (answer.present, answer.absent, answer.unknown) == ({"1.0"}, frozenset(), {"2.0"})
    assert NameIndex(folder).ask("pkg.Two").absent == {"1.0", "2.0"}
