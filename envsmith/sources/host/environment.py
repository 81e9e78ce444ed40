"""The environment of one interpreter: its Python, its distributions, its torch, files that are gone; with ``deep``, what can be imported."""

# ruff: noqa: PTH110, PTH112
# Plain os calls: a diagnosis looks at hundreds of paths within its second, and a Path for each is most of that.

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path

from envsmith.sources.host.looking import output_of, text_of
from envsmith.sources.reports.facts import Draft
from envsmith.sources.reports.names import note_distribution
from envsmith.sources.reports.words import first_version, fold

__all__ = ["distributions", "import_what_is_there", "lost_files", "python_of", "torch_of"]

_VITAL = re.compile(r"torch|nvidia_\w+|triton|flash_attn|transformer_engine\w*|deepspeed|colossalai|numpy")


def python_of(draft: Draft, interpreter: Path, notes: list[str]) -> list[Path]:
    """Version of the interpreter and its site folders, without starting it where the layout tells."""
    if interpreter.resolve() == Path(sys.executable).resolve() and interpreter.parent == Path(sys.executable).parent:
        draft.component("python", ".".join(map(str, sys.version_info[:3])), str(interpreter), 4)
        draft.tools["python"] = str(interpreter)
        return [Path(p) for p in sys.path if p.endswith(("site-packages", "dist-packages")) and os.path.isdir(p)]
    root = interpreter.parent.parent
    text = text_of(root / "pyvenv.cfg")
    version = re.search(r"^version(?:_info)?\s*=\s*(3\.\d+\.\d+)", text, re.MULTILINE)
    folders = sorted(root.glob("lib*/python3.*/site-packages"))
    if version and folders and not _reaches_out(text, folders):
        draft.component("python", version[1], str(interpreter), 4)
        return folders
    told = output_of(
        [
            str(interpreter),
            "-I",
            "-c",
            "import sys,site;print(sys.version.split()[0]);print('\\n'.join(p for p in sys.path if 'packages' in p))",
        ],
        5.0,
    ).split("\n")
    if told and (found := first_version(told[0])):
        draft.component("python", found, str(interpreter), 4)
        return [Path(p) for p in told[1:] if p and os.path.isdir(p)]
    notes.append(f"{interpreter} cannot be started: its packages were not looked at")
    return folders


def _reaches_out(config: str, folders: Iterable[Path]) -> bool:
    """True when the environment sees more than its own folder: the system's packages, or what a ``.pth`` file names."""
    if re.search(r"^include-system-site-packages\s*=\s*true", config, re.MULTILINE):
        return True
    lines = (line for folder in folders for path in folder.glob("*.pth") for line in text_of(path, 20_000).split("\n"))
    return any(line.strip() and not line.startswith(("#", "import ", "import\t")) for line in lines)


def distributions(draft: Draft, site: Iterable[Path]) -> None:
    """Name and version from the folder names of ``*.dist-info``, as pip and importlib.metadata find them; a folder without METADATA is a torso."""
    torsos = []
    for folder in site:
        try:
            entries = sorted(
                entry.name for entry in os.scandir(folder) if entry.name.endswith((".dist-info", ".egg-info"))
            )
        except OSError:
            continue
        for entry in entries:
            name, _, version = entry.rsplit(".", 1)[0].partition("-")
            has_metadata = (
                (folder / entry / "METADATA").exists()
                or (folder / entry / "PKG-INFO").exists()
                or (folder / entry).is_file()
            )
            if not has_metadata:
                torsos.append(name)
                continue
            if fold(name) in draft.distributions and draft.distributions[fold(name)] != version:
                draft.disagreements.append(
                    f"{fold(name)}: {draft.distributions[fold(name)]} and {version} are both installed ({folder})"
                )
                continue
            note_distribution(draft, name, version.split("-py3")[0], str(folder), 4)
    if torsos:
        draft.host["broken_distributions"] = ", ".join(torsos[:20])


def lost_files(draft: Draft, site: Iterable[Path]) -> None:
    """Shared libraries that ``RECORD`` of torch and its companions names and that are gone (another package overwrote or removed them)."""
    lost = []
    for folder in site:
        for info in folder.glob("*.dist-info"):
            if not _VITAL.fullmatch(info.name.partition("-")[0].lower()):
                continue
            names = re.findall(r"^([^,\n]{1,200}\.so(?:\.\d+)*),", text_of(info / "RECORD", 4_000_000), re.MULTILINE)
            lost += [name for name in names[:400] if not os.path.exists(folder / name)]
    if lost:
        draft.host["lost_files"] = ", ".join(lost[:8]) + (f" and {len(lost) - 8} more" if len(lost) > 8 else "")


def torch_of(draft: Draft, site: Iterable[Path]) -> None:
    """Build facts of torch from the files it was installed with: version.py names CUDA, config strings the ABI."""
    for folder in site:
        text = text_of(folder / "torch" / "version.py", 4000)
        if not text:
            continue
        if match := re.search(r"__version__\s*=\s*'([^']{1,60})'", text):
            draft.component("torch", match[1], f"{folder}/torch/version.py", 4)
            draft.components["torch"] = draft.components["torch"].__class__(
                version=match[1], source=f"{folder}/torch/version.py", strength=4
            )
        cuda = re.search(r"^cuda[^=]{0,40}=\s*(?:'([\d.]+)'|None)", text, re.MULTILINE)
        if cuda:
            draft.components.pop("cuda", None)
            draft.component("cuda", cuda[1] or "cpu", f"{folder}/torch/version.py", 4)
        headers = text_of(folder / "nvidia" / "nccl" / "include" / "nccl.h", 20_000)
        parts = re.findall(r"#define NCCL_(?:MAJOR|MINOR|PATCH) (\d+)", headers)
        if len(parts) == 3:
            draft.components.pop("nccl", None)
            draft.component("nccl", ".".join(parts), f"{folder}/nvidia/nccl/include/nccl.h", 4)
        return


_PROBE = """
import json, sys
out = {}
for name in ("torch", "deepspeed", "megatron.core", "colossalai", "transformer_engine.pytorch", "flash_attn", "triton", "numpy"):
    try:
        module = __import__(name, fromlist=["x"])
        out[name] = str(getattr(module, "__version__", "imported"))
        if name == "torch":
            out["cuda"] = str(module.version.cuda)
            out["available"] = str(module.cuda.is_available())
            if module.cuda.is_available():
                out["nccl"] = ".".join(map(str, module.cuda.nccl.version()))
                out["arch_list"] = " ".join(module.cuda.get_arch_list())
    except ModuleNotFoundError as error:
        if error.name and not name.startswith(error.name.split(".")[0]):
            out["!" + name] = repr(error)[:600]
    except BaseException as error:
        import traceback
        out["!" + name] = "".join(traceback.format_exception_only(type(error), error))[:600]
print("ENVSMITH " + json.dumps(out))
"""


def import_what_is_there(draft: Draft, interpreter: Path, notes: list[str]) -> None:
    """Import what is installed in the judged environment; the errors become a text that signatures are looked for in (``host["deep"]``)."""
    import json

    text = output_of([str(interpreter), "-c", _PROBE], 120.0)
    line = next((row for row in text.split("\n") if row.startswith("ENVSMITH ")), None)
    if line is None:
        notes.append("--deep: the interpreter ended without an answer")
        draft.host["deep"] = text[-4000:]
        return
    told = json.loads(line.removeprefix("ENVSMITH "))
    notes.append("--deep: imported " + ", ".join(f"{n} {v}" for n, v in told.items() if not n.startswith("!"))[:400])
    errors = [f"{name.removeprefix('!')}: {value}" for name, value in told.items() if name.startswith("!")]
    draft.host["deep"] = "\n".join([*errors, *(row for row in text.split("\n") if not row.startswith("ENVSMITH "))])[
        :20_000
    ]
    if "nccl" in told:
        draft.component("nccl", told["nccl"], "torch.cuda.nccl.version()", 4)
