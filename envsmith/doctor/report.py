"""A diagnosis as text for a terminal and as a Markdown block for a bug report. Pure: values -> text."""

from __future__ import annotations

import re
from collections.abc import Mapping

from envsmith.doctor.diagnosis import Diagnosed, Diagnosis, Taxonomy
from envsmith.doctor.facts import Facts
from envsmith.doctor.parties import asked, symbol_in
from envsmith.doctor.read.lines import component_of, fold
from envsmith.doctor.signatures import Hit, Signature
from envsmith.errors import UsageError
from envsmith.model.cell import Request
from envsmith.model.finding import Finding, Repair
from envsmith.model.rule import Severity
from envsmith.model.version import Spec
from envsmith.text import redact

_HEAD = {"root": "root cause", "also": "also", "consequence": "follows from it", "note": "note"}
_TERMINAL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f]")
_PATHS = (
    "torch",
    "cuda",
    "nccl",
    "cudnn",
    "triton",
    "python",
    "deepspeed",
    "megatron-core",
    "colossalai",
    "transformer-engine",
    "flash-attn",
    "driver",
    "gpu",
    "toolkit",
    "gcc",
    "glibc",
    "numpy",
)


def _plain(text: str) -> str:
    return _TERMINAL.sub("", text)


def _title(d: Diagnosed) -> str:
    """A root that no message proves and that is no error is only the first thing to look at."""
    if d.role == "root" and not d.confirmed and d.finding.severity is not Severity.ERROR:
        return "first to look at"
    return _HEAD[d.role]


def _block(d: Diagnosed) -> list[str]:
    severity = d.finding.severity.value
    lines = [f"{_title(d)} ({severity}, confidence {d.confidence}): {_plain(d.finding.message)} [{d.finding.rule}]"]
    if d.where:
        lines.append(f"  seen:  {_plain(d.where)}" + (f": {_plain(d.quote)[:200]}" if d.quote else ""))
    if d.finding.inferred:
        lines.append("  inferred: " + ", ".join(f"{k} {v}" for k, v in d.finding.inferred.items()))
    if d.finding.fix:
        lines.append(f"  fix:   {_plain(d.finding.fix)}")
    lines += [f"         $ {_plain(line)}" for line in d.lines]
    lines += [f"  evidence: {e}" for e in d.finding.evidence[:2]]
    return lines


def as_text(diagnosis: Diagnosis, *, notes: bool = False) -> str:
    """Root cause first, then what follows, other findings, the repair, and plainly what was and was not looked at."""
    lines = [f"status: {diagnosis.status}"]
    shown = [d for d in diagnosis.found if d.role != "note" or notes or d.where or d.score >= 20]
    for role in ("root", "also", "consequence", "note"):
        for d in shown:
            if d.role == role:
                lines += _block(d)
    hidden = len(diagnosis.found) - len(shown)
    if not diagnosis.found:
        lines.append("nothing was found that speaks against this environment")
    elif diagnosis.root is None:
        lines.append("nothing but notes was found")
    if hidden:
        lines.append(f"{hidden} more note{'s' * (hidden > 1)} about what is merely worth knowing (--all shows them)")
    lines += [f"two sources disagree: {_plain(text)}" for text in diagnosis.facts.disagreements[:8]]
    lines += _repair(diagnosis)
    lines += ["", *_understood(diagnosis)]
    lines += [f"checked: {_plain(text)}" for text in diagnosis.checked]
    lines += [f"not checked: {_plain(text)}" for text in diagnosis.not_checked]
    lines += [f"not known: {_plain(text)}" for text in diagnosis.unknown[:8]]
    return "\n".join(lines)


def _repair(diagnosis: Diagnosis) -> list[str]:
    if diagnosis.repair is None:
        return []
    lines = ["repair (nearest valid set, fewest components changed):"]
    lines += [f"  {c.component}: {c.old or '(not given)'} -> {c.new or '(left out)'}" for c in diagnosis.repair.changes]
    lines += [f"  {name + ':':<7} {command}" for name, command in diagnosis.commands.items()]
    return lines


def _understood(diagnosis: Diagnosis) -> list[str]:
    lines = []
    for read in diagnosis.facts.read:
        kinds = ", ".join(read.kinds) or "nothing that is known"
        size = f", {read.lines} lines" if read.lines else ""
        lines.append(
            f"understood: {_plain(read.source)}: {kinds} ({read.facts} facts{size})"
            + "".join(f"; {_plain(n)}" for n in read.notes)
        )
    return lines


def as_markdown(diagnosis: Diagnosis) -> str:
    """A block for a bug report: versions, findings, what was not looked at; without names and secrets."""
    facts = diagnosis.facts
    lines = ["### Environment (envsmith doctor)", "", "| component | version | read from |", "|---|---|---|"]
    names = [n for n in _PATHS if n in facts.components] + sorted(set(facts.components) - set(_PATHS))
    for name in names:
        stated = facts.components[name]
        lines.append(f"| {name} | {stated.version} | {_cell(stated.source)} |")
    if facts.gpus:
        lines.append(f"| GPUs | {len(facts.gpus)} x {_cell(facts.gpus[0])} | |")
    lines += [
        f"| {k} | {_cell(v)} | |"
        for k, v in sorted(facts.host.items())
        if k in {"os", "kernel", "machine", "in_container", "container", "infiniband", "driver_cuda"}
    ]
    variables = {k: v for k, v in facts.variables.items() if k.startswith(("NCCL_", "TORCH_", "CUDA_", "GLOO_", "LD_"))}
    if variables:
        lines += ["", "Variables: " + ", ".join(f"`{k}={_cell(v)[:80]}`" for k, v in sorted(variables.items())[:40])]
    if facts.limits:
        lines += [
            "",
            "Limits: " + ", ".join(f"{k} {'unlimited' if v < 0 else v}" for k, v in sorted(facts.limits.items())),
        ]
    lines += ["", f"### Findings: {diagnosis.status}", ""]
    for d in diagnosis.found:
        lines += _item(d) if d.role != "note" or d.where else []
    if not diagnosis.found:
        lines.append("- nothing was found")
    lines += ["", *(f"Not checked: {_cell(text)}" for text in diagnosis.not_checked)]
    return "\n".join(lines)


def _item(d: Diagnosed) -> list[str]:
    """A finding as an item of a Markdown list."""
    title = f"{_title(d)}** ({d.finding.severity.value}, confidence {d.confidence})"
    lines = [f"- **{title} `{d.finding.rule}`: {_cell(d.finding.message)}"]
    if d.where:
        quote = f": `{_cell(d.quote)[:200].replace('`', chr(39))}`" if d.quote else ""
        lines.append(f"  - seen at {_cell(d.where)}{quote}")
    if d.finding.fix:
        lines.append(f"  - fix: {_cell(d.finding.fix)}")
    return lines


def _cell(text: str) -> str:
    return redact(_plain(text)).replace("|", "\\|").replace("\n", " ")


# What a finding says and asks for, with the versions at hand: texts made from a signature, its hit and the facts.


# The first toolkit whose nvcc knows an architecture: NVIDIA's release notes of each toolkit, as in matrix/rules/toolkit.yaml (toolkit-gpu-min).
_NVCC_FLOOR = {
    "70": "9.0",
    "75": "10.0",
    "80": "11.0",
    "86": "11.1",
    "87": "11.4",
    "89": "11.8",
    "90": "11.8",
    "100": "12.8",
    "101": "12.8",
    "120": "12.8",
    "103": "12.9",
    "121": "12.9",
    "110": "13.0",
}
# Signatures whose message tells a requirement: of the package in the group ``need``, or always of the same one.
_TELLS_OF = {"megatron-te-floor": "transformer-engine"}
_TELL = frozenset(
    {"pip-incompatible", "transformers-deepspeed-floor", "release-floor-told", "package-told", *_TELLS_OF}
)
_SPELT = {"pytorch": "torch", "deepspeed": "deepspeed", "flash_attn": "flash-attn", "megatron_core": "megatron-core"}
# Libraries whose own number is CUDA's major.
_MAJOR = re.compile(r"^lib(?:cudart|cublas|cublasLt|nvrtc|nvJitLink|cupti)\.so\.(1[1-9])\b")
# The torch build of each CUDA major that most machines of that major can use.
_BUILD = {"11": "cu118", "12": "cu126", "13": "cu130"}


def better_fix(finding: Finding, taxonomy: Taxonomy, facts: Facts, twin: Hit | None) -> str | None:
    """What the message itself asks for, and the versions that are known here, say more than the rule in general."""
    if twin and {"spec", "floor", "limit"} & set(twin.groups):
        return mended(twin.signature, twin, facts)
    if taxonomy.group == "cuda-torch-mismatch" and {"toolkit", "cuda"} <= set(finding.components):
        return _cuda_fix(facts) or finding.fix
    return finding.fix


def told(signature: Signature, hit: Hit) -> str:
    """The message of a signature with what its hit names."""
    groups = hit.groups
    if signature.id == "pip-incompatible":
        need = groups.get("need", "")
        return f"{groups.get('who')} {groups.get('who_version')} requires {need}{groups.get('spec', '')}" + (
            f", and {groups['have']} {groups['have_version']} is installed."
            if "have" in groups
            else ", which is not installed."
        )
    named = [
        f"{k.replace('_', '-')} {v}"
        for k, v in groups.items()
        if k
        in {"package", "need", "library", "tool", "symbol", "toolkit", "cuda", "gpu", "op", "spec", "owner", "user"}
        and (k != "owner" or "package" not in groups)
    ]
    if symbol := symbol_in(hit.text):
        named.append(f"symbol {symbol.readable}, which is {symbol.component}'s")
    return signature.message + (f" ({', '.join(named)})" if named else "")


def mended(signature: Signature, hit: Hit, facts: Facts) -> str:
    """What to do: the signature's fix, or a nearer one where the message or the facts name versions."""
    groups = hit.groups
    if of_parties := asked(hit, facts):
        return of_parties
    if signature.id == "cuda-library-symbol" and (symbol := symbol_in(hit.text)) and symbol.wheel:
        return (
            f"{signature.fix} Where the library itself is too old for what asks: pip install --upgrade {symbol.wheel}."
        )
    if signature.id == "shared-library-missing" and (major := _MAJOR.search(groups.get("library", ""))):
        return f"{groups['library']} belongs to CUDA {major[1]}: install the build of what asks for it that is made for the CUDA of this torch (its name or extra says cu12 or cu13), or a torch for CUDA {major[1]}; where torch itself asks: pip install --force-reinstall torch brings its nvidia wheels back."
    if signature.id == "pip-resolution" and "needs" in groups:
        return f"{signature.fix} What was asked for stands against: {groups['needs']}."
    if asks := _needed(signature, groups):
        return f"{asks}: pip install '{asks}'" + (
            f", or another release of {groups['who']}." if "who" in groups else "."
        )
    if signature.id == "te-flash-attn-range" and ("spec" in groups or "limit" in groups):
        spec = groups.get("spec", "").strip().rstrip(",.") or f"<={groups.get('limit')}"
        return f"Install flash-attn{spec.replace(' ', '')}: pip install --no-build-isolation 'flash-attn{spec.replace(' ', '')}'; or NVTE_FLASH_ATTN=0 (on GPUs before Ampere uninstall it)."
    if signature.id == "optional-missing" and "package" in groups:
        return f"pip install {fold(groups['package'].split('.')[0]) if groups['package'] != 'megatron.core' else 'megatron-core'} in this environment."
    if signature.id == "pip-requires-python" and "spec" in groups:
        return f"Use a Python that satisfies {groups['spec']}: uv venv --python 3.12."
    if signature.id == "cxx-std-torch":
        std = groups.get("std")
        if std == "20":
            return "deepspeed>=0.19.5 (it asks for C++20 with torch 2.12 and later), or torch<2.12; g++ 11 or later."
        return "deepspeed>=0.11.0 (0.9.3 for the optimizer ops; async_io asks for C++17 from 0.11.0), or torch<2.1."
    if signature.id == "nvcc-arch-unknown" and (floor := _NVCC_FLOOR.get(groups.get("gpu", ""))):
        return f"nvcc>={floor}: compute_{groups['gpu']} needs a toolkit of CUDA {floor} or later (set CUDA_HOME to it; same major as torch's CUDA). If no such GPU is in use, leave it out: export TORCH_CUDA_ARCH_LIST to the GPUs at hand."
    if signature.group == "cuda-torch-mismatch" and (aligned := _cuda_fix(facts)):
        return aligned
    if signature.id == "driver-too-old" and (level := facts.host.get("driver_cuda")):
        return f"{signature.fix} The driver here supports CUDA {level}."
    return signature.fix


def _cuda_fix(facts: Facts) -> str | None:
    """The two ways out of a toolkit that is not of torch's CUDA, with the versions at hand."""
    toolkit, cuda = facts.version("toolkit"), facts.version("cuda")
    if not toolkit or not cuda or cuda == "cpu":
        return None
    have, want = ".".join(toolkit.split(".")[:2]), ".".join(cuda.split(".")[:2])
    if have == want:  # they are not what is wrong
        return None
    build = _BUILD.get(have.split(".")[0], "cu" + have.replace(".", ""))
    return (
        f"Align nvcc and torch: install the CUDA toolkit {want} beside {have} and export CUDA_HOME=/usr/local/cuda-{want}; or install the torch build of the toolkit's"
        f" major ({have.split('.')[0]}.x): uv pip install torch --torch-backend={build} (pip: PyTorch's index for {build})."
    )


def typed(signature: Signature, hit: Hit) -> tuple[str, ...]:
    """The exact lines to type."""
    asks = _needed(signature, hit.groups)
    return (f"pip install '{asks}'",) if asks else signature.lines


def _needed(signature: Signature, groups: Mapping[str, str]) -> str | None:
    """The requirement that a message tells, as pip takes it: ``torch>=2.3``; where it names no release, the package alone."""
    need = _TELLS_OF.get(signature.id) or groups.get("need")
    if signature.id not in _TELL or not need:
        return None
    spec = groups.get("spec") or (f">={groups['floor']}" if "floor" in groups else "")
    if signature.id in _TELLS_OF and not spec:
        return None
    return f"{_SPELT.get(need.lower(), need)}{spec.replace(' ', '')}"


# A repair as commands: the smallest change for pip, uv and conda. The repair itself was solved by ``check``.


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
