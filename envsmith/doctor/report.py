"""A diagnosis as text for a terminal and as a Markdown block for a bug report. Pure: values -> text."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from envsmith.base.text import clean, counted, redact, table_cell
from envsmith.doctor.diagnosis import Diagnosed, Diagnosis, Taxonomy, Weight
from envsmith.doctor.facts import Facts
from envsmith.doctor.needed_releases import has_wheel
from envsmith.doctor.parties import fix_of_parties, symbol_in
from envsmith.doctor.read.lines import component_of, fold
from envsmith.doctor.rule_conditions import Scene
from envsmith.doctor.signatures import Hit
from envsmith.doctor.vocabulary import words
from envsmith.frameworks import FRAMEWORKS, added_frameworks
from envsmith.knowledge.graph.load import components
from envsmith.knowledge.names.modules import distributions_by_module, near_module
from envsmith.knowledge.names.name_index import NameIndex
from envsmith.model.component import CARRIED, Role
from envsmith.model.finding import Finding, Repair
from envsmith.model.rule import Severity
from envsmith.model.version import minor_of

_HEAD = {"root": "root cause", "also": "also", "consequence": "follows from it", "note": "note"}
# The order of components in a table.
_ORDER = (
    *("torch", "cuda", "nccl", "cudnn", "triton", "python", *added_frameworks()),
    *("transformer-engine", "flash-attn", "driver", "gpu", "toolkit", "gcc", "glibc", "numpy"),
)


def _title(d: Diagnosed) -> str:
    """Return what a finding is called.

    A root that no message proves and that is not an error is only the first thing to look at.
    """
    if d.role == "root" and not d.confirmed and d.finding.severity is not Severity.ERROR:
        return "first to look at"
    return _HEAD[d.role]


# Emphasises a part of a report: the status or the head of a finding, whose word is that or its severity, or evidence.
Emphasis = Callable[[str, str], str]


def _plain(text: str, _word: str) -> str:
    return text


def _block(d: Diagnosed, emphasis: Emphasis) -> list[str]:
    severity = d.finding.severity.value
    head = emphasis(f"{_title(d)} ({severity}, confidence {d.confidence})", severity)
    lines = [f"{head}: {clean(d.finding.message)} [{d.finding.rule}]"]
    if d.where:
        lines.append(f"  seen:  {clean(d.where)}" + (f": {clean(d.quote)[:200]}" if d.quote else ""))
    if d.finding.inferred:
        lines.append("  inferred: " + ", ".join(f"{k} {v}" for k, v in d.finding.inferred.items()))
    if d.finding.fix:
        lines.append(f"  fix:   {clean(d.finding.fix)}")
    lines += [f"         $ {clean(line)}" for line in d.lines]
    if evidence := d.finding.evidence:
        further = f" (and {len(evidence) - 1} more)" if len(evidence) > 1 else ""
        lines.append(emphasis(f"  evidence: {evidence[0]}{further}", "evidence"))
    return lines


def as_text(diagnosis: Diagnosis, *, notes: bool = False, emphasis: Emphasis = _plain) -> str:
    """Return the root cause, what follows, other findings, the repair, and what was and was not looked at."""
    lines = [f"status: {emphasis(diagnosis.status, diagnosis.status)}"]
    visible = [d for d in diagnosis.diagnosed if d.role != "note" or notes or d.where or d.score >= Weight.SHOWN]
    for role in ("root", "also", "consequence", "note"):
        for d in visible:
            if d.role == role:
                lines += _block(d, emphasis)
    hidden = len(diagnosis.diagnosed) - len(visible)
    if not diagnosis.diagnosed:
        subject = "speaks against this environment" if diagnosis.status != "unknown" else "envsmith knows"
        lines.append(f"nothing was found that {subject}")
    elif diagnosis.root is None:
        lines.append("nothing but notes was found")
    if hidden:
        lines.append(f"{counted(hidden, 'more note')} about what is merely worth knowing (--all shows them)")
    lines += [f"two sources disagree: {clean(text)}" for text in diagnosis.facts.disagreements[:8]]
    lines += _repair(diagnosis)
    lines += ["", *_understood(diagnosis)]
    lines += [f"checked: {clean(text)}" for text in diagnosis.checked]
    lines += [f"not checked: {clean(text)}" for text in diagnosis.not_checked]
    lines += [f"not known: {clean(text)}" for text in diagnosis.unknown[:8]]
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
        kinds = ", ".join(read.kinds) or "plain text"
        size = f", {read.lines} lines" if read.lines else ""
        lines.append(
            f"understood: {clean(read.source)}: {kinds} ({read.facts} facts{size})"
            + "".join(f"; {clean(n)}" for n in read.notes)
        )
    return lines


def as_markdown(diagnosis: Diagnosis) -> str:
    """Return a block for a bug report, without names and secrets: versions, findings, what was not looked at."""
    facts = diagnosis.facts
    lines = ["### Environment (envsmith doctor)", "", "| component | version | read from |", "|---|---|---|"]
    names = [n for n in _ORDER if n in facts.components] + sorted(set(facts.components) - set(_ORDER))
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
    for d in diagnosis.diagnosed:
        lines += _item(d) if d.role != "note" or d.where else []
    if not diagnosis.diagnosed:
        lines.append("- nothing was found")
    lines += ["", *(f"Not checked: {_cell(text)}" for text in diagnosis.not_checked)]
    return "\n".join(lines)


def _item(d: Diagnosed) -> list[str]:
    title = f"{_title(d)}** ({d.finding.severity.value}, confidence {d.confidence})"
    lines = [f"- **{title} `{d.finding.rule}`: {_cell(d.finding.message)}"]
    if d.where:
        quote = f": `{_cell(d.quote)[:200].replace('`', chr(39))}`" if d.quote else ""
        lines.append(f"  - seen at {_cell(d.where)}{quote}")
    if d.finding.fix:
        lines.append(f"  - fix: {_cell(d.finding.fix)}")
    return lines


def _cell(text: str) -> str:
    return table_cell(redact(clean(text)))


# What a message says and asks for, with the versions that it and the facts name.

# Libraries whose own number is CUDA's major.
_MAJOR = re.compile(r"^lib(?:cudart|cublas|cublasLt|nvrtc|nvJitLink|cupti)\.so\.(1[1-9])\b")
# The torch build of each CUDA major that most machines of that major can use.
_BUILD = {"11": "cu118", "12": "cu126", "13": "cu130"}
# Groups of patterns that a message names in brackets.
_NAMED = (
    "package",
    "need",
    "library",
    "tool",
    "symbol",
    "toolkit",
    "cuda",
    "gpu",
    "op",
    "spec",
    "owner",
    "user",
    "peer",
)


def better_fix(finding: Finding, taxonomy: Taxonomy, facts: Facts, twin: Hit | None) -> str | None:
    """Return the fix of a rule, or a nearer one that the message itself or the known versions give."""
    if twin and {"spec", "floor", "limit"} & set(twin.groups):
        return fix_of(twin, facts)
    if taxonomy.group == "cuda-torch-mismatch" and {"toolkit", "cuda"} <= set(finding.components):
        return _cuda_fix(facts) or finding.fix
    return finding.fix


def message_of(hit: Hit, facts: Facts) -> str:
    """Return the message of a signature with what its hit names."""
    if message := variant_of(hit, facts, "message"):
        return message
    groups = hit.groups
    message = _filled(hit.signature.message, hit)
    named = [
        f"{name.replace('_', '-')} {value}"
        for name, value in groups.items()
        if name in _NAMED and (name != "owner" or "package" not in groups) and value not in message
    ]
    if symbol := symbol_in(hit.text):
        named.append(f"symbol {symbol.readable}, which is {symbol.component}'s")
    return message + (f" ({', '.join(named)})" if named else "")


# A place for what a pattern caught: `port {port}`, with what stands there where it caught nothing: `{port|'29500'}`.
_CAUGHT = re.compile(r"\{([a-z_]+)(?:\|'([^'}]*)')?\}")


def _filled(text: str, hit: Hit) -> str:
    words = {"distribution": _distribution(hit.groups.get("package")), **hit.groups}
    return _CAUGHT.sub(lambda match: words.get(match[1]) or (match[0] if match[2] is None else match[2]), text)


# What is added to the groups of a hit: the conditions of variants may name it.
_ADDED = (
    "needs",
    "told",
    "way",
    "pythons",
    "header_package",
    "absent",
    "build",
    "ended",
    "platform",
    "parts",
    "requirements",
)
# A release that a command asks for.
_REQUIREMENT = re.compile(r"'([\w.\[\]-]+[<>=!~]=?[^']*)'|\b(pip install [A-Za-z][\w.-]*)$")


def fix_of(hit: Hit, facts: Facts) -> str:
    """Return the fix of a signature, or a nearer one where the message or the facts name versions."""
    signature = hit.signature
    if fix := fix_of_parties(hit) or variant_of(hit, facts, "fix"):
        return fix
    if requirement := requirement_of(hit):
        user = hit.groups.get("who")
        return f"{requirement}: pip install '{requirement}'" + (f", or another release of {user}." if user else ".")
    return (signature.group == "cuda-torch-mismatch" and _cuda_fix(facts)) or _filled(signature.fix, hit)


def lines_of(hit: Hit, fix: str) -> tuple[str, ...]:
    """Return the exact lines to type for a fix. Those that install another release than a nearer fix are left out."""
    if requirement := requirement_of(hit):
        return (f"pip install '{requirement}'",)
    if fix_of_parties(hit):
        return ()
    lines = tuple(_filled(line, hit).strip() for line in hit.signature.lines)
    is_nearer = not fix.endswith(_filled(hit.signature.fix, hit))
    return tuple(line for line in lines if not is_nearer or all("".join(r) in fix for r in _REQUIREMENT.findall(line)))


def variant_of(hit: Hit, facts: Facts, part: str) -> str | None:
    """Return the message, fix or cause of the first variant that has one and whose conditions the hit meets."""
    signature, groups = hit.signature, hit.groups
    if not signature.variants:
        return None
    words: dict[str, str | None] = {
        name: None for pattern in signature.match for name in re.compile(pattern).groupindex
    }
    words |= {"fix": _filled(signature.fix, hit), **dict.fromkeys(_ADDED), **groups}
    symbol, major = symbol_in(hit.text), _MAJOR.search(groups.get("library", ""))
    words |= {"wheel": symbol.wheel if symbol else None, "major": major[1] if major else None}
    words["carried"] = major[1] if major and (facts.version("cuda") or "").split(".")[0] == major[1] else None
    limit = groups.get("spec", "").strip().rstrip(",.") or (f"<={groups['limit']}" if "limit" in groups else "")
    words |= {"range": limit.replace(" ", ""), "distribution": _distribution(groups.get("package"))}
    words["meant"] = near_module(groups.get("package", ""))
    pinned = component_of(groups.get("need", "")) if "pin" in groups else None
    words["elsewhere"] = pinned if has_wheel(pinned, groups.get("pin", ""), facts.version("python")) else None
    scene = Scene(facts, words=words)
    text = next((t for v in signature.variants if scene.meets(v.when) and (t := getattr(v, part))), None)
    return scene.fill(text) if text else None


def _distribution(module: str | None) -> str | None:
    """Return the distribution that brings a module."""
    if module is None:
        return None
    root = module.split(".")[0]
    framework = next((f.name for f in FRAMEWORKS.values() if f.module == module), None)
    return framework or distributions_by_module().get(root) or NameIndex.installed().roots.get(root) or fold(root)


def _cuda_fix(facts: Facts) -> str | None:
    """Return the two ways out of a toolkit that is not of torch's CUDA."""
    toolkit, cuda = facts.version("toolkit"), facts.version("cuda")
    if not toolkit or not cuda or cuda == "cpu":
        return None
    has, needs = (minor_of(version) for version in (toolkit, cuda))
    if has == needs:  # they are not what is wrong
        return None
    major = has.split(".")[0]
    toolkit_way = f"Align nvcc and torch: install the CUDA toolkit {needs} beside {has} and export CUDA_HOME=/usr/local/cuda-{needs}"
    build = _BUILD.get(major)
    if build is None:
        return f"{toolkit_way}."
    return (
        f"{toolkit_way}; or install the torch build of the toolkit's major ({major}.x):"
        f" uv pip install torch --torch-backend={build} (pip: PyTorch's index for {build})."
    )


def requirement_of(hit: Hit) -> str | None:
    """Return the requirement that a message tells, as pip takes it: ``torch>=2.3``, or the package alone."""
    groups, tells = hit.groups, hit.signature.tells
    need = groups.get("need") if tells == "need" else tells
    bounds = (
        f"{sign}{groups[name]}" for name, sign in (("exact", "=="), ("floor", ">="), ("ceiling", "<")) if name in groups
    )
    spec = groups.get("spec") or next(bounds, "")
    if not need or (tells != "need" and not spec):
        return None
    component = component_of(need)
    names = components().by_name[component].distributions if component else ()
    name = fold(need) if fold(need) in names else next(iter(names), need)
    return f"{name}{spec.replace(' ', '')}"


# A repair as commands: the smallest change for pip, uv and conda. The repair itself was solved by ``check``.


# What torch declares and a wheel of its own brings: where only that is wrong, pinning it leaves torch alone.
_WHEELS = ("nccl", "cudnn")


def commands_of(repair: Repair) -> Mapping[str, str]:
    """Return a repair as commands of ``pip``, ``uv`` and ``conda``, and what no package manager changes as ``host``."""
    host_names = {component.name for component in components().with_role(Role.HOST)}
    changed = {c.component: c.new for c in repair.changes if c.new is not None}
    removed = [c.component for c in repair.changes if c.new is None and c.component not in host_names]
    cell = repair.cell.components
    libraries = _single_libraries(changed, cell)
    follows_torch = bool(set(changed) & set(CARRIED)) and not libraries
    torch = changed.get("torch") or (cell.get("torch") if follows_torch else None)
    pins = {n: v for n, v in changed.items() if n not in {*CARRIED, "python", "torch"} | host_names}
    commands = _installations(torch, backend_of(torch, cell.get("cuda")), pins, repair.cell.index)
    if libraries:
        _put_before(commands, libraries)
    if "python" in changed:
        commands["python"] = f"uv venv --python {changed['python']}   # then install everything again into it"
    if removed:
        commands["remove"] = f"pip uninstall -y {' '.join(removed)}"
    if host := [c for c in repair.changes if c.component in host_names]:
        commands["host"] = "; ".join(f"{c.component}: {c.old or 'not given'} -> {c.new}" for c in host)
    return commands


def _installations(
    torch: str | None, backend: str | None, pins: Mapping[str, str], index: str | None
) -> dict[str, str]:
    """Return what installs torch and the pinned packages. Conda takes from pip what its channel does not have."""
    if not torch and not pins:
        return {}
    names = words()
    pinned = [f"'{names.pip_names.get(n, n)}=={v}'" for n, v in pins.items()]
    conda = [f"'{names.conda_names.get(n, n)}={v}'" for n, v in pins.items() if n not in names.not_on_conda]
    pip_index = uv_backend = ""
    requirements = pinned
    if torch:
        plain = torch.split("+")[0]
        requirements = [f"'torch=={plain}'", *pinned]
        conda.insert(0, f"'{names.conda_names['torch']}={plain}{'' if backend == 'cpu' else '=cuda*'}'")
        pip_index = f" --index-url <PyTorch's index of {backend}>" if index == "pytorch" and backend else ""
        uv_backend = f" --torch-backend={backend}" if backend else ""
    commands = {
        "pip": f"pip install {' '.join(requirements)}{pip_index}",
        "uv": f"uv pip install {' '.join(requirements)}{uv_backend}",
    }
    if conda:
        from_pip = f" && pip install {' '.join(pinned)}" if set(pins) & set(names.not_on_conda) else ""
        commands["conda"] = f"conda install -c conda-forge {' '.join(conda)}{from_pip}"
    return commands


def _single_libraries(changed: Mapping[str, str], cell: Mapping[str, str]) -> dict[str, str]:
    """Return the libraries with wheels of their own, when of what follows from torch nothing else changes."""
    follows = set(changed) & set(CARRIED)
    major = (cell.get("cuda") or "").split(".")[0]
    if "torch" in changed or not follows or follows - set(_WHEELS) or not major.isdecimal():
        return {}
    return {
        f"nvidia-{name}-cu{major}=={changed[name]}": f"{name}={changed[name]}" for name in _WHEELS if name in changed
    }


def _put_before(commands: dict[str, str], libraries: Mapping[str, str]) -> None:
    """Pin single libraries before whatever else is installed. Conda has its own packages of them."""
    pip, conda = (" ".join(f"'{name}'" for name in names) for names in (libraries, libraries.values()))
    first = {
        "pip": f"pip install --force-reinstall --no-deps {pip}",
        "uv": f"uv pip install --reinstall --no-deps {pip}",
        "conda": f"conda install -c conda-forge {conda}",
    }
    for tool, command in first.items():
        commands[tool] = f"{command} && {commands[tool]}" if tool in commands else command


def backend_of(torch: str | None, cuda: str | None) -> str | None:
    """Return the word of ``--torch-backend`` for a build of torch, or ``None`` where its CUDA is not known."""
    local = (torch or "").partition("+")[2]
    if local:
        return local
    return None if cuda is None else "cpu" if cuda == "cpu" else "cu" + cuda.replace(".", "")
