"""A set with a release that the graph does not know: what the index says that it declares and takes."""

from __future__ import annotations

import pytest
from release_index import Index

from envsmith.errors import NetworkError
from envsmith.knowledge.graph.load import version_graph
from envsmith.model.cell import Platform
from envsmith.model.finding import Finding, Judgement
from envsmith.model.rule import Severity
from envsmith.project.published import judge_published


def index_of(version: str, requires: str = "", source: str = "", python: str = ">=3.8") -> Index:
    index = Index()
    name = "nobody_knows"
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


def test_what_its_import_takes_and_a_stated_version_lacks_is_an_error():
    source = "from transformers import AutoModelWithLMHead\ntry:\n    from transformers import NoSuch\nexcept ImportError:\n    pass\n"
    index = index_of("1.2", source=source)

    [finding] = judged(index, "nobody-knows==1.2 transformers==5.1.0").findings

    assert finding.rule == "release-takes"
    assert finding.message.startswith(
        "nobody-knows 1.2 cannot be imported: nobody_knows takes transformers.AutoModelWithLMHead"
    )
    assert judged(index, "nobody-knows==1.2 transformers==4.40.0").findings == ()


def test_what_a_function_of_it_takes_when_it_is_called_is_no_error():
    index = index_of("1.2", source="def f():\n    from transformers import AutoModelWithLMHead\n")

    assert judged(index, "nobody-knows==1.2 transformers==5.1.0").findings == ()


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
