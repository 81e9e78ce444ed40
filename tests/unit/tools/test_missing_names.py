"""Names that one package uses and another does not have: read from sources, nothing is run."""

from __future__ import annotations

import io
import json
import sys
import zipfile
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[3] / "tools"
if str(TOOLS) not in sys.path:
    sys.path.insert(0, str(TOOLS))

import missing_names  # noqa: E402
from missing.archive import Sources, choose, read_sources  # noqa: E402
from missing.compare import gaps, missing_in, span  # noqa: E402
from missing.offered import Has, Offered  # noqa: E402
from missing.reach import Release, Stage  # noqa: E402

from envsmith.python.index import IndexFile  # noqa: E402


def sources(version: str, **files: str) -> Sources:
    """``torch__init=...`` is torch/__init__.py, ``torch__dist`` torch/dist.py."""
    paths = {
        name.replace("__", "/").replace("/init", "/__init__") + ".py": text.encode() for name, text in files.items()
    }
    return Sources(distribution="x", version=version, sha256="", files=paths)


def torch(version: str, dist: str = "", **more: str) -> Offered:
    return Offered(sources(version, torch__init="from . import dist\nx = 1\n", torch__dist=dist, **more))


def places(own: str, **files: str):
    return list(Release(sources("1.0", **files), own, ("torch",)).places())


def found(dist: str, **files: str):
    """(what, stage) of a small package ``ds`` against a torch that has ``dist`` and an older one that has everything asked for here."""
    old = torch("1.0", "a = b = log = barrier = new = 1\ndef call(x, *, group=None, extra=None): ...\n")
    return {(g.what, g.stage) for g in gaps({"1.0": places("ds", **files)}, [old, torch("2.0", dist)])}


def test_a_removed_name_that_the_package_imports_is_told_with_the_stage():
    assert found("a = 1", ds__init="from torch.dist import log") == {("torch.dist.log", Stage.IMPORT)}
    assert found("a = 1", ds__init="", ds__far="import torch.dist as d\nd.log") == {("torch.dist.log", Stage.MODULE)}
    assert found("a = 1", ds__init="import torch\ndef f():\n    torch.dist.log()") == {("torch.dist.log", Stage.CALL)}


@pytest.mark.parametrize(
    "source",
    [
        "try:\n    from torch.dist import log\nexcept ImportError:\n    log = None",
        "import torch\nif torch.__version__ >= '2':\n    pass\nelse:\n    from torch.dist import log",
        "import torch\nif hasattr(torch.dist, 'log'):\n    torch.dist.log",
        "import torch\ny = torch.dist.log if hasattr(torch.dist, 'log') else None",
        "import torch\ndef f():\n    if not hasattr(torch.dist, 'log'):\n        return None\n    return torch.dist.log",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from torch.dist import log",
        "import torch\ndef f(torch):\n    return torch.dist.log",
        "OK = 1\nif is_new():\n    try:\n        from torch.dist import log\n    except ImportError:\n        OK = 0\nif not OK:\n    def log(f): ...\n@log\ndef f(): ...",
        "from contextlib import suppress\nwith suppress(ImportError):\n    from torch.dist import log",
    ],
)
def test_a_use_that_is_guarded_is_not_told(source):
    assert found("a = 1", ds__init=source) == set()


def test_a_guard_that_asks_for_something_else_does_not_help():
    """deepspeed 0.15.3: ``hasattr(torch, "compiler")`` and then ``torch.compiler.is_compiling``."""
    source = "import torch\nif hasattr(torch, 'dist'):\n    f = torch.dist.log"
    assert {what for what, _ in found("a = 1", ds__init=source)} == {"torch.dist.log"}


def test_what_runs_while_the_package_is_imported_is_followed_through_calls_and_re_exports():
    files = {
        "ds__init": "from .tools import decorate\n@decorate\ndef f(): ...",
        "ds__tools": "from .deep import decorate",
        "ds__deep": "import torch\ndef decorate(f):\n    return torch.dist.log(f)\ndef other():\n    torch.dist.barrier()",
    }
    assert found("a = 1", **files) == {("torch.dist.log", Stage.IMPORT), ("torch.dist.barrier", Stage.CALL)}


def test_an_import_under_a_condition_may_or_may_not_be_reached():
    files = {"ds__init": "if compatible():\n    from . import elastic", "ds__elastic": "from torch.dist import log"}
    assert found("a = 1", **files) == {("torch.dist.log", Stage.MAYBE)}


def test_arguments_that_a_function_does_not_take_are_told():
    new = "def call(x, *, group=None): ...\n"
    assert found(new, ds__init="from torch import dist\ndef f():\n    dist.call(1, extra=2)") == {
        ("torch.dist.call(extra=)", Stage.CALL)
    }
    assert found(new, ds__init="from torch import dist\ndef f():\n    dist.call(1, group=2)") == set()
    more = "def call(x, y, *, group=None, extra=None): ...\n"
    assert found(more, ds__init="from torch import dist\ndef f():\n    dist.call(1)") == {
        ("torch.dist.call() with only 1 arguments", Stage.CALL)
    }
    assert found(more, ds__init="from torch import dist\ndef f(*a):\n    dist.call(*a)") == set()


def test_a_name_that_no_release_has_is_left_out():
    assert found("a = 1", ds__init="from torch.dist import made_in_cpp") == set()


@pytest.mark.parametrize(
    ("dist", "name", "has"),
    [
        ("from .deep import *", "public", Has.YES),
        ("from .deep import *", "_private", Has.NO),
        ("if 1:\n    try:\n        a = 1\n    except E:\n        b = 1", "b", Has.YES),
        ("globals().update({})", "anything", Has.UNKNOWN),
        ("def __getattr__(name):\n    if name == 'lazy': return 1", "lazy", Has.YES),
        ("def __getattr__(name):\n    if name == 'lazy': return 1", "other", Has.NO),
        ("for a in b:\n    with c as d: pass", "d", Has.YES),
        ("def (", "anything", Has.UNKNOWN),
    ],
)
def test_what_a_module_has_is_read_as_python_would_make_it(dist, name, has):
    offered = torch("1.0", dist, torch__deep="public = _private = 1")
    assert offered.has("torch.dist", name) is has


def test_all_decides_what_a_star_brings():
    deep = "__all__ = ['_private']\npublic = _private = 1"
    offered = torch("1.0", "from .deep import *", torch__deep=deep)
    assert offered.has("torch.dist", "_private") is Has.YES
    assert offered.has("torch.dist", "public") is Has.NO


def test_names_of_cpp_are_known_from_stubs_and_otherwise_not_judged():
    files = {
        "torch/__init__.py": b"x = 1",
        "torch/_C/__init__.pyi": b"class Tensor: ...",
        "torch/_C/_VariableFunctions.pyi": b"def add(): ...",
    }
    made = frozenset({"torch._C"})
    offered = Offered(Sources(distribution="torch", version="1", sha256="", files=files, compiled=made))
    assert offered.has("torch", "Tensor") is Has.YES
    assert offered.has("torch", "gone") is Has.NO
    assert offered.has("torch._C", "gone") is Has.UNKNOWN


def test_a_use_is_told_as_a_missing_module_where_the_module_is_gone():
    (place,) = places("ds", ds__init="from torch._six import inf")
    assert missing_in(place.use, torch("2.0")) == ("module torch._six",)


def test_ranges_are_told_by_their_neighbours():
    every = ("1.0", "1.1", "1.2", "2.0", "2.1")
    assert span(("1.0", "1.1"), every) == "<1.2"
    assert span(("1.1",), every) == "==1.1"
    assert span(("1.1", "1.2", "2.1"), every) == ">=1.1,<2.0 || >=2.1"
    assert span(every, every) == "*"


def test_sources_are_read_once_from_a_wheel_by_ranges_and_then_from_the_cache(world, index, tmp_path):
    url = "https://index.test/files/demo-1.0-py3-none-any.whl"
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("demo/__init__.py", "a = 1")
        archive.writestr("demo/lib/libdemo.so", b"\0" * 300_000)
        archive.writestr("demo/_C.cpython-312-x86_64-linux-gnu.so", "")
        archive.writestr("demo/far.pyi", "b: int")
    world.bodies[url] = buffer.getvalue()
    file = IndexFile(filename="demo-1.0-py3-none-any.whl", url=url, version="1.0", sha256="0" * 64)
    read = read_sources(index, "demo", file, tmp_path)
    assert (set(read.files), read.compiled) == ({"demo/__init__.py", "demo/far.pyi"}, {"demo._C"})
    world.bodies.clear()
    assert read_sources(index, "demo", file, tmp_path) == read


def test_a_linux_wheel_is_preferred_and_windows_left_out():
    def file(name: str) -> IndexFile:
        return IndexFile(filename=name, url="", version="1.0", size=1)

    every = (
        file("d-1.0.tar.gz"),
        file("d-1.0-cp312-cp312-win_amd64.whl"),
        file("d-1.0-cp312-cp312-manylinux_2_28_x86_64.whl"),
    )
    chosen = choose(every)
    assert chosen is not None
    assert chosen.filename.endswith("x86_64.whl")
    assert choose(every[1:2]) is None


def test_the_script_prints_json_and_refuses_an_index_that_cannot_be_read(monkeypatch, tmp_path, capsys):
    old, new = (sources(v, torch__init="", torch__dist=d) for v, d in (("1.0", "log = 1"), ("2.0", "")))
    user = sources("0.5", ds__init="from torch.dist import log")
    monkeypatch.setattr(missing_names, "releases", lambda _i, name, *_, **__: {"torch": [old, new], "ds": [user]}[name])
    monkeypatch.setattr(missing_names.Told, "known", lambda *_: "new")
    assert missing_names.main(["ds", "torch", "--json", "--cache", str(tmp_path)]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["what"], row["stage"], row["lacking"], row["users"]) == ("torch.dist.log", "import", ">=2.0", "*")
