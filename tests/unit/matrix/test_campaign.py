"""Campaign files: which cells they choose, what the graph says of each, what is left out and why."""

import json

import pytest
from records_help import cell, job, plan

from envsmith.errors import DataError, UsageError
from envsmith.knowledge.graph.load import components
from envsmith.matrix.campaign.choices import Campaign, CellChoice, read_campaign
from envsmith.matrix.campaign.composer import Composer
from envsmith.matrix.campaign.job import CampaignJob, CampaignPlan, CampaignSettings
from envsmith.matrix.campaign.selection import covering, make_plan
from envsmith.matrix.campaign.slurm import SlurmExecutor
from envsmith.matrix.campaign.state import CampaignState
from envsmith.model.record import Expected
from envsmith.solver import default_solver


@pytest.fixture(scope="module")
def composer():
    return Composer(default_solver(), pythons=("3.10", "3.11", "3.12"))


def read(tmp_path, text):
    path = tmp_path / "c.yaml"
    path.write_text(text)
    return read_campaign(path, components())


# -- the file


def test_a_campaign_file_is_read(tmp_path):
    campaign = read(
        tmp_path,
        'schema: 1\nname: cpu\nranks: 4\nexecutor: {jobs: 2}\ncells:\n- grid: {deepspeed: ["0.16.4"], torch: ["2.6.0"]}\n  why: a reason\n'
        '- bad: {stages: [import], torch: ">=2.0"}\n- ids: [ds0.16.4-torch2.6.0-cu124-py312]\n- changed: {since: 2026-11-01, deepspeed: "*"}\n',
    )
    assert (campaign.name, campaign.ranks, campaign.executor.jobs) == ("cpu", 4, 2)
    assert [c.kind for c in campaign.choices] == ["grid", "bad", "ids", "changed"]
    assert campaign.choices[0].where == {"deepspeed": ("0.16.4",), "torch": ("2.6.0",)}
    assert campaign.choices[1].words == ("import",)
    assert campaign.choices[3].since == "2026-11-01"


def test_archives_of_a_campaign_come_into_its_plan(tmp_path, composer):
    source = "horovod@horovod.tar.gz#sha256=" + "0" * 64
    text = 'schema: 1\nname: x\nsources: ["%s"]\ncells:\n- grid: {horovod: ["0.28.2.dev25"], torch: ["2.13.0"]}\n'
    plan = make_plan(read(tmp_path, text % source), composer, exclude_newer="2026-11-20")
    assert CampaignPlan.parse(plan.text(), "plan").sources == (source,)
    with pytest.raises(DataError) as caught:
        read(tmp_path, text % "horovod.tar.gz")
    assert "not a source archive" in caught.value.details[0]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("name: x\n", "`cells` is missing"),
        ("schema: 1\nname: X y\ncells: []\n", "no name of a campaign"),
        ("schema: 2\nname: x\ncells: []\n", "another schema"),
        ("schema: 1\nname: x\ncells: [{}]\n", "grid, solved"),
        ("schema: 1\nname: x\ncells:\n- {grid: {torhc: ['2.6']}}\n", "unknown component"),
        ("schema: 1\nname: x\ncells:\n- {grid: {torch: [2.6]}}\n", "quote it"),
        ("schema: 1\nname: x\ncells:\n- {solved: {torch: []}}\n", "an empty list admits no version"),
        ("schema: 1\nname: x\nranks: many\ncells: []\n", "a number from 2"),
        ("schema: 1\nname: x\nexecutor: {jbos: 2}\ncells: []\n", "did you mean `jobs`"),
        ("schema: 1\nname: x\ncells:\n- {stack: hff, grid: {torch: ['2.6']}}\n", "Cannot use the stack 'hff'"),
        ("schema: 1\nname: x\ncells:\n- {stack: hf, bad: {torch: '>=2.6'}}\n", "a stack has no meaning here"),
        ("a: [", "not valid YAML"),
    ],
)
def test_what_is_wrong_with_a_campaign_file_is_told(tmp_path, text, told):
    with pytest.raises(DataError) as caught:
        read(tmp_path, text)
    assert any(told in line for line in caught.value.details), caught.value.details


def test_a_line_with_a_stack_has_its_members_and_a_spec_of_the_line_counts_first(tmp_path):
    line = '- {stack: hf, grid: {torch: ["2.6.0"], peft: ["0.14.0"]}}'
    (choice,) = read(tmp_path, f"schema: 1\nname: x\ncells:\n{line}\n").choices
    assert choice.where["peft"] == ("0.14.0",)
    assert choice.where["trl"] == ("*",)


# -- composing


def test_a_rule_is_broken_where_the_conflict_rests_on_what_a_wheel_brings_too(composer):
    releases = {"accelerate": "1.5.2", "torch": "2.6.0", "bitsandbytes": "0.44.1", "python": "3.11"}
    job = composer.compose(releases)
    assert isinstance(job, CampaignJob), job
    assert (job.expected, job.rules) == (Expected.BAD, ("bitsandbytes-triton-ops",))


def test_a_valid_combination_is_expected_to_be_good(composer):
    found = composer.compose({"deepspeed": "0.19.8", "torch": "2.13.0", "python": "3.12"})
    assert isinstance(found, CampaignJob)
    assert (found.id, found.expected, found.rules) == ("ds0.19.8-torch2.13.0-cu130-py312", Expected.GOOD, ())


def test_a_combination_that_a_rule_forbids_is_composed_against_it(composer):
    found = composer.compose({"deepspeed": "0.8.1", "torch": "2.15.0"})
    assert isinstance(found, CampaignJob)
    assert found.expected is Expected.BAD
    assert "deepspeed-torch-six" in found.rules
    assert found.cell.components["torch"] == "2.15.0+cu132"


def test_what_no_resolver_would_give_is_left_out_with_the_reason(composer):
    told = composer.compose({"colossalai": "0.5.0", "torch": "2.9.1"})
    assert isinstance(told, str)
    assert "colossalai-declares-torch" in told


def test_a_python_without_a_wheel_is_left_out(composer):
    assert "torch-wheels-python" in composer.compose({"megatron-core": "0.12.3", "torch": "2.0.1", "python": "3.12"})


def test_a_release_that_does_not_exist_is_left_out(composer):
    assert "no such release" in composer.compose({"deepspeed": "0.99.0", "torch": "2.9.1"})


def test_an_unknown_component_is_a_mistake_of_the_user(composer):
    with pytest.raises(UsageError, match="not a component that envsmith knows"):
        composer.compose({"deepspeedy": "1.0"})


# -- choosing


def chosen(composer, *choices):
    return make_plan(Campaign(name="t", choices=choices), composer, exclude_newer="2026-11-20")


def test_a_grid_is_every_combination_once(composer):
    where = {"deepspeed": ("0.16.4", "0.16.9"), "torch": ("2.6.0", "2.7.1"), "python": ("3.12",)}
    made = chosen(composer, CellChoice(kind="grid", where=where), CellChoice(kind="grid", where=where))
    assert len(made.jobs) == 4
    assert [j.cell.components["torch"] for j in made.jobs] == ["2.6.0+cu124"] * 2 + ["2.7.1+cu126"] * 2


@pytest.mark.slow  # every cell beside the bounds of every such rule is composed
def test_known_bad_cells_of_an_import_rule_are_chosen(composer):
    made = chosen(
        composer, CellChoice(kind="bad", words=("import",), where={"deepspeed": (">=0.13,<0.15",), "torch": (">=2.0",)})
    )
    assert made.jobs
    assert {j.expected for j in made.jobs} == {Expected.BAD}
    assert all(j.cell.components["python"] in composer.pythons for j in made.jobs)
    assert any("deepspeed-elastic-log" in j.rules for j in made.jobs)


def test_a_choice_of_all_valid_cells_can_be_cut(composer):
    made = chosen(composer, CellChoice(kind="solved", where={"deepspeed": ("0.16.4",), "torch": (">=2.5",)}, take=3))
    assert len(made.jobs) == 3


def test_a_covering_choice_has_every_pair_and_fewer_cells():
    cells = [
        cell(framework=f, torch=t, python=p)
        for f in ("0.15.4", "0.16.4", "0.17.2")
        for t in ("2.6.0+cu124", "2.7.0+cu124")
        for p in ("3.10", "3.11", "3.12")
    ]
    few = covering(cells)
    assert len(few) < len(cells)
    for one, other in (("deepspeed", "torch"), ("deepspeed", "python"), ("torch", "python")):
        wanted = {(c.components[one], c.components[other]) for c in cells}
        assert {(c.components[one], c.components[other]) for c in few} == wanted


def test_what_changed_since_a_day_is_chosen_with_its_reason(composer):
    where = {"deepspeed": ("0.19.8",), "torch": ("2.13.0",), "python": ("3.12",)}
    made = chosen(composer, CellChoice(kind="changed", where=where, since="2026-11-01"))
    assert "2026-11-" in made.jobs[0].why
    with pytest.raises(UsageError, match="it chooses no cell"):
        chosen(
            composer,
            CellChoice(kind="changed", where={"deepspeed": ("0.14.5",), "torch": ("2.4.1",)}, since="2030-01-01"),
        )


def test_named_cells_are_taken_as_they_are(composer):
    made = chosen(composer, CellChoice(kind="ids", words=("ds0.16.4-torch2.6.0-cu124-py312",)))
    assert [j.id for j in made.jobs] == ["ds0.16.4-torch2.6.0-cu124-py312"]
    with pytest.raises(UsageError):
        chosen(composer, CellChoice(kind="ids", words=("what",)))


def test_nothing_chosen_says_why(composer):
    with pytest.raises(UsageError) as caught:
        chosen(composer, CellChoice(kind="grid", where={"colossalai": ("0.5.0",), "torch": ("2.9.1",)}))
    assert "colossalai-declares-torch" in str(caught.value)


# -- the plan


def test_a_plan_reads_back_as_it_was_written():
    made = plan(job(), job(expected=Expected.BAD, framework="0.8.1"))
    assert CampaignPlan.parse(made.text(), "plan") == made


@pytest.mark.parametrize(
    "change",
    [
        {"schema": 9},
        {"jobs": {}},
        {"jobs": [{"components": {"torch": "2.6.0"}}]},
        {"jobs": [7]},
        {"ranks": 1},
        {"ranks": "two"},
    ],
)
def test_a_broken_plan_is_refused(change):
    data = {**json.loads(plan(job()).text()), **change}
    with pytest.raises(DataError):
        CampaignPlan.parse(json.dumps(data), "plan.json")


def test_a_job_that_names_a_path_is_refused():
    data = json.loads(plan(job()).text())
    data["jobs"][0]["components"]["deepspeed"] = "../../etc"
    with pytest.raises(DataError, match=r"components\.deepspeed"):
        CampaignPlan.parse(json.dumps(data), "plan.json")


# -- GitHub Actions


def test_a_plan_is_a_list_that_a_workflow_can_include():
    from envsmith.matrix.campaign.job import listing

    made = listing(plan(job(), job(expected=Expected.BAD, framework="0.8.1")))
    assert [(j["cell"], j["python"]) for j in made["jobs"]] == [
        ("ds0.16.4-torch2.6.0-cu124-py312", "3.12"),
        ("ds0.8.1-torch2.6.0-cu124-py312", "3.12"),
    ]
    assert made["left_out"] == []


# -- Slurm


def test_settings_of_slurm_come_from_the_campaign_file():
    settings = CampaignSettings(partition="gpu", gpus=2, minutes=90, jobs=4)
    executor = SlurmExecutor(settings, "nightly", ranks=4)
    asked = executor._parameters()
    assert (asked["partition"], asked["gpus_per_node"], asked["time"]) == ("gpu", 2, 90)
    assert (asked["mem"], asked["cpus_per_task"]) == ("8GB", 4)
    assert asked["job_name"] == "envsmith-nightly"
    assert executor.room(3) == 997


# -- the command line


CAMPAIGN = 'schema: 1\nname: cli\ncells:\n- grid: {deepspeed: ["0.16.4"], torch: ["2.6.0"], python: ["3.12"]}\n- grid: {colossalai: ["0.5.0"], torch: ["2.9.1"]}\n'


def test_the_plan_of_a_campaign_can_be_looked_at(tmp_path, capsys):
    from envsmith.cli.app import run

    path = tmp_path / "c.yaml"
    path.write_text(CAMPAIGN)
    assert run(["matrix", "run", str(path), "--plan", "--state", str(tmp_path / "state")]) == 0
    told = capsys.readouterr()
    assert told.out.startswith("ds0.16.4-torch2.6.0-cu124-py312  ")
    assert "left out: colossalai 0.5.0 torch 2.9.1" in told.err
    assert not (tmp_path / "state").exists()
    assert run(["matrix", "run", str(path), "--plan", "--json", "--state", str(tmp_path / "state")]) == 0
    assert json.loads(capsys.readouterr().out)["jobs"][0]["cell"] == "ds0.16.4-torch2.6.0-cu124-py312"


def test_mistakes_of_a_campaign_end_with_a_sentence(tmp_path, capsys):
    from envsmith.cli.app import run

    assert run(["matrix", "run", "--state", str(tmp_path / "none")]) == 2
    assert "Start one with a campaign file" in capsys.readouterr().err
    assert run(["matrix", "run", str(tmp_path / "missing.yaml"), "--state", str(tmp_path / "none")]) == 3
    path = tmp_path / "c.yaml"
    path.write_text(CAMPAIGN)
    assert (
        run(["matrix", "run", str(path), "--only", "ds9.9.9-torch2.6.0-cu124-py312", "--state", str(tmp_path / "s")])
        == 2
    )
    assert "has no such cell" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("partition", "gpu\ntouch owned"),
        ("partition", "gpu; touch owned"),
        ("partition", "$(touch owned)"),
        ("partition", "-x"),
        ("python", "python3; touch owned"),
        ("python", "/opt/python3\ntouch owned"),
        ("python", "-c"),
        ("minutes", "60\ntouch owned"),
    ],
)
def test_setting_that_a_shell_would_read_otherwise_is_refused_in_the_file_and_in_the_plan(tmp_path, setting, value):
    file = tmp_path / "c.yaml"
    file.write_text(json.dumps({"schema": 1, "name": "x", "executor": {setting: value}, "cells": [{"ids": ["x1"]}]}))
    frozen = json.dumps(
        {"schema": 1, "name": "x", "exclude_newer": "2026-01-01", "executor": {setting: value}, "jobs": []}
    )

    with pytest.raises(DataError) as in_file:
        read_campaign(file, components())
    with pytest.raises(DataError) as in_plan:
        CampaignPlan.parse(frozen, "plan.json")

    for refused in (in_file, in_plan):
        assert any(f"executor.{setting}" in line for line in refused.value.details), refused.value.details


def test_campaign_in_a_folder_with_a_line_break_is_not_handed_to_slurm(tmp_path):
    pytest.importorskip("submitit")
    state = CampaignState(tmp_path / "a\ntouch owned")
    with pytest.raises(UsageError, match="single line"):
        SlurmExecutor(CampaignSettings(), "x", 2).submit(state, ())
