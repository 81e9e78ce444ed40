"""What packages beside the graph declare, read when the resolver cannot put them beside a cell."""

from __future__ import annotations

import hashlib

import pytest

from envsmith.errors import ContradictionError
from envsmith.lock.index.index import IndexFile, IndexProject
from envsmith.lock.learn import Learned, learn_more
from envsmith.model.cell import Request
from envsmith.model.finding import UnsatisfiableError
from envsmith.model.rule import EvidenceKind
from envsmith.model.version import Spec
from envsmith.net.http import NotFoundError, Reply
from envsmith.solver import solve


class Index:
    """A package index of a few releases: name to version to requirements."""

    def __init__(self, releases):
        self.releases, self.fetcher = releases, self

    def project(self, name):
        if name not in self.releases:
            raise NotFoundError(f"Cannot read {name}: it is not there.")
        return IndexProject(name=name, files=tuple(self._file(name, version) for version in self.releases[name]))

    def _file(self, name, version):
        digest = hashlib.sha256(self._metadata(name, version)).hexdigest()
        file = f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
        return IndexFile(filename=file, url=f"x/{file}", version=version, sha256=digest, metadata=True)

    def _metadata(self, name, version):
        lines = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}"]
        return "\n".join([*lines, *(f"Requires-Dist: {r}" for r in self.releases[name][version])]).encode()

    def get(self, url, **_):
        name, version = url.removeprefix("x/").split("-")[:2]
        return Reply(url=url, body=self._metadata(name.replace("_", "-"), version))


INDEX = Index({"tiny-tuner": {"1.0": ["torch>=2"], "2.0": ["torch==2.8.0"]}, "glue": {"1.0": ["torch<2.7"], "2.0": []}})


def _error(*names):
    return ContradictionError("Cannot resolve: they contradict each other.", names=names)


def _request(*packages, **further):
    return Request(packages=packages, origins={"tiny-tuner": "r.txt:3"}, **further)


def _learned(request, *names):
    return learn_more(_error(*names), request, Learned(), lambda: INDEX)


def test_the_cell_is_one_that_the_package_declares():
    request = _request("tiny-tuner>=2", frameworks={"deepspeed": "*"})
    learned = _learned(request, "tiny-tuner", "torch")
    cell = learned.solve(request).cell
    assert cell.components["torch"].startswith("2.8.0")
    assert "tiny-tuner" not in cell.components  # the resolver chooses its release


def test_a_conflict_has_the_words_of_both_sides_and_the_hash_of_what_was_read():
    request = _request("tiny-tuner>=2", constraints={"torch": Spec.parse("2.9")})
    learned = _learned(request, "tiny-tuner", "torch")
    with pytest.raises(UnsatisfiableError) as failure:
        solve(learned.request(request), solver=learned.solver)
    wish, rule = failure.value.refusal.conflict
    assert wish.message == "torch 2.9 was asked for"
    assert rule.rule == "tiny-tuner-declares-torch"
    assert "torch 2.8.0" in rule.message
    (evidence,) = rule.evidence
    assert evidence.kind is EvidenceKind.DECLARED
    assert evidence.sha256 == hashlib.sha256(INDEX._metadata("tiny-tuner", "2.0")).hexdigest()


def test_an_older_release_of_the_package_is_an_answer_where_the_requirement_admits_it():
    request = _request("tiny-tuner", constraints={"torch": Spec.parse("2.9")})
    learned = _learned(request, "tiny-tuner")
    assert solve(learned.request(request), solver=learned.solver).cell.components["tiny-tuner"] == "1.0"


def test_a_package_that_another_one_brings_counts_too():
    brings = Index({**INDEX.releases, "wrapper": {"1.0": ["glue<2"]}})
    request = _request("wrapper")
    learned = learn_more(_error("glue", "wrapper"), request, Learned(), lambda: brings)
    torch = solve(learned.request(request), solver=learned.solver).cell.components["torch"]
    assert Spec.parse("<2.7").contains(torch)


def test_a_component_of_the_graph_that_brings_the_package_counts_too():
    brings = Index({**INDEX.releases, "peft": {"0.17.0": ["glue<2"], "0.17.1": ["glue<2"]}})
    request = Request(constraints={"peft": Spec.parse("==0.17.0")})
    learned = learn_more(_error("glue", "peft"), request, Learned(), lambda: brings)
    torch = solve(learned.request(request), solver=learned.solver).cell.components["torch"]
    assert Spec.parse("<2.7").contains(torch)


def test_nothing_is_learned_twice():
    request = _request("tiny-tuner")
    learned = _learned(request, "tiny-tuner")
    assert learn_more(_error("tiny-tuner", "torch"), request, learned, lambda: INDEX) is None


def test_a_package_that_the_index_does_not_have_teaches_nothing():
    request = _request("nowhere")
    learned = _learned(request, "nowhere")
    assert learned is None or not learned.lines
