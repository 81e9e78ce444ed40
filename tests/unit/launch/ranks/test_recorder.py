"""A dump of the flight recorder of torch 2.13 on gloo, shortened to two entries."""

from __future__ import annotations

from envsmith.launch.ranks.differences import in_flight
from envsmith.launch.ranks.evidence import RankEvidence
from envsmith.launch.ranks.recorder import calls_of, groups_of

ENTRY = {
    "collective_seq_id": 4,
    "input_dtypes": ["Float"],
    "input_sizes": [[4]],
    "is_p2p": False,
    "op_id": 5,
    "p2p_seq_id": 0,
    "pg_id": 0,
    "process_group": ["0", "default_pg"],
    "profiling_name": "gloo:all_reduce",
    "record_id": 4,
    "retired": True,
    "state": "scheduled",
    "time_created_ns": 1795410095471436859,
}
DUMP = {
    "entries": [ENTRY, {**ENTRY, "collective_seq_id": 5, "retired": False, "profiling_name": "gloo:barrier"}],
    "pg_config": {"": {"desc": "", "name": "", "ranks": "[0, 1]"}, "7": {"desc": "pp", "name": "7", "ranks": "[0, 1]"}},
}


def test_entries_become_calls():
    call, _ = calls_of(DUMP)

    assert (call.group, call.sequence, call.operation, call.sizes) == ("0", 4, "all_reduce", ((4,),))
    assert (call.dtypes, call.ended, round(call.at)) == (("float32",), True, 1795410095)


def test_what_is_not_retired_is_what_the_rank_waits_in():
    assert in_flight(RankEvidence(rank=0, calls=calls_of(DUMP))).operation == "barrier"


def test_groups_have_names_and_ranks():
    assert [(group.name, group.description, group.ranks) for group in groups_of(DUMP)] == [("7", "pp", (0, 1))]


def test_what_is_no_dump_has_no_calls():
    assert calls_of({"entries": [3, {"state": "x"}, {"profiling_name": "a", "collective_seq_id": "b"}]}) == ()
    assert calls_of({"entries": "x"}) == ()
    assert groups_of({"pg_config": {"1": {"ranks": "[0"}}})[0].ranks == ()
