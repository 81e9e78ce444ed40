"""Who is at the other end of what a process sleeps at: a pipe, a socket, a lock, a child. Read from the kernel, nothing is sent."""

from __future__ import annotations

import os
import re
import socket
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cached_property
from pathlib import Path

from envsmith.agent.processes import read_text
from envsmith.launch.ranks.evidence import OtherEnd
from envsmith.launch.run.host import children_of, parent_of

# System calls by what they say of the descriptors at which they sleep: the first argument is one (read, write and their kin,
# accept, connect, flock, fcntl), an array of them (poll, ppoll), sets of them (select, pselect6), or a descriptor of epoll.
_ONE, _ARRAY, _SETS, _EPOLL, _FUTEX, _CHILD, _OPEN = "one", "array", "sets", "epoll", "futex", "child", "open"
_CALLS = {
    "x86_64": {
        **dict.fromkeys((0, 1, 19, 20, 42, 43, 44, 45, 46, 47, 72, 73, 288), _ONE),
        7: _ARRAY,
        271: _ARRAY,
        23: _SETS,
        270: _SETS,
        232: _EPOLL,
        281: _EPOLL,
        202: _FUTEX,
        61: _CHILD,
        247: _CHILD,
        2: _OPEN,
        257: _OPEN,
    },
    "aarch64": {
        **dict.fromkeys((63, 64, 65, 66, 203, 202, 206, 207, 211, 212, 242, 25, 32), _ONE),
        73: _ARRAY,
        72: _SETS,
        22: _EPOLL,
        98: _FUTEX,
        260: _CHILD,
        95: _CHILD,
        56: _OPEN,
    },
}.get(os.uname().machine, {})
# A futex that only the threads of one process can wake (FUTEX_PRIVATE_FLAG).
_PRIVATE = 0x80
_MOST_DESCRIPTORS = 1024
_LISTENS = "0A"
# NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST | NLM_F_DUMP, UDIAG_SHOW_PEER, UNIX_DIAG_PEER of the kernel.
_SOCK_DIAG, _BY_FAMILY, _DUMP, _SHOW_PEER, _PEER = 4, 20, 0x301, 4, 2


class OtherEnds:
    """The other ends of all waits on this machine at one time. What the kernel does not show is said to be elsewhere."""

    def of(self, name: int | str) -> tuple[OtherEnd, tuple[int, ...]]:
        """Return where the other end is, and the processes there that are not the waiting one.

        ``name`` is a process or a thread of it (``7/task/8``).
        """
        number, *arguments = read_text(f"/proc/{name}/syscall", 200).split() or [""]
        kind = _CALLS.get(int(number)) if number.isdigit() else None
        if kind is None:
            return OtherEnd.UNKNOWN, ()
        pid = int(str(name).partition("/")[0])
        values = [int(value, 16) for value in arguments]
        if kind == _FUTEX and values[1] & _PRIVATE:
            return OtherEnd.HERE, ()
        if kind == _CHILD:
            return OtherEnd.HERE, tuple(children_of(pid))
        if kind in {_FUTEX, _OPEN}:
            return OtherEnd.HERE, self._relatives(pid)
        try:
            links = [str(Path(f"/proc/{pid}/fd/{one}").readlink()) for one in _descriptors(pid, kind, values)]
        except OSError:
            return OtherEnd.UNKNOWN, ()
        holders: set[int] = set()
        for link in links:
            of_link = self._holders(pid, link)
            if of_link is None:
                return OtherEnd.ELSEWHERE, ()
            holders |= of_link
        return OtherEnd.HERE, tuple(sorted(holders - {pid}))

    def _holders(self, pid: int, link: str) -> set[int] | None:
        """Return the processes that hold the other end of a descriptor, or ``None`` where it is out of sight."""
        kind, _, inode = link.partition(":")
        inode = inode.strip("[]")
        if kind == "pipe":
            return self._processes.get(link, set())
        if kind == "socket":
            peer = self._tcp.get(inode) or self._unix.get(inode)
            return self._processes.get(f"socket:[{peer}]") if peer else None
        if kind == "anon_inode" and inode in {"eventfd", "pidfd"}:
            return {*children_of(pid)} if inode == "pidfd" else set()
        if link in self._fifos:
            return self._processes.get(link, set())
        return _lock_holders(pid)

    @cached_property
    def _processes(self) -> dict[str, set[int]]:
        """Return the processes of this user by what their descriptors are."""
        table: dict[str, set[int]] = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                for descriptor in (folder / "fd").iterdir():
                    with suppress(OSError):
                        table.setdefault(str(descriptor.readlink()), set()).add(int(folder.name))
        return table

    @cached_property
    def _fifos(self) -> set[str]:
        return {link for link in self._processes if link.startswith("/") and _is_fifo(link)}

    @cached_property
    def _tcp(self) -> dict[str, str]:
        """Return the connections of which both ends are here: from the inode of one to that of the other."""
        rows = [
            (fields[1], fields[2], fields[9])
            for name in ("tcp", "tcp6")
            for line in read_text(f"/proc/net/{name}", 1 << 24).splitlines()[1:]
            if len(fields := line.split()) > 9 and fields[3] != _LISTENS
        ]
        by_address = {(_address(local), _address(remote)): inode for local, remote, inode in rows if inode != "0"}
        ends = ((inode, by_address.get((_address(remote), _address(local)))) for local, remote, inode in rows)
        return {inode: peer for inode, peer in ends if peer}

    @cached_property
    def _unix(self) -> dict[str, str]:
        with suppress(OSError, struct.error):
            return dict(_unix_peers())
        return {}

    @staticmethod
    def _relatives(pid: int) -> tuple[int, ...]:
        """Return the children of a process and those who have its parent: with them it may share memory."""
        return tuple(one for one in (*children_of(pid), *children_of(parent_of(pid))) if one != pid)


def _descriptors(pid: int, kind: str, values: list[int]) -> Iterable[int]:
    """Return the descriptors at which a system call sleeps. ``OSError`` where the memory of the process cannot be read."""
    if kind == _ONE:
        return values[:1]
    if kind == _EPOLL:
        text = read_text(f"/proc/{pid}/fdinfo/{values[0]}", 1 << 20)
        return [int(number) for number in re.findall(r"^tfd: *(\d+)", text, re.MULTILINE)]
    with Path(f"/proc/{pid}/mem").open("rb") as memory:
        if kind == _ARRAY:
            count = min(values[1], _MOST_DESCRIPTORS)
            return [one for one, _, _ in struct.iter_unpack("=ihh", os.pread(memory.fileno(), 8 * count, values[0]))]
        size = min(values[0], _MOST_DESCRIPTORS) // 8 + 1
        sets = [int.from_bytes(os.pread(memory.fileno(), size, place), "little") for place in values[1:3] if place]
        return [one for one in range(values[0]) if any(each >> one & 1 for each in sets)]


def _is_fifo(link: str) -> bool:
    with suppress(OSError):
        return Path(link).is_fifo()
    return False


def _lock_holders(pid: int) -> set[int] | None:
    """Return who holds the lock of a file for which a process waits."""
    rows = [line.split() for line in read_text("/proc/locks", 1 << 20).splitlines()]
    own_locks = {row[0] for row in rows if row[1:2] == ["->"] and row[5] == str(pid)}
    holders = {int(row[4]) for row in rows if row[0] in own_locks and row[1] != "->"}
    return holders if holders and min(holders) > 0 else None


def _address(text: str) -> str:
    """Return an address of /proc/net/tcp. One of version 4 may stand in the table of version 6."""
    host, _, port = text.partition(":")
    return f"{host[-8:] if host.startswith('0000000000000000FFFF0000') else host}:{port}"


def _unix_peers() -> Iterator[tuple[str, str]]:
    """Yield the local sockets that are connected, by their inodes, as the kernel's own interface tells them."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as talk:
        talk.settimeout(1.0)
        request = struct.pack("=BBHIIIII", socket.AF_UNIX, 0, 0, 0xFFFFFFFF, 0, _SHOW_PEER, 0, 0)
        talk.send(struct.pack("=IHHII", 16 + len(request), _BY_FAMILY, _DUMP, 1, 0) + request)
        while True:
            data = talk.recv(1 << 20)
            while data:
                size, kind = struct.unpack_from("=IH", data)
                if kind != _BY_FAMILY:
                    return
                inode, place = struct.unpack_from("=I", data, 20)[0], 32
                while place + 8 <= size:
                    length, name = struct.unpack_from("=HH", data, place)
                    if name == _PEER:
                        yield str(inode), str(struct.unpack_from("=I", data, place + 4)[0])
                    place += max(4, length + 3 & ~3)
                data = data[size + 3 & ~3 :]
