"""YAML becomes rules: order, runs of equal rows, evidence, and every problem of a file at once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from envsmith.errors import DataError, LeftAsideWarning
from envsmith.knowledge.graph.load import version_graph
from envsmith.knowledge.graph.location import list_files
from envsmith.knowledge.graph.read import read_knowledge
from envsmith.model.cell import Platform
from envsmith.model.record import Failure, Record, Rung, record_text
from envsmith.model.rule import EvidenceKind, RuleKind, Severity


def rule(knowledge, rule_id):
    return next(r for r in knowledge.rules if r.id == rule_id)


def problems(matrix):
    with pytest.raises(DataError) as caught:
        read_knowledge(matrix.root)
    assert caught.value.exit_code == 3
    return list(caught.value.details)


def test_releases_come_in_version_order_whatever_the_file_says(matrix):
    releases = read_knowledge(matrix.root).releases["alpha"]
    assert [r.version for r in releases] == ["1.0.0", "1.1.0", "2.0.0"]
    assert (releases[2].yanked, releases[2].facts) == ("yanked", {"sdist_only": True})


def test_releases_that_were_yanked_are_a_warning_with_the_reason(matrix):
    (row,) = rule(read_knowledge(matrix.root), "alpha-yanked").rows
    assert (row.when["alpha"].text, row.severity, row.cause) == ("==2.0.0", Severity.WARNING, "its publisher yanked it")
    assert row.fix == "Use another release."

    matrix.change("releases/alpha.yaml", "yanked: true", 'yanked: "It cannot be imported"')

    assert (
        rule(read_knowledge(matrix.root), "alpha-yanked").rows[0].cause
        == "its publisher yanked it: It cannot be imported"
    )


def test_what_an_extra_asks_for_is_a_warning_with_the_reason(matrix):
    matrix.change("releases/alpha.yaml", "yanked: true,", 'yanked: true, extras: {torch: ">=2.3"},')

    (row,) = rule(read_knowledge(matrix.root), "alpha-extra-torch").rows

    assert (row.when["alpha"].text, row.needs["torch"].text, row.severity) == ("==2.0.0", ">=2.3", Severity.WARNING)
    assert row.fix == "Use such a release of torch, or leave out what needs it."


_PATCH = '- {version: "1.1.1", date: 2024-07-01, requires: {torch: ">=2.1,<2.2"}, evidence: index}\n'


def with_patch(matrix, line):
    matrix.change("releases/alpha.yaml", '- {version: "1.0.0"', line + '- {version: "1.0.0"')
    return read_knowledge(matrix.root)


def test_what_a_patch_bars_that_came_out_before_it_is_a_warning_for_the_releases_before(matrix):
    (row,) = rule(with_patch(matrix, _PATCH), "alpha-later-torch").rows

    assert (row.when["alpha"].text, row.needs["torch"].text, row.severity) == ("==1.1.0", "<2.2.0", Severity.WARNING)
    assert (
        row.cause == "alpha 1.1.1, a later release of the same series, bars torch 2.2.0, which came out between the two"
    )


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("date: 2024-07-01", "date: 2024-05-01"),  # the patch was there before torch 2.2.0
        ('version: "1.1.1"', 'version: "1.2.0"'),  # another series
        (">=2.1,<2.2", ">=2.3"),  # a floor bars nothing new
    ],
)
def test_a_patch_that_bars_nothing_new_says_nothing_of_the_releases_before(matrix, text, other):
    knowledge = with_patch(matrix, _PATCH.replace(text, other))

    assert "alpha-later-torch" not in {r.id for r in knowledge.rules}


def test_declarations_become_one_row_per_run_of_equal_ones(matrix):
    rows = rule(read_knowledge(matrix.root), "alpha-declares-torch").rows
    assert [(r.when["alpha"].text, r.needs["torch"].text) for r in rows] == [
        (">=1.0.0,<=1.1.0", ">=2.1"),
        ("==2.0.0", ">=2.2"),
    ]


def test_declarations_of_one_platform_or_some_pythons_become_rows_of_their_own(matrix):
    where = 'requires_where: [{platform: linux-64, python: ">=3.11", requires: {torch: "<2.2"}}], evidence: index}'
    matrix.change("releases/alpha.yaml", 'requires: {torch: ">=2.1"}, evidence: index}', where)

    rows = rule(read_knowledge(matrix.root), "alpha-declares-torch").rows

    assert [({n: s.text for n, s in row.when.items()}, row.needs["torch"].text, row.platforms) for row in rows] == [
        ({"alpha": ">=1.0.0,<=1.1.0", "python": ">=3.11"}, "<2.2", (Platform.LINUX_64,)),
        ({"alpha": "==2.0.0"}, ">=2.2", ()),
    ]


def test_torch_builds_become_rules_with_their_own_evidence(matrix):
    knowledge = read_knowledge(matrix.root)
    nccl = rule(knowledge, "torch-bundles-nccl")
    assert nccl.kind is RuleKind.BUNDLES
    assert [e.source for e in nccl.rows[0].evidence] == ["the notes"]
    (cuda, _) = rule(knowledge, "torch-bundles-cuda").rows
    assert (cuda.evidence[0].kind, cuda.evidence[0].sha256, cuda.platforms) == (
        EvidenceKind.MEASURED,
        "a" * 64,
        (Platform.LINUX_64,),
    )


def test_wheels_bar_more_pythons_than_the_metadata_where_there_is_no_source_distribution(matrix):
    (row,) = rule(read_knowledge(matrix.root), "alpha-declares-python").rows
    assert [v for v in ("3.9", "3.10", "3.11") if row.needs["python"].contains(v)] == ["3.10"]
    assert row.cause == "there are wheels for these only"


def test_nothing_follows_from_a_field_that_is_left_out(matrix):
    knowledge = read_knowledge(matrix.root)
    assert len(rule(knowledge, "torch-bundles-nccl").rows) == 1
    assert len(rule(knowledge, "torch-runs-on-gpu").rows) == 1


def test_machine_code_and_ptx_run_where_the_table_says(matrix):
    gpus = rule(read_knowledge(matrix.root), "torch-runs-on-gpu").rows[0].needs["gpu"]
    assert [g for g in ("sm_75", "sm_80", "sm_86", "sm_87", "sm_90", "sm_120") if gpus.contains(g)] == [
        "sm_80",
        "sm_86",
        "sm_90",
        "sm_120",
    ]


def test_build_that_a_platform_lacks_is_bad_there(matrix):
    rows = rule(read_knowledge(matrix.root), "torch-wheels-platform").rows
    assert {r.platforms for r in rows} == {(Platform.LINUX_AARCH64,)}
    assert rows[0].cause == "published for linux-64 only"


def test_rows_inherit_from_their_rule_and_may_differ(matrix):
    first, second = rule(read_knowledge(matrix.root), "alpha-table").rows
    assert (first.severity, first.cause, first.evidence[0].source, first.platforms) == (
        Severity.WARNING,
        "shared cause",
        "an issue",
        (),
    )
    assert (second.severity, second.cause, second.evidence[0].source) == (Severity.ERROR, "own cause", "doc")
    assert second.platforms == (Platform.LINUX_64,)
    assert second.needs["torch"].contains("2.2.0")
    assert not second.needs["torch"].contains("2.2.1")


def test_gpu_names_are_folded(matrix):
    assert read_knowledge(matrix.root).gpus == {"h100": "sm_90", "h200": "sm_90"}


def test_passed_record_supports_its_cell_and_a_failed_one_does_not(matrix):
    failure = Failure(rung=Rung.IMPORTED, symptom="no GPU", of_host=True)
    run = Record(
        cell="al1.1.0-torch2.1.0-cu118-py310",
        components={"alpha": "1.1.0", "torch": "2.1.0+cu118"},
        lock="",
        engine="venv",
        environment="",
        rungs=(Rung.INSTALLED,),
        passed=True,
        summary="",
        started="2026-01-05T00:00:00Z",
        seconds={},
        host={},
        loaded={},
        backend="gloo",
        ranks=2,
    )
    matrix.write("records/a.json", record_text(run))
    matrix.write("records/b.json", record_text(replace(run, passed=False, failure=failure)))
    tested = [t for t in read_knowledge(matrix.root).tested if t.kind == "record"]
    assert [(t.framework, t.version.text, t.evidence[0].kind) for t in tested] == [
        ("alpha", "==1.1.0", EvidenceKind.VALIDATED)
    ]


def test_rule_without_evidence_does_not_load(matrix):
    matrix.change("rules/alpha.yaml", "  fix: update\n  evidence: issue\n", "  fix: update\n")
    assert problems(matrix) == ["rules/alpha.yaml: rules[0]: no evidence — nothing is known without: add `evidence:`"]


def test_release_without_evidence_does_not_load(matrix):
    matrix.change(
        "releases/alpha.yaml",
        'requires: {torch: ">=2.2", python: ">=3.8"}, python: ["3.10"], sdist_only: true, evidence: index',
        'requires: {torch: ">=2.2"}',
    )
    assert problems(matrix) == ["releases/alpha.yaml: releases[2]: `evidence` is missing — add `evidence:`"]


def test_all_problems_of_all_files_are_told_at_once(matrix):
    matrix.change("rules/alpha.yaml", 'torch: "2.2"', 'torch: ">=2.x"')
    matrix.change("rules/alpha.yaml", "kind: requires", "kind: request")
    matrix.change("releases/torch.yaml", 'version: "2.2.0+cu121"', "version: 2.2")
    matrix.change("tested/alpha.yaml", "tested:\n- {version", "tested:\n- {verison")
    found = problems(matrix)
    assert (
        "rules/alpha.yaml: rules[0].when.torch: `>=2.x`: not a version spec — examples: 2.4.1, ==2.4.*, >=0.16,<0.17, sm_90"
        in found
    )
    assert "rules/alpha.yaml: rules[1].kind: `request`: unknown word — choose bundles, requires, conflicts" in found
    assert 'releases/torch.yaml: builds[1].version: `2.2`: a number where a version belongs — quote it: "2.2"' in found
    assert "tested/alpha.yaml: tested[0].verison: `1.1.0`: unknown key — did you mean `version`?" in found


@pytest.mark.parametrize(
    ("file", "old", "new", "told"),
    [
        ("rules/alpha.yaml", "alpha-old", "Alpha Old!", "not a rule id"),
        ("rules/alpha.yaml", "alpha-old", "alpha-table", "this id is used twice"),
        ("rules/alpha.yaml", "stage: build", "stage: compile", "unknown word — choose install, build"),
        ("rules/alpha.yaml", "gcc:", "gcx:", "unknown component `gcx` — did you mean gcc?"),
        ("rules/alpha.yaml", "severity: warning", "severity: fatal", "unknown word"),
        ("rules/alpha.yaml", "severity: warning", "severity: warning\n  feature: compile", "write severity: note"),
        ("rules/alpha.yaml", 'needs: {torch: "2.1"}', "needs: 5", "a mapping (key: value) belongs here"),
        ("rules/alpha.yaml", "  stage: build\n", "  signature: '(unclosed'\n", "not a regular expression"),
        ("releases/alpha.yaml", "date: 2024-02-01", "date: 2024-02-31", "not a day"),
        ("releases/alpha.yaml", "date: 2024-02-01", "date: yesterday", "not a day"),
        ("releases/alpha.yaml", 'version: "1.0.0"', 'version: "1.1.0"', "stands in this file twice"),
        ("releases/alpha.yaml", 'python: ["3.10"]', "python: [3.10]", "a number where a version belongs"),
        ("releases/alpha.yaml", "sdist_only: true", "sdist_only: 1", "true or false belongs here"),
        ("releases/alpha.yaml", "component: alpha", "component: alpah", "unknown component"),
        ("releases/alpha.yaml", "evidence: index}\n-", "evidence: idnex}\n-", "no such evidence in this file"),
        (
            "releases/torch.yaml",
            "platform: linux-64, date: 2024-06-01",
            "platform: win-64, date: 2024-06-01",
            "unknown word — choose linux-64, linux-aarch64",
        ),
        ("releases/torch.yaml", "index: pytorch", "index: conda", "unknown word — choose default, pytorch"),
        ("releases/torch.yaml", "compute_90", "sm_90", "not a PTX architecture"),
        ("releases/torch.yaml", "a" * 64, "abc", "not a sha256"),
        ("releases/gpu.yaml", "h100", "h200", "twice"),
        ("components.yaml", "aliases: [pytorch]", "aliases: [alpha]", "names both"),
        ("components.yaml", "role: framework", "role: engine", "unknown word"),
        ("components.yaml", "name: alpha", "name: true", "text belongs here"),
        ("tested/alpha.yaml", "framework: alpha", "framework: gamma", "unknown component"),
    ],
)
def test_each_kind_of_mistake_is_told_with_file_and_place(matrix, file, old, new, told):
    if told == "twice":
        matrix.change(
            "releases/gpu.yaml",
            '- {gpu: sm_90, names: [h100, "H 200"], evidence: table}',
            "- {gpu: sm_90, names: [h100], evidence: table}\n- {gpu: sm_80, names: [h100], evidence: table}",
        )
        told = "names both sm_90 and sm_80"
    else:
        matrix.change(file, old, new)
    found = problems(matrix)
    assert any(told in line for line in found), found
    assert all(line.split(":")[0].endswith((".yaml", "rule alpha-table")) for line in found)


@pytest.mark.parametrize(
    "text",
    [
        "rules: [",
        "\tx: 1",
        "a: &a [1]\nb: *c",
        "rules: !!python/object/apply:os.system ['true']",
        "- " * 3000,
        "\x00",
        "rules:\n- {id: a, id: b}",
        "a: &a [*a]",
        "x: &a [x,x,x,x,x,x,x,x,x]\n"
        + "".join(f"y{i}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(8)),
    ],
)
def test_hostile_yaml_is_a_problem_of_its_file_and_no_traceback(matrix, text):
    matrix.write("rules/evil.yaml", text)
    assert any(line.startswith("rules/evil.yaml") for line in problems(matrix))


@pytest.mark.parametrize("text", ["", "[]", "7", "rules: 7", "rules: [7, [], null]", "rules: {a: b}"])
def test_other_shapes_than_expected_are_problems(matrix, text):
    matrix.write("rules/odd.yaml", text)
    assert any(line.startswith("rules/odd.yaml") for line in problems(matrix))


@pytest.mark.parametrize(
    "text", ["{", "7", '{"passed": true}', '{"passed": true, "cell": "x", "components": {"torch": "new"}}']
)
def test_broken_record_is_named_and_left_aside(matrix, text):
    matrix.write("records/x.json", text)

    knowledge = read_knowledge(matrix.root)

    assert knowledge.releases["alpha"]
    (line,) = knowledge.left_aside
    assert line.startswith("records/x.json: ")
    assert line.endswith("left aside")


def test_record_that_cannot_be_opened_is_named_and_left_aside(matrix):
    matrix.write("records/folder.json/x", "")
    (matrix.root / "records" / "nowhere.json").symlink_to("nothing")

    with pytest.warns(LeftAsideWarning) as warned:
        graph = version_graph(list_files(matrix.root))

    assert graph.compiled.versions["alpha"]
    assert [str(each.message).partition(": ")[0] for each in warned] == ["records/folder.json", "records/nowhere.json"]


def test_file_larger_than_any_honest_one_is_refused(matrix):
    matrix.write("rules/big.yaml", "#" * 8_000_001)
    with pytest.raises(DataError, match="larger than"):
        read_knowledge(matrix.root)


def test_digest_changes_with_the_content(matrix):
    before = read_knowledge(matrix.root).digest
    matrix.change("rules/alpha.yaml", "it is old", "it is very old")
    assert read_knowledge(matrix.root).digest != before
