"""A set with a release that the graph does not know: what the index says that it declares and takes."""

from __future__ import annotations

from itertools import chain, repeat

import pytest
from release_index import Index, Ranges, wheel

from envsmith.cli.values import parse_extras, parse_pairs
from envsmith.errors import NetworkError
from envsmith.knowledge.graph.load import components, version_graph
from envsmith.lock.index.index import IndexFile, IndexProject
from envsmith.model.cell import Platform
from envsmith.model.finding import Finding, Judgement
from envsmith.model.rule import Evidence, EvidenceKind, Severity
from envsmith.net.http import NotFoundError
from envsmith.project.published.judge_published import judge_published
from envsmith.project.published.release import import_root


def index_of(
    version: str, requires: str = "", source: str = "", python: str = ">=3.8", name: str = "nobody_knows"
) -> Index:
    index = Index()
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nRequires-Python: {python}\n{requires}"
    index.release(version, {f"{name}/__init__.py": source, f"{name}-{version}.dist-info/METADATA": metadata})
    return index


_METADATA = "Metadata-Version: 2.1\nName: nobody-knows\nVersion: 1.2\n"


def judged(index: Index, stated: str, earlier: Judgement | None = None, *, reads_measured: bool = False) -> Judgement:
    pairs = stated.split()
    versions, extras = parse_pairs(pairs, components()), parse_extras(pairs, components())
    status = earlier or Judgement(status="unknown")
    return judge_published(
        versions, status, Platform.LINUX_64, lambda: index, reads_measured=reads_measured, extras=extras
    )


def test_a_requirement_that_a_stated_version_does_not_meet_is_an_error():
    index = index_of("1.2", "Requires-Dist: transformers~=4.51.3\nRequires-Dist: torch>=2.0")

    judgement = judged(index, "nobody-knows==1.2 transformers==4.56.1 torch==2.7.1")

    assert judgement.status == "bad"
    assert [f.message for f in judgement.findings] == [
        "nobody-knows 1.2 declares transformers ~=4.51.3; transformers 4.56.1 is there"
    ]
    assert judgement.findings[0].needs == {"transformers": "~=4.51.3"}


def test_what_is_met_is_silent_also_by_a_build_of_torch():
    index = index_of("1.2", "Requires-Dist: torch==2.7.1")

    assert judged(index, "nobody-knows==1.2 torch==2.7.1+cu126").findings == ()


@pytest.mark.parametrize(
    ("line", "python", "count"),
    [
        ('numpy<2 ; extra == "dev"', "3.11", 0),
        ('numpy<2 ; sys_platform == "win32"', "3.11", 0),
        ('numpy<2 ; python_version < "3.12"', "3.11", 1),
        ('numpy<2 ; python_version < "3.10"', "3.11", 0),
    ],
)
def test_a_requirement_counts_where_its_marker_holds(line, python, count):
    index = index_of("1.2", f"Requires-Dist: {line}")

    assert len(judged(index, f"nobody-knows==1.2 numpy==2.1.0 python=={python}").findings) == count


@pytest.mark.parametrize(
    ("lines", "count"),
    [
        (['transformers==4.48.3; extra == "serve"'], 1),
        (['transformers==4.49.1; extra == "serve"'], 0),  # a patch release of what its author tried
        (['transformers==4.48.3; extra == "dev"'], 0),
        (['transformers<4.48; extra == "serve"', 'transformers>=4.48; extra == "train"'], 0),
        (['transformers<4.48; extra == "serve"', 'transformers<4.40; extra == "train"'], 1),
        (['transformers<4.48; extra == "serve"', "transformers"], 0),  # what it takes itself has no bound
        (['transformers<4.48; extra == "serve" and platform_machine == "aarch64"'], 0),
    ],
)
def test_a_release_that_no_extra_takes_of_those_that_ask_for_it_is_a_warning(lines, count):
    index = index_of("1.2", "\n".join(f"Requires-Dist: {line}" for line in lines))

    findings = judged(index, "nobody-knows==1.2 transformers==4.49.0").findings

    assert [(f.rule, f.severity) for f in findings] == [("release-extra", Severity.WARNING)] * count


def test_an_extra_that_is_stated_is_no_hint_but_what_the_release_declares():
    index = index_of("1.2", 'Requires-Dist: transformers==4.48.3; extra == "serve"')

    [finding] = judged(index, "nobody-knows[serve]==1.2 transformers==4.49.0").findings

    assert (finding.rule, finding.severity) == ("release-declares", Severity.ERROR)


@pytest.mark.parametrize(("torch", "count"), [("2.5.1", 1), ("2.3.1", 0)])
def test_a_requirement_that_what_comes_with_torch_does_not_meet_is_a_warning(torch, count):
    index = index_of("1.2", "Requires-Dist: triton<3")
    earlier = Judgement(status="unknown", inferred={"triton": {"2.5.1": "3.1.0", "2.3.1": "2.3.1"}[torch]})

    findings = judged(index, f"nobody-knows==1.2 torch=={torch}", earlier).findings

    assert [(f.severity, f.message) for f in findings] == [
        (
            Severity.WARNING,
            f"nobody-knows 1.2 declares triton <3; triton 3.1.0 is there, which comes with torch {torch}",
        )
    ] * count


def test_a_requirement_that_nobody_can_read_does_not_hide_what_its_code_takes():
    index = index_of("1.2", "Requires-Dist: pytz (>dev)", source="from transformers import AutoModelWithLMHead\n")

    assert [f.rule for f in judged(index, "nobody-knows==1.2 transformers==5.1.0").findings] == ["release-takes"]


def test_a_requirement_in_a_form_that_pip_refuses_is_told_and_counts_as_it_is_meant():
    index = index_of("1.2", "Requires-Dist: torch (>=2.8.*)")

    findings = judged(index, "nobody-knows==1.2 torch==2.7.1").findings

    assert [finding.rule for finding in findings] == ["release-metadata", "release-declares"]


def test_the_python_that_it_wants_is_read_too():
    index = index_of("1.2", python=">=3.12")

    assert (
        "declares python >=3.12; python 3.11 is there"
        in judged(index, "nobody-knows==1.2 python==3.11").findings[0].message
    )


@pytest.mark.parametrize(
    ("reason", "words"), [("Deletes data", "its publisher yanked it: Deletes data"), ("", "its publisher yanked it")]
)
def test_a_release_that_its_publisher_took_back_is_a_warning_with_the_reason(reason, words):
    index = index_of("1.2", "Requires-Dist: torch>=2.0")
    index.yanked["1.2"] = reason

    [finding] = judged(index, "nobody-knows==1.2 torch==2.7.1").findings

    assert (finding.rule, finding.severity) == ("release-yanked", Severity.WARNING)
    assert finding.message == f"nobody-knows 1.2: {words}"


def test_a_requirement_that_every_python_has_in_other_words_counts_without_one():
    index = index_of(
        "1.2", 'Requires-Dist: numpy<2 ; python_version < "3.12"\nRequires-Dist: numpy<2.1 ; python_version >= "3.12"'
    )

    assert len(judged(index, "nobody-knows==1.2 numpy==2.2.0").findings) == 1
    assert judged(index, "nobody-knows==1.2 numpy==2.0.0").findings == ()


def history(*releases: tuple[str, str, str], name: str = "nobody-knows") -> Index:
    """Return an index of releases: version, day, what it requires."""
    index = Index()
    for version, day, requires in releases:
        lines = "".join(f"Requires-Dist: {line}\n" for line in requires.split(";") if line)
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{lines}"
        index.release(version, {f"{name.replace('-', '_')}-{version}.dist-info/METADATA": metadata}, day=day)
    return index


def test_what_a_later_release_bars_is_a_warning_where_it_came_out_between_the_two():
    index = history(("1.2.0", "2024-01-02", "numpy>=1.20"), ("1.2.1", "2024-07-01", "numpy<2,>=1.20"))

    [finding] = judged(index, "nobody-knows==1.2.0 numpy==2.0.0").findings

    assert (finding.rule, finding.severity, finding.needs) == ("release-later", Severity.WARNING, {"numpy": "<2"})
    assert finding.message == (
        "nobody-knows 1.2.1 declares numpy <2; numpy 2.0.0 is there, which came out between nobody-knows 1.2.0 and "
        "that release"
    )
    assert judged(index, "nobody-knows==1.2.0 numpy==1.26.4").findings == ()


@pytest.mark.parametrize(
    "later",
    [
        ("1.2.1", "2024-06-01", "numpy<2"),  # numpy 2.0.0 was not there yet
        ("1.2.1", "2024-07-01", "numpy>=2.0.1"),  # a floor says what the later release is for
        ("1.2.1", "2024-07-01", "numpy==1.26.4"),
        ("1.4.0", "2024-07-01", "numpy<2"),  # two series later
        ("1.2.1rc1", "2024-07-01", "numpy<2"),
    ],
)
def test_what_says_nothing_of_the_stated_release_is_silent(later):
    index = history(("1.2.0", "2024-01-02", "numpy"), ("1.3.0", "2024-05-01", "numpy"), later)

    assert judged(index, "nobody-knows==1.2.0 numpy==2.0.0").findings == ()


@pytest.mark.parametrize(
    ("bars", "later", "count"), [("numpy<2", "1.2.1", 1), ("numpy<2", "1.3.0", 0), ("", "1.2.1", 0)]
)
def test_a_bar_on_what_was_there_before_the_stated_release_counts_in_the_next_of_its_series(bars, later, count):
    index = history(("1.2.0", "2024-07-01", "numpy"), (later, "2024-08-01", bars))

    words = "numpy 2.0.0 is there, and nobody-knows 1.2.0, the release before, does not say so"
    messages = [f.message for f in judged(index, "nobody-knows==1.2.0 numpy==2.0.0").findings]
    assert messages == count * [f"nobody-knows 1.2.1 declares numpy <2; {words}"]


@pytest.mark.parametrize(("between", "count"), [((), 1), ((("1.2.1", "2024-06-20", ""),), 0)])
def test_of_what_a_release_does_not_declare_only_the_next_one_tells(between, count):
    index = history(("1.2.0", "2024-01-02", ""), *between, ("1.2.2", "2024-07-01", "numpy<2"))

    assert len(judged(index, "nobody-knows==1.2.0 numpy==2.0.0").findings) == count


def test_a_python_that_a_later_release_bars_is_told_too():
    index = Index()
    for version, day, python in (("1.2.0", "2024-01-02", ">=3.8"), ("1.2.1", "2024-11-01", ">=3.8,<3.13")):
        metadata = f"Metadata-Version: 2.1\nName: nobody-knows\nVersion: {version}\nRequires-Python: {python}\n"
        index.release(version, {f"nobody_knows-{version}.dist-info/METADATA": metadata}, day=day)

    assert judged(index, "nobody-knows==1.2.0 python==3.13").findings[0].needs == {"python": "<3.13"}


@pytest.mark.parametrize(
    ("compiled", "numpy", "rules"),
    [
        (b"numpy.core._multiarray_umath", "2.0.0", ["release-arrays"]),
        (b"numpy.core._multiarray_umath", "1.26.4", []),
        (b"numpy._core._multiarray_umath", "2.0.0", []),
        (b"numpy.core.multiarray failed to import", "2.0.0", ["release-arrays"]),  # of Cython, types alone
        (b"numpy._core.multiarray failed to import", "2.0.0", []),
    ],
)
def test_compiled_files_that_were_built_for_numpy_1_are_an_error_beside_numpy_2(compiled, numpy, rules):
    index = Compiled(
        {"nobody_knows-1.2-cp312-cp312-manylinux_2_17_x86_64.whl": compiled}
        | {"nobody_knows-1.2-cp38-cp38-manylinux_2_17_x86_64.whl": b"numpy.core._multiarray_umath"}
    )

    assert [f.rule for f in judged(index, f"nobody-knows==1.2 numpy=={numpy} python==3.12").findings] == rules
    assert [f.rule for f in judged(index, f"nobody-knows==1.2 numpy=={numpy}").findings] == rules


class Compiled:
    """A release as wheels for several Pythons, each with one compiled file."""

    def __init__(self, wheels: dict[str, bytes]) -> None:
        sources = {"nobody_knows/__init__.py": "", "nobody_knows-1.2.dist-info/METADATA": _METADATA}
        files = {name: wheel({**sources, "nobody_knows/c.so": text.decode()}) for name, text in wheels.items()}
        self.fetcher = Ranges(files=files)

    def project(self, name: str) -> IndexProject:
        files = [
            IndexFile(filename=each, url=each, version="1.2", sha256=f"{at:0<64}", uploaded="2024-01-02")
            for at, each in enumerate(self.fetcher.files)
        ]
        return IndexProject(name=name, files=tuple(files))


def test_what_its_import_takes_and_a_stated_version_lacks_is_an_error():
    source = "from transformers import AutoModelWithLMHead\ntry:\n    from transformers import NoSuch\nexcept ImportError:\n    pass\n"
    index = index_of("1.2", source=source)

    [finding] = judged(index, "nobody-knows==1.2 transformers==5.1.0").findings

    assert finding.rule == "release-takes"
    assert finding.message.startswith(
        "nobody-knows 1.2 cannot be imported: nobody_knows takes transformers.AutoModelWithLMHead"
    )
    assert judged(index, "nobody-knows==1.2 transformers==4.40.0").findings == ()


class Packages:
    """Two projects: nobody-knows, and a library that no table measured."""

    def __init__(self, user: Index, library: Index) -> None:
        self.by_name = {"nobody-knows": user, "some-library": library}
        self.fetcher = Ranges(files=user.fetcher.files | library.fetcher.files)

    def project(self, name: str):
        if name not in self.by_name:
            raise NotFoundError(f"The package index has no project {name}.")
        return self.by_name[name].project(name)


def library(*sources: str) -> Index:
    index = Index()
    for at, source in enumerate(sources):
        index.release(f"2.{at}", {"some_library/__init__.py": source})
    return index


@pytest.mark.parametrize(("first", "count"), [("2024-06-01", 1), ("2024-08-01", 0)])
def test_what_bars_the_first_release_of_a_series_bars_the_stated_one_too(first, count):
    user = history(("1.2.0", "2024-01-02", "some-library>=1"), ("1.2.1", "2024-07-01", "some-library<2"))
    series = Index()
    series.release("2.0", {"some_library/__init__.py": ""}, day=first)
    series.release("2.0.5", {"some_library/__init__.py": ""}, day="2024-09-01")

    judgement = judged(Packages(user, series), "nobody-knows==1.2.0 some-library==2.0.5")

    words = "some-library 2.0.5 is there, and 2.0 came out between nobody-knows 1.2.0 and that release"
    assert [f.message for f in judgement.findings] == count * [f"nobody-knows 1.2.1 declares some-library <2; {words}"]


def test_a_stated_release_that_was_not_measured_is_read_where_it_is_published():
    user = index_of("1.2", source="from some_library import old")
    packages = Packages(user, library("def old(): ...", "def old(): ...", "def new(): ...", "def new(): ..."))

    [finding] = judged(packages, "nobody-knows==1.2 some-library==2.3").findings

    assert finding.message == (
        "nobody-knows 1.2 cannot be imported: nobody_knows takes some_library.old, which some-library 2.3 does not "
        "have: it went with 2.2"
    )
    assert finding.needs == {"some-library": "<2.2"}
    assert judged(packages, "nobody-knows==1.2 some-library==2.1").findings == ()


def test_a_stated_release_that_is_no_final_one_is_read_too():
    series = Index()
    for version, name in (("2.0rc1", "new"), ("2.0", "old"), ("2.1", "old")):
        series.release(version, {"some_library/__init__.py": f"def {name}(): ..."})
    packages = Packages(index_of("1.2", source="from some_library import old"), series)

    [finding] = judged(packages, "nobody-knows==1.2 some-library==2.0rc1").findings

    assert (finding.rule, finding.needs) == ("release-takes", {"some-library": ">=2.0"})


def test_no_star_import_brings_a_module_that_an_import_goes_through():
    user = index_of("1.2", source="from some_library.old.api import run")
    index = Index()
    for version, part in (("2.0", "old"), ("2.1", "new")):
        sources = {"some_library/__init__.py": "from nobody_measured import *", f"some_library/{part}/__init__.py": ""}
        index.release(version, {**sources, f"some_library/{part}/api.py": "def run(): ..."})

    [finding] = judged(Packages(user, index), "nobody-knows==1.2 some-library==2.1").findings

    assert finding.needs == {"some-library": "<2.1"}
    assert "takes some_library.old, which some-library 2.1 does not have" in finding.message


def test_a_name_that_no_release_has_is_no_error():
    user = index_of("1.2", source="from some_library import made_later")

    [finding] = judged(Packages(user, library("x = 1", "y = 1")), "nobody-knows==1.2 some-library==2.1").findings

    assert (finding.rule, finding.severity) == ("release-uses", Severity.WARNING)
    assert finding.message.endswith("which some-library 2.1 does not have: no release does")


@pytest.mark.parametrize(
    ("project", "paths", "root"),
    [
        ("pyannote-audio", ["pyannote/audio/__init__.py", "pyannote/audio/core/__init__.py"], "pyannote.audio"),
        ("hydra-core", ["hydra/__init__.py", "hydra/x.py", "tests/__init__.py"], "hydra"),
        ("hydra-core", ["hydra/__init__.py", "hydra/x.py", "hydra/core/__init__.py"], "hydra"),
        ("pyannote-audio", ["pyannote/__init__.py", "pyannote/audio/__init__.py"], "pyannote.audio"),
        ("six", ["six.py"], "six"),
        (
            "flashinfer-python",
            ["build_backend.py", "flashinfer/__init__.py", "flashinfer/jit/__init__.py"],
            "flashinfer",
        ),
        ("nobody", ["one/__init__.py", "two/__init__.py"], ""),
        ("open-clip-torch", ["open_clip/__init__.py", "training/__init__.py"], "open_clip"),
        ("one-two", ["one/__init__.py", "two/__init__.py"], ""),
        ("google-audit", ["google/cloud/audit/a.py", "google/cloud/audit/b.py"], "google.cloud.audit"),
    ],
)
def test_what_a_user_imports_of_a_project_is_read_from_its_files(project, paths, root):
    assert import_root(project, paths) == root


def test_a_release_is_asked_for_under_each_name_that_its_component_is_published_as():
    class Projects:
        def __init__(self) -> None:
            self.index = index_of(
                "1.5.10", "Requires-Dist: torch (>=1.7)\nRequires-Dist: numpy (<1.20)", name="pytorch_lightning"
            )
            self.fetcher = self.index.fetcher

        def project(self, name: str):
            if name == "lightning":
                raise NotFoundError("The package index has no project lightning.")
            return self.index.project(name)

    [finding] = judged(Projects(), "lightning==1.5.10 numpy==1.24.0 torch==2.0.0").findings

    assert finding.message == "lightning 1.5.10 declares numpy <1.20; numpy 1.24.0 is there"


def test_what_only_a_function_of_it_takes_is_a_warning_said_once():
    source = "def f():\n    from transformers import AutoModelWithLMHead\n\ndef g():\n    from transformers import AutoModelWithLMHead\n"
    index = index_of("1.2", source=source)

    judgement = judged(index, "nobody-knows==1.2 transformers==5.1.0")

    assert judgement.status == "unknown"
    assert [(f.rule, f.severity) for f in judgement.findings] == [("release-uses", Severity.WARNING)]
    assert judgement.findings[0].message.startswith(
        "nobody-knows 1.2 fails where this runs: nobody_knows/__init__.py:2 takes transformers.AutoModelWithLMHead"
    )


def test_what_a_compiler_for_all_devices_takes_is_told():
    user = index_of("1.2", source="def f():\n    from some_library import xla\n    xla.old()\n")
    packages = Packages(user, library("class xla:\n    def old(): ...", "class xla: ..."))

    [finding] = judged(packages, "nobody-knows==1.2 some-library==2.1").findings

    assert "takes some_library.xla.old, which some-library 2.1 does not have" in finding.message


def test_of_itself_a_release_takes_nothing_however_its_name_is_written():
    index = index_of(
        "1.2", source="import numpy\nimport nobody_knows.made_by_setup\ndef f():\n    nobody_knows.gone.g()\n"
    )
    index.release(
        "1.1", {"nobody_knows/__init__.py": "", "nobody_knows/gone.py": "", "nobody_knows/made_by_setup.py": ""}
    )

    assert judged(index, "Nobody-Knows==1.2 numpy==2.0.0").findings == ()


def test_what_only_another_device_takes_is_not_told_but_where_every_import_takes_it():
    of_function = index_of("1.2", source="import torch\ndef free():\n    torch.xpu.empty_cache()\n")
    of_import = index_of("1.2", source="import torch\nfree = torch.xpu.empty_cache\n")
    of_import.days["1.2"] = of_function.days["1.2"] = "2024-06-01"

    later, first = (judged(index, "nobody-knows==1.2 torch==2.2.0").findings for index in (of_function, of_import))

    assert later == ()
    assert [(f.rule, f.severity) for f in first] == [("release-takes", Severity.ERROR)]


def test_what_a_wheel_installs_beside_its_root_is_called_too_but_no_example():
    index = Index()
    taking, path = "from transformers import AutoModelWithLMHead\n", "export/nobody/model.py"
    sources = {"space/nobody/__init__.py": "", f"space/{path}": taking, f"no_examples/{path}": taking}
    index.release("1.2", {**sources, "space_nobody-1.2.dist-info/METADATA": _METADATA})

    [finding] = judged(index, "space-nobody==1.2 transformers==5.1.0").findings

    assert finding.severity is Severity.WARNING
    assert f"fails where this runs: space/{path}:1 takes transformers.AutoModelWithLMHead" in finding.message


def test_what_a_function_takes_of_a_release_that_was_not_measured_is_read_where_it_is_published():
    user = index_of("1.2", source="def f():\n    import some_library\n    some_library.old()\n")
    packages = Packages(user, library("def old(): ...", "def old(): ...", "def new(): ...", "def new(): ..."))

    [finding] = judged(packages, "nobody-knows==1.2 some-library==2.3").findings

    assert (finding.rule, finding.needs) == ("release-uses", {"some-library": "<2.2"})
    assert judged(packages, "nobody-knows==1.2 some-library==2.1").findings == ()


@pytest.mark.parametrize(("stated", "needs"), [("2.3", [{"some-library": "<2.2"}]), ("2.1", [])])
def test_a_question_whether_a_stated_package_is_there_guards_what_came_and_not_what_went(stated, needs):
    taken = "        from some_library import old, new\n"
    source = f"def f():\n    if is_some_library_available():\n{taken}    if is_other_available():\n        from some_library import last\n"
    user = index_of("1.2", source=source)
    packages = Packages(user, library("old = last = 1", "old = last = 1", "new = 1", "new = 1"))

    findings = judged(packages, f"nobody-knows==1.2 some-library=={stated}").findings

    assert [finding.needs for finding in findings] == needs


def test_a_folder_with_the_name_of_a_package_stands_before_it_in_no_installed_package():
    user = index_of("1.2")
    source = "import some_library.linalg\ndef f():\n    some_library.old()\n"
    user.release("1.2", {
        "nobody_knows/__init__.py": "",
        "nobody_knows/some_library/__init__.py": "",
        "nobody_knows/some_library/linalg.py": source,
        "nobody_knows-1.2.dist-info/METADATA": _METADATA,
    })  # fmt: skip
    packages = Packages(user, library("def old(): ...", "def old(): ...", "def new(): ...", "def new(): ..."))

    assert ("release-uses", {"some-library": "<2.2"}) in [
        (f.rule, f.needs) for f in judged(packages, "nobody-knows==1.2 some-library==2.3").findings
    ]


@pytest.mark.parametrize(("requires", "rules"), [("", []), ("Requires-Dist: some-library\n", ["release-uses"])])
def test_a_release_takes_nothing_of_one_that_requires_it_and_that_it_does_not_require(requires, rules):
    taken = library("def old(): ...", "def old(): ...")
    metadata = "Metadata-Version: 2.1\nName: some-library\nVersion: 2.3\nRequires-Dist: nobody-knows\n"
    taken.release("2.3", {"some_library/__init__.py": "", "some_library-2.3.dist-info/METADATA": metadata})
    source = "def f():\n    import some_library\n    some_library.old()\n"
    packages = Packages(index_of("1.2", requires, source), taken)

    findings = judged(packages, "some-library==2.3 nobody-knows==1.2").findings

    assert [f.rule for f in findings] == rules


def test_a_release_that_is_older_than_those_that_were_measured_is_read_where_it_is_published():
    packages = many(
        first=index_of("1.2", source="from numpy.lib.arraypad import _validate_lengths", name="first"),
        numpy=Index(),
    )
    for version, source in (("1.14.0", "def _validate_lengths(): ..."), ("1.16.0", ""), ("1.17.0", "")):
        files = {"numpy/__init__.py": "", "numpy/lib/__init__.py": "", "numpy/lib/arraypad.py": source}
        packages.by_name["numpy"].release(version, files)
    packages.fetcher.files |= packages.by_name["numpy"].fetcher.files

    [finding] = judged(packages, "first==1.2 numpy==1.16.0").findings

    assert (finding.rule, finding.needs) == ("release-takes", {"numpy": "<1.16.0"})
    assert judged(packages, "first==1.2 numpy==1.14.0").findings == ()


def test_an_argument_that_a_decorator_hides_in_the_tables_is_read_where_the_release_is_published():
    user = "def f():\n    import pytorch_lightning as pl\n    pl.Trainer(progress_bar_refresh_rate=1)\n"
    packages = many(first=index_of("1.2", source=user, name="first"), **{"pytorch-lightning": Index()})
    decorator = (
        "def it(fn):\n  def wrapper(self, *args, **kwargs): return fn(self, *args, **kwargs)\n  return wrapper\n"
    )
    for version, argument in (("1.6.5", "progress_bar_refresh_rate=0"), ("1.7.4", "gpus=0"), ("1.7.5", "gpus=0")):
        source = f"{decorator}class Trainer:\n  @it\n  def __init__(self, {argument}): ..."
        packages.by_name["pytorch-lightning"].release(version, {"pytorch_lightning/__init__.py": source})
    packages.fetcher.files |= packages.by_name["pytorch-lightning"].fetcher.files

    [finding] = judged(packages, "first==1.2 pytorch-lightning==1.7.4").findings

    assert (finding.rule, finding.needs) == ("release-uses", {"lightning": "<1.7.4"})
    assert judged(packages, "first==1.2 pytorch-lightning==1.6.5").findings == ()


def test_a_call_that_leaves_out_what_a_release_requires_is_a_warning_with_the_releases_that_take_it():
    user = index_of("1.2", source="def f(x):\n    import some_library\n    some_library.check(x, old=1)\n")
    check = "def check({}): ..."
    packages = Packages(user, library(*map(check.format, ("x, old", "x, old", "x, old, cap", "x, old, cap=1"))))

    [finding] = judged(packages, "nobody-knows==1.2 some-library==2.2").findings

    assert (finding.rule, finding.severity) == ("release-uses", Severity.WARNING)
    assert finding.message.endswith(
        "calls some_library.check() without cap, which some-library 2.2 requires: "
        "the call is complete before 2.2 and from 2.3 on"
    )
    assert judged(packages, "nobody-knows==1.2 some-library==2.3").findings == ()


def test_an_argument_that_a_release_which_was_not_measured_dropped_is_found_in_those_before():
    user = index_of("1.2", source="def f():\n    import some_library\n    some_library.check(old=1)\n")
    check = "def check({}): ..."
    packages = Packages(user, library(*map(check.format, ("old", "old", "new", "new"))))

    [finding] = judged(packages, "nobody-knows==1.2 some-library==2.3").findings

    assert (finding.rule, finding.needs) == ("release-uses", {"some-library": "<2.2"})
    assert judged(packages, "nobody-knows==1.2 some-library==2.1").findings == ()


def test_tests_that_a_release_brings_along_are_no_code_of_its_user():
    sources = {"nobody_knows/tests/test_a.py": "def f():\n    from transformers import AutoModelWithLMHead\n"}
    index = index_of("1.2")
    index.release("1.2", sources | {"nobody_knows/__init__.py": "", "nobody_knows-1.2.dist-info/METADATA": _METADATA})

    assert judged(index, "nobody-knows==1.2 transformers==5.1.0").findings == ()


@pytest.mark.parametrize(
    ("name", "version", "reads_measured", "count"),
    [("nobody", "3.0", False, 1), ("dill", "0.3.8", False, 0), ("dill", "0.3.8", True, 1)],
)
def test_a_measured_release_is_asked_for_what_its_later_ones_bar(name, version, reads_measured, count):
    bar = f"{name}<{version}"
    packages = many(
        evaluate=history(("0.4.1", "2024-01-02", name), ("0.4.2", "2024-07-01", bar), name="evaluate"),
        **{name: history((version, "2024-05-01", ""), name=name)},
    )

    findings = judged(packages, f"evaluate==0.4.1 {name}=={version}", reads_measured=reads_measured).findings

    assert [(f.rule, f.components) for f in findings] == [
        ("release-later", {"evaluate": "0.4.1", name: version})
    ] * count


def test_a_branch_that_the_stated_version_does_not_take_is_silent_and_one_that_it_takes_is_not():
    source = (
        "import transformers\nfrom packaging import version\n"
        "if version.parse(transformers.__version__) {} version.parse('5.0'):\n"
        "    from transformers import AutoModelWithLMHead\n"
    )
    taken, passed = (index_of("1.2", source=source.format(relation)) for relation in (">=", "<"))

    assert [f.rule for f in judged(taken, "nobody-knows==1.2 transformers==5.1.0").findings] == ["release-takes"]
    assert judged(passed, "nobody-knows==1.2 transformers==5.1.0").findings == ()


@pytest.mark.parametrize(("flag", "count"), [("HAS_SKLEARN", 1), ("HAS_PEFT", 0)])
def test_what_stands_below_a_constant_counts_where_the_package_is_stated(flag, count):
    source = f"import numpy\ntry:\n    import sklearn\nexcept ImportError:\n    pass\nif {flag}:\n    numpy.float\n"
    index = index_of("1.2", source=source)

    findings = judged(index, "nobody-knows==1.2 numpy==1.26.4 scikit-learn==1.4.0").findings

    assert [(f.rule, f.severity) for f in findings] == [("release-uses", Severity.WARNING)] * count


def test_a_check_at_import_that_refuses_a_stated_version_is_an_error():
    source = "import numpy as np\nfrom packaging.version import parse\nassert parse(np.__version__) < parse('2'), 'too new'\n"
    index = index_of("1.2", source=source)

    [finding] = judged(index, "nobody-knows==1.2 numpy==2.1.0").findings

    assert (finding.rule, finding.severity) == ("release-refuses", Severity.ERROR)
    assert finding.message == (
        "nobody-knows 1.2 cannot be imported: it refuses numpy 2.1.0, as `not parse(np.__version__) < parse('2')` holds"
    )
    assert judged(index, "nobody-knows==1.2 numpy==1.26.4").findings == ()


def test_a_check_with_the_own_version_that_a_function_makes_at_import_is_an_error():
    source = (
        "import numpy\nfrom .version import __version__\n"
        "def _folder():\n    if numpy.__version__ != __version__:\n        raise RuntimeError('another release')\n"
        "FOLDER = _folder()\n"
    )
    index = index_of("1.26.4", source=source)

    [finding] = judged(index, "nobody-knows==1.26.4 numpy==2.1.0").findings

    assert (finding.rule, finding.components["numpy"]) == ("release-refuses", "2.1.0")
    assert judged(index, "nobody-knows==1.26.4 numpy==1.26.4").findings == ()


@pytest.mark.parametrize(
    ("source", "is_warned"),
    [
        ("if numpy.__version__ >= '2':\n    warnings.warn('not tested with it')\n", True),
        (
            "def check(version):\n    if version >= '2':\n        log.warning('too new')\ncheck(numpy.__version__)\n",
            True,
        ),
        (
            "try:\n    import numpy\n    if numpy.__version__ >= '2':\n        log.warning('')\nexcept ImportError:\n    pass\n",
            True,
        ),
        ("if numpy.__version__ >= '2':\n    warnings.warn('will go', FutureWarning)\n", False),
        ("def check():\n    if numpy.__version__ >= '2':\n        log.warning('too new')\n", False),
        ("if is_noisy():\n    if numpy.__version__ >= '2':\n        log.warning('too new')\n", False),
    ],
)
def test_what_the_import_surely_warns_of_is_a_warning(source, is_warned):
    index = index_of("1.2", source=f"import logging, warnings\nimport numpy\nlog = logging.getLogger()\n{source}")

    findings = judged(index, "nobody-knows==1.2 numpy==2.1.0").findings

    assert [f.rule for f in findings] == ["release-warns"] * is_warned
    assert judged(index, "nobody-knows==1.2 numpy==1.26.4").findings == ()


def test_a_check_that_is_handed_on_at_import_and_refuses_a_stated_version_is_a_warning():
    source = (
        "from functools import partial\nfrom nobody_knows import lazy\n"
        "def _check(part):\n    try:\n        import numpy.version as np\n    except ImportError:\n        raise\n    import distutils.version\n    needed = '2.5'\n"
        "    if (distutils.version.LooseVersion(np.__version__) <\n            distutils.version.LooseVersion(needed)):\n"
        "        raise ImportError('numpy is too old')\n"
        "part = lazy.Module('part', on_first_access=partial(_check, 'part'))\n"
    )
    index = index_of("1.2", source=source)

    [finding] = judged(index, "nobody-knows==1.2 numpy==1.26.4").findings

    assert (finding.rule, finding.severity) == ("release-refuses", Severity.WARNING)
    assert finding.message.startswith("nobody-knows 1.2 fails where it is first used: it refuses numpy 1.26.4")
    assert judged(index, "nobody-knows==1.2 numpy==2.5.0").findings == ()


def test_a_requirement_that_a_function_asks_for_is_a_warning_where_a_stated_version_does_not_meet_it():
    source = (
        "import os\nfrom transformers.utils.versions import require_version\n"
        "def check_version(requirement, mandatory=False):\n"
        "    if os.getenv('NO_CHECK', '0').lower() in ['true', '1'] and not mandatory:\n        return\n"
        "    require_version(requirement, f'To fix: pip install {requirement}')\n"
        "FLOOR = '1.24'\n"
        "def parse(backend):\n    if backend == 'numpy':\n        check_version(f'numpy>={FLOOR},<2')\n"
    )
    index = index_of("1.2", source=source)

    [finding] = judged(index, "nobody-knows==1.2 numpy==2.1.0").findings

    assert (finding.rule, finding.severity) == ("release-refuses", Severity.WARNING)
    assert finding.message == (
        "nobody-knows 1.2 fails where this runs: nobody_knows/__init__.py:10 refuses numpy 2.1.0, "
        "as `not (numpy>=1.24,<2)` holds"
    )
    assert judged(index, "nobody-knows==1.2 numpy==1.26.4").findings == ()


@pytest.mark.parametrize(
    ("source", "conditions"),
    [
        ("def load():\n    if NEW:\n        raise ImportError('too new')\n", ["NEW"]),
        ("class Model:\n    def load(self):\n        assert not NEW\n", ["not not NEW"]),
        ("def load(kind):\n    if kind == 'fast' and NEW:\n        raise ImportError('too new')\n", ["NEW"]),
        ("def load():\n    if OLD:\n        pass\n    else:\n        raise ImportError('too new')\n", ["not OLD"]),
        ("def load():\n    if NEW:\n        raise ImportError\ndef save():\n    if NEW:\n        raise ImportError\n", ["NEW"]),
        ("def load():\n    if NEW and not ONNX_AVAILABLE:\n        raise ImportError('no onnx')\n", []),
        ("def load():\n    if NEW:\n        log.warning('too new')\n", []),
        ("def load():\n    if NEW:\n        raise ImportError\ntry:\n    load()\nexcept ImportError:\n    pass\n", []),
        ("def load():\n    if NEW:\n        raise ImportError\ndef run():\n    if OLD:\n        load()\n", []),
        ("def test_load():\n    if NEW:\n        raise ImportError('too new')\n", []),
        ("def load():\n    if is_npu_available():\n        if NEW:\n            raise ImportError('too new')\n", []),
        ("def load():\n    if is_tpot_available():\n        if NEW:\n            raise ImportError('too new')\n", []),
        ("def rank():\n    assert os.getenv('RANK')\ndef load():\n    if NEW:\n        rank()\n", []),
    ],
)  # fmt: skip
def test_a_function_that_refuses_a_stated_version_is_a_warning_unless_nothing_fails(source, conditions):
    stated = (
        "import logging, os\nimport numpy\nlog = logging.getLogger()\nNEW = numpy.__version__ >= '2'\nOLD = not NEW\n"
    )
    index = index_of("1.2", source=f"{stated}{source}")

    findings = judged(index, "nobody-knows==1.2 numpy==2.1.0").findings

    assert [f.message.partition(" as ")[2] for f in findings] == [f"`{each}` holds" for each in conditions]
    assert judged(index, "nobody-knows==1.2 numpy==1.26.4").findings == ()


def test_what_a_function_wants_of_python_or_of_its_own_release_is_for_its_callers():
    source = (
        "import sys\nimport numpy\n__version__ = '1.2'\n"
        "def older():\n    assert sys.version_info >= (3, 11)\n"
        "def own():\n    if __version__ < '2':\n        raise RuntimeError\n"
    )
    index = index_of("1.2", source=source)

    assert judged(index, "nobody-knows==1.2 numpy==2.1.0 python==3.10").findings == ()


@pytest.mark.parametrize("path", ["executor_hpu.py", "scripts/launch.py", "tests/run.py"])
def test_what_is_for_another_device_or_for_no_user_refuses_nothing(path):
    source = "import numpy\ndef load():\n    if numpy.__version__ >= '2':\n        raise ImportError\n"
    index = Index()
    index.release(
        "1.2",
        {
            "nobody_knows/__init__.py": "",
            f"nobody_knows/{path}": source,
            "nobody_knows-1.2.dist-info/METADATA": _METADATA,
        },
    )

    assert judged(index, "nobody-knows==1.2 numpy==2.1.0").findings == ()


def test_of_what_functions_refuse_of_a_package_three_are_told():
    refusals = (f"def load_{n}():\n    if numpy.__version__ >= '1.{n}':\n        raise ImportError\n" for n in range(5))
    index = index_of("1.2", source="import numpy\n" + "".join(refusals))

    assert len(judged(index, "nobody-knows==1.2 numpy==2.1.0").findings) == 3


@pytest.mark.parametrize(
    ("text", "protobuf", "needs"),
    [
        ("from google.protobuf import descriptor as _descriptor\nA = _descriptor.FieldDescriptor(name='a')", "4.25.3", "<4"),
        ("from google.protobuf import descriptor as _descriptor\nA = _descriptor.FieldDescriptor(name='a')", "3.20.3", None),
        ("from google.protobuf import runtime_version as _runtime_version\n_runtime_version.ValidateProtobufRuntimeVersion(\n    _runtime_version.Domain.PUBLIC,\n    6,\n    31,\n    1, '')", "6.30.0", ">=6.31.1,<8"),
        ("from google.protobuf import runtime_version as _runtime_version\n_runtime_version.ValidateProtobufRuntimeVersion(\n    _runtime_version.Domain.PUBLIC,\n    6,\n    31,\n    1, '')", "6.32.0", None),
    ],
)  # fmt: skip
def test_a_module_that_protoc_made_for_another_protobuf_is_an_error_where_the_import_runs_it(text, protobuf, needs):
    index = index_of("1.2")
    sources = {"nobody_knows/__init__.py": "from . import a_pb2", "nobody_knows/a_pb2.py": text}
    index.release("1.2", sources | {"nobody_knows-1.2.dist-info/METADATA": _METADATA})

    findings = judged(index, f"nobody-knows==1.2 protobuf=={protobuf}").findings

    assert [(f.rule, f.severity, f.needs) for f in findings] == (
        [("release-protos", Severity.ERROR, {"protobuf": needs})] if needs else []
    )


_REFUSED = "from dataclasses import dataclass\n@dataclass\nclass A:\n    pass\n@dataclass\nclass B:\n    x: A = A()\n"


@pytest.mark.parametrize(
    ("root", "python", "severities"),
    [
        ("from . import part", "3.11", [Severity.ERROR]),
        ("from . import part", "3.13", [Severity.ERROR]),
        ("from . import part", "3.10", []),
        ("def later():\n    from . import part", "3.11", [Severity.WARNING]),
        ("import sys\nif sys.version_info < (3, 11):\n    from . import part", "3.11", [Severity.WARNING]),
    ],
)
def test_a_default_that_the_stated_python_refuses_is_an_error_where_the_import_runs_it(root, python, severities):
    index = of_two_modules(root, _REFUSED)

    findings = judged(index, f"nobody-knows==1.2 python=={python}").findings

    assert [f.severity for f in findings] == severities
    assert all("nobody_knows/part.py:7 gives field x of B the default A()" in f.message for f in findings)


@pytest.mark.parametrize(
    ("source", "python", "needs"),
    [
        ("import os, imp", "3.12", "<3.12"),
        ("import os, imp", "3.11", None),
        ("from collections import OrderedDict, Mapping", "3.10", "<3.10"),
        ("from collections import (\n    Mapping,\n)", "3.13", "<3.10"),
        ("from collections.abc import Mapping", "3.10", None),
        ("import inspect\nX = inspect.getargspec(print)", "3.11", "<3.11"),
        ("import inspect\ninspect.getargspec = print\nX = inspect.getargspec(print)", "3.11", None),
        ("import inspect\nif hasattr(inspect, 'getargspec'):\n    X = inspect.getargspec(print)", "3.11", None),
        ("import inspect\ndef later():\n    return inspect.getargspec(print)", "3.11", None),
        ("try:\n    import imp\nexcept ImportError:\n    imp = None", "3.12", None),
        ("import sys\nif sys.version_info < (3, 12):\n    import imp", "3.12", None),
    ],
)
def test_a_name_of_the_standard_library_that_went_is_an_error_where_the_import_takes_it(source, python, needs):
    index = of_two_modules("from . import part", source)

    findings = judged(index, f"nobody-knows==1.2 python=={python}").findings

    assert [(f.severity, f.needs) for f in findings] == ([(Severity.ERROR, {"python": needs})] if needs else [])


@pytest.mark.parametrize("required", ["standard-imghdr", "legacy-imghdr; python_version >= '3.13'"])
def test_a_module_that_went_and_a_requirement_brings_back_is_silent(required):
    index = of_two_modules("from . import part", "import imghdr", f"Requires-Dist: {required}\n")

    assert judged(index, "nobody-knows==1.2 python==3.13").findings == ()


@pytest.mark.parametrize(
    ("required", "count"), [("", 1), ("Requires-Dist: setuptools\n", 0), ("Requires-Dist: torch\n", 0)]
)
def test_distutils_is_a_warning_where_nothing_brings_setuptools(required, count):
    index = of_two_modules("from . import part", "from distutils.version import LooseVersion", required)

    findings = judged(index, "nobody-knows==1.2 python==3.12").findings

    assert [(f.severity, f.needs) for f in findings] == [(Severity.WARNING, {})] * count


def of_two_modules(root: str, part: str, requires: str = "") -> Index:
    index = Index()
    sources = {"nobody_knows/__init__.py": root, "nobody_knows/part.py": part}
    index.release("1.2", sources | {"nobody_knows-1.2.dist-info/METADATA": f"{_METADATA}{requires}"})
    return index


def test_what_a_measured_release_declares_of_an_unmeasured_one_is_an_error():
    known = index_of("0.17.0", "Requires-Dist: nobody-knows<2\n", name="wandb")
    packages = Packages(index_of("2.1"), known)
    packages.by_name["wandb"] = known

    findings = judged(packages, "wandb==0.17.0 nobody-knows==2.1").findings

    assert [(f.rule, f.components, f.needs) for f in findings] == [
        ("release-declares", {"wandb": "0.17.0", "nobody-knows": "2.1"}, {"nobody-knows": "<2"})
    ]


def many(**by_name: Index) -> Packages:
    """Return an index of several projects, each with versions of its own."""
    packages = Packages(Index(), Index())
    packages.by_name = by_name
    packages.fetcher = Ranges(
        files={url: data for index in by_name.values() for url, data in index.fetcher.files.items()}
    )
    return packages


@pytest.mark.parametrize(
    ("one", "other", "count"),
    [
        ("some-library<2.1", "some-library>=2.1", 1),
        ("some-library>2.1,<2.2", "some-library>=2.0", 1),
        ("some-library<2.2", "some-library>=2.1", 0),
        ("some-library~=2.0", "some-library==2.*", 0),
        ("some-library<2.1; extra == 'old'", "some-library>=2.1", 0),
        ("python>=3.9.1,<3.10", "python>=3.10", 1),
        ("python>=3.9.1,<3.10", "python>=3.8", 0),
    ],
)
def test_two_releases_that_ask_for_a_third_thing_in_ranges_that_exclude_each_other_are_an_error(one, other, count):
    def asking(version: str, line: str, name: str) -> Index:
        python = line.removeprefix("python") if line.startswith("python") else ">=3.8"
        return index_of(version, "" if line.startswith("python") else f"Requires-Dist: {line}\n", "", python, name)

    packages = many(
        first=asking("1.2", one, "first"),
        second=asking("3.4", other, "second"),
        **{"some-library": library("", "", "")},
    )

    findings = judged(packages, "first==1.2 second==3.4").findings

    assert [(f.rule, f.components) for f in findings] == [
        ("releases-disagree", {"first": "1.2", "second": "3.4"})
    ] * count


def test_a_package_that_is_not_on_the_index_is_no_reason_for_two_releases_to_disagree():
    packages = many(
        first=index_of("1.2", "Requires-Dist: unheard<2\n", name="first"),
        second=index_of("3.4", "Requires-Dist: unheard>=2\n", name="second"),
        unheard=Index(),
    )

    assert judged(packages, "first==1.2 second==3.4").findings == ()


@pytest.mark.parametrize(
    ("admitted", "severities"), [(">=3.9", [Severity.ERROR]), (">=3.8", [Severity.WARNING]), (">=3.8,<3.9", [])]
)
def test_two_releases_that_exclude_each_other_from_a_python_on_are_told_so(admitted, severities):
    lines = "Requires-Dist: pytz<2; python_version < '3.9'\nRequires-Dist: pytz>=2; python_version >= '3.9'\n"
    packages = many(
        first=index_of("1.2", "Requires-Dist: pytz<2\n", name="first", python=admitted),
        second=index_of("3.4", lines, name="second"),
        pytz=history(("1.0", "2020-01-02", ""), ("2.0", "2021-01-02", ""), name="pytz"),
    )

    findings = judged(packages, "first==1.2 second==3.4").findings

    assert [(f.rule, f.severity) for f in findings] == [("releases-disagree", each) for each in severities]
    assert all(f.message.endswith("from Python 3.9 on") for f in findings if f.severity is Severity.WARNING)


def test_what_an_extra_asks_for_counts_where_the_release_is_stated_with_it():
    packages = many(first=index_of("1.2", "Requires-Dist: transformers<4 ; extra == 'models'\n", name="first"))

    [finding] = judged(packages, "first[models]==1.2 transformers==4.56.1").findings

    assert (finding.rule, finding.needs) == ("release-declares", {"transformers": "<4"})
    assert finding.message.startswith("first[models] 1.2 declares")
    assert [f.rule for f in judged(packages, "first==1.2 transformers==4.56.1").findings] == ["release-extra"]


def test_what_an_extra_of_a_measured_release_asks_for_counts():
    packages = many(accelerate=index_of("1.0.0", "Requires-Dist: torch<2 ; extra == 'old'\n", name="accelerate"))

    [finding] = judged(packages, "accelerate[old]==1.0.0 torch==2.6.0").findings

    assert finding.needs == {"torch": "<2"}
    assert judged(packages, "accelerate==1.0.0 torch==2.6.0").findings == ()


def test_an_extra_brings_the_extras_that_it_names_of_its_own_project():
    requires = "Requires-Dist: first[models] ; extra == 'all'\nRequires-Dist: transformers<4 ; extra == 'models'\nRequires-Dist: x"
    packages = many(first=index_of("1.2", requires, name="first"))

    [finding] = judged(packages, "first[all]==1.2 transformers==4.56.1").findings

    assert finding.needs == {"transformers": "<4"}


@pytest.mark.parametrize(
    ("files", "needs"),
    [
        (["nobody_knows-1.2-cp312-cp312-manylinux_2_17_x86_64.whl"], [{"transformers": "<4"}]),
        (["nobody_knows-1.2-cp312-cp312-manylinux_2_17_x86_64.whl", "nobody_knows-1.2.tar.gz"], []),
        (["nobody_knows-1.2-cp39-abi3-manylinux_2_17_x86_64.whl"], []),
        (["nobody_knows-1.2-py3-none-any.whl"], []),
    ],
)
def test_of_a_marker_the_pythons_count_that_a_file_of_the_release_is_for(files, needs):
    release = index_of("1.2", "Requires-Dist: transformers<4 ; python_version < '3.13'\n")

    findings = judged(Built(release, files), "nobody-knows==1.2 transformers==4.56.1").findings

    assert [f.needs for f in findings if f.rule == "release-declares"] == needs


class Built(Packages):
    """An index with one release, of which any file is the same wheel."""

    def __init__(self, release: Index, files: list[str]) -> None:
        super().__init__(release, Index())
        self.files = files

    def project(self, name: str):
        listed = [
            IndexFile(filename=f, url="pkg-1.2-py3-none-any.whl", version="1.2", sha256="0" * 64) for f in self.files
        ]
        return IndexProject(name=name, files=tuple(listed))


@pytest.mark.parametrize(
    ("files", "python", "severities"),
    [
        (["x-1.2-cp310-cp310-manylinux_2_17_x86_64.whl", "x-1.2.tar.gz"], "3.12", [Severity.WARNING]),
        (["x-1.2-cp310-cp310-manylinux_2_17_x86_64.whl"], "3.12", [Severity.ERROR]),
        (["x-1.2-cp310-cp310-manylinux_2_17_x86_64.whl", "x-1.2.tar.gz"], "3.10", []),
        (["x-1.2-cp38-abi3-manylinux_2_17_x86_64.whl", "x-1.2.tar.gz"], "3.12", []),
        (["x-1.2-cp310-cp310-manylinux_2_17_x86_64.whl", "x-1.2-py3-none-any.whl"], "3.12", []),
    ],
)
def test_a_release_without_a_wheel_for_the_stated_python_is_a_warning_and_without_a_source_an_error(
    files, python, severities
):
    findings = judged(Built(index_of("1.2"), files), f"nobody-knows==1.2 python=={python}").findings

    assert [f.severity for f in findings if f.rule == "release-unbuilt"] == severities


class Projects:
    """An index with one project, whose release takes of numpy what 2.0 removed."""

    def __init__(self) -> None:
        self.index = index_of("0.17.0", source="def f():\n    import numpy\n    return numpy.NaN\n", name="wandb")
        self.fetcher = self.index.fetcher

    def project(self, name: str):
        if name != "wandb":
            raise NotFoundError(f"The package index has no project {name}.")
        return self.index.project(name)


def test_the_functions_of_a_measured_release_are_read_where_that_is_asked_for():
    [finding] = judged(Projects(), "wandb==0.17.0 numpy==2.0.0", reads_measured=True).findings

    assert judged(Projects(), "wandb==0.17.0 numpy==2.0.0").findings == ()
    assert (finding.rule, finding.components) == ("release-uses", {"wandb": "0.17.0", "numpy": "2.0.0"})


@pytest.mark.parametrize(("text", "count"), [("# nothing to see\n", 1), ("import numpy\n", 0)])
def test_of_a_measured_release_only_sources_that_name_a_stated_package_are_too_many(text, count):
    projects = Projects()
    bulk = {f"wandb/data_{at}.py": text + "#" * (4 << 20) for at in range(3)}
    metadata = _METADATA.replace("nobody-knows", "wandb").replace("1.2", "0.17.1")
    source = "import numpy\nprint(numpy.NaN)\n"
    projects.index.release("0.17.1", {"wandb/__init__.py": source, "wandb-0.17.1.dist-info/METADATA": metadata, **bulk})

    findings = judged(projects, "wandb==0.17.1 numpy==2.0.0", reads_measured=True).findings

    assert len(findings) == count


def test_what_a_set_that_passed_a_run_did_without_is_a_note():
    proved = Judgement(status="ok", proof=Evidence(kind=EvidenceKind.VALIDATED, source="a record", date="2026-11-28"))

    [finding] = judged(Projects(), "wandb==0.17.0 numpy==2.0.0", proved, reads_measured=True).findings

    assert finding.severity is Severity.NOTE
    assert finding.message.endswith("A run of this set passed without it.")


def test_a_module_of_another_name_than_its_distribution_is_read_too():
    index = index_of("1.2", source="def f():\n    import pkg_resources\n")

    [finding] = judged(index, "nobody-knows==1.2 setuptools==82.0.0").findings

    assert (finding.rule, finding.components["setuptools"]) == ("release-uses", "82.0.0")


def test_who_takes_from_a_release_that_cannot_be_read_hears_so():
    packages = Packages(index_of("1.2", source="from some_library import old"), library("def old(): ..."))
    packages.by_name["some-library"] = Unreadable()

    judgement = judged(packages, "nobody-knows==1.2 some-library==2.0")

    assert (
        "what nobody-knows 1.2 takes of some-library 2.0: the package index did not say, its page is cut"
        in judgement.unknown
    )


def test_who_takes_from_a_release_whose_file_cannot_be_opened_hears_so():
    packages = Packages(index_of("1.2", source="from some_library import old"), library("def old(): ..."))
    packages.fetcher.broken = {"pkg-2.0-py3-none-any.whl": 9}

    judgement = judged(packages, "nobody-knows==1.2 some-library==2.0")

    assert (
        "what nobody-knows 1.2 takes of some-library 2.0: the package index did not say, its file cannot be opened"
        in judgement.unknown
    )


def test_a_member_of_a_base_class_that_stands_behind_classes_of_other_modules_is_a_warning():
    user = index_of("1.2")
    sources = {
        "nobody_knows/__init__.py": "from .mixin import Base",
        "nobody_knows/base.py": "from some_library import Module\nclass Mixin:\n    own = 1\nclass Base(Mixin, Module):\n    ...\n",
        "nobody_knows/model.py": (
            "import some_library\nfrom .base import Base\nclass Model(Base):\n"
            "    def f(self):\n        self.own\n        return self.old()\n"
        ),
        "nobody_knows-1.2.dist-info/METADATA": _METADATA,
    }
    user.release("1.2", sources)
    base = "class Module:\n    def {}(self): ..."
    packages = Packages(user, library(*map(base.format, ("old", "old", "new", "new"))))

    [finding] = judged(packages, "nobody-knows==1.2 some-library==2.3").findings

    assert (
        "nobody_knows/model.py:6 takes some_library.Module.old, which some-library 2.3 does not have" in finding.message
    )
    assert judged(packages, "nobody-knows==1.2 some-library==2.1").findings == ()


def scikit_learn(*bodies: tuple[str, str, str]) -> Index:
    """Return an index of scikit-learn, of each release with the method of its mixin and a function of its tags."""
    index = Index()
    for version, method, function in bodies:
        base = f"class BaseEstimator:\n    ...\nclass ClassifierMixin:\n    def {method}(self): ...\n"
        tags = f"def {function}(estimator): ...\n"
        files = {"sklearn/utils/__init__.py": "", "sklearn/utils/_tags.py": tags, "sklearn/base.py": base}
        index.release(version, {"sklearn/__init__.py": "", **files})
    return index


@pytest.mark.parametrize(
    ("source", "described", "versions"),
    [
        (
            "class Net:\n    ...\nclass One(Net, ClassifierMixin):\n    ...\n",
            "and without BaseEstimator",
            "1.6.0 1.7.0",
        ),
        (
            "class Net(BaseEstimator):\n    def _more_tags(self): ...\nclass One(Net, ClassifierMixin):\n    ...\n",
            "and BaseEstimator before it",
            "1.6.0",
        ),
        ("class Net(BaseEstimator):\n    ...\nclass One(Net, ClassifierMixin):\n    ...\n", "", ""),
        ("class One(ClassifierMixin, BaseEstimator):\n    def _more_tags(self): ...\n", "", ""),
        ("class One(ClassifierMixin):\n    def __sklearn_tags__(self): ...\n", "", ""),
    ],
)
def test_an_estimator_that_gives_no_tags_is_a_warning_where_scikit_learn_asks_for_them(source, described, versions):
    head = "try:\n    from sklearn.base import BaseEstimator, ClassifierMixin\nexcept ImportError:\n    pass\n"
    index = scikit_learn(
        ("1.5.2", "score", "_safe_tags"),
        ("1.6.0", "__sklearn_tags__", "_find_tags_provider"),
        ("1.7.0", "__sklearn_tags__", "get_tags"),
    )
    packages = Packages(index_of("1.2", source=head + source), index)
    packages.by_name = {"scikit-learn": index, "nobody-knows": packages.by_name["nobody-knows"]}

    findings = {
        v: judged(packages, f"nobody-knows==1.2 scikit-learn=={v}").findings for v in ("1.5.2", "1.6.0", "1.7.0")
    }

    told = {version: finding for version, of_version in findings.items() for finding in of_version}
    assert [*told] == versions.split()
    for finding in told.values():
        assert (finding.rule, finding.needs) == ("release-uses", {"scikit-learn": "<1.6"})
        assert f"defines One with sklearn.base.ClassifierMixin {described}: " in finding.message


@pytest.mark.parametrize(
    ("attempt", "error"),
    [
        ("from transformers import AutoModelWithLMHead", "ImportError"),
        ("transformers.Trainer(tokenizer=1)", "TypeError"),
    ],
)
def test_a_function_that_takes_a_failure_is_silent(attempt, error):
    source = f"import transformers\ndef f():\n    try:\n        {attempt}\n    except {error}:\n        pass\n"

    assert judged(index_of("1.2", source=source), "nobody-knows==1.2 transformers==5.1.0").findings == ()


def test_a_method_that_does_not_take_what_a_release_gives_it_is_a_warning():
    source = "from transformers import Trainer\n\nclass Mine(Trainer):\n    def log(self, logs):\n        pass\n"

    [finding] = judged(index_of("1.2", source=source), "nobody-knows==1.2 transformers==4.50.0").findings

    assert finding.severity is Severity.WARNING
    assert "stands in the place of transformers.Trainer.log and does not take start_time" in finding.message


def test_a_file_of_objects_that_torch_refuses_to_read_is_a_warning():
    source = "import torch\n\ndef load(path):\n    return torch.load(path, map_location='cpu').eval()\n"

    [finding] = judged(index_of("1.2", source=source), "nobody-knows==1.2 torch==2.6.0").findings

    assert (finding.severity, finding.rule) == (Severity.WARNING, "release-uses")
    assert "calls torch.load() without weights_only and takes eval of it, which torch 2.6.0 refuses" in finding.message


def test_a_release_that_the_index_does_not_have_is_said():
    assert judged(index_of("1.2"), "nobody-knows==3 torch==2.4.0").unknown == (
        "what nobody-knows 3 asks for: the package index has no such release",
    )


def test_an_index_that_does_not_answer_is_said_and_changes_nothing_else():
    def find() -> Index:
        raise NetworkError("Cannot ask the package index: it is gone.")

    judgement = judge_published({"nobody-knows": "1"}, Judgement(status="ok"), Platform.LINUX_64, find)

    assert judgement.status == "ok"
    assert judgement.unknown == ("what nobody-knows 1 asks for: the package index did not say, it is gone",)


def test_a_release_that_an_error_names_is_not_asked_for():
    finding = Finding(rule="r", severity=Severity.ERROR, components={"nobody-knows": "1.2"}, message="it fails")

    judgement = judged(Index(), "nobody-knows==1.2 torch==2.4.0", Judgement(status="bad", findings=(finding,)))

    assert judgement.unknown == ()


def test_what_the_graph_knows_and_what_is_no_release_is_not_asked_for():
    versions = {"torch": "2.4.0", "driver": "550.54", "gpu": "sm_90", "cuda": "12.9", "nobody": "*", "numpy": "none"}

    assert version_graph().unknown_releases(versions) == {}


def test_who_has_waited_long_hears_what_was_not_asked():
    seconds = chain([0.0, 1.0], repeat(50.0))
    versions = {"nobody-knows": "1.2", "some-library": "2.0"}
    packages = Packages(index_of("1.2"), library("old = 1"))

    judgement = judge_published(
        versions, Judgement(status="ok"), Platform.LINUX_64, lambda: packages, lambda: next(seconds)
    )

    assert judgement.unknown == (
        "what some-library 2.0 asks for: the package index did not say, it took more than 40 s for the others",
    )


def test_of_many_releases_those_that_were_not_read_are_said():
    versions = {f"nobody-{letter}": "1" for letter in "abcdefghi"}

    judgement = judge_published(versions, Judgement(status="ok"), Platform.LINUX_64, Index)

    assert judgement.unknown[-1] == (
        "what nobody-i 1 asks for: the package index did not say, no more than 8 releases are read at once"
    )


def test_an_index_that_fails_twice_in_a_row_is_not_asked_again():
    asked = []

    def find() -> Index:
        asked.append(1)
        raise NetworkError("Cannot ask the package index: it is gone.")

    judgement = judge_published(
        {"nobody-a": "1", "nobody-b": "1", "nobody-c": "1"}, Judgement(status="ok"), Platform.LINUX_64, find
    )

    assert len(asked) == 2
    assert judgement.unknown[1:] == (
        "what nobody-b 1 asks for: the package index did not say, it is gone",
        "what nobody-c 1 asks for: the package index did not say, it failed for those before",
    )


def test_a_failure_for_one_release_ends_no_question_about_another():
    packages = Packages(index_of("1.2", python=">=3.12"), library("old = 1"))
    packages.by_name["nobody-answers"] = Unreadable()

    judgement = judged(packages, "nobody-answers==1 nobody-knows==1.2 python==3.11")

    assert [f.rule for f in judgement.findings] == ["release-declares"]
    assert judgement.unknown == ("what nobody-answers 1 asks for: the package index did not say, its page is cut",)


class Unreadable:
    """A project whose page nobody can read."""

    def project(self, name: str) -> IndexProject:
        raise NetworkError(f"Cannot read the page of {name}: its page is cut.")
