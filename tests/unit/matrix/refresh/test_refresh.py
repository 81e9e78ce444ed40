"""What a refresh promises: new facts with their hash and day, hand-written lines untouched, nothing twice."""

from __future__ import annotations

import hashlib

import pytest
import yaml

from envsmith.errors import DataError, NetworkError, UsageError
from envsmith.knowledge.graph.read import read_knowledge
from envsmith.matrix.refresh.updates import apply, open_context


def _builds(knowledge):
    return yaml.safe_load((knowledge / "releases/torch.yaml").read_text())["builds"]


def test_a_new_torch_release_is_known_after_one_refresh(knowledge, plan, world):
    apply(plan("torch").changes)
    new = [b for b in _builds(knowledge) if b["version"].startswith("2.16.0")]
    assert [(b["version"], b["platform"], b["index"]) for b in new] == [
        ("2.16.0+cu134", "linux-64", "default"),
        ("2.16.0+cpu", "linux-aarch64", "default"),
    ]
    build = new[0]
    assert (build["cuda"], build["nccl"], build["cudnn"], build["triton"]) == ("13.4", "2.33.1", "9.30.0.1", "3.10.1")
    assert (build["python"], build["gpu"], build["ptx"]) == (["3.11", "3.12"], ["sm_80", "sm_90", "sm_120"], [])
    assert (build["glibc"], build["cxx11_abi"], str(build["date"])) == ("2.28", True, "2026-12-02")
    url = "https://index.test/files/torch-2.16.0-cp311-cp311-manylinux_2_28_x86_64.whl"
    assert build["sha256"] == hashlib.sha256(world.bodies[url]).hexdigest()
    assert (new[1]["nccl"], new[1]["cudnn"], "gpu" in new[1]) == ("none", "none", False)


def test_the_graph_loads_the_new_release_with_rules_and_evidence(knowledge, plan):
    apply(plan("torch").changes)
    known = read_knowledge(knowledge)
    assert "2.16.0+cu134" in [r.version for r in known.releases["torch"]]
    assert [r.version for r in known.releases["nccl"]] == ["2.32.3", "2.33.1"]
    assert [r.version for r in known.releases["cudnn"]] == ["9.26.0.51", "9.30.0.1"]
    assert "13.4" in [r.version for r in known.releases["cuda"]]
    rule = next(r for r in known.rules if r.id == "torch-bundles-nccl")
    row = next(r for r in rule.rows if r.when["torch"].contains("2.16.0+cu134"))
    assert row.needs["nccl"].text == "==2.33.1"
    assert (row.evidence[0].kind.value, row.evidence[0].date) == ("measured", "2026-12-03")
    assert row.evidence[0].sha256


def test_lines_and_comments_of_people_keep_their_bytes(knowledge, plan):
    before = (knowledge / "releases/torch.yaml").read_text().splitlines()
    apply(plan().changes)
    after = (knowledge / "releases/torch.yaml").read_text().splitlines()
    assert [line for line in after if line in before] == before


def test_nothing_is_written_before_apply(knowledge, plan):
    before = {p: p.read_bytes() for p in knowledge.parent.rglob("*") if p.is_file()}
    assert plan().changes
    assert {p: p.read_bytes() for p in knowledge.parent.rglob("*") if p.is_file()} == before


def test_a_second_run_right_after_finds_nothing_and_opens_nothing(plan, world):
    apply(plan().changes)
    world.asked.clear()
    again = plan()
    assert (again.changes, again.problems, world.opened()) == ((), (), [])


def test_reading_everything_again_finds_nothing_new_either(plan, world):
    apply(plan().changes)
    world.asked.clear()
    assert plan(again=True).changes == ()
    assert world.opened()


def test_an_artifact_that_cannot_be_read_is_a_problem_and_the_others_are_kept(plan, world, knowledge):
    broken = "https://index.test/files/torch-2.16.0-cp311-cp311-manylinux_2_28_aarch64.whl"
    world.broken.add(broken)
    first = plan("torch")
    assert len(first.problems) == 1
    assert "torch 2.16.0 for linux-aarch64" in first.problems[0]
    apply(first.changes)
    world.broken.clear()
    world.asked.clear()
    apply(plan("torch").changes)
    assert set(world.opened()) == {broken}
    assert len([b for b in _builds(knowledge) if b["version"].startswith("2.16.0")]) == 2


def test_an_interrupted_run_does_not_read_an_artifact_twice(plan, world):
    plan("torch")
    world.asked.clear()
    assert plan("torch").changes
    assert [u for u in world.opened() if "/torch-" in u] == []


def test_pythons_that_come_later_are_added_without_opening_the_wheel_again(plan, world, knowledge, make_torch_wheel):
    apply(plan("torch").changes)
    world.publish("torch", "torch-2.16.0-cp313-cp313-manylinux_2_28_x86_64.whl", make_torch_wheel(), "2026-12-09")
    world.asked.clear()
    apply(plan("torch").changes)
    build = next(b for b in _builds(knowledge) if b["version"] == "2.16.0+cu134")
    assert build["python"] == ["3.11", "3.12", "3.13"]
    assert [u for u in world.opened() if "/torch-" in u] == []


def test_a_withdrawn_release_is_marked_with_its_reason(plan, world, knowledge):
    apply(plan("torch").changes)
    for entry in world.pages["torch"]:
        if "-2.16.0-" in entry["filename"] and "x86_64" in entry["filename"]:
            entry["yanked"] = "wrong results"
    apply(plan("torch").changes)
    yanked = {b["platform"]: b.get("yanked") for b in _builds(knowledge) if b["version"].startswith("2.16.0")}
    assert yanked == {"linux-64": "wrong results", "linux-aarch64": None}


def test_a_wheel_that_was_uploaded_again_is_measured_again(plan, world, knowledge, make_torch_wheel):
    apply(plan("torch").changes)
    world.pages["torch"] = [
        e for e in world.pages["torch"] if not ("-2.16.0-" in e["filename"] and "x86_64" in e["filename"])
    ]
    digest = world.publish(
        "torch", "torch-2.16.0-1-cp311-cp311-manylinux_2_28_x86_64.whl", make_torch_wheel(nccl="2.32.3"), "2026-12-05"
    )
    apply(plan("torch").changes)
    build = next(b for b in _builds(knowledge) if b["version"] == "2.16.0+cu134")
    assert (build["nccl"], build["sha256"]) == ("2.32.3", digest)


def test_a_correction_by_hand_stays_while_the_artifact_is_the_same(plan, knowledge):
    apply(plan("torch").changes)
    path = knowledge / "releases/torch.yaml"
    path.write_text(path.read_text().replace('triton: "3.10.1"', 'triton: "3.10.0"'))
    assert plan("torch").changes == ()


def test_deepspeed_is_read_and_its_line_gets_the_hash(plan, knowledge, world):
    apply(plan("deepspeed").changes)
    text = (knowledge / "releases/deepspeed.yaml").read_text()
    digest = hashlib.sha256(world.bodies["https://index.test/files/deepspeed-0.19.8.tar.gz"]).hexdigest()
    assert f'requires: {{torch: ">=2.0"}}, sdist_only: true, sha256: "{digest}", evidence: index}}' in text
    assert "date: 2026-12-03}" in text, "every line was read today, so the entry itself carries the day"
    assert (knowledge / "rules/toolkit.yaml").read_text().count("0.19.8") == 0, "its table says what the rows say"


def test_a_new_toolkit_minor_goes_with_itself_in_every_deepspeed(plan, knowledge):
    apply(plan("toolkit", "deepspeed").changes)
    rows = {r.id: r for r in read_knowledge(knowledge).rules}["deepspeed-toolkit-cuda"].rows
    wanted = [
        r.needs["toolkit"].text
        for r in rows
        if r.when["deepspeed"].contains("0.5.0") and r.when["cuda"].contains("13.6")
    ]
    assert wanted == ["13.6"]
    assert plan("toolkit", "deepspeed").changes == ()


def test_a_new_deepspeed_with_another_table_ends_the_old_rows(plan, knowledge, world, make_sdist):
    apply(plan("deepspeed").changes)
    table = "{12: ['12.4', '12.8'], 13: ['13.0', '13.2']}"
    digest = world.publish(
        "deepspeed", "deepspeed-0.20.0.tar.gz", make_sdist("deepspeed", "0.20.0", "torch>=2.4\n", table), "2026-12-01"
    )
    found = plan("deepspeed")
    apply(found.changes)
    rows = {r.id: r for r in read_knowledge(knowledge).rules}["deepspeed-toolkit-cuda"].rows
    verdicts = {
        release: all(
            r.needs["toolkit"].contains("13.2")
            for r in rows
            if r.when["deepspeed"].contains(release) and r.when["cuda"].contains("13.0")
        )
        for release in ("0.19.8", "0.20.0", "0.21.0")
    }
    assert verdicts == {"0.19.8": False, "0.20.0": True, "0.21.0": True}
    assert digest in (knowledge / "rules/toolkit.yaml").read_text()
    assert "# a comment" in (knowledge / "rules/toolkit.yaml").read_text()
    assert plan("deepspeed").changes == ()


def test_new_releases_stand_before_the_words_cpu_and_none(plan, knowledge):
    apply(plan("torch").changes)
    assert [r["version"] for r in yaml.safe_load((knowledge / "releases/cuda.yaml").read_text())["releases"]] == [
        "12.6",
        "13.2",
        "13.4",
        "cpu",
    ]


def test_a_release_whose_wheels_use_the_stable_abi_lists_no_pythons(plan, world, knowledge):
    body = world.bodies["https://index.test/files/triton-3.10.1-cp311-cp311-manylinux_2_28_x86_64.whl"]
    world.publish("triton", "triton-3.10.1-cp312-abi3-manylinux_2_28_x86_64.whl", body, "2026-11-30")
    apply(plan("triton").changes)
    new = yaml.safe_load((knowledge / "releases/triton.yaml").read_text())["releases"][-1]
    assert (new["version"], new["requires"], "python" in new) == ("3.10.1", {"python": ">=3.11,<3.16"}, False)


def test_a_toolkit_that_came_as_wheels_is_added_with_the_runtime_it_pins(plan, knowledge):
    before = (knowledge / "releases/toolkit.yaml").read_text().splitlines()
    apply(plan("toolkit").changes)
    after = (knowledge / "releases/toolkit.yaml").read_text().splitlines()
    new = [yaml.safe_load(line[2:]) for line in after if line.startswith("- ") and line not in before]
    assert [(n["version"], n["cudart"]) for n in new] == [("13.6.1", "13.6.45")]
    assert len(new[0]["sha256"]) == 64
    assert plan("toolkit").changes == ()


def _numpy(make_wheel, name="numpy", version="2.1.0"):
    metadata = f"Name: {name}\nVersion: {version}\nRequires-Python: >=3.11,<3.16\n"
    return make_wheel({"numpy-2.1.0.dist-info/METADATA": metadata})


def test_a_companion_gains_its_new_release_only(plan, world, make_wheel):
    world.publish("numpy", "numpy-2.1.0-py3-none-any.whl", _numpy(make_wheel), "2026-12-01")
    found = plan("numpy")
    assert [c.path.name for c in found.changes] == ["numpy.yaml"]
    assert 'version: "2.1.0", date: 2026-12-01, requires: {python: ">=3.11,<3.16"}' in found.changes[0].new


def test_a_release_that_is_listed_and_was_not_read_says_all_it_declares_after_a_refresh(plan, world, knowledge):
    digest = world.pages["triton"][-1]["hashes"]["sha256"]

    apply(plan("triton").changes)

    line = yaml.safe_load((knowledge / "releases/triton.yaml").read_text())["releases"][0]
    assert (line["version"], line["requires"], line["sha256"]) == ("3.9.0", {"python": ">=3.11,<3.16"}, digest)


def test_a_component_without_a_file_gets_one_with_its_releases_of_recent_years(plan, world, knowledge, make_wheel):
    (knowledge / "releases/numpy.yaml").unlink()
    world.pages["numpy"] = []
    for version, day in (
        ("0.9.0", "2019-01-01"),
        ("1.0.1", "2021-01-01"),
        ("2.1.0", "2026-12-01"),
        ("1.0.0", "2023-05-01"),
    ):
        metadata = f"Name: numpy\nVersion: {version}\nRequires-Dist: triton==3.1.0; platform_machine == 'x86_64'\n"
        body = make_wheel({f"numpy-{version}.dist-info/METADATA": metadata})
        world.publish("numpy", f"numpy-{version}-py3-none-any.whl", body, day)

    apply(plan("numpy").changes)

    lines = yaml.safe_load((knowledge / "releases/numpy.yaml").read_text())["releases"]
    assert [line["version"] for line in lines] == ["1.0.0", "1.0.1", "2.1.0"]
    assert lines[0]["requires_where"] == [{"platform": "linux-64", "requires": {"triton": "==3.1.0"}}]
    assert plan("numpy").changes == ()


@pytest.mark.parametrize(("name", "version"), [("triton", "2.1.0"), ("numpy", "1.0"), ("numpy", "not-a-version")])
def test_the_metadata_of_another_project_or_version_is_a_problem_and_not_taken(plan, world, make_wheel, name, version):
    world.publish("numpy", "numpy-2.1.0-py3-none-any.whl", _numpy(make_wheel, name, version), "2026-12-01")

    plan_of_numpy = plan("numpy")

    assert plan_of_numpy.changes == ()
    assert f"its METADATA says version {version} of {name}" in plan_of_numpy.problems[0]


def test_what_a_file_list_lies_about_is_left_out_with_a_warning_and_the_rest_is_taken(plan, world, make_wheel):
    world.publish("numpy", "numpy-2.1.0-py3-none-any.whl", _numpy(make_wheel), "2026-12-01")
    world.publish("numpy", "evil-9.0-py3-none-any.whl", _numpy(make_wheel), "2026-12-01")
    for url in ("https://[bad/numpy-2.2.0.tar.gz", "https://127.0.0.1/numpy-2.3.0.tar.gz", "other-1.0.tar.gz"):
        name = "numpy-2.4.0.tar.gz" if "other" in url else url.rpartition("/")[2]
        world.pages["numpy"].append({"filename": name, "url": url, "hashes": {"sha256": "a" * 64}})

    plan_of_numpy = plan("numpy")

    assert [c.summary for c in plan_of_numpy.changes] == [("numpy 2.1.0: new",)]
    assert plan_of_numpy.problems == ()
    assert [line.split(": ")[1] for line in plan_of_numpy.left_out] == [
        "left out evil-9.0-py3-none-any.whl",
        "left out numpy-2.2.0.tar.gz",
        "left out numpy-2.3.0.tar.gz",
        "left out numpy-2.4.0.tar.gz",
    ]


def test_facts_of_an_artifact_do_not_count_for_another_name(plan, world, make_wheel):
    world.publish("numpy", "numpy-2.1.0-py3-none-any.whl", _numpy(make_wheel), "2026-12-01")
    plan("numpy")
    world.pages["numpy"] = []
    world.publish("numpy", "numpy-2.2.0-py3-none-any.whl", _numpy(make_wheel), "2026-12-01")

    plan_of_numpy = plan("numpy")

    assert plan_of_numpy.changes == ()
    assert "numpy-2.2.0-py3-none-any.whl" in plan_of_numpy.problems[0]


def test_an_unknown_component_is_a_usage_error_with_the_nearest_name(plan):
    with pytest.raises(UsageError, match="did you mean numpy"):
        plan("numppy")


def test_a_file_that_changed_in_the_meantime_is_not_overwritten(plan, knowledge):
    found = plan("numpy", "torch")
    path = knowledge / "releases/torch.yaml"
    path.write_text(path.read_text() + "# somebody was here\n")
    with pytest.raises(DataError, match="while the refresh ran"):
        apply(found.changes)
    assert path.read_text().endswith("# somebody was here\n")


def test_a_diff_names_the_file_and_shows_the_line(plan, knowledge):
    change = next(c for c in plan("torch").changes if c.path.name == "torch.yaml")
    diff = change.diff(root=knowledge.parent)
    assert diff.startswith("--- a/matrix/releases/torch.yaml\n+++ b/matrix/releases/torch.yaml\n")
    assert '+- {version: "2.16.0+cu134", platform: linux-64' in diff


def test_a_table_that_is_not_one_record_a_line_is_refused(plan, knowledge):
    (knowledge / "releases/numpy.yaml").write_text("component: numpy\nreleases:\n- version: '1'\n  evidence: x\n")
    with pytest.raises(DataError, match="one line each"):
        plan("numpy")


def test_a_project_that_the_index_does_not_have_is_a_problem(plan, world):
    del world.pages["numpy"]
    found = plan("numpy")
    assert (found.changes, found.problems) == ((), ("numpy: the index has no project numpy",))


def test_an_index_that_never_answers_is_given_up_after_two_projects(plan, world, monkeypatch):
    asked = []

    def silent(url, **_):
        asked.append(url)
        raise NetworkError(f"{url} cannot be reached", hint="check the network")

    monkeypatch.setattr(world, "get", silent)
    with pytest.raises(NetworkError, match="does not answer"):
        plan()
    assert len(asked) == 2


def test_knowledge_without_components_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"components\.yaml"):
        open_context(tmp_path, cache=tmp_path)


def test_a_broken_record_of_wheels_is_named(plan, knowledge):
    record = knowledge.parent / "tests/cases/wheels/torch.json"
    record.parent.mkdir()
    record.write_text('{"wheels": [{"version": 1}]}')
    with pytest.raises(DataError, match=r"torch\.json"):
        plan("torch")


def test_no_record_is_kept_where_there_are_no_tests(plan, knowledge):
    (knowledge.parent / "tests/cases").rmdir()
    assert all(c.path.suffix == ".yaml" for c in plan("torch").changes)
