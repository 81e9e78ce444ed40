"""What the lock asks of uv, word by word, and what it makes of the answers: a uv that follows a script, without an index."""

from __future__ import annotations

import dataclasses
import functools
import gzip
import hashlib
import io
import json
import re
import tarfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from lock_helpers import bad, fine

from envsmith.errors import LockError, NetworkError
from envsmith.lock import store
from envsmith.lock.index.uv import Finished, explain_failure
from envsmith.lock.pip_files import image_layers, layer_text, parse_beside, pylock_text, requirement_files
from envsmith.lock.resolve import Beside, Resolver, lock_pip
from envsmith.model.cell import Cell
from envsmith.model.component import ComponentTable
from envsmith.model.finding import Change
from envsmith.model.lock import Compile, GivenArchive, Lock

Golden = Callable[[str, str], None]
PLACE = "https://files.example"
# Name to version and to what it requires.
INDEX = {
    "deepspeed": ("0.18.5", ("numpy", "torch")),
    "ninja": ("1.11", ()),
    "numpy": ("2.3.0", ()),
    "nvidia-nccl-cu12": ("2.27.5", ()),
    "setuptools": ("80.9.0", ()),
    "torch": ("2.9.1", ("nvidia-nccl-cu12", "setuptools")),
}


def _sdist(name: str, version: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        content = b'[build-system]\nrequires = ["tiny-backend>=1"]\nbuild-backend = "tiny_backend"\n'
        member = tarfile.TarInfo(f"{name}-{version}/pyproject.toml")
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    return gzip.compress(buffer.getvalue(), mtime=0)


SDIST = _sdist("tiny", "1.5")


class ScriptedUv:
    """Answers with the packages of a small index, in the versions that the constraints name, and keeps what it was asked."""

    version = "uv 0.13.0"

    def __init__(
        self, packages: Mapping[str, tuple[str, tuple[str, ...]]], *, warnings: Sequence[str] = (), offline: bool = True
    ) -> None:
        self.packages, self.warnings, self.offline = dict(packages), list(warnings), offline
        self.questions: list[str] = []

    def run(self, arguments: Sequence[str], on_line: Callable[[str], None] | None = None) -> Finished:
        self._note(arguments)
        if "--offline" in arguments and not self.offline:
            return Finished(status=2, stdout="", lines=("error: offline",))
        resolved = self._resolved(arguments)
        if "--output-file" in arguments:
            Path(arguments[arguments.index("--output-file") + 1]).write_text(self._pylock(resolved))
        lines = (self.warnings.pop(0),) if self.warnings else ()
        for line in lines if on_line else ():
            on_line(line)
        given = re.findall(r"^(\S+) @ \S+$", Path(arguments[2]).read_text(), re.MULTILINE)
        stdout = self._annotated(resolved) + "".join(f"{name} @ file:///x\n    # via -r request.in\n" for name in given)
        return Finished(status=0, stdout=stdout, lines=lines)

    def check(self, arguments: Sequence[str], *, work: str) -> Finished:
        finished = self.run(arguments)
        if finished.status:
            raise explain_failure(finished, work=work)
        return finished

    def _note(self, arguments: Sequence[str]) -> None:
        files = [Path(word) for word in arguments if word.endswith((".in", ".txt"))]
        words = [Path(word).name if word.startswith("/") else word for word in arguments]
        if "--python" in words:
            words[words.index("--python") + 1] = "PYTHON"
        texts = [re.sub(r"file:///\S*/", "file:///", file.read_text()) for file in files]
        self.questions.append(
            " ".join(words)
            + "\n"
            + "".join(f"  {file.name}: {text.split()}\n" for file, text in zip(files, texts, strict=True))
        )

    def _resolved(self, arguments: Sequence[str]) -> dict[str, str]:
        text = "\n".join(Path(word).read_text() for word in arguments if word.endswith((".in", ".txt")))
        names = {"tiny-backend"} if "tiny-backend" in text and "numpy\n" not in text else set(self.packages)
        fixed = dict(re.findall(r"^([a-z0-9-]+)==(\S+)$", text, re.MULTILINE))
        return {name: fixed.get(name, self.packages.get(name, ("1.0", ()))[0]) for name in sorted(names)}

    def _pylock(self, resolved: Mapping[str, str]) -> str:
        text = 'lock-version = "1.0"\ncreated-by = "uv"\n'
        for name, version in resolved.items():
            text += f'[[packages]]\nname = "{name}"\nversion = "{version}"\n'
            file = f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
            digest, kind = hashlib.sha256(file.encode()).hexdigest(), "wheels"
            entry = f'{{ url = "{PLACE}/{file}", size = 7, hashes = {{ sha256 = "{digest}" }} }}'
            if name == "tiny":
                digest = hashlib.sha256(SDIST).hexdigest()
                kind, entry = "sdist", f'{{ url = "{PLACE}/tiny-1.5.tar.gz", hashes = {{ sha256 = "{digest}" }} }}'
            text += f"{kind} = [{entry}]\n" if kind == "wheels" else f"sdist = {entry}\n"
        return text

    def _annotated(self, resolved: Mapping[str, str]) -> str:
        lines = []
        for name, version in resolved.items():
            parents = sorted(
                parent for parent, (_, needs) in self.packages.items() if name in needs and parent in resolved
            )
            lines += [f"{name}=={version}", *(f"    # via {parent}" for parent in parents or ["-r request.in"])]
        return "\n".join(lines) + "\n"


@pytest.fixture
def chosen() -> Cell:
    components = {"deepspeed": "0.18.5", "torch": "2.9.1+cu128", "cuda": "12.8", "python": "3.11", "nccl": "2.27.5"}
    return Cell(components=components, chosen=("deepspeed", "torch", "cuda", "python"))


def _locked(cell: Cell, table: ComponentTable, uv: ScriptedUv, **more: Any) -> Lock:
    resolver: Any = {"judge": fine, **more.pop("resolver", {})}
    return lock_pip(cell, exclude_newer="2026-11-20", resolver=Resolver(table=table, uv=uv, **resolver), **more)  # type: ignore[arg-type]


def _told(uv: ScriptedUv, lock: Lock) -> str:
    return "".join(uv.questions) + lock.text() + json.dumps(dict(lock.facts)) + "\n"


WARN = "warning: `{}` is missing an upload date"
TINY = {**INDEX, "tiny": ("1.5", ("numpy",))}
ADDRESS = f"{PLACE}/my.tar.gz"
GIVEN = GivenArchive(
    name="my-ops", version="0.1", address=ADDRESS, sha256=hashlib.sha256(SDIST).hexdigest(), size=5, requires=("numpy>=1", "torch")
)  # fmt: skip
CONVERSATIONS: dict[str, tuple[ScriptedUv, dict[str, Any], dict[str, Any]]] = {
    "plain": (ScriptedUv(INDEX), {}, {}),
    "own-index": (ScriptedUv(INDEX | {"torch": ("2.9.1+cu128", ("nvidia-nccl-cu12",))}), {"index": "pytorch"}, {}),
    "other-nccl": (ScriptedUv(INDEX | {"nvidia-nccl-cu12": ("2.26.2", ())}), {}, {}),
    "constraints": (ScriptedUv(INDEX), {}, {"beside": Beside(constraints=(("numpy<3", "a-rule"), ("filelock<4", "b-rule")))}),
    "repaired": (
        ScriptedUv(INDEX), {},
        {"resolver": {"judge": functools.partial(bad, repair=(Change(component="numpy", old="2.3.0", new="1.26.4"),))}},
    ),
    "find-links": (ScriptedUv(INDEX), {}, {"resolver": {"find_links": ("wheels", "more")}}),
    "undated-once": (ScriptedUv(INDEX, warnings=[WARN.format("numpy-2.3.0-py3-none-any.whl")]), {}, {}),
    "undated-thrice": (
        ScriptedUv(INDEX, warnings=[WARN.format(f"{name}-1.0.tar.gz") for name in ("numpy", "Ninja", "torch")]), {}, {},
    ),
    "undated-always": (ScriptedUv(INDEX, warnings=[WARN.format(f"a{number}-1.0.tar.gz") for number in "abcdefghijk"]), {}, {}),
    "undated-the-same": (ScriptedUv(INDEX, warnings=[WARN.format("numpy-1.tar.gz")] * 2), {}, {}),
    "cache-is-off": (ScriptedUv(INDEX, offline=False), {}, {}),
    "sdist": (ScriptedUv(TINY), {}, {}),
    "archive": (ScriptedUv(INDEX), {}, {"compile": Compile(archives=(GIVEN,), variables={"my-ops": (("MAX_JOBS", "4"),)})}),
    "devel": (
        ScriptedUv(INDEX | {"torch": ("2.9.1", ())}),
        {"components": {"deepspeed": "0.18.5", "torch": "2.9.1+cu130", "cuda": "13.0", "python": "3.11"}},
        {"flavour": "devel", "request": "--devel"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_uv_is_asked_and_believed_in_the_words_that_were_read(
    name: str, chosen: Cell, table: ComponentTable, fetcher: Any, golden: Golden
) -> None:
    uv, changes, more = CONVERSATIONS[name]
    fetcher.files = {f"{PLACE}/tiny-1.5.tar.gz": SDIST, ADDRESS: SDIST}
    more.setdefault("resolver", {})["fetcher"] = fetcher

    lock = _locked(dataclasses.replace(chosen, **changes), table, uv, **more)

    golden(f"lock/{name}.txt", _told(uv, lock))


@pytest.mark.parametrize("repairs", [0, 3, 7, 8, 12])
def test_a_chain_of_repairs_ends_after_eight_rounds(repairs: int, chosen: Cell, table: ComponentTable) -> None:
    def judge(cell: Cell, components: Mapping[str, str]) -> Any:
        version = components["numpy"]
        number = int(version.split(".")[1]) if version != "2.3.0" else 0
        if number >= repairs:
            return fine(cell, components)
        change = Change(component="numpy", old=version, new=f"2.{number + 1}.9")
        return bad(cell, {"numpy": version}, repair=(change,))

    class Newest(ScriptedUv):
        def _resolved(self, arguments: Sequence[str]) -> dict[str, str]:
            text = "\n".join(Path(word).read_text() for word in arguments if word.endswith(".txt"))
            versions = re.findall(r"^numpy==(\S+)$", text, re.MULTILINE)
            return {**super()._resolved(arguments), "numpy": max(versions, default="2.3.0")}

    uv = Newest(INDEX)
    if repairs > 7:
        with pytest.raises(LockError, match="no set of packages keeps every rule") as caught:
            _locked(chosen, table, uv, resolver={"judge": judge})
        assert caught.value.details == tuple(f"numpy==2.{number}.9" for number in range(1, 9))
        return
    assert len(_locked(chosen, table, uv, resolver={"judge": judge}).constraints) == repairs


def test_versions_that_are_not_the_cell_s_are_refused_by_name(chosen: Cell, table: ComponentTable) -> None:
    uv = ScriptedUv(INDEX)
    other = dataclasses.replace(chosen, components={**chosen.components, "deepspeed": "0.18.6"})
    uv._resolved = lambda _arguments: {name: version for name, (version, _) in INDEX.items()}  # type: ignore[method-assign]

    with pytest.raises(LockError, match="chose other versions than the cell has") as caught:
        _locked(other, table, uv)

    assert caught.value.details == ("deepspeed: the cell says 0.18.6, the resolver pinned deepspeed 0.18.5",)


@pytest.mark.parametrize(("index", "words"), [("pytorch", "Take another torch with --torch"), ("default", "")])
def test_a_torch_that_only_its_own_index_has_says_so_where_that_cannot_be_reached(
    index: str, words: str, chosen: Cell, table: ComponentTable
) -> None:
    class Deaf(ScriptedUv):
        def run(self, _arguments: Sequence[str], on_line: Callable[[str], None] | None = None) -> Finished:
            raise NetworkError("no answer", hint="look at the network")

    with pytest.raises(NetworkError, match="no answer") as caught:
        _locked(dataclasses.replace(chosen, index=index), table, Deaf(INDEX))

    assert (words or "look at the network") in (caught.value.hint or "")


def test_two_answers_that_differ_are_refused(chosen: Cell, table: ComponentTable) -> None:
    uv = ScriptedUv(INDEX)
    uv._annotated = lambda resolved: "numpy==2.3.0\nextra==1\n" if resolved else ""  # type: ignore[method-assign]

    with pytest.raises(LockError, match="they differ in deepspeed, extra, ninja, nvidia-nccl-cu12, setuptools, torch"):
        _locked(chosen, table, uv)


def test_every_line_of_uv_reaches_the_progress(chosen: Cell, table: ComponentTable, events: Any) -> None:
    _locked(chosen, table, ScriptedUv(INDEX, warnings=[WARN.format("numpy-1.tar.gz")]), progress=events)

    assert events.seen == [("line", "lock", WARN.format("numpy-1.tar.gz"))]


@pytest.mark.parametrize("name", ["deepspeed", "with_wheels", "megatron", "compiled"])
def test_files_of_a_lock_are_the_ones_that_were_read(name: str, locks: Any, golden: Golden) -> None:
    lock = locks.with_wheels(locks.deepspeed()) if name == "with_wheels" else getattr(locks, name)()
    files = {**requirement_files(lock), "pylock.toml": pylock_text(lock)}
    for built in (None, True, False):
        files[f"layers, built {built}"] = "".join(
            f"{file}: {[pin.name for pin in pins]}\n" for file, pins in image_layers(lock, built=built).items()
        )
    files["layer"] = layer_text(lock.pins, lock.wheels)

    golden(f"lock-files/{name}.txt", "".join(f"== {file}\n{text}" for file, text in files.items()))
    assert parse_beside(files["pylock.toml"]).lock == lock.digest


@pytest.mark.parametrize(
    "tool", ["", "[tool.envsmith]\nlock = 7\n", "[tool]\nenvsmith = 7\n", "[tool.other]\nlock = 'x'\n"]
)
def test_a_pylock_that_we_did_not_write_belongs_to_no_lock(tool: str) -> None:
    beside = parse_beside(f'lock-version = "1.0"\ncreated-by = "uv"\npackages = []\n{tool}')

    assert beside.lock in {"", "7"}
    assert (beside.artifacts, beside.requires) == ({}, {})


def test_of_several_locks_of_a_request_the_newest_counts_and_a_broken_one_is_told_only_without_it(
    lock: Lock, tmp_path: Path
) -> None:
    import os

    for number, request in enumerate(("one", "two", "one")):
        made = dataclasses.replace(lock, request=request)
        store.write(tmp_path / f"cell{number}", {"lock.json": made.text()})
        os.utime(tmp_path / f"cell{number}" / "lock.json", (number, number))
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "lock.json").write_text("{}")

    assert [store.need(tmp_path, request)[0].name for request in ("one", "two")] == ["cell2", "cell1"]
    with pytest.raises(Exception, match="broken") as caught:
        store.find(tmp_path, "three")
    assert caught.type.__name__ == "DataError"
    (tmp_path / "broken" / "lock.json").unlink()
    assert store.find(tmp_path, "three") is None
    with pytest.raises(Exception, match=r"none of them is of this request \(three\)") as caught:
        store.need(tmp_path, "three")
    assert caught.value.exit_code == 1


def test_a_lock_whose_file_is_no_text_is_a_data_error(tmp_path: Path) -> None:
    (tmp_path / "lock.json").write_bytes(b"\xff")

    with pytest.raises(Exception, match=r"lock\.json: it is not UTF-8") as caught:
        store.read(tmp_path)
    assert caught.type.__name__ == "DataError"


class DatedUv(ScriptedUv):
    """Has a solution only from a day on."""

    def __init__(self, since: str) -> None:
        super().__init__(INDEX)
        self.since, self.days = since, []

    def run(self, arguments: Sequence[str], on_line: Callable[[str], None] | None = None) -> Finished:
        day = arguments[arguments.index("--exclude-newer") + 1][:10]
        self.days.append(day)
        if day < self.since:
            return Finished(status=1, stdout="", lines=("error: No solution found when resolving dependencies",))
        return super().run(arguments, on_line)


@pytest.mark.parametrize(
    ("since", "stands"), [("2023-01-01", "2023-05-01"), ("2023-06-01", "2023-07-31"), ("2025-01-01", "2026-11-20")]
)
def test_a_date_is_preferred_and_given_up_where_nothing_of_it_fits(
    chosen: Cell, table: ComponentTable, since: str, stands: str
) -> None:
    uv = DatedUv(since)
    lock = _locked(chosen, table, uv, beside=Beside(date="2023-05-01"))
    assert lock.facts["date"] == f"packages as of {stands}"
    assert lock.exclude_newer == "2026-11-20"


def test_without_any_solution_the_last_refusal_is_the_answer(chosen: Cell, table: ComponentTable) -> None:
    uv = DatedUv("2030-01-01")
    with pytest.raises(LockError):
        _locked(chosen, table, uv, beside=Beside(date="2023-05-01"))
    assert uv.days == ["2023-05-02", "2023-08-01", "2024-05-01", "2026-11-21"]


def test_packages_beside_the_cell_are_asked_for(chosen: Cell, table: ComponentTable) -> None:
    uv = ScriptedUv(INDEX)
    _locked(dataclasses.replace(chosen, further=("wandb>=0.15",)), table, uv)
    assert "'wandb>=0.15'" in uv.questions[0]


class PreferringUv(ScriptedUv):
    """Takes the versions of the file that it is to write, but for what it ``ignored``."""

    ignored: frozenset[str] = frozenset()

    def _resolved(self, arguments: Sequence[str]) -> dict[str, str]:
        output = Path(arguments[arguments.index("--output-file") + 1]) if "--output-file" in arguments else None
        text = output.read_text() if output and output.exists() else ""
        preferred = dict(re.findall(r'^name = "(.*)"\nversion = "(.*)"$', text, re.MULTILINE))
        kept = {name: preferred[name] for name in preferred.keys() & self.packages if name not in self.ignored}
        known, self.packages = (
            self.packages,
            {**self.packages, **{n: (v, self.packages[n][1]) for n, v in kept.items()}},
        )
        try:
            return super()._resolved(arguments)
        finally:
            self.packages = known


@pytest.mark.parametrize(("ignored", "rounds"), [((), 1), (("numpy",), 2)])
def test_a_companion_is_preferred_and_demanded_only_where_uv_chose_another_release(
    ignored: tuple[str, ...], rounds: int, chosen: Cell, table: ComponentTable
) -> None:
    uv = PreferringUv(INDEX)
    uv.ignored = frozenset(ignored)
    with_numpy = dataclasses.replace(chosen, components={**chosen.components, "numpy": "1.26.4"})

    lock = _locked(with_numpy, table, uv)

    assert ("numpy", "1.26.4") in {(pin.name, pin.version) for pin in lock.pins}
    answers = [question for question in uv.questions if "--output-file" in question]
    assert ["numpy==1.26.4" in question for question in answers] == [False, True][:rounds]


def test_another_question_keeps_what_the_first_answer_chose(chosen: Cell, table: ComponentTable) -> None:
    class Growing(PreferringUv):
        """An index that has newer releases each time."""

        def run(self, arguments: Sequence[str], on_line: Callable[[str], None] | None = None) -> Finished:
            finished = super().run(arguments, on_line)
            self.packages["ninja"] = ("9.9", ())
            return finished

    uv = Growing(INDEX)
    uv.ignored = frozenset({"numpy"})

    lock = _locked(dataclasses.replace(chosen, components={**chosen.components, "numpy": "1.26.4"}), table, uv)

    assert ("ninja", "1.11") in {(pin.name, pin.version) for pin in lock.pins}
