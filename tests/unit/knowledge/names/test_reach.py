"""What the import of a package runs, and what it takes meanwhile."""

from __future__ import annotations

import pytest

from envsmith.knowledge.names.reach import Memo, PackageUses, module_paths
from envsmith.knowledge.names.takes import Take, parse, takes_of


def uses_of(files: dict[str, str], memo: Memo | None = None) -> PackageUses:
    """``{"ds__init": "…"}`` is ds/__init__.py, ``ds__far`` ds/far.py."""
    paths = {n.replace("__", "/").replace("/init", "/__init__") + ".py": t.encode() for n, t in files.items()}
    return PackageUses(["ds"], paths, lambda text: text, memo)


def taken(entry: str = "ds", **files: str) -> set[str]:
    places = uses_of(files).at_import(entry)
    return {".".join(p.use.chain) for p in places if len(p.use.chain) > 2}


def test_only_what_runs_at_import_is_taken():
    assert taken(ds__init="from torch.dist import log") == {"torch.dist.log"}
    assert taken(ds__init="", ds__far="from torch.dist import log") == set()
    assert taken(ds__init="import torch\ndef f():\n    torch.dist.log()") == set()


def test_what_runs_meanwhile_is_followed_through_calls_and_re_exports():
    files = {
        "ds__init": "from .tools import decorate\n@decorate\ndef f(): ...",
        "ds__tools": "from .deep import decorate",
        "ds__deep": "import torch\ndef decorate(f):\n    return torch.dist.log(f)\ndef g():\n    torch.dist.barrier()",
    }
    assert taken(**files) == {"torch.dist.log"}


def test_an_object_that_is_made_at_import_runs_its_constructor():
    source = "import torch\nclass K:\n    def __init__(self):\n        torch.dist.log()\nK()"
    assert taken(ds__init=source) == {"torch.dist.log"}


@pytest.mark.parametrize(
    "way",
    [
        "if compatible():\n    from . import far",
        "try:\n    from . import far\nexcept ImportError:\n    pass",
        "from .tools import optional\nwith optional('torch'):\n    from . import far",
        "if TYPE_CHECKING:\n    from . import far",
        "def __getattr__(name):\n    from . import far",
    ],
)
def test_a_way_that_a_guard_may_close_is_not_gone(way):
    assert taken(ds__init=way, ds__far="from torch.dist import log") == set()


@pytest.mark.parametrize(
    "way",
    [
        "try:\n    from . import far\nexcept ImportError as error:\n    raise RuntimeError('no') from error",
        "import sys\nif sys.platform != 'win32':\n    from . import far",
        "if is_torch_available():\n    from . import far",
        "from contextlib import nullcontext\nwith nullcontext():\n    from . import far",
    ],
)
def test_a_way_that_is_always_open_is_gone(way):
    assert taken(ds__init=way, ds__far="from torch.dist import log") == {"torch.dist.log"}


def test_a_lazy_module_runs_what_makes_the_name_that_is_asked_for():
    files = {
        "ds__init": "_import_structure = {'far': ['Trainer']}\nsys.modules[__name__] = _LazyModule(_import_structure)",
        "ds__far": "from torch.dist import log",
        "ds__user": "from . import Trainer",
    }
    assert taken("ds", **files) == set()
    assert taken("ds.Trainer", **files) == {"torch.dist.log"}
    assert taken("ds.user", **files) == {"torch.dist.log"}


@pytest.mark.parametrize(
    ("source", "imports"),
    [
        ("def f():\n    from torch.dist import log", {"torch.dist.log": "f"}),
        ("class K:\n    def _f(self):\n        import torch.dist.rpc", {"torch.dist.rpc": "K._f"}),
        ("if is_torch_available():\n    def f():\n        from torch.dist import log", {"torch.dist.log": "f"}),
        ("def f():\n    import torch\n    torch.dist.log()", {"torch.dist.log": "f"}),
        ("import torch\nclass A:\n    def f(self):\n        torch.dist.log()", {"torch.dist.log": "A.f"}),
        ("import torch\ndef f(x):\n    if x:\n        torch.dist.log()", {}),
        ("if is_log_available('1.0'):\n    from torch.dist import log\ndef f():\n    log(size=1)", {}),
        ("import torch\ndef f():\n    if hasattr(torch.dist, 'log'):\n        torch.dist.log()", {}),
        ("def _f():\n    from torch.dist import log", {}),
        ("def f():\n    def g():\n        from torch.dist import log\n    return g", {}),
        ("def f(x):\n    if x:\n        from torch.dist import log", {}),
        ("def f():\n    try:\n        from torch.dist import log\n    except ImportError:\n        pass", {}),
        ("def f():\n    if version > 2:\n        from torch.dist import log", {}),
        ("if TYPE_CHECKING:\n    def f():\n        from torch.dist import log", {}),
    ],
)
def test_a_public_function_takes_when_it_is_called_what_no_condition_decides(source, imports):
    places = uses_of({"ds__init": "from . import far", "ds__far": source}).in_functions("ds")

    assert {".".join(p.use.chain): p.use.function for p in places if len(p.use.chain) > 2} == imports


def test_the_arguments_that_a_method_gives_are_taken_when_it_is_called():
    source = "from torch.dist import Group\nclass A:\n    def make(self, **more):\n        self.group = Group(size=2, **more)"

    places = uses_of({"ds__init": "from . import far", "ds__far": source}).in_functions("ds")

    assert [(".".join(p.use.chain), p.use.arguments) for p in places] == [("torch.dist.Group", ("size",))]


def test_a_module_that_the_import_does_not_run_takes_nothing_later():
    source = "def f():\n    from torch.dist import log"

    assert list(uses_of({"ds__init": "", "ds__far": source}).in_functions("ds")) == []


def test_the_packages_that_must_be_installed_are_noted_on_the_whole_way():
    files = {
        "ds__init": "if is_accelerate_available() and is_torch_available():\n    from . import far",
        "ds__far": "from torch.dist import log\nif is_peft_available():\n    from peft.a import b",
    }
    places = {p.use.chain[-1]: set(p.available) for p in uses_of(files).at_import("ds")}
    assert places == {"log": {"accelerate"}, "b": {"accelerate", "peft"}}


_LEAST = "LEAST = '1.0'\ndef is_peft_available(least=LEAST):\n    "
_ASKED = {
    "from a version on": (
        _LEAST + "return _exists('peft') and version.parse(found) >= version.parse(least)",
        {"peft>=1.0"},
    ),
    "after a look": (
        _LEAST + "there, found = look('peft')\n    return there and Version(found) >= Version(least)",
        {"peft>=1.0"},
    ),
    "below a version": (_LEAST + "return version.parse(found) < version.parse(least)", None),
    "two versions": (
        _LEAST + "return version.parse(found) >= version.parse(least) and version.parse(b) >= version.parse(c)",
        None,
    ),
    "a version of its own": (_LEAST + "return version.parse(found) >= version.parse(other)", None),
    "a way of its own": (
        _LEAST + "if version.parse(found) >= version.parse(least):\n        return True\n    return False",
        None,
    ),
    "a warning": (
        _LEAST + "if version.parse(found) < version.parse(least):\n        warn(least)\n    return _exists('peft')",
        {"peft"},
    ),
    "another function": (_LEAST + "return compare_versions('peft', '>=', least)", None),
}


@pytest.mark.parametrize("function", _ASKED)
def test_a_function_that_asks_for_a_version_of_a_package_says_from_which_on(function):
    text, available = _ASKED[function]
    files = {
        "ds__init": "from .tools import is_peft_available as is_peft_available\nif is_peft_available():\n    from peft.a import b",
        "ds__tools": "from .deep import is_peft_available",
        "ds__deep": text,
    }
    assert [set(p.available) for p in uses_of(files).at_import("ds")] == ([] if available is None else [available])


def test_a_module_that_cannot_be_read_takes_nothing():
    assert taken(ds__init="from . import old", ds__old="print 'x'") == set()


def test_releases_share_what_was_read_of_equal_files():
    memo: Memo = Memo()
    for _ in range(2):
        list(uses_of({"ds__init": "import torch"}, memo).at_import("ds"))
    assert len(memo.contents) == 1


def test_the_modules_of_a_package_are_those_below_its_folder():
    files = ["megatron/core/__init__.py", "megatron/core/a.py", "megatron/other.py", "megatron/core/x.txt"]
    assert set(module_paths(files, "megatron.core")) == {"megatron.core", "megatron.core.a"}


def test_a_name_is_taken_where_the_fewest_conditions_decide():
    source = "import torch\nif hasattr(torch.a, 'b'):\n    torch.a.b\nif is_peft_available():\n    torch.a.c\ntorch.a.c"
    takes = takes_of(uses_of({"ds__init": source}).at_import("ds"))
    assert {t.path: (t.holds, t.available) for t in takes if t.path not in {"torch", "torch.a"}} == {
        "torch.a.b": (("torch.a.b",), ()),
        "torch.a.c": ((), ()),
    }


@pytest.mark.parametrize(
    "take",
    [
        Take(path="a.b", module="c", function="K.f", imported=True),
        Take(path="torch.log", module="ds"),
        Take(path="torch.log", module="ds.a", imported=True, available=("peft", "accelerate")),
        Take(path="torch.f", module="ds", arguments=("a", "b"), holds=("torch.f",), lacks=("torch.g", "torch.h")),
    ],
)
def test_a_take_is_written_and_read(take):
    assert parse(take.line()) == take
