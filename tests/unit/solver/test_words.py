"""Releases, specs and rows in words: a table for each helper."""

from __future__ import annotations

import pytest

from envsmith.model.rule import Row, Rule, RuleKind, Severity
from envsmith.model.version import Spec
from envsmith.solver.words import join_words, name_release, rule_sentence, shown_spec, these_versions


def row(when: dict[str, str], needs: dict[str, str] | None = None, **fields: object) -> Row:
    specs = [{name: Spec.parse(text) for name, text in part.items()} for part in (when, needs or {})]
    return Row(when=specs[0], needs=specs[1], **fields)  # type: ignore[arg-type]


def sentence(*rows: Row, name: str = "a-rule", kind: RuleKind = RuleKind.REQUIRES, cause: bool = True) -> str:
    return rule_sentence(Rule(id=name, kind=kind, rows=rows), rows, {}, cause=cause)


@pytest.mark.parametrize(
    ("words", "text"), [([], ""), (["a"], "a"), (["a", "b"], "a and b"), (["a", "b", "c"], "a, b and c")]
)
def test_words_are_joined_as_people_do(words: list[str], text: str) -> None:
    assert join_words(words) == text


@pytest.mark.parametrize(
    ("component", "version", "text"),
    [
        ("torch", "2.9.1+cu128", "torch 2.9.1+cu128"),
        ("gpu", "sm_90", "GPU sm_90"),
        ("gpu", "none", "no GPU"),
        ("driver", "none", "no driver"),
        ("cuda", "13.0", "CUDA 13.0"),
        ("cuda", "cpu", "a build without CUDA"),
        ("toolkit", "cpu", "toolkit cpu"),
    ],
)
def test_a_release_has_a_name(component: str, version: str, text: str) -> None:
    assert name_release(component, version) == text


@pytest.mark.parametrize(
    ("component", "versions", "text"),
    [
        ("numpy", ["1", "2", "3"], "1, 2 and 3"),
        ("numpy", ["1", None, "2", "3", "4"], "1 to 4"),
        ("torch", ["2.1+cpu"], "2.1+cpu"),
        ("torch", ["2.1+cpu", "2.1+cu118"], "2.1"),
        ("numpy", ["2.1+a", "2.1+b"], "2.1+a and 2.1+b"),
    ],
)
def test_up_to_three_releases_are_listed_and_more_are_a_range(
    component: str, versions: list[str | None], text: str
) -> None:
    assert these_versions(component, versions) == text


@pytest.mark.parametrize(
    ("component", "spec", "text"),
    [
        ("torch", ">=2.2,<2.5", "torch >=2.2,<2.5"),
        ("torch", "==2.9.1", "torch 2.9.1"),
        ("torch", "*", "torch"),
        ("gpu", "*", "GPU"),
        ("cuda", ">=12", "CUDA >=12"),
        ("numpy", "==1.2.*||>=2", "numpy 1.2.* or >=2"),
    ],
)
def test_a_spec_is_shown_as_people_write_it(component: str, spec: str, text: str) -> None:
    assert shown_spec(component, Spec.parse(spec)) == text


def test_of_rows_that_forbid_the_first_one_says_why_and_those_of_another_cause_are_counted() -> None:
    first = row({"alpha": "<2", "numpy": ">=2"}, cause="one.")
    like, unlike = (
        row({"alpha": ">=3", "numpy": "<2"}, cause="one."),
        row({"alpha": ">=2"}, cause="two", symptom="three"),
    )

    assert sentence(first) == "alpha <2 and numpy >=2 do not work together: one"
    both = "alpha <2 and numpy >=2; alpha >=3 and numpy <2"
    assert sentence(first, like) == f"{both} do not work together: one"
    assert sentence(first, like, unlike) == f"{both} do not work together: one (and 1 more for another reason)"
    assert sentence(unlike) == "alpha >=2: two"


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"symptom": "it stops"}, "alpha <2 and numpy >=2 do not work together: it stops"),
        ({}, "alpha <2 and numpy >=2 do not work together: known to be bad"),
        ({"severity": Severity.WARNING, "cause": "slow"}, "alpha <2 and numpy >=2: slow"),
    ],
)
def test_releases_that_work_badly_together_are_not_said_to_fail(fields: dict[str, object], text: str) -> None:
    assert sentence(row({"alpha": "<2", "numpy": ">=2"}, **fields)) == text


@pytest.mark.parametrize(
    ("name", "kind", "cause", "text"),
    [
        ("a-rule", RuleKind.REQUIRES, True, "alpha <2 with gpu needs torch >=2 (one)"),
        ("a-rule", RuleKind.REQUIRES, False, "alpha <2 with gpu needs torch >=2"),
        ("a-declares-b", RuleKind.REQUIRES, True, "alpha <2 with gpu declares torch >=2"),
        ("a-rule", RuleKind.BUNDLES, False, "alpha <2 with gpu carries torch >=2"),
    ],
)
def test_a_row_with_needs_says_who_needs_what(name: str, kind: RuleKind, cause: bool, text: str) -> None:
    one = row({"alpha": "<2", "gpu": "*"}, {"torch": ">=2"}, cause="one.")

    assert sentence(one, name=name, kind=kind, cause=cause) == text.replace("gpu", "GPU")


def test_beyond_three_rows_their_number_is_said() -> None:
    rows = [row({"alpha": f"=={n}.0.0"}, {"torch": f">={n}"}, cause="one" if n == 1 else "two") for n in range(1, 6)]

    parts = [f"alpha {n}.0.0 needs torch >={n}" for n in range(1, 4)]
    assert sentence(*rows) == "; ".join(parts) + "; and 2 more like these (one)"
    assert sentence(*rows[:3]) == "; ".join(parts) + " (one)"


@pytest.mark.parametrize(
    ("name", "builds", "text"),
    [
        ("torch-runs-on-gpu", ["2.1+cpu"], "a build of torch without CUDA runs on no GPU"),
        ("torch-runs-on-gpu", ["2.1+cpu", "2.1+cu118"], "it is not known for which GPUs torch 2.1 is compiled"),
        ("torch-runs-on-gpu", [], "it is not known for which GPUs that build of torch is compiled"),
        ("torch-bundles-nccl", ["2.1+cu118"], "it is not known which nccl torch 2.1+cu118 carries"),
    ],
)
def test_what_no_row_says_is_not_known(name: str, builds: list[str], text: str) -> None:
    rule = Rule(id=name, kind=RuleKind.BUNDLES, rows=(row({"torch": "==9"}, {"nccl": "==9"}),))

    assert rule_sentence(rule, (), {"torch": builds}) == text
