"""Answers of the name index: over the committed data, and over small tables that a test writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from envsmith.errors import DataError
from envsmith.knowledge.names.name_index import SUMMARY, NameIndex
from envsmith.knowledge.names.names_file import Head, MeasuredRelease, Table, encode
from envsmith.knowledge.names.source import read_module


def index_of(folder: Path, *releases: dict[str, str], compiled: str = "", filename: str = "") -> NameIndex:
    """An index of one package ``pkg`` whose releases 1.0, 2.0, … have these modules (name -> source)."""
    table: Table = {}
    for at, modules in enumerate(releases):
        for module, source in modules.items():
            lines = table.setdefault(module, {})
            package = any(other.startswith(f"{module}.") for other in modules)
            for line in {"", *read_module(source.encode(), module, package=package)}:
                lines[line] = lines.get(line, 0) | 1 << at
    if compiled:
        table[compiled]["* !"] = table[compiled][""]
    measured = tuple(
        MeasuredRelease(version=f"{at + 1}.0", date="", filename=filename, sha256="") for at in range(len(releases))
    )
    head = Head(distribution="pkg", reader=1, roots=("pkg",), releases=measured)
    (folder / "pkg.names").write_bytes(encode(head, table))
    (folder / SUMMARY).write_text("distribution\troots\npkg\tpkg\n")
    return NameIndex(folder)


def test_a_name_that_a_release_lacks_is_absent_in_it(tmp_path):
    index = index_of(tmp_path, {"pkg": "def f(): ..."}, {"pkg": "x = 1"})

    answer = index.ask("pkg.f")

    assert answer is not None
    assert (answer.present, answer.absent, answer.unknown) == ({"1.0"}, {"2.0"}, frozenset())
    assert answer.spec() == "<2.0"


def test_an_alias_that_numpy_refuses_is_absent_though_a_star_import_seems_to_bring_it():
    index = NameIndex.installed()

    alias, scalar = index.ask("numpy.float"), index.ask("numpy.bool")

    assert alias is not None
    assert alias.spec() == "<1.24.0"
    assert scalar is not None
    assert {"1.23.5", "2.0.0"} <= scalar.present
    assert {"1.24.0", "1.26.4"} <= scalar.absent


def test_a_stub_of_another_release_says_which_names_a_compiled_module_lacks(tmp_path):
    index = index_of(
        tmp_path,
        {"pkg": "from ._c import *", "pkg._c": "x = 1"},
        {"pkg": "from ._c import *", "pkg._c": "z = 1"},
        compiled="pkg._c",
    )

    assert (index.ask("pkg.x").present, index.ask("pkg.x").absent) == ({"1.0"}, {"2.0"})
    assert index.ask("pkg.y").unknown == {"1.0", "2.0"}
    assert index.ask("pkg._y").absent == {"1.0", "2.0"}


def test_what_is_a_module_in_another_release_a_compiled_module_with_a_stub_does_not_bring(tmp_path):
    star = "from ._c import *"
    index = index_of(
        tmp_path,
        {"pkg": star, "pkg._c": "x = 1"},
        {"pkg": star, "pkg._c": "x = 1\npart = 1", "pkg.part": ""},
        {"pkg": star, "pkg._c": "", "pkg.part": ""},
        {"pkg": star, "pkg._c": ""},
        compiled="pkg._c",
    )

    answer = index.ask("pkg.part")

    assert (answer.absent, answer.present, answer.unknown) == ({"1.0"}, {"2.0", "3.0"}, {"4.0"})


def test_a_stub_that_only_names_a_class_of_a_compiled_module_says_nothing_of_its_members(tmp_path):
    own = "from . import _c\nclass Storage(_c.Base): ..."
    stub = "class Base(object): ...\nclass Other:\n    def f(self): ..."
    index = index_of(tmp_path, {"pkg": own, "pkg._c": stub}, compiled="pkg._c")

    assert index.ask("pkg.Storage.from_buffer").unknown == {"1.0"}
    assert index.ask("pkg._c.Other.g").absent == {"1.0"}


def test_of_a_release_whose_compiled_module_has_no_stub_nothing_is_said():
    answer = NameIndex.installed().ask("torch.ByteTensor")

    assert answer is not None
    assert {"1.0.0", "1.5.1"} <= answer.unknown
    assert "1.6.0" in answer.present


def test_nothing_is_said_of_a_module_that_another_one_may_make(tmp_path):
    source = "import sys\nsys.modules[__name__] = _LazyModule()\nfor name in ('old',):\n    sys.modules[f'pkg.{name}'] = make(name)"
    index = index_of(tmp_path, {"pkg": "", "pkg.old": "x = 1"}, {"pkg": source})

    assert (index.ask_module("pkg.old").present, index.ask_module("pkg.old").unknown) == ({"1.0"}, {"2.0"})
    assert (index.ask("pkg.old.x").present, index.ask("pkg.old.x").unknown) == ({"1.0"}, {"2.0"})


def test_a_name_comes_through_imports_and_stars(tmp_path):
    sources = {
        "pkg": "from .a import *\nfrom .b import g as h",
        "pkg.a": "__all__ = ['f']\ndef f(): ...\ndef hidden(): ...",
        "pkg.b": "def g(): ...",
    }
    index = index_of(tmp_path, sources)

    assert index.ask("pkg.f").present == {"1.0"}
    assert index.ask("pkg.h").present == {"1.0"}
    assert index.ask("pkg.hidden").absent == {"1.0"}
    assert index.ask("pkg.a.hidden").present == {"1.0"}


@pytest.mark.parametrize("name", ["__dir__", "__name__", "__path__", "__class__"])
def test_every_module_has_the_names_of_its_type(tmp_path, name):
    index = index_of(tmp_path, {"pkg": "", "pkg.a": ""})

    assert index.ask(f"pkg.a.{name}").present == {"1.0"}


def test_a_package_that_imports_a_part_of_its_own_has_its_names(tmp_path):
    index = index_of(tmp_path, {"pkg": "from . import a", "pkg.a": "x = 1"}, {"pkg": "y = 1"})

    assert index.ask("pkg.a.x").present == {"1.0"}
    assert index.ask("pkg.a.x").absent == {"2.0"}


def test_an_argument_with_a_default_may_be_left_out(tmp_path):
    index = index_of(tmp_path, {"pkg": "def f(x=1): ..."}, {"pkg": "def f(x): ..."}, {"pkg": "def f(*, x=1): ..."})

    assert index.optional("pkg.f", "x") == {"1.0", "3.0"}


def test_the_definitions_of_a_class_are_found_by_its_name(tmp_path):
    index = index_of(tmp_path, {"pkg": "from .a import C", "pkg.a": "class C: ...", "pkg.a.b": "class C: ..."})

    assert index.definitions("C", "pkg") == ("pkg.a.C", "pkg.a.b.C")


def test_a_member_may_stand_in_a_base_of_another_module(tmp_path):
    sources = {
        "pkg": "from .a import A\nclass B(A):\n    def own(self): self.x = 1",
        "pkg.a": "class A:\n    def inherited(self): ...",
    }
    index = index_of(tmp_path, sources)

    assert index.ask("pkg.B.inherited").present == {"1.0"}
    assert index.ask("pkg.B.x").present == {"1.0"}
    assert index.ask("pkg.B.nothing").absent == {"1.0"}


def test_a_package_may_import_its_own_modules_by_name_and_in_a_circle(tmp_path):
    sources = {"pkg": "from . import a\nfrom .a import *", "pkg.a": "from . import *\ndef f(): ..."}
    index = index_of(tmp_path, sources)

    assert index.ask("pkg.a.f").present == {"1.0"}
    assert index.ask("pkg.f").present == {"1.0"}
    assert index.ask("pkg.nothing").absent == {"1.0"}


def test_a_module_can_be_imported_though_its_package_binds_the_name_to_something_else(tmp_path):
    sources = {"pkg": "from .a import a", "pkg.a": "def a(): ...\nx = 1"}
    index = index_of(tmp_path, sources)

    assert index.ask("pkg.a.x").present == {"1.0"}


def test_a_star_import_that_lacks_its_dot_is_of_the_module_beside(tmp_path):
    index = index_of(tmp_path, {"pkg": "from a import *", "pkg.a": "def f(): ..."})

    assert index.ask("pkg.f").present == {"1.0"}
    assert index.ask("pkg.g").absent == {"1.0"}


def test_nothing_is_said_of_members_where_a_base_is_not_seen(tmp_path):
    index = index_of(tmp_path, {"pkg": "from elsewhere import A\nclass B(A): ..."})

    assert index.ask("pkg.B.anything").unknown == {"1.0"}


def test_arguments_of_a_class_are_those_of_its_init(tmp_path):
    one = {"pkg": "class A:\n    def __init__(self, old, *, new=1): ..."}
    two = {"pkg": "class A:\n    def __init__(self, *, new=1, **others): ..."}
    index = index_of(tmp_path, one, two)

    assert index.ask("pkg.A", "new").present == {"1.0", "2.0"}
    assert (index.ask("pkg.A", "old").present, index.ask("pkg.A", "old").unknown) == ({"1.0"}, {"2.0"})
    assert index.ask("pkg.A", "nothing").absent == {"1.0"}


def test_an_argument_behind_a_decorator_that_is_not_seen_is_passed_on(tmp_path):
    index = index_of(tmp_path, {"pkg": "@wrapped_somehow\ndef f(a): ...\n@lru_cache\ndef g(a): ..."})

    assert index.ask("pkg.f", "a").present == {"1.0"}
    assert index.ask("pkg.f", "b").unknown == {"1.0"}
    assert (index.ask("pkg.g", "a").present, index.ask("pkg.g", "b").absent) == ({"1.0"}, {"1.0"})


def test_a_class_whose_decorator_is_not_known_may_take_its_fields(tmp_path):
    known = "from dataclasses import dataclass\n@dataclass\nclass A:\n    a: int"
    unknown = "from .made import frozen_and_hashed\n@frozen_and_hashed(slots=True)\nclass A:\n    a: int"
    index = index_of(tmp_path, {"pkg": known}, {"pkg": unknown})

    assert index.ask("pkg.A", "a").unknown == {"2.0"}
    assert index.ask("pkg.A", "b").absent == {"1.0", "2.0"}


def test_every_class_has_the_init_of_object(tmp_path):
    index = index_of(tmp_path, {"pkg": "class A:\n    def __init__(self): ..."}, {"pkg": "class A: ..."})

    assert index.ask("pkg.A.__init__").absent == frozenset()


def test_a_builder_makes_the_names_of_a_module_of_protobuf(tmp_path):
    index = index_of(tmp_path, {"pkg": "", "pkg.event_pb2": "Event = make()"}, {"pkg": "", "pkg.event_pb2": "x = 1"})

    assert index.ask("pkg.event_pb2.Event").unknown == {"2.0"}


@pytest.mark.parametrize(("filename", "absent"), [("pkg-2.0-py3-none-any.whl", set()), ("pkg-2.0.tar.gz", {"2.0"})])
def test_a_wheel_without_compiled_modules_does_not_say_that_there_are_none(tmp_path, filename, absent):
    index = index_of(tmp_path, {"pkg": "", "pkg._c": ""}, {"pkg": ""}, compiled="pkg._c", filename=filename)

    assert index.ask("pkg._c").absent == absent
    assert index.ask_module("pkg._c").absent == absent


def test_below_a_name_of_another_package_may_be_modules_of_it(tmp_path):
    old = {"pkg": "", "pkg.part": "", "pkg.part.inner": "", "pkg.gone": "", "pkg.gone.inner": ""}
    new = {"pkg": "try:\n    from other._v2 import part\nexcept ImportError:\n    part = None"}
    newest = {"pkg": "part = _LazyLoader('part', globals(), 'other.part')"}
    index = index_of(tmp_path, old, new, newest)

    assert index.ask_module("pkg.part.inner").unknown == {"2.0", "3.0"}
    assert index.ask_module("pkg.gone.inner").absent == {"2.0", "3.0"}


def test_a_package_that_changes_its_path_may_have_modules_that_lie_elsewhere(tmp_path):
    old = {"pkg": "", "pkg.part": ""}
    new = {"pkg": "import sys\nown = sys.modules[__name__]\nown.__path__ = [folder] + own.__path__"}
    index = index_of(tmp_path, old, new)

    assert index.ask_module("pkg.part").unknown == {"2.0"}


def test_a_star_import_brings_what_a_builder_makes(tmp_path):
    modules = {"pkg": "", "pkg.event": "from pkg.event_pb2 import *", "pkg.event_pb2": "_globals = globals()"}
    index = index_of(tmp_path, modules)

    assert index.ask("pkg.event.Event").unknown == {"1.0"}
    assert index.ask("pkg.event._made").absent == {"1.0"}


def test_arguments_of_a_dataclass_are_its_fields_and_those_of_its_bases(tmp_path):
    source = (
        "from dataclasses import dataclass\n@dataclass\nclass A:\n    a: int\n@dataclass\nclass B(A):\n    b: int = 1"
    )
    index = index_of(tmp_path, {"pkg": source})

    assert index.ask("pkg.B", "a").present == {"1.0"}
    assert index.ask("pkg.B", "b").present == {"1.0"}
    assert index.ask("pkg.B", "c").absent == {"1.0"}


@pytest.mark.parametrize(
    "later",
    [
        pytest.param(
            "class Base:\n    def __init_subclass__(cls): ...\nclass C(Base):\n    size: int = 1", id="hook of a base"
        ),
        pytest.param(
            "class Base:\n    def __init__(self): ...\n    def __init_subclass__(cls): ...\nclass C(Base): ...",
            id="hook beside an init",
        ),
        pytest.param("@attr.s\nclass C:\n    size = attr.ib()", id="attrs"),
        pytest.param("@define\nclass C:\n    _size: int", id="private field of attrs"),
    ],
)
def test_an_argument_of_an_init_that_something_else_writes_is_not_said_to_be_gone(later, tmp_path):
    index = index_of(tmp_path, {"pkg": "class C:\n    def __init__(self, size): ..."}, {"pkg": later})

    answer = index.ask("pkg.C", "size")

    assert (answer.present, answer.unknown) == ({"1.0"}, {"2.0"})


def test_a_class_whose_own_init_stands_there_takes_its_arguments_whatever_a_hook_does(tmp_path):
    source = "class Base:\n    def __init_subclass__(cls): ...\nclass C(Base):\n    def __init__(self{}): ..."
    index = index_of(tmp_path, {"pkg": source.format(", size")}, {"pkg": source.format("")})

    assert index.ask("pkg.C", "size").absent == {"2.0"}


@pytest.mark.parametrize("config", ["LlamaConfig", "BertConfig", "Qwen2Config"])
def test_the_committed_index_does_not_call_the_arguments_of_a_generated_init_gone(config):
    answer = NameIndex.installed().ask(f"transformers.{config}", "hidden_size")

    assert {"5.4.0", "5.23.0"} <= answer.unknown
    assert not any(release.startswith("5.") for release in answer.absent)


def test_a_name_behind_an_optional_import_is_there(tmp_path):
    source = "try:\n    import apex\n    from apex import f\nexcept ImportError:\n    pass\nif is_torch_available():\n    y = 1"
    index = index_of(tmp_path, {"pkg": source})

    assert index.ask("pkg.f").present == {"1.0"}
    assert index.ask("pkg.y").present == {"1.0"}


def test_a_lazy_module_has_the_names_of_its_table(tmp_path):
    init = (
        "_import_structure = {'a': ['A']}\n"
        "try:\n    if not is_torch_available():\n        raise OptionalDependencyNotAvailable()\n"
        "except OptionalDependencyNotAvailable:\n    pass\n"
        "else:\n    _import_structure['a'].append('B')\n"
        "sys.modules[__name__] = _LazyModule(__name__, globals()['__file__'], _import_structure)"
    )
    index = index_of(tmp_path, {"pkg": init, "pkg.a": "class A: ...\nclass B: ..."})

    assert index.ask("pkg.A").present == {"1.0"}
    assert index.ask("pkg.B").present == {"1.0"}
    assert index.ask("pkg.C").absent == {"1.0"}
    assert index.ask("pkg._import_structure").absent == {"1.0"}


def test_the_answer_names_what_replaced_an_argument(tmp_path):
    one = {"pkg": "import warnings\ndef f(old=1, new=2):\n    warnings.warn('`old` is deprecated, use `new` instead')"}
    two = {"pkg": "def f(new=2): ..."}
    index = index_of(tmp_path, one, two)

    assert index.ask("pkg.f", "old").successor == "new"


def test_an_argument_that_a_message_names_replaces_no_class(tmp_path):
    text = "Passing it as `model` to a Model is deprecated. Please use `session` instead."
    one = {"pkg": f"import warnings\nclass Model:\n    def __init__(self):\n        warnings.warn('{text}')"}
    index = index_of(tmp_path, one, {"pkg": ""})

    assert index.ask("pkg.Model").successor is None


def test_a_package_without_index_has_no_answer(tmp_path):
    assert index_of(tmp_path, {"pkg": ""}).ask("other.name") is None


def test_a_damaged_file_is_refused(tmp_path):
    index = index_of(tmp_path, {"pkg": "x = 1"})
    (tmp_path / "pkg.names").write_bytes(b"something else\n\n\n")

    with pytest.raises(DataError, match=r"Cannot read pkg\.names"):
        index.ask("pkg.x")


_ZERO_OFFLOAD = "deepspeed.runtime.zero.parameter_offload.DeepSpeedZeRoOffload._register_hooks_recursively"
_FP8 = "transformer_engine.pytorch.fp8.FP8GlobalStateManager.set_skip_fp8_weight_update_tensor"
_GROUPS = "megatron.core.process_groups_config.ProcessGroupCollection"


@pytest.mark.parametrize(
    ("path", "argument", "last", "first_without"),
    [
        ("accelerate.Accelerator", "dispatch_batches", "0.34.2", "1.0.0"),
        ("trl.SFTTrainer", "tokenizer", "0.15.2", "0.16.0"),
        ("transformers.Trainer", "tokenizer", "4.57.1", "5.0.0"),
        ("trl.trainer.ConstantLengthDataset", None, "0.19.1", "0.20.0"),
        ("transformers.deepspeed", None, "4.45.2", "4.46.0"),
        ("transformers.Conversation", None, "4.41.2", "4.42.0"),
        (_ZERO_OFFLOAD, None, "0.16.3", "0.16.4"),
    ],
)
def test_the_committed_index_knows_what_a_release_took_away(path, argument, last, first_without):
    answer = NameIndex.installed().ask(path, argument)

    assert answer is not None
    assert last in answer.present
    assert first_without in answer.absent
    assert answer.spec().split(",")[-1] == f"<{first_without}"


@pytest.mark.parametrize(
    ("path", "first", "last_without"),
    [
        ("accelerate.utils.DataLoaderConfiguration", "0.28.0", "0.27.2"),
        (_GROUPS, "0.15.0", "0.14.0"),
        ("torch.distributed.tensor.DTensor", "2.5.0", "2.4.1"),
    ],
)
def test_the_committed_index_knows_what_a_release_brought(path, first, last_without):
    answer = NameIndex.installed().ask(path)

    assert answer is not None
    assert first in answer.present
    assert last_without in answer.absent
    assert answer.spec() == f">={first}"


def test_the_committed_index_knows_what_went_and_came_back():
    answer = NameIndex.installed().ask(_FP8)

    assert answer is not None
    assert {"2.15.0", "2.16.0"} <= answer.absent
    assert {"2.14.0", "2.17.0"} <= answer.present


def test_the_evidence_of_a_release_is_the_file_that_was_read():
    index = NameIndex.installed()

    (own,) = index.evidence("accelerate", "1.0.0")
    between = index.evidence("accelerate", "1.0.0.post7")
    before = index.evidence("accelerate", "0.0.1")

    assert (own.source, len(own.sha256 or "")) == ("accelerate-1.0.0-py3-none-any.whl", 64)
    assert [e.source for e in between] == ["accelerate-1.0.0-py3-none-any.whl", "accelerate-1.0.1-py3-none-any.whl"]
    assert len(before) == 1
    assert index.evidence("nothing-of-this-name", "1.0.0") == ()


def test_what_the_getattr_of_a_package_below_may_hand_on_is_left_open(tmp_path):
    maker = "import sys\nsys.modules[__name__] = _LazyModule()\nfor name in ('core',):\n    sys.modules[f'pkg.{name}'] = make(name)"
    hands_on = "def __getattr__(name): return getattr(_core, name)"
    index = index_of(tmp_path, {"pkg": maker, "pkg.core": hands_on}, {"pkg": maker, "pkg.core": "x = 1"})

    assert (index.ask("pkg.core.y").unknown, index.ask("pkg.core.y").absent) == ({"1.0"}, {"2.0"})


def test_a_decorator_that_takes_the_old_name_of_an_argument_is_read(tmp_path):
    old = "class A:\n  def __init__(self, size): ..."
    both = "class A:\n  @deprecate_kwarg('size', version='3.0', new_name='length')\n  def __init__(self, length): ..."
    index = index_of(tmp_path, {"pkg": old}, {"pkg": both}, {"pkg": "class A:\n  def __init__(self, length): ..."})

    answer = index.ask("pkg.A", "size")

    assert (answer.spec(), answer.unknown) == ("<3.0", frozenset())
    assert index.ask("pkg.A", "length").spec() == ">=2.0"


def test_an_old_argument_is_taken_as_long_as_the_package_hands_it_on():
    index = NameIndex.installed()

    answer = index.ask("huggingface_hub.hf_hub_download", "use_auth_token")

    assert (answer.spec(), "0.36.2" in answer.present) == (">=0.0.11,<1.0.0", True)
    assert "0.36.2" in index.ask("huggingface_hub.hf_hub_url", "use_auth_token").absent


def test_a_decorator_whose_old_name_is_computed_leaves_it_open(tmp_path):
    index = index_of(tmp_path, {"pkg": "@deprecate_kwarg(NAME, version='3.0')\ndef f(length): ..."})

    assert index.ask("pkg.f", "size").unknown == {"1.0"}


@pytest.mark.parametrize(("count", "spec"), [(1, ""), (2, ">=2.0"), (3, ">=3.0"), (9, ">=3.0")])
def test_as_many_arguments_by_position_are_those_that_a_release_takes(count, spec, tmp_path):
    index = index_of(
        tmp_path, {"pkg": "def f(a, *, b): ..."}, {"pkg": "def f(a, b=1): ..."}, {"pkg": "def f(a, *b): ..."}
    )

    assert index.ask("pkg.f", f"#{count}").spec() == spec


def test_a_release_that_wants_what_a_call_leaves_out_is_absent_and_says_what(tmp_path):
    sources = ("def f(a, b=1): ...", "def f(a, c, b=1): ...", "def g(): ...", "def f(c=1): ...")
    index = index_of(tmp_path, *({"pkg": source} for source in sources))

    answer = index.ask("pkg.f", "!1,b")

    assert (answer.present, answer.absent, answer.unknown) == ({"1.0"}, {"2.0"}, {"3.0", "4.0"})
    assert answer.wanting == (("c", frozenset({"2.0"})),)


@pytest.mark.parametrize(
    "source",
    [
        "@anything\ndef f(a, b): ...",
        "f = make()",
        "def f(a, b): ...\nf = with_defaults(f)",
        "if x:\n  def f(a, b): ...\nelse:\n  def f(a): ...",
        "@dataclass\nclass f:\n  a: int\n  b: int",
        "class f(other.Model):\n  def __init__(self, a, b): ...",
        "class Base:\n  def __init__(self, a, b): ...\nclass f(Base): ...",
        "class f(metaclass=Made):\n  def __init__(self, a, b): ...",
        "class f(metaclass=Made):\n  def __new__(cls, a, b): ...",
        "class f:\n  def __new__(cls, a): ...\n  def __init__(self, a, b): ...",
        "class Base:\n  def __init_subclass__(cls): ...\nclass f(Base):\n  def __init__(self, a, b): ...",
        "class Base(metaclass=Made): ...\nclass f(Base):\n  def __init__(self, a, b): ...",
    ],
)
def test_what_something_else_has_a_hand_in_is_not_said_to_want_more(source, tmp_path):
    index = index_of(tmp_path, {"pkg": "def f(a): ..."}, {"pkg": source})

    assert index.ask("pkg.f", "!1").absent == frozenset()


@pytest.mark.parametrize(
    "source",
    [
        "class f:\n  def __init__(self, a, b): ...",
        "class f(Exception):\n  def __init__(self, a, b): ...",
        "class Base: ...\nclass f(Base):\n  def __init__(self, a, *, b): ...",
        "@no_grad()\ndef f(a, b): ...",
        "class Base: ...\nclass f(Base):\n  def __new__(cls, a, b, **more): ...",
    ],
)
def test_a_class_wants_what_its_own_init_wants(source, tmp_path):
    index = index_of(tmp_path, {"pkg": "def f(a): ..."}, {"pkg": source})

    assert index.ask("pkg.f", "!1").absent == {"2.0"}


def test_a_stub_of_a_compiled_module_does_not_say_what_is_wanted(tmp_path):
    index = index_of(tmp_path, {"pkg": "", "pkg.c": "def f(a, b): ..."}, compiled="pkg.c")

    assert index.ask("pkg.c.f", "!1").unknown == {"1.0"}


def test_a_method_wants_no_object_and_one_that_is_called_of_its_class_is_given_one(tmp_path):
    methods = "class A:\n  def f(self, b): ...\n  @staticmethod\n  def g(a, b): ..."
    index = index_of(tmp_path, {"pkg": methods})

    assert [index.ask("pkg.A.f", call).absent for call in ("!0", "!1")] == [{"1.0"}, frozenset()]
    assert [index.ask("pkg.A.g", call).absent for call in ("!1", "!2")] == [{"1.0"}, frozenset()]


def test_the_fields_of_a_msgspec_struct_are_its_arguments(tmp_path):
    source = "import msgspec\nclass Mixin: ...\nclass Params(Mixin, msgspec.Struct):\n  size: int = 1"
    index = index_of(tmp_path, {"pkg": f"{source}\n  beam: bool = False"}, {"pkg": source})

    answer = index.ask("pkg.Params", "beam")

    assert (answer.present, answer.absent, answer.unknown) == ({"1.0"}, {"2.0"}, frozenset())
