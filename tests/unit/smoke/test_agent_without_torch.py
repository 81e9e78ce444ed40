"""The parts of the agent that need no torch."""

from __future__ import annotations

import ast
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from envsmith.smoke import run
from envsmith.smoke.agent.board import Board, Phase, Startup
from envsmith.smoke.agent.counter import flight_entries
from envsmith.smoke.agent.launchers import discover, ranks_here
from envsmith.smoke.agent.machine import host_facts, memory_limit
from envsmith.smoke.agent.placement import place_direct, place_nccl
from envsmith.smoke.agent.processes import describe_exit, kill_group, process_state
from envsmith.smoke.agent.protocol import Exit, Lines, Log
from envsmith.smoke.agent.rank import _stopped
from envsmith.smoke.agent.store import compare_manifests
from envsmith.smoke.agent.supervisor import Supervisor
from envsmith.smoke.agent.watching import case_deadline
from envsmith.smoke.agent.world import group_layouts
from envsmith.smoke.bundle import bundle

FOLDER = Path(run.__file__).with_name("agent")
MODULES = sorted(FOLDER.rglob("*.py"))


def _imports(tree: ast.AST) -> set[str]:
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    return {(node.module or "") if isinstance(node, ast.ImportFrom) else node.names[0].name for node in nodes}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(FOLDER)))
def test_module_of_the_agent_parses_as_python_3_9_and_needs_the_standard_library_and_its_own_package_only(path) -> None:
    tree = ast.parse(path.read_text(), feature_version=(3, 9))
    top = ast.Module(body=[node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)])
    outside = {name for name in _imports(top) if not name.startswith("envsmith.smoke.agent")}
    assert {name.partition(".")[0] for name in outside} <= set(sys.stdlib_module_names)
    assert not [name for name in _imports(tree) if name.startswith("envsmith") and name not in _imports(top)]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(FOLDER)))
def test_module_of_the_agent_can_be_read_on_two_screens(path) -> None:
    assert len(path.read_text().splitlines()) <= 500


def test_bootstrap_runs_the_source_from_standard_input_and_complains_about_a_missing_torch() -> None:
    plan = b'{"cases":[],"steps":[],"ranks":2,"backend":"gloo","timeouts":{"import":20,"init":5,"first":5,"case":1,"group":9,"tier":9}}'
    with subprocess.Popen(
        [sys.executable, "-S", *run.agent_arguments()], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin
        assert process.stdout
        process.stdin.write(run.agent_input(plan))
        process.stdin.flush()
        said = process.stdout.read()
    assert process.returncode == Exit.CONFIGURATION
    assert b"No module named 'torch'" in said


def test_agent_ends_when_its_outer_parent_goes_away() -> None:
    plan = b'{"cases":[],"steps":[],"ranks":2,"backend":"gloo","timeouts":{"import":20,"init":5,"first":5,"case":1,"group":9,"tier":9}}'
    done = subprocess.run(
        [sys.executable, "-S", *run.agent_arguments()],
        input=run.agent_input(plan),
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0
    assert b'"event":"bye"' in done.stdout


@pytest.mark.parametrize(
    ("env", "due"),
    [
        (
            {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_ADDR": "h", "MASTER_PORT": "29500"},
            ("torchrun", 3, 8, "h", 29501),
        ),
        (
            {
                "SLURM_PROCID": "1",
                "SLURM_NTASKS": "2",
                "SLURM_LOCALID": "0",
                "SLURM_STEP_NODELIST": "node[03-05,9],x",
                "SLURM_JOB_ID": "17",
            },
            ("slurm", 1, 2, "node03", 20017),
        ),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}, ("openmpi", 0, 2, "127.0.0.1", 29411)),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, ("pmi", 1, 2, "127.0.0.1", 29411)),
        (
            {"RANK": "0", "WORLD_SIZE": "2", "SLURM_PROCID": "1", "SLURM_NTASKS": "2"},
            ("torchrun", 0, 2, "127.0.0.1", 29411),
        ),
    ],
)
def test_rank_is_discovered_in_the_documented_order(env, due) -> None:
    found = discover(env, {})
    assert (found["how"], found["rank"], found["world"], found["master"], found["port"]) == due


def test_flags_win_over_every_launcher_and_nothing_means_no_rank() -> None:
    assert discover({"RANK": "3", "WORLD_SIZE": "8"}, {"rank": 0, "world_size": 2, "master_port": 7})["how"] == "flags"
    assert discover({"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, {}) is None
    assert discover({}, {}) is None


@pytest.mark.parametrize(
    ("gpus", "nccl", "ranks", "devices", "word"),
    [
        (4, "2.27.5", 4, [0, 1, 2, 3], "4 ranks on 4 GPUs"),
        (8, "2.30.7", 4, [0, 1, 2, 3], "4 ranks on 4 GPUs"),
        (1, "2.28.9", 4, [0, 0], "NCCL_HOSTID, sockets"),
        (1, "2.30.7", 4, [0, 0], "NCCL_MULTI_RANK_GPU_ENABLE"),
        (2, "2.28.9", 4, [0, 1, 0, 1], "NCCL_HOSTID, sockets"),
    ],
)
def test_ranks_share_a_gpu_in_the_way_that_this_nccl_knows_and_the_sentence_says_so(
    gpus, nccl, ranks, devices, word
) -> None:
    placement = place_nccl(ranks, gpus, nccl, {}, "/run")
    assert placement["devices"] == devices
    assert word in placement["sentence"]
    assert placement["ranks"] == len(devices) == len(placement["rank_env"])
    hosts = [env.get("NCCL_HOSTID") for env in placement["rank_env"]]
    if "HOSTID" in word:
        assert len(set(hosts)) == len(devices)
        assert placement["env"]["NCCL_SHM_DISABLE"] == "1"
    else:
        assert set(hosts) == {None}
    if "MULTI_RANK" in word:
        assert placement["env"] == {
            "NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_MAX_CTAS": "1", "NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES": "1",
        }  # fmt: skip


@pytest.mark.parametrize(("wanted", "nccl"), [("hostid", "2.30.7"), ("multi-rank", "2.30.7"), ("hostid", "2.21.5")])
def test_plan_that_asks_for_it_puts_two_ranks_on_the_first_of_many_gpus(wanted, nccl) -> None:
    placement = place_nccl(4, 8, nccl, {"sharing": wanted}, "/run")
    assert (placement["devices"], placement["sharing"]) == ([0, 0], wanted)
    assert ("NCCL_HOSTID" in placement["rank_env"][1]) == (wanted == "hostid")
    assert "on 1 GPU (" in placement["sentence"]


def test_one_rank_has_a_gpu_of_its_own() -> None:
    placement = place_nccl(1, 1, "2.28.9", {}, "/run")
    assert (placement["sentence"], placement["env"], placement.get("sharing")) == ("1 rank on 1 GPU", {}, None)


def test_nccl_has_time_to_make_its_communicator_with_the_group() -> None:
    times = {"init": 30.0, "first": 60.0, "case": 3.0}
    plan = {"cases": [{"op": "barrier"}, {"op": "barrier"}], "timeouts": times}
    assert case_deadline(plan, Startup.GROUP, "nccl") == 90.0
    assert case_deadline(plan, Startup.GROUP, "gloo") == 30.0
    assert [case_deadline(plan, case, "nccl") for case in (0, 1)] == [60.0, 3.0]


@pytest.mark.parametrize(
    ("names", "due"),
    [
        ({"_dump_fr_trace_json": "fr() -> bytes"}, "gloo"),
        ({"_dump_nccl_trace_json": "nccl() -> bytes", "_dump_fr_trace_json": "fr() -> bytes"}, "nccl"),
        ({"_dump_fr_trace_json": "fr(backend: str = 'gloo') -> bytes"}, "nccl2"),
    ],
    ids=["gloo only", "torch 2.13 with CUDA", "torch 2.15"],
)
def test_flight_recorder_of_the_group_s_backend_is_read(monkeypatch, names, due) -> None:
    """A build with CUDA has several; torch 2.15 answers for gloo unless it is told another name."""
    import types

    used = due

    def dump(own: str) -> object:
        def ask(backend: str = own) -> bytes:
            entries = [{"profiling_name": f"{backend}:all_reduce"}] if backend == used else []
            return json.dumps({"entries": entries}).encode()

        return ask

    c10d = types.ModuleType("torch._C._distributed_c10d")
    for name, doc in names.items():
        function = dump("nccl" if "nccl" in name else "gloo")
        function.__doc__ = doc
        setattr(c10d, name, function)
    inner = types.ModuleType("torch._C")
    inner._distributed_c10d = c10d
    for name, module in (("torch", types.ModuleType("torch")), ("torch._C", inner), (c10d.__name__, c10d)):
        monkeypatch.setitem(sys.modules, name, module)
    assert flight_entries() == [{"profiling_name": f"{due}:all_reduce"}]


def _stage(told: str, cuda: bool) -> object:
    import types

    return types.SimpleNamespace(step={"told": told}, cuda=cuda)


def test_step_that_stops_for_want_of_a_gpu_is_skipped_with_the_words_and_any_other_raise_is_an_error() -> None:
    row = _stopped(_stage("device is required", cuda=False), AssertionError("device is required"), "train step 0")
    assert row["status"] == "skipped"
    assert row["facts"]["needs a GPU"]["error"] == "AssertionError: device is required"
    assert _stopped(_stage("device is required", cuda=False), AssertionError("out of luck"), "")["status"] == "error"
    assert (
        _stopped(_stage("device is required", cuda=True), AssertionError("device is required"), "")["status"] == "error"
    )
    assert _stopped(_stage("", cuda=False), AssertionError("device is required"), "")["status"] == "error"


@pytest.mark.parametrize(
    ("env", "world", "due"),
    [
        ({"LOCAL_WORLD_SIZE": "8", "SLURM_NTASKS_PER_NODE": "4"}, 16, 8),
        ({"SLURM_NTASKS_PER_NODE": "4"}, 8, 4),
        ({"SLURM_STEP_TASKS_PER_NODE": "2(x3),1"}, 7, 2),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, 4, 2),
        ({}, 4, 4),
    ],
)
def test_launcher_says_how_many_ranks_a_node_has(env, world, due) -> None:
    assert ranks_here(env, world) == due


def _place(rank: int, world: int = 4) -> dict[str, object]:
    return {"how": "torchrun", "rank": rank, "world": world, "local": rank % 2}


def test_ranks_of_a_launcher_that_share_a_gpu_are_hosts_of_their_own_on_every_node() -> None:
    env = {"LOCAL_WORLD_SIZE": "2"}
    placed = [place_direct(_place(rank), env, 1, "2.28.9", {}) for rank in range(4)]
    assert len({p["env"]["NCCL_HOSTID"] for p in placed}) == 4
    assert "NCCL_SOCKET_IFNAME" not in placed[0]["env"], "ranks of two nodes do not meet on the loopback interface"
    assert "NCCL_HOSTID, sockets" in placed[0]["sentence"]
    assert "proves nothing about NVLink" in placed[0]["sentence"]


def test_ranks_of_a_launcher_share_a_gpu_by_the_variable_of_new_nccl() -> None:
    placed = place_direct(_place(3), {"LOCAL_WORLD_SIZE": "3"}, 1, "2.30.7", {"engine": "legacy"})
    assert placed["env"]["NCCL_MULTI_RANK_GPU_ENABLE"] == "1"
    assert placed["env"]["TORCH_DIST_USE_NCCL2"] == "0"
    assert "two ranks on a GPU, not more" in placed["sentence"]


def test_ranks_of_a_launcher_with_enough_gpus_are_left_alone() -> None:
    placed = place_direct(_place(3), {"LOCAL_WORLD_SIZE": "2"}, 2, "2.28.9", {})
    assert placed == {"devices": [1] * 4, "env": {}, "sentence": "4 ranks started by torchrun"}
    assert place_direct(_place(3), {}, 0, "0", {})["devices"] is None
    slurm = {"SLURM_NTASKS_PER_NODE": "2", "SLURM_GPUS_PER_TASK": "1", "CUDA_VISIBLE_DEVICES": "3"}
    assert place_direct(_place(1), slurm, 1, "2.28.9", {})["env"] == {}


@pytest.mark.parametrize(("engine", "value"), [("legacy", "0"), ("2", "1")])
def test_engine_of_torch_2_15_is_chosen_by_the_plan(engine, value) -> None:
    assert place_nccl(2, 2, "2.30.7", {"engine": engine}, "/run")["env"]["TORCH_DIST_USE_NCCL2"] == value


def _manifest(**must: object) -> dict[str, dict[str, object]]:
    return {"must": {"torch": "2.13.0", "cases": "x", **must}, "should": {}, "own": {}}


def test_manifests_blame_the_minority_and_rank_0s_side_wins_a_tie() -> None:
    three = [_manifest(), _manifest(), _manifest(torch="2.12.1")]
    assert compare_manifests(three[0], three, "must") == {"torch": [2]}
    assert compare_manifests(three[0], [_manifest(torch="1"), *[_manifest()] * 2], "must") == {"torch": [0]}
    assert compare_manifests(three[0], three[1:], "must") == {"torch": [1]}
    assert compare_manifests(three[0], three[:2], "must") == {}


@pytest.mark.parametrize("world", range(1, 10))
def test_groups_of_a_layout_never_overlap_and_never_name_a_rank_that_is_not_there(world) -> None:
    for ranks in group_layouts(world).values():
        flat = [rank for group in ranks for rank in group]
        assert len(set(flat)) == len(flat)
        assert all(0 <= rank < world for rank in flat)


def test_board_keeps_every_ranks_place_apart_and_survives_a_fork() -> None:
    board = Board()
    board.clear()
    assert board.row(5)[0] == Startup.START
    pid = os.fork()
    if pid == 0:
        board.sign(3, "all_reduce[float32,sum,3]" + "x" * 1000)
        board.mark(3, 17, Phase.ENTERED)
        board.port = 4711
        os._exit(0)
    os.waitpid(pid, 0)
    case, step, age, signature = board.row(3)
    assert (case, step, board.port) == (17, Phase.ENTERED, 4711)
    assert 0 <= age < 60
    assert signature.startswith("all_reduce[float32,sum,3]xxx")
    assert board.row(2)[0] == board.row(4)[0] == Startup.START


def test_lines_come_whole_out_of_pieces() -> None:
    lines = Lines()
    assert list(lines.feed(b'{"a":1}\n{"b"')) == [{"a": 1}]
    assert list(lines.feed(b":2}\n\n")) == [{"b": 2}]


def test_kill_reaches_the_helpers_of_a_rank_and_nobody_else() -> None:
    bystander = subprocess.Popen(["sleep", "60"])
    rank = subprocess.Popen(["sh", "-c", "sleep 60 & echo $!; wait"], stdout=subprocess.PIPE, start_new_session=True)
    assert rank.stdout is not None
    helper = int(rank.stdout.readline())
    kill_group(rank.pid, signal.SIGKILL)
    rank.wait(5)
    rank.stdout.close()
    until = time.monotonic() + 5
    while process_state(helper)[0] not in ("", "Z") and time.monotonic() < until:
        time.sleep(0.02)
    assert process_state(helper)[0] in ("", "Z")
    assert bystander.poll() is None
    bystander.kill()
    bystander.wait()


def test_host_facts_name_no_host_and_no_user() -> None:
    facts = host_facts()
    assert facts["cpus"] >= 1
    assert facts["memory_bytes"] > 0
    assert os.uname().nodename not in [str(value) for value in facts.values()]


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (-11, "killed by SIGSEGV"),
        (-9, "killed by SIGKILL"),
        (4, "exit code 4"),
        (None, "still running"),
        (-200, "killed by signal 200"),
    ],
)
def test_exit_is_described_in_words(code, text) -> None:
    assert describe_exit(code) == text


def test_agent_without_a_plan_says_what_it_needs(tmp_path) -> None:
    path = tmp_path / "agent.py"
    path.write_bytes(bundle())
    done = subprocess.run([sys.executable, "-I", str(path)], capture_output=True, timeout=30, check=False, text=True)
    assert done.returncode == Exit.CONFIGURATION
    assert "--plan" in done.stderr


def test_lock_of_a_compilation_that_was_ended_is_dropped_before_the_next_step_waits_for_it() -> None:
    supervisor = Supervisor({"timeouts": {}}, Log(2), watch_stdin=False)
    folder = Path(supervisor.directory) / "torch_extensions_dir" / "py311_cpu" / "deepspeed_shm_comm"
    folder.mkdir(parents=True)
    for name in ("lock", "deepspeed_shm_comm.so"):
        (folder / name).touch()
    supervisor._drop_locks()
    assert [path.name for path in folder.iterdir()] == ["deepspeed_shm_comm.so"]
    shutil.rmtree(supervisor.directory)


@pytest.mark.parametrize(
    ("stat", "free"), [("anon 1\ninactive_file 6000000\nactive_file 7\n", 6_000_000), ("", 0), ("anon 1\n", 0)]
)
def test_page_cache_that_a_control_group_can_give_back_is_available(monkeypatch, stat, free) -> None:
    files = {
        "/proc/meminfo": "MemTotal: 24000 kB\nMemAvailable: 20000 kB\n",
        "/sys/fs/cgroup/memory.max": "10000000\n",
        "/sys/fs/cgroup/memory.current": "10000000\n",
        "/sys/fs/cgroup/memory.stat": stat,
    }
    monkeypatch.setattr("envsmith.smoke.agent.machine.read_text", lambda path, _limit=0: files.get(path, ""))
    assert memory_limit() == (10_000_000, free)
