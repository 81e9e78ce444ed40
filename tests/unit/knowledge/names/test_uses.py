"""What a module takes from other packages, read from its text."""

from __future__ import annotations

import ast
from functools import partial
from textwrap import indent

import pytest

from envsmith.knowledge.names.module_uses import MAIN, Use
from envsmith.knowledge.names.own_classes import OwnClasses
from envsmith.knowledge.names.uses import read_uses


def uses(source: str, own: tuple[str, ...] = ()) -> list[Use]:
    return read_uses(source, "train", package=False, own=own).uses


def paths(source: str, own: tuple[str, ...] = ()) -> set[str]:
    return {".".join(use.chain) for use in uses(source, own)}


@pytest.mark.parametrize(
    ("source", "path"),
    [
        ("import torch.distributed as dist\ndist.rpc.init_rpc()", "torch.distributed.rpc.init_rpc"),
        ("from torch import distributed as d\nd.log", "torch.distributed.log"),
        ("import torch\nx = torch.cuda.amp.autocast", "torch.cuda.amp.autocast"),
        ("def f():\n    import peft\n    return peft.LoraConfig", "peft.LoraConfig"),
        ("from accelerate import Accelerator\na = Accelerator()\na.prepare(1)", "accelerate.Accelerator.prepare"),
        ("import accelerate as ac\ndef f(a: ac.Accelerator):\n    a.gather(1)", "accelerate.Accelerator.gather"),
        ("from trl import T\nT(1).train()", "trl.T.train"),
        ("from trl import T\nclass M(T):\n    def f(self):\n        self.train()", "trl.T.train"),
        ("from trl import T\nclass M(T):\n    def train(self):\n        super().train()", "trl.T.train"),
        ("import importlib\nimportlib.import_module('transformers.deepspeed')", "transformers.deepspeed"),
        ("import torch\ngetattr(torch, 'compile')", "torch.compile"),
        ("import torch\nmatch 1:\n    case 1:\n        torch.compile", "torch.compile"),
        ("np = util.get_module('numpy')\nnp.float_", "numpy.float_"),
        ("scipy, has = optional_import('scipy')\nscipy.linalg", "scipy.linalg"),
        ("get, _ = optional_import('transformers.file_utils', name='get')\nget.x", "transformers.file_utils.get.x"),
        ("import importlib\nt = importlib.import_module('torch')\nt.compile", "torch.compile"),
    ],
)
def test_a_name_is_followed_to_where_it_comes_from(source, path):
    assert path in paths(source)


@pytest.mark.parametrize(
    ("source", "path"),
    [
        ("import torch\ndef f(torch):\n    torch.log", "torch.log"),
        ("import numpy as n\n[n.name for n in nodes]", "numpy.name"),
        ("import numpy as n\nfor n in nodes:\n    n.name", "numpy.name"),
        ("from trl import A, B\nx = A() if c else B()\nx.f", "trl.A.f"),
        ("from trl import A, B\nif c:\n    x = A()\nelse:\n    x = B()\nx.f", "trl.B.f"),
        ("from trl import T\nclass M(T):\n    def f(self):\n        self.f()", "trl.T.f"),
        ("from trl import T\nclass M(T):\n    def f(self):\n        self.x = 1\n        self.x", "trl.T.x"),
        ("from trl import T\nclass M(T):\n    @staticmethod\n    def f(x):\n        x.y", "trl.T.y"),
        ("try:\n    from a import f\nexcept ImportError:\n    from b import f\nf.x", "b.f.x"),
        ("from a import f\nclass K:\n    def f(self):\n        return f.x", "a.nothing"),
    ],
)
def test_a_name_that_may_be_something_else_is_not_followed(source, path):
    assert path not in paths(source)


def test_a_method_does_not_hide_an_import_of_its_name_from_other_methods():
    source = "from a import f\nclass K:\n    def f(self):\n        return 1\n    def g(self):\n        return f.x"
    assert "a.f.x" in paths(source)


def test_what_a_module_puts_into_another_is_no_use_of_it():
    source = "import dill\nif not getattr(dill, 'dill', None):\n    dill.dill = dill._dill\ndill.dill.log.setLevel(1)"

    assert paths(source) == {"dill", "dill.dill", "dill._dill"}
    assert [use.line for use in uses(source) if use.chain == ("dill", "dill")] == [2]


def test_modules_of_the_project_and_of_python_are_not_uses():
    assert paths("import os\nimport model\nfrom . import x\nmodel.GPT", own=("model",)) == set()


def test_arguments_by_name_are_noted():
    source = "from transformers import TrainingArguments as T\nT(output_dir='x', **{}, evaluation_strategy='no')"
    assert [u.arguments for u in uses(source) if u.arguments] == [("evaluation_strategy", "output_dir")]


def keywords(body: str) -> tuple[str, ...]:
    lines = "".join(f"    {line}\n" for line in body.split("\n"))
    return next(
        use.arguments for use in uses(f"from accelerate import Accelerator\ndef f(x, k):\n{lines}") if not use.imported
    )


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("a = {'even': 1, 'split': 2}\nAccelerator(**a, cpu=True)", ("cpu", "even", "split")),
        ("a = dict(even=1)\nAccelerator(**a)", ("even",)),
        ("Accelerator(**{'even': 1})", ("even",)),
        ("a = {}\na['even'] = 1\nif x:\n    a['split'] = 2\nAccelerator(**a)", ("even",)),
        ("a = {'even': 1}\nAccelerator(**a)\na['split'] = 2", ("even",)),
        ("a = {'even': 1, 'split': 2}\nif x:\n    a.pop('split')\nAccelerator(**a)", ("even",)),
        ("a = {'even': 1}\na.pop(k)\nAccelerator(**a)", ()),
        ("a = {'even': 1}\ndel a['even']\nAccelerator(**a)", ()),
        ("a = {'even': 1}\nchange(a)\nAccelerator(**a)", ()),
        ("a = {'even': 1}\na = x\nAccelerator(**a)", ()),
        ("a = {'even': 1} if x else {}\nAccelerator(**a)", ()),
        ("Accelerator(**x)", ()),
    ],
)
def test_arguments_in_a_dictionary_are_noted_where_it_surely_has_them(body, expected):
    assert keywords(body) == expected


_FIELD = """\
from accelerate import Accelerator
class T:
    def __init__(self, other):
        self.one = Accelerator()
        self.two = Accelerator()
        self.two = other
    def f(self, inputs):
        self.one.gather(inputs, keep=True)
        self.two.prepare(inputs)
        return lambda: self.one.free(inputs)
"""


def test_what_a_class_stores_in_its_object_is_followed_where_it_is_one_thing():
    members = {".".join(use.chain): use for use in uses(_FIELD) if use.member}

    assert set(members) == {"accelerate.Accelerator.gather", "accelerate.Accelerator.free"}
    assert members["accelerate.Accelerator.gather"].arguments == ("keep", "#1")


def test_an_object_of_a_class_is_a_member():
    members = {".".join(u.chain): u.member for u in uses("from trl import T\nt = T()\nt.train()\nT.make()")}
    assert (members["trl.T.train"], members["trl.T.make"]) == (True, False)


def test_it_is_noted_when_a_use_runs():
    source = "import a\ndef f():\n    a.x\nclass K:\n    y = a.y\n    def g(self):\n        a.z\nif __name__ == '__main__':\n    a.m"
    stages = {u.chain[-1]: u.function for u in uses(source)}
    assert stages == {"a": None, "x": "f", "y": None, "z": "K.g", "m": MAIN}


@pytest.mark.parametrize(
    "source",
    [
        "try:\n    from torch import log\nexcept ImportError:\n    log = None",
        "try:\n    import torch\n    torch.log\nexcept (errors.Missing, builtins.AttributeError):\n    pass",
        "import torch\nif torch.__version__ >= '2':\n    pass\nelse:\n    torch.log",
        "import torch\nif hasattr(torch, 'log'):\n    torch.log",
        "import torch\ny = torch.log if hasattr(torch, 'log') else None",
        "import torch\ny = None if 'log' not in dir(torch) else torch.log",
        "import torch\ndef f():\n    if not hasattr(torch, 'log'):\n        return None\n    return torch.log",
        "from contextlib import suppress\nwith suppress(ImportError):\n    from torch import log",
        "if is_torch_available():\n    from torch import log",
        "import torch\ngetattr(torch, 'log', None)",
    ],
)
def test_a_guard_is_noted(source):
    (guard,) = {use.guard for use in uses(source) if use.chain == ("torch", "log")}
    assert guard.asks or guard.tests


def test_an_import_for_types_alone_is_not_a_use():
    assert paths("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from torch import log") == set()


def test_a_guard_around_a_definition_does_not_hold_in_its_body():
    (use,) = (u for u in uses("import a\ntry:\n    def f():\n        a.x\nexcept ImportError:\n    pass") if u.function)
    assert not use.guard.caught


def test_a_parameter_with_the_name_of_an_own_class_is_no_call_of_its_base():
    source = "from httpx import Client\nclass Own(Client):\n    pass\ndef f(Own):\n    Own(proxies=1)"

    assert [use.arguments for use in uses(source) if use.arguments] == []


@pytest.mark.parametrize(
    ("condition", "packages", "asks_version"),
    [
        ("_TORCH_INSTALLED", ("torch",), False),
        ("utils.HAS_TORCH", ("torch",), False),
        ("not TORCH_AVAILABLE", (), True),  # the other branch
        ("_TORCH_GREATER_EQUAL_2_0", (), True),
    ],
)
def test_a_constant_that_a_package_is_there_asks_for_no_release_of_it(condition, packages, asks_version):
    *_, use = (use for use in uses(f"import torch\nif {condition}:\n    torch.log") if use.chain == ("torch", "log"))

    assert (use.guard.available, use.guard.version, use.guard.branch) == (packages, asks_version, True)


@pytest.mark.parametrize(
    ("source", "is_caught"),
    [
        ("try:\n    import a\n    a.x\nexcept ImportError:\n    pass", False),
        ("try:\n    import a\n    a.x\nexcept (ImportError, AttributeError):\n    pass", True),
        ("try:\n    import a\n    a.x\nexcept:\n    pass", True),
        ("try:\n    import a.x\n    a.x\nexcept ImportError:\n    pass", True),  # the import fails first
        (
            "import a\ntry:\n    try:\n        a.x\n    except ImportError:\n        pass\nexcept AttributeError:\n    pass",
            True,
        ),
        ("import a\ntry:\n    a.x\nexcept KeyError:\n    pass", False),
    ],
)
def test_a_handler_of_imports_does_not_take_what_a_module_lacks(source, is_caught):
    *_, use = (use for use in uses(source) if use.chain == ("a", "x"))

    assert use.guard.caught is is_caught


@pytest.mark.parametrize(
    ("body", "arguments"),
    [
        ("pass", [("proxies",)]),
        ("def close(self): ...", [("proxies",)]),
        ("def __init__(self, proxies): ...", []),
        ("proxies: str = ''", []),
    ],
)
def test_a_call_of_a_class_that_its_base_makes_is_a_call_of_the_base(body, arguments):
    source = f"from httpx import Client\nclass Own(Client):\n    {body}\ndef f():\n    Own(proxies=1)"

    assert [use.arguments for use in uses(source) if use.arguments] == arguments


@pytest.mark.parametrize(
    ("source", "unseen"),
    [
        ("import importlib\nimportlib.import_module(name)", [(2, "")]),
        ("import torch\ngetattr(torch, name)", [(2, "torch")]),
        ("from torch.nn import *", [(1, "torch")]),
        ("from os import *\ngetattr(object, name)", []),
    ],
)
def test_a_line_that_chooses_a_name_at_run_time_is_counted(source, unseen):
    content = read_uses(source, "train", package=False, own=())
    assert [(line, package) for line, package in content.unseen if package != "os"] == unseen


@pytest.mark.parametrize("source", ["print 'hello'", "def (", "a\0b", b"\xff\xfe\x00", "+".join("a" * 30_000)])
def test_what_this_python_cannot_read_is_a_syntax_error(source):
    with pytest.raises(SyntaxError):
        read_uses(source, "train", package=False, own=())


def test_what_follows_a_condition_that_raises_at_import_runs_in_every_import():
    source = (
        "import pyarrow as pa\nif version(pa) < 6:\n    raise ImportWarning\nclass T(pa.PyExtensionType): ...\n"
        "def f():\n    if version(pa) < 6:\n        raise ImportWarning\n    return pa.schema"
    )

    guards = {".".join(use.chain): use.guard for use in uses(source)}

    assert not guards["pyarrow.PyExtensionType"].branch
    assert guards["pyarrow.schema"].branch


def test_an_object_that_is_called_is_asked_for_what_calls_it_and_not_for_its_class():
    source = "from transformers import PreTrainedTokenizer as T\ndef f(tokenizer: T):\n    tokenizer('a', padding=True)"

    (use,) = [use for use in uses(source) if use.arguments]

    assert (use.chain[-1], use.arguments) == ("__call__", ("padding", "#1"))


def test_what_super_calls_in_a_class_between_is_no_use_of_the_package():
    source = (
        b"from torch import nn\nclass A(nn.Module):\n    def __init__(self, x):\n        super().__init__()\n"
        b"class B(A):\n    def __init__(self):\n        super().__init__(1)\n        self.cuda()\n"
    )
    classes = OwnClasses({"own.py": source}, lambda _path, text: ast.parse(text))

    content = read_uses(source, "own", package=False, own={"own"}, ancestors=partial(classes.of_class, "own.py"))

    called = [(use.chain[-1], use.line) for use in content.uses if use.chain[:3] == ("torch", "nn", "Module")]
    assert called == [("Module", 2), ("__init__", 4), ("cuda", 8)]


def calls_in(body: str) -> list[str]:
    source = "import inspect\nfrom torch import attend, __version__\ndef f(q, x):\n" + indent(body, "    ")
    return [
        use.call for use in uses(source) if use.chain == ("torch", "attend") and not (use.imported or use.guard.asks)
    ]


@pytest.mark.parametrize(
    ("body", "calls"),
    [
        ("attend(q, dim=1)", ["!1,dim"]),
        ("attend(*q)", [""]),
        ("try:\n    attend(q)\nexcept TypeError:\n    attend(q, 1)", [""]),
        ("if __version__ < '2':\n    attend(q)", []),
        ("if 'cap' in inspect.signature(attend).parameters:\n    attend(q)", []),
        ("if x:\n    attend(q)\nelse:\n    attend(q, cap=1)", ["", "!1,cap"]),
        ("if x:\n    attend(q)\nattend(q, cap=1)", ["!1", "!1,cap"]),
    ],
)
def test_a_call_is_taken_as_a_whole_where_the_code_does_not_choose_it_for_a_release(body, calls):
    assert calls_in(body) == calls


@pytest.mark.parametrize(
    ("source", "calls"),
    [
        ("def f():\n    o = Optimizer(1)\n    o.step()", ["!1", "!0"]),
        ("def f(o: Optimizer):\n    o.step()", [""]),  # a class below it may have a default
        ("class A(Optimizer):\n    def f(self):\n        super().step()\n        super(A, self).step(1)", ["!0", "!1"]),
        ("class A(Optimizer):\n    def f(self):\n        super(Optimizer, self).step()", []),
    ],
)
def test_a_method_is_asked_as_a_whole_of_an_object_whose_class_is_sure(source, calls):
    found = uses(f"from torch.optim import Optimizer\n{source}")

    assert [
        use.call for use in found if use.chain[-1] in {"Optimizer", "step"} and use.line > 2 and not use.imported
    ] == calls
