"""A campaign of twelve cells over two nodes of a real Slurm that this test starts on this host and ends by pid.

The climb is the one of the unit tests' worker (it takes a moment and proves nothing): what is tested here is the array job, the claims, a task
that dies, and that nothing is lost or doubled.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
FAKES = HERE.parent / "unit" / "matrix"
sys.path.insert(0, str(FAKES))

pytestmark = pytest.mark.integration
pytest.importorskip("submitit")

CONF = """ClusterName=envsmithtest
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
ReturnToService=2
SlurmdParameters=config_overrides
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool/%n
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd.%n.pid
SlurmctldLogFile={root}/log/slurmctld.log
SlurmdLogFile={root}/log/slurmd.%n.log
SlurmctldTimeout=30
SlurmdTimeout=60
InactiveLimit=0
KillWait=5
MinJobAge=60
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={first} CPUs=2 RealMemory=4000 State=UNKNOWN
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={second} CPUs=2 RealMemory=4000 State=UNKNOWN
PartitionName=debug Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES
SchedulerParameters=batch_sched_delay=0,sched_min_interval=100000,bf_interval=5
"""


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def munge_answers():
    return subprocess.run(["munge", "-n"], capture_output=True, check=False).returncode == 0


def start_munged():
    for folder in ("/run/munge", "/var/log/munge", "/var/lib/munge"):
        subprocess.run(["install", "-d", "-o", "munge", "-g", "munge", "-m", "0755", folder], check=True)
    munged = subprocess.Popen(
        ["runuser", "-u", "munge", "--", "/usr/sbin/munged", "--foreground"], stderr=subprocess.DEVNULL
    )
    for _ in range(100):
        if munge_answers():
            break
        time.sleep(0.1)
    return munged


def end(process):
    process.send_signal(signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=15)
    if process.poll() is None:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    missing = [
        name
        for name in ("slurmctld", "slurmd", "sbatch", "squeue", "munged")
        if not shutil.which(name, path=os.environ["PATH"] + ":/usr/sbin")
    ]
    if missing or os.getuid() != 0:
        pytest.skip(f"no Slurm to start here: {', '.join(missing) or 'not root'}")
    key = Path("/etc/munge/munge.key")
    if not munge_answers() and not key.exists():
        pytest.skip("munge has no key on this host")
    root = tmp_path_factory.mktemp("slurm")
    for name in ("state", "spool/n1", "spool/n2", "log"):
        (root / name).mkdir(parents=True)
    port, first, second = free_ports(3)
    host = socket.gethostname().split(".")[0]
    (root / "slurm.conf").write_text(CONF.format(root=root, host=host, port=port, first=first, second=second))
    munged = None if munge_answers() else start_munged()
    environment = {**os.environ, "SLURM_CONF": str(root / "slurm.conf")}
    daemons = [
        ["/usr/sbin/slurmctld", "-D"],
        ["/usr/sbin/slurmd", "-D", "-N", "n1"],
        ["/usr/sbin/slurmd", "-D", "-N", "n2"],
    ]
    running = [
        subprocess.Popen(d, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for d in daemons
    ]
    try:
        for _ in range(120):
            told = subprocess.run(
                ["sinfo", "-h", "-N", "-t", "idle"], env=environment, capture_output=True, text=True, check=False
            )
            if len(told.stdout.splitlines()) == 2:
                break
            time.sleep(0.5)
        else:
            pytest.skip(f"Slurm does not come up here: {(root / 'log' / 'slurmctld.log').read_text()[-500:]}")
        yield root
    finally:
        # A step whose controller is gone stays for ever: the daemons end when nothing runs any more.
        subprocess.run(["scancel", "--user=root"], env=environment, check=False)
        for _ in range(60):
            listed = subprocess.run(["squeue", "-h"], env=environment, capture_output=True, text=True, check=False)
            if not listed.stdout.strip():
                break
            time.sleep(0.5)
        for one in [*running[::-1], *([munged] if munged else [])]:
            end(one)


def test_twelve_cells_over_two_nodes_and_a_task_that_dies(slurm, tmp_path, monkeypatch):
    from fake_worker import command as fake_command
    from records_help import job, plan

    from envsmith.matrix.campaign.drive import drive
    from envsmith.matrix.campaign.job import CampaignSettings
    from envsmith.matrix.campaign.slurm import SlurmExecutor
    from envsmith.matrix.campaign.state import CampaignState
    from envsmith.model.record import read_records

    monkeypatch.setenv("SLURM_CONF", str(slurm / "slurm.conf"))
    monkeypatch.setenv("PYTHONPATH", str(HERE.parent.parent))
    jobs = [*(job(framework=f"0.16.{n}") for n in range(11)), job(framework="0.8.2")]
    state = CampaignState(tmp_path)
    state.begin(plan(*jobs))
    executor = SlurmExecutor(CampaignSettings(memory_gib=0, cpus=2, minutes=5), "test", 2, command=fake_command)
    news = []
    tally = drive(state, executor, jobs=plan(*jobs).jobs, tell=lambda _t, line: news.append(line), poll=0.5)
    assert tally.lost == {}
    counted = [one.cell for one in read_records(state.records)]
    assert sorted(counted) == sorted(j.id for j in jobs)
    assert any("ds0.8.2" in line and "run again" in line for line in news), news
    nodes = {path.read_text().strip() for path in (tmp_path / "nodes").iterdir()}
    assert nodes == {"n1", "n2"}
