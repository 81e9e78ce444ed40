"""A set with a release that the graph does not know: what the index says that it declares and takes."""

from __future__ import annotations

import pytest
from release_index import Index, Ranges

from envsmith.errors import NetworkError
from envsmith.knowledge.graph.load import version_graph
from envsmith.model.cell import Platform
from envsmith.model.finding import Finding, Judgement
from envsmith.model.rule import Severity
from envsmith.net.http import NotFoundError
from envsmith.project.published import import_root, judge_published


def index_of(
    version: str, requires: str = "", source: str = "", python: str = ">=3.8", name: str = "nobody_knows"
) -> Index:
    index = Index()
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nRequires-Python: {python}\n{requires}"
    index.release(version, {f"{name}/__init__.py": source, f"{name}-{version}.dist-info/METADATA": metadata})
    return index


def judged(index: Index, stated: str, earlier: Judgement | None = None) -> Judgement:
    versions = dict(pair.split("==") for pair in stated.split())
    return judge_published(versions, earlier or Judgement(status="unknown"), Platform.LINUX_64, lambda: index)


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
        ('numpy<2 ; extra == "old"', "3.11", 0),
        ('numpy<2 ; sys_platform == "win32"', "3.11", 0),
        ('numpy<2 ; python_version < "3.12"', "3.11", 1),
        ('numpy<2 ; python_version < "3.10"', "3.11", 0),
    ],
)
def test_a_requirement_counts_where_its_marker_holds(line, python, count):
    index = index_of("1.2", f"Requires-Dist: {line}")

    assert len(judged(index, f"nobody-knows==1.2 numpy==2.1.0 python=={python}").findings) == count


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
        return self.by_name[name].project(name)


def library(*sources: str) -> Index:
    index = Index()
    for at, source in enumerate(sources):
        index.release(f"2.{at}", {"some_library/__init__.py": source})
    return index


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


def test_a_name_that_no_release_has_is_no_error():
    user = index_of("1.2", source="from some_library import made_later")

    assert judged(Packages(user, library("x = 1", "y = 1")), "nobody-knows==1.2 some-library==2.1").findings == ()


@pytest.mark.parametrize(
    ("project", "paths", "root"),
    [
        ("pyannote-audio", ["pyannote/audio/__init__.py", "pyannote/audio/core/__init__.py"], "pyannote.audio"),
        ("hydra-core", ["hydra/__init__.py", "hydra/x.py", "tests/__init__.py"], "hydra"),
        ("six", ["six.py"], "six"),
        ("nobody", ["one/__init__.py", "two/__init__.py"], ""),
    ],
)
def test_what_a_user_imports_of_a_project_is_read_from_its_files(project, paths, root):
    assert import_root(project, paths) == root


def test_a_release_is_asked_for_under_each_name_that_its_component_is_published_as():
    class Projects:
        def __init__(self) -> None:
            self.index = index_of(
                "1.5.10", "Requires-Dist: torch (>=1.7.*)\nRequires-Dist: numpy (<1.20)", name="pytorch_lightning"
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


def test_a_function_that_takes_a_failure_is_silent():
    source = "def f():\n    try:\n        from transformers import AutoModelWithLMHead\n    except ImportError:\n        pass\n"

    assert judged(index_of("1.2", source=source), "nobody-knows==1.2 transformers==5.1.0").findings == ()


def test_a_method_that_does_not_take_what_a_release_gives_it_is_a_warning():
    source = "from transformers import Trainer\n\nclass Mine(Trainer):\n    def log(self, logs):\n        pass\n"

    [finding] = judged(index_of("1.2", source=source), "nobody-knows==1.2 transformers==4.50.0").findings

    assert finding.severity is Severity.WARNING
    assert "stands in the place of transformers.Trainer.log and does not take start_time" in finding.message


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


def test_an_index_that_does_not_answer_is_asked_once():
    asked = []

    def find() -> Index:
        asked.append(1)
        raise NetworkError("Cannot ask the package index: it is gone.")

    judge_published({"nobody-a": "1", "nobody-b": "1"}, Judgement(status="ok"), Platform.LINUX_64, find)

    assert len(asked) == 1
