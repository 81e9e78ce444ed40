"""Values: parsed once; text and value are inverse."""

from __future__ import annotations

import dataclasses

import pytest

from envsmith.errors import UsageError
from envsmith.knowledge.graph.load import components
from envsmith.model.cell import Cell, CellId, Platform, Request
from envsmith.model.component import Component, ComponentTable, Role
from envsmith.model.rule import Evidence, EvidenceKind, Row, Rule, RuleKind
from envsmith.model.version import Spec, minor_of, parse_version, public


@pytest.mark.parametrize(
    ("spec", "version", "inside"),
    [
        ("2.4", "2.4.1+cu121", True),
        ("2.4", "2.5.0", False),
        ("2.4.1", "2.4.1+cu121", True),
        ("2.9.1+cu126", "2.9.1+cu128", False),
        (">=2.9", "2.9.1+cu128", True),
        ("<=2.5.1", "2.5.1+cu124", True),
        (">=sm_80", "sm_103", True),
        ("sm_90", "sm_89", False),
        ("cpu", "cpu", True),
        ("==12.*", "cpu", False),
        ("<2.4 || ==2.5.1", "2.5.1", True),
        ("*", "none", True),
        ("535", "535.54.03", True),
    ],
)
def test_a_spec_contains_what_people_mean(spec, version, inside):
    assert Spec.parse(spec).contains(version) is inside
    assert Spec.parse(str(Spec.parse(spec))) == Spec.parse(spec)


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        ("*", ">=2", ">=2"),
        (">=2", "*", ">=2"),
        (">=2,<3", ">=2.4", ">=2,<3,>=2.4"),
        (">=1,<2 || >=3", "!=3.1", ">=1,<2,!=3.1 || >=3,!=3.1"),
    ],
)
def test_two_specs_meet_in_what_satisfies_both(one, other, both):
    assert str(Spec.parse(one).meet(Spec.parse(other))) == both


@pytest.mark.parametrize("text", [">=two", "|| 2", "2.4;x", "$(x)", ">=1" * 200, "==1.*,!!"])
def test_a_malformed_spec_is_refused(text):
    with pytest.raises(ValueError):
        Spec.parse(text)


@pytest.mark.parametrize("text", ["", "new", "1.0\n", "2.0 && rm", "x" * 100])
def test_a_malformed_version_is_refused(text):
    if text == "1.0\n":
        assert parse_version(text) == "1.0"
        return
    with pytest.raises(ValueError):
        parse_version(text)


@pytest.mark.parametrize(
    "text",
    [
        "ds0.19.8-torch2.13.0-cu130-py312",
        "ca0.5.0-torch2.5.1-cpu-py310-aarch64",
        "mc0.19.2-torch2.15.0-cu132-py313-te2.9.0-transformers4.51.3",
        "ds0.16.4-mc0.12.0-torch2.6.0-cu124-py39",
    ],
)
def test_a_cell_id_parses_and_prints_back(text):
    assert str(CellId.parse(text)) == text


def test_a_cell_id_gives_its_components_back():
    cell = CellId.parse("ds0.19.8-torch2.13.0-cu130-py312-aarch64")
    assert dict(cell.components) == {"deepspeed": "0.19.8", "torch": "2.13.0+cu130", "cuda": "13.0", "python": "3.12"}
    assert cell.platform is Platform.LINUX_AARCH64


@pytest.mark.parametrize("text", ["", "nonsense", "ds-torch", "ds0.19.8;torch2", "ds0.19.8-torch"])
def test_what_is_no_cell_id_is_refused(text):
    with pytest.raises(ValueError):
        CellId.parse(text)


def test_every_component_is_spelt_in_an_id_as_the_table_says():
    for component in components().by_name.values():
        cell = CellId(((component.name, "1.2"),))
        if component.name not in {"cuda", "python", "torch"}:
            assert str(cell) == f"{component.short}1.2", component.name
            assert CellId.parse(str(cell)) == cell


@pytest.mark.parametrize(
    ("text", "version"), [("v2.9.1", "2.9.1"), (" V2 ", "2"), ("2.9.1+cu128", "2.9.1+cu128"), ("cpu", "cpu")]
)
def test_a_version_is_taken_without_blanks_and_without_its_v(text, version):
    assert parse_version(text) == version


def test_a_version_has_at_most_64_characters():
    assert parse_version("1" * 64)
    with pytest.raises(ValueError, match="is not a version"):
        parse_version("1" * 65)


def test_a_spec_has_at_most_400_characters():
    assert Spec.parse(">=1" + "0" * 397).text
    with pytest.raises(ValueError, match="spec of 401 characters is longer than 400"):
        Spec.parse(">=1" + "0" * 398)


@pytest.mark.parametrize(
    ("spec", "inside", "outside"),
    [
        ("2", "2.99", "3"),
        ("2.4", "2.4.9", "2.40"),
        ("2.4.0", "2.4.0", "2.4.1"),
        ("2.4.post1", "2.4.post1", "2.4"),
        ("2.4rc1", "2.4rc1", "2.4"),
        ("2.4.dev3", "2.4.dev3", "2.4"),
        ("2.4+cu121", "2.4+cu121", "2.4.1+cu121"),
        ("v2.4", "2.4.1", "2.5"),
        (">=2,", "2.4", "1.9"),
        (">=2.5a0", "2.5b1", "2.4"),
        ("<2 || cpu", "cpu", "none"),
        ("==none", "none", "cpu"),
        (" >= 2 , < 3 ", "2.5", "3.0"),
        ("* || 2", "7", "cpu"),
    ],
)
def test_a_spec_ends_where_people_say(spec, inside, outside):
    assert Spec.parse(spec).contains(inside)
    assert not Spec.parse(spec).contains(outside)


@pytest.mark.parametrize(("version", "only"), [("2.9.1+cu128", "==2.9.1+cu128"), ("cpu", "cpu"), ("2.9", "==2.9")])
def test_the_spec_of_exactly_one_version(version, only):
    assert str(Spec.exactly(version)) == only
    assert Spec.exactly(version).contains(version)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("==2.9.1", "2.9.1"),
        ("535.54.03", "535.54.03"),
        ("==2.4", "2.4"),
        ("2.4", None),
        ("2.4rc1", "2.4rc1"),
        ("==2.4.*", None),
        (">=2.4", None),
        ("==2.4,==2.5", None),
        ("none", "none"),
        ("*", None),
    ],
)
def test_a_spec_knows_the_one_version_that_it_names(text, version):
    assert Spec.parse(text).exact == version


@pytest.mark.parametrize(("text", "any_version"), [("*", True), ("", True), ("  ", True), (">=1", False)])
def test_a_spec_that_everything_satisfies_is_known(text, any_version):
    assert Spec.parse(text).is_any is any_version


def test_a_version_is_shortened_to_its_minor_release_and_to_what_is_public():
    assert [minor_of(text) for text in ("3.12.4", "3.12", "3")] == ["3.12", "3.12", "3"]
    assert [public(text) for text in ("2.9.1+cu128", "2.9.1", None)] == ["2.9.1", "2.9.1", "None"]


@pytest.mark.parametrize(
    ("text", "platform"),
    [
        *((text, Platform.LINUX_64) for text in ("linux-64", "x86_64", "linux/amd64", "AMD64 ", "linux-x86_64")),
        *((text, Platform.LINUX_AARCH64) for text in ("linux-aarch64", "aarch64", "linux/arm64", "arm64")),
    ],
)
def test_a_platform_is_read_in_every_spelling(text, platform):
    assert Platform.parse(text) is platform


def test_another_platform_is_refused_with_the_two_that_exist():
    with pytest.raises(ValueError, match="unknown platform 'win-64': choose linux-64 or linux-aarch64"):
        Platform.parse("win-64")


def test_cell_ids_and_their_components_are_inverse_for_every_component_and_platform():
    components = {
        "deepspeed": "0.19.8", "megatron-core": "0.19.2", "colossalai": "0.5.0", "torch": "2.13.0+cu130",
        "cuda": "13.0", "python": "3.12", "transformer-engine": "2.9.0+x", "flash-attn": "2.8.1", "some-thing": "1!2_0",
    }  # fmt: skip
    for cuda, build in (("13.0", "cu130"), ("12.8", "cu128"), ("cpu", "cpu")):
        parts = {**components, "cuda": cuda, "torch": f"2.13.0+{build}", "some-thing": "1.2"}
        for platform in Platform:
            cell = CellId(tuple(parts.items()), platform)
            assert CellId.parse(str(cell)) == cell
    assert str(CellId((("python", "3"), ("cuda", "13")))) == "py3-cu13"
    assert CellId.parse("py3-cu13").components == (("python", "3"), ("cuda", "13"))


@pytest.mark.parametrize(("text", "token"), [("ds0.19.8--py312", "''"), ("ds0.19.8-PY312", "'PY312'"), ("9", "'9'")])
def test_the_part_of_an_id_that_is_not_understood_is_named(text, token):
    with pytest.raises(ValueError, match=f"'{text}' is not a cell id: {token} is not NAMEVERSION"):
        CellId.parse(text)


def test_a_cell_says_its_name_its_frameworks_and_where_its_torch_is():
    cell = Cell(
        components={"deepspeed": "0.19.8", "torch": "2.9.1+cu128", "cuda": "12.8", "python": "3.12", "nccl": "2.27.5"},
        chosen=("deepspeed", "torch", "python"),
        index="pytorch",
    )

    assert cell.frameworks == ("deepspeed",)
    assert cell.to_json() == {
        "id": "ds0.19.8-torch2.9.1-py312",
        "platform": "linux-64",
        "index": "pytorch",
        "components": dict(cell.components),
    }


def test_a_request_takes_names_and_texts_for_specs():
    request = Request(frameworks=["deepspeed"], constraints={"torch": "2.9", "python": Spec.parse("3.12")})

    assert request.frameworks == {"deepspeed": Spec("*")}
    assert request.constraints == {"torch": Spec("2.9"), "python": Spec("3.12")}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"driver": "new"}, "Cannot read --driver: "),
        ({"gpus": ("sm_90", "h?")}, "Cannot read --gpu: "),
        ({"exclude_newer": "2026-11"}, "Cannot read --exclude-newer '2026-11': it is not a day."),
        ({"date": "20261101"}, "Cannot read --date '20261101': it is not a day."),
    ],
)
def test_a_request_holds_versions_and_days_only(given, message):
    with pytest.raises(UsageError) as refused:
        Request(**given)

    assert refused.value.message.startswith(message)


def test_what_narrows_a_request_twice_holds_both_times():
    request = Request().narrow("cuda", Spec(">=12.8"), "the flavour").narrow("cuda", Spec("<13"), "the lock")

    spec, reason = request.narrowed["cuda"]
    assert [spec.contains(version) for version in ("12.6", "12.8", "13.0")] == [False, True, False]
    assert reason == "the lock, and the flavour asks for >=12.8"


def test_a_component_is_known_by_every_spelling_and_no_two_share_one():
    alpha = Component(
        name="alpha-lm", role=Role.FRAMEWORK, short="al", title="A", distributions=("alpha_core",), aliases=("AL",)
    )
    beta = Component(name="beta", role=Role.CORE, short="be", title="B")
    table = ComponentTable.of([alpha, beta])

    assert all(table.find(name) is alpha for name in ("alpha-lm", "Alpha_LM", " alpha core", "al", "ALPHA.CORE"))
    assert table.find("gamma") is None
    assert table.with_role(Role.CORE) == [beta]
    assert table.nearest("alpha") == ["alpha-lm"]
    assert table.nearest("bet") == ["beta"]
    assert table.nearest("bet", {"alpha"}) == []
    with pytest.raises(ValueError, match="'alpha_core' names both beta and alpha-lm"):
        ComponentTable.of([dataclasses.replace(beta, aliases=("alpha_core",)), alpha])


def test_what_was_run_is_the_strongest_evidence_and_a_thread_the_weakest():
    order = ["validated", "measured", "declared", "documented", "reported"]

    assert [EvidenceKind(kind).strength for kind in order] == [5, 4, 3, 2, 1]
    evidence = Evidence(kind=EvidenceKind.MEASURED, source="the wheel", date="2026-01-01")
    assert str(evidence) == "measured 2026-01-01: the wheel"


def test_a_rule_speaks_of_each_component_once_in_the_order_of_its_rows():
    one = Row(when={"b": Spec("*")}, needs={"a": Spec("*"), "b": Spec("*")})
    rule = Rule(id="r", kind=RuleKind.REQUIRES, rows=(one, Row(when={"c": Spec("*"), "a": Spec("*")})))

    assert one.scope == ("b", "a")
    assert rule.components == ("b", "a", "c")


def test_each_clause_of_a_spec_is_a_spec_of_its_own():
    clauses = Spec.parse(">=2.6,<2.4 || 2.9").clauses

    assert [str(clause) for clause in clauses] == [">=2.6", "<2.4", "2.9"]
    assert [clause.contains("2.9.1") for clause in clauses] == [True, False, True]
