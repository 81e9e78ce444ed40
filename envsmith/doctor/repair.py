"""A repair as commands: the smallest change for pip, uv and conda. The repair itself was solved by ``check``."""

from __future__ import annotations

from collections.abc import Mapping

from envsmith.errors import UsageError
from envsmith.model.cell import Request
from envsmith.model.finding import Repair
from envsmith.model.version import Spec
from envsmith.sources.reports.facts import Facts
from envsmith.sources.reports.names import component_of

__all__ = ["commands_of", "repaired", "request_of"]

_HOST = frozenset({"driver", "gpu", "toolkit", "gcc", "clang", "glibc", "cmake", "openmpi"})
# Names on the package index and on conda-forge where they differ from the component's.
_PIP = {"transformer-engine": "transformer-engine[pytorch]"}
_CONDA = {"torch": "pytorch", "transformer-engine": "transformer-engine-torch"}
_NO_CONDA = frozenset({"megatron-core", "colossalai", "apex"})
_FOLLOWS = frozenset({"cuda", "nccl", "cudnn", "triton"})
# What torch declares and a wheel of its own brings: where only that is wrong, pinning it leaves torch alone.
_WHEELS = ("nccl", "cudnn")


def commands_of(repair: Repair) -> Mapping[str, str]:
    """``pip``, ``uv`` and ``conda`` command of the changed components, and ``host`` for what no package manager changes."""
    changed = {c.component: c.new for c in repair.changes if c.new is not None}
    removed = [c.component for c in repair.changes if c.new is None and c.component not in _HOST]
    cell = repair.cell.components
    alone = _alone(changed, cell)
    torch = changed.get("torch") or (cell.get("torch") if set(changed) & _FOLLOWS and not alone else None)
    pins = {n: v for n, v in changed.items() if n not in _HOST | _FOLLOWS | {"python", "torch"}}
    commands: dict[str, str] = {}
    wanted = [f"'{_PIP.get(n, n)}=={v}'" for n, v in pins.items()]
    if torch or wanted:
        plain = torch.split("+")[0] if torch else ""
        backend = _backend(torch, cell.get("cuda"))
        first = [f"'torch=={plain}'"] if torch else []
        commands["pip"] = (
            "pip install "
            + " ".join([*first, *wanted])
            + (
                f" --index-url <PyTorch's index of {backend}>"
                if torch and repair.cell.index == "pytorch" and backend
                else ""
            )
        )
        commands["uv"] = (
            "uv pip install "
            + " ".join([*first, *wanted])
            + (f" --torch-backend={backend}" if torch and backend else "")
        )
        conda = [f"{_CONDA.get(n, n)}={v}" for n, v in pins.items() if n not in _NO_CONDA]
        if torch:
            conda.insert(0, f"pytorch={plain}" + ("" if backend == "cpu" else "=cuda*"))
        rest = [n for n in pins if n in _NO_CONDA]
        if conda:
            commands["conda"] = (
                "conda install -c conda-forge "
                + " ".join(f"'{c}'" for c in conda)
                + (f" && pip install {' '.join(wanted)}" if rest else "")
            )
    if alone:
        _pinned(commands, alone, changed)
    if "python" in changed:
        commands["python"] = f"uv venv --python {changed['python']}   # then install everything again into it"
    if removed:
        commands["remove"] = f"pip uninstall -y {' '.join(removed)}"
    host = [f"{n}: {c.old or 'not given'} -> {c.new}" for c in repair.changes if (n := c.component) in _HOST]
    if host:
        commands["host"] = "; ".join(host)
    return commands


def _alone(changed: Mapping[str, str], cell: Mapping[str, str]) -> list[str]:
    """Requirements of the libraries' own wheels, when of what follows from torch nothing else changes; else none."""
    major = (cell.get("cuda") or "").split(".")[0]
    follows = set(changed) & _FOLLOWS
    if "torch" in changed or not follows or follows - set(_WHEELS) or not major.isdecimal():
        return []
    return [f"nvidia-{name}-cu{major}=={changed[name]}" for name in _WHEELS if name in changed]


def _pinned(commands: dict[str, str], wheels: list[str], changed: Mapping[str, str]) -> None:
    """Pins of single libraries before whatever else is installed; Conda has its own packages of them."""
    quoted = " ".join(f"'{w}'" for w in wheels)
    for tool, command in (
        ("pip", "pip install --force-reinstall --no-deps"),
        ("uv", "uv pip install --reinstall --no-deps"),
    ):
        more = commands.get(tool)
        commands[tool] = f"{command} {quoted}" + (f" && {more}" if more else "")
    conda = " ".join(f"'{name}={changed[name]}'" for name in _WHEELS if name in changed)
    commands["conda"] = f"conda install -c conda-forge {conda}" + (
        f" && {commands['conda']}" if "conda" in commands else ""
    )


def _backend(torch: str | None, cuda: str | None) -> str | None:
    local = (torch or "").partition("+")[2]
    if local:
        return local
    return None if cuda is None else "cpu" if cuda == "cpu" else "cu" + cuda.replace(".", "")


def repaired(facts: Facts, repair: Repair) -> dict[str, str]:
    """The given set after the repair: what it changed is changed, what it left out is gone, what follows from torch follows again."""
    changed = {c.component: c.new for c in repair.changes}
    given = {n: s.version for n, s in facts.components.items() if component_of(n)}
    if "torch" in changed or "cuda" in changed:
        given = {n: v for n, v in given.items() if n not in _FOLLOWS}
    given |= {n: v for n, v in changed.items() if v is not None}
    return {n: v for n, v in given.items() if changed.get(n, v) is not None}


def request_of(repair: Repair) -> tuple[Request, str]:
    """The request whose answer is the repair's cell, for the lock; :class:`UsageError` when the cell has no framework or no torch."""
    components = repair.cell.components
    if not repair.cell.frameworks or "torch" not in components:
        raise UsageError(
            "--fix-to: the repaired set names no framework or no torch, so there is no cell to lock",
            hint="envsmith lock --framework deepspeed, with the changes of the repair as --with",
        )
    frameworks = {n: Spec.exactly(components[n]) for n in repair.cell.frameworks}
    wanted = [
        n for n in components if n in {"torch", "cuda", "python"} or (n in repair.cell.chosen and n not in frameworks)
    ]
    constraints = {n: Spec.exactly(components[n]) for n in wanted if n not in _HOST}
    if "python" in constraints and components["python"].count(".") == 1:
        constraints["python"] = Spec.parse(components["python"])
    text = " ".join(
        [f"--framework {n}=={components[n]}" for n in frameworks]
        + [f"--with {n}=={components[n]}" for n in constraints]
    )
    driver = components.get("driver")
    gpus = tuple(g for g in components.get("gpu", "").split(",") if g)
    return Request(
        frameworks=frameworks, constraints=constraints, driver=driver, gpus=gpus, platform=repair.cell.platform
    ), text
