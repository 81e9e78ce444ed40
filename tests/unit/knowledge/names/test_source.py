"""Lines of a module's source: the same whether it is read alone or after other releases of it."""

from __future__ import annotations

import pytest

from envsmith.knowledge.names.blocks import Blocks
from envsmith.knowledge.names.source import read_module

_BODY = "    def f(self, a, b=1, *, c, **others):\n        self.x = a\n" + "    # a comment\n" * 200
_CLASS = f"@decorated\nclass A(Base):\n    field: int\n{_BODY}    @property\n    def p(self): ...\nA.y = 1\n"
_TEXT = f'DOC = """\nclass NotAClass:\n    def g(self): ...\n"""\n{_CLASS}'


@pytest.mark.parametrize(
    "source", [_CLASS, _TEXT, "x = (\n1)\n@d(\n  1)\ndef f(): ...\n", "if a:\n  b = 1\nelse:\n  c = 2\n"]
)
def test_blocks_of_other_releases_change_nothing(source):
    blocks = Blocks()
    read_module(source.replace("self.x", "self.z").encode(), "m", package=False, blocks=blocks)

    lines = read_module(source.encode(), "m", package=False, blocks=blocks)

    assert lines == read_module(source.encode(), "m", package=False)
    assert "NotAClass :" not in lines


def test_a_class_has_its_methods_fields_and_what_they_set():
    lines = read_module(_CLASS.encode(), "m", package=False)

    assert {"A :Base", "A.f (a,b=,|,c,**", "A.x .", "A.p =", "A.field !"} <= lines


def test_a_static_method_sets_nothing_on_the_class_it_stands_in():
    source = "class A:\n    @staticmethod\n    def make(config):\n        config.x = 1\n"

    lines = read_module(source.encode(), "m", package=False)

    assert {line for line in lines if not line.startswith("*")} == {"A :", "A.make (config"}


@pytest.mark.parametrize("modules", ["sys.modules[__name__]", "_sys.modules[__name__]", "sys.modules['m']"])
def test_a_module_that_sets_names_on_itself_may_have_any(modules):
    source = f"import sys\nimport sys as _sys\nown = {modules}\nsetattr(own, 'keras', load())\n"

    assert "* ?" in read_module(source.encode(), "m", package=False)


def test_what_a_module_gives_an_object_of_another_class_is_said_with_the_name_of_the_object():
    source = "class A:\n    def attach(self, config):\n        self.size = 1\n        self._trainer.size = 1\n        config.a.x: int = 1\n"

    lines = read_module(source.encode(), "m", package=False)

    assert {line for line in lines if line.startswith("*")} == {"* @.a:x", "* @.trainer:size"}


def test_a_source_that_cannot_be_parsed_says_nothing_of_any_name():
    assert read_module(b"print 'Python 2'", "m", package=False) == {"* ?"}


@pytest.mark.parametrize(
    "source",
    [
        "globals()[name] = 1",
        "globals().update(table)",
        "sys.modules[__name__] = Moved(locals(), 'pkg.core')",
        "setattr(sys.modules[__name__], name, 1)",
        "module = sys.modules[__name__]\nfor item in Resampling:\n    setattr(module, item.name, item.value)",
        "module = sys.modules['m']\nfor name in ['is_number']:\n    setattr(module, name, outer(name))",
        "m.__dict__[n] = f(n)",
        "def __getattr__(name):\n    if name in Resampling.__members__:\n        return Resampling[name]\n    raise AttributeError",
    ],
)
def test_a_module_that_makes_names_is_open(source):
    assert "* ?" in read_module(source.encode(), "m", package=False)


def test_a_raising_branch_binds_nothing():
    source = b"try:\n    from a import b\nexcept ImportError:\n    raise\nif x:\n    raise SystemExit\nelse:\n    c = 1"

    assert {"b >a:b", "c ="} <= read_module(source, "m", package=False)


def test_a_table_of_strings_names_where_lazy_names_come_from():
    source = b"TABLE = {'LLM': '.entrypoints.llm:LLM', 'x': 'y'}\ndef __getattr__(name): ..."

    lines = read_module(source, "pkg", package=True)

    assert "LLM >pkg.entrypoints.llm:LLM" in lines
    assert "x >pkg.y:x" not in lines


def test_a_table_of_getattr_answers_for_its_names_but_for_those_that_it_refuses():
    source = b"""
_deprecations = {
    "Jaxpr": ("It is deprecated.", core.Jaxpr),
    "Gone": ("It was removed.", None),
}
if not TYPE_CHECKING:
    __getattr__ = deprecation_getattr(__name__, _deprecations)
"""

    lines = read_module(source, "pkg.core", package=False)

    assert "Jaxpr *" in lines
    assert not any(line.startswith("Gone ") for line in lines)


def test_a_loop_over_texts_binds_a_name_for_each():
    source = "for op in ('sqrt', 'cos'):\n    name = f'sym_{op}'\n    globals()[name] = make(op)"

    lines = read_module(source.encode(), "m", package=False)

    assert {"sym_sqrt =", "sym_cos ="} <= lines
    assert "* ?" not in lines


def test_a_loop_over_texts_that_are_not_seen_leaves_the_module_open():
    source = "for op in ('sqrt', other):\n    globals()[f'sym_{op}'] = make(op)"

    assert "* ?" in read_module(source.encode(), "m", package=False)


def test_stand_ins_for_a_dependency_that_is_missing_do_not_open_a_module():
    source = "for name, value in _dummy_objects.items():\n    setattr(sys.modules[__name__], name, value)"

    assert "* ?" not in read_module(source.encode(), "m", package=False)


@pytest.mark.parametrize("iterable", ["dir(part)", "part.__dir__()"])
@pytest.mark.parametrize("namespace", ["globals()", "_globals"])
def test_a_loop_over_the_names_of_another_module_is_a_star_import(iterable, namespace):
    source = f"from a import part\n_globals = globals()\nfor item in {iterable}:\n    {namespace}[item] = getattr(part, item)"

    assert "* >=part" in read_module(source.encode(), "m", package=False)


def test_a_list_that_a_function_extends_does_not_say_what_a_star_import_brings():
    source = (
        b"from .a import *\n__all__ = ['x']\ndef extend_all(module):\n    __all__.extend(module.__all__)\nextend_all(a)"
    )

    assert "* >pkg.a" in read_module(source, "pkg.m", package=False)


def test_a_module_that_a_lazy_one_puts_beside_itself_is_not_said_to_be_missing():
    lazy = "import sys\nsys.modules[__name__] = _LazyModule(__name__, {})\n"
    alias = "def alias(name):\n    sys.modules[name] = None\nalias(f'{__name__}.old')"

    assert "old ~" in read_module((lazy + alias).encode(), "m", package=True)
    assert "old ~" not in read_module((lazy + "alias('old')").encode(), "m", package=True)


@pytest.mark.parametrize("key", ["f'torch.distributed._tensor.{name}'", "f'{__name__}.{name}'"])
def test_a_module_that_is_registered_below_its_package_is_not_said_to_be_missing(key):
    source = f"names = ['device_mesh']\nfor name in names:\n    sys.modules[{key}] = import_module(name)"

    assert "device_mesh ~" in read_module(source.encode(), "torch.distributed._tensor", package=True)


def test_a_module_that_is_registered_elsewhere_opens_no_package():
    source = "names = ['device_mesh']\nfor name in names:\n    sys.modules[f'other.{name}'] = import_module(name)"

    assert "device_mesh ~" not in read_module(source.encode(), "torch.distributed._tensor", package=True)


@pytest.mark.parametrize(
    ("decorator", "bases"),
    [
        ("@inherit_names(['ceil'], Timestamps)", ":Base,?"),
        ("@delegate_names(delegate=Categorical, accessors=[*names] + ['codes'])", ":Base,?"),
        ("@register('index')", ":Base"),
        ("@final", ":Base"),
    ],
)
def test_a_class_whose_decorator_is_given_names_in_a_list_has_members_that_nobody_wrote(decorator, bases):
    assert f"Index {bases}" in read_module(f"{decorator}\nclass Index(Base): ...".encode(), "m", package=False)
