"""Facts of the machine."""

from __future__ import annotations

import os

import pytest

from envsmith.agent.machine import host_facts, memory_limit


def test_host_facts_name_no_host_and_no_user() -> None:
    facts = host_facts()
    assert facts["cpus"] >= 1
    assert facts["memory_bytes"] > 0
    assert os.uname().nodename not in [str(value) for value in facts.values()]


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
    monkeypatch.setattr("envsmith.agent.machine.read_text", lambda path, _limit=0: files.get(path, ""))
    assert memory_limit() == (10_000_000, free)
