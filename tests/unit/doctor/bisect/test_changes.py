"""What differs between two sets, what belongs together, and in which order it is tried."""

from __future__ import annotations

from packaging.requirements import Requirement

from envsmith.doctor.bisect.changes import groups_between, pins_with, still_required, weights


def _requires(table):
    def requires(name, version):
        lines = table.get((name, version), ())
        return {(r := Requirement(line)).name: r for line in lines}

    return requires


def test_what_an_end_pins_exactly_is_one_group_and_the_one_that_pins_leads():
    good = {"torch": "2.3.1", "triton": "2.3.1", "nccl": "2.20.5", "numpy": "1.26.4"}
    bad = {"torch": "2.4.1", "triton": "3.0.0", "nccl": "2.20.5", "numpy": "2.1.0"}
    requires = _requires({("torch", "2.4.1"): ["triton==3.0.0", "nccl==2.20.5", "numpy"]})

    groups = groups_between(good, bad, requires)

    assert sorted(group.names for group in groups) == [("numpy",), ("torch", "triton")]


def test_releases_that_exclude_the_other_end_of_what_they_require_change_with_it():
    good = {"transformers": "4.57", "hub": "0.35", "tokenizers": "0.22.1"}
    bad = {"transformers": "5.0", "hub": "1.4", "tokenizers": "0.22.2"}
    requires = _requires(
        {
            ("transformers", "4.57"): ["hub<1.0", "tokenizers<0.23"],
            ("transformers", "5.0"): ["hub>=1.0", "tokenizers>=0.22.2"],
        }
    )

    groups = groups_between(good, bad, requires)

    assert sorted(group.names for group in groups) == [("tokenizers",), ("transformers", "hub")]


def test_the_order_keeps_declared_ranges_satisfied_where_it_can():
    good = {"a": "1", "b": "1"}
    bad = {"a": "2", "b": "2"}
    requires = _requires({("a", "2"): ["b>=2"], ("a", "1"): ["b"], ("b", "1"): [], ("b", "2"): []})

    groups = groups_between(good, bad, requires)

    assert [group.lead.name for group in groups] == ["b", "a"]


def test_a_package_that_comes_or_goes_is_a_change():
    good, bad = {"a": "1", "b": "1"}, {"a": "1", "c": "1"}

    groups = groups_between(good, bad, _requires({}))

    assert pins_with(groups, good) == bad
    assert sorted(str(group) for group in groups) == ["b 1 -> (absent)", "c (absent) -> 1"]


def test_equal_versions_in_two_spellings_are_no_change():
    assert groups_between({"a": "1.0"}, {"a": "1.0.0"}, _requires({})) == ()


def test_a_package_that_the_error_names_weighs_most():
    groups = groups_between({"a": "1.0", "numpy": "1.26.0"}, {"a": "1.1", "numpy": "2.0.0"}, _requires({}))

    by_name = dict(
        zip((g.lead.name for g in groups), weights(groups, "ValueError: numpy.dtype size changed"), strict=True)
    )

    assert by_name["numpy"] > 10 * by_name["a"]


def test_what_a_package_that_stays_at_its_good_version_requires_does_not_go():
    good = {"hub": "0.36.0", "requests": "2.32.3", "urllib3": "2.2.0", "rich": "13"}
    bad = {"hub": "1.0.0", "rich": "14"}
    requires = _requires({("hub", "0.36.0"): ["requests"], ("requests", "2.32.3"): ["urllib3>=2"]})
    groups = groups_between(good, bad, requires)
    hub = [group for group in groups if group.lead.name == "hub"]
    others = [group for group in groups if group.lead.name != "hub"]

    assert still_required(hub, good, pins_with(others, good), requires) == {"requests": "2.32.3", "urllib3": "2.2.0"}
    assert still_required([], good, pins_with(groups, good), requires) == {}


def test_a_package_that_is_missing_for_one_that_did_not_change_may_be_the_culprit():
    good, bad = {"app": "1", "requests": "2.32.3"}, {"app": "1"}
    requires = _requires({("app", "1"): ["requests"]})
    groups = groups_between(good, bad, requires)

    assert still_required([], good, pins_with(groups, good), requires) == {}


def test_a_new_package_comes_with_the_one_that_requires_it():
    good, bad = {"hub": "0.36.0"}, {"hub": "1.0.0", "httpx": "0.28", "anyio": "4"}
    requires = _requires({("hub", "1.0.0"): ["httpx"], ("httpx", "0.28"): ["anyio"]})
    groups = groups_between(good, bad, requires)
    hub = [group for group in groups if group.lead.name == "hub"]

    assert still_required(hub, bad, pins_with(hub, good), requires) == {"httpx": "0.28", "anyio": "4"}
