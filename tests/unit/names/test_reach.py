"""What the import of a package runs."""

from __future__ import annotations

from envsmith.names.reach import PackageUses, Stage, module_paths


def stages(**files: str) -> set[tuple[str, Stage]]:
    """``ds__init="…"`` is ds/__init__.py, ``ds__far`` ds/far.py."""
    paths = {n.replace("__", "/").replace("/init", "/__init__") + ".py": t.encode() for n, t in files.items()}
    return {(".".join(p.use.chain), p.stage) for p in PackageUses("ds", paths).places() if len(p.use.chain) > 2}


def test_a_use_stops_the_import_a_module_or_a_call():
    assert stages(ds__init="from torch.dist import log") == {("torch.dist.log", Stage.IMPORT)}
    assert stages(ds__init="", ds__far="import torch.dist as d\nd.log") == {("torch.dist.log", Stage.MODULE)}
    assert stages(ds__init="import torch\ndef f():\n    torch.dist.log()") == {("torch.dist.log", Stage.CALL)}


def test_what_runs_meanwhile_is_followed_through_calls_and_re_exports():
    files = {
        "ds__init": "from .tools import decorate\n@decorate\ndef f(): ...",
        "ds__tools": "from .deep import decorate",
        "ds__deep": "import torch\ndef decorate(f):\n    return torch.dist.log(f)\ndef g():\n    torch.dist.barrier()",
    }
    assert stages(**files) == {("torch.dist.log", Stage.IMPORT), ("torch.dist.barrier", Stage.CALL)}


def test_an_import_under_a_condition_may_be_reached():
    files = {"ds__init": "if compatible():\n    from . import elastic", "ds__elastic": "from torch.dist import log"}
    assert stages(**files) == {("torch.dist.log", Stage.MAYBE)}


def test_a_guarded_use_and_a_module_that_cannot_be_read_stop_nothing():
    files = {"ds__init": "try:\n    from torch.dist import log\nexcept ImportError: pass", "ds__old": "print 'x'"}
    assert stages(**files) == set()


def test_releases_share_what_was_read_of_equal_files():
    memo: dict = {}
    for _ in range(2):
        list(PackageUses("ds", {"ds/__init__.py": b"import torch"}, memo=memo).places())
    assert len(memo) == 1


def test_the_modules_of_a_package_are_those_below_its_folder():
    files = {
        "megatron/core/__init__.py": b"",
        "megatron/core/a.py": b"",
        "megatron/other.py": b"",
        "megatron/core/x.txt": b"",
    }
    assert set(module_paths(files, "megatron.core")) == {"megatron.core", "megatron.core.a"}
