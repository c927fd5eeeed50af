"""Host memory, read from file trees like those that the kernel shows in containers of all kinds."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import psutil
import pytest

from services.residency.memory.host_memory import ProcessMemory, read_host_memory, read_process_memory

GIB = 1024**3
MACHINE = (
    "MemTotal: 33554432 kB\nMemFree: 1048576 kB\nMemAvailable: 25165824 kB\nCached: 9437184 kB\n"  # 32 GiB, 24 left
)
V2 = "31 23 0:28 / /sys/fs/cgroup rw,relatime shared:4 - cgroup2 cgroup rw,nsdelegate\n"
V1 = "35 31 0:32 {root} /sys/fs/cgroup/memory rw shared:9 master:2 - cgroup cgroup rw,memory\n"
UNLIMITED_V1 = 9223372036854771712


def machine(root: Path, *, groups: str = "", mounts: str = "", meminfo: str = MACHINE) -> None:
    write(root, "proc", {"meminfo": meminfo, "self/cgroup": groups, "self/mountinfo": mounts})


def write(root: Path, folder: str, files: Mapping[str, object]) -> None:
    for name, content in files.items():
        path = root / folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n" if isinstance(content, int) else str(content))


def second(root: Path, group: str, limit: object, current: int, stat: str = "anon 1\n", **more: object) -> None:
    """Writes a cgroup of version 2."""
    files = {"memory.max": limit, "memory.current": current, "memory.stat": stat}
    write(root, f"sys/fs/cgroup/{group}", files | {f"memory.{name}": value for name, value in more.items()})


def first(root: Path, group: str, limit: int, usage: int, stat: str = "cache 1\n") -> None:
    """Writes a cgroup of version 1."""
    files = {"memory.limit_in_bytes": limit, "memory.usage_in_bytes": usage, "memory.stat": stat}
    write(root, f"sys/fs/cgroup/memory/{group}", files)


def test_without_a_limit_it_is_the_machines(tmp_path: Path) -> None:
    machine(tmp_path, groups="0::/user.slice\n", mounts=V2)
    second(tmp_path, "user.slice", "max\n", 20 * GIB)
    found = read_host_memory(tmp_path)
    assert (found.total, found.used, found.free, found.source) == (32 * GIB, 8 * GIB, 24 * GIB, "/proc/meminfo")


def test_a_container_of_version_2_counts_no_cache_of_files(tmp_path: Path) -> None:
    machine(tmp_path, groups="0::/\n", mounts=V2)
    stat = f"anon {2 * GIB}\nfile {4 * GIB}\ninactive_file {3 * GIB}\nactive_file {GIB // 2}\nshmem {GIB // 2}\n"
    second(tmp_path, "", 8 * GIB, 6 * GIB, stat)
    found = read_host_memory(tmp_path)
    assert (found.total, found.used, found.source) == (8 * GIB, 5 * GIB // 2, "cgroup v2")


def test_a_container_of_version_1(tmp_path: Path) -> None:
    """Older Docker uses no cgroup namespace: the mount shows the container's own group at the top."""
    machine(
        tmp_path, groups="5:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n0::/\n", mounts=V1.format(root="/docker/abc")
    )
    stat = f"inactive_file 0\ntotal_inactive_file {GIB}\ntotal_active_file {GIB}\n"
    first(tmp_path, "", 8 * GIB, 5 * GIB, stat)
    found = read_host_memory(tmp_path)
    assert (found.total, found.used, found.source) == (8 * GIB, 3 * GIB, "cgroup v1")


def test_no_limit_in_version_1_is_a_number_beyond_all_memory(tmp_path: Path) -> None:
    machine(tmp_path, groups="4:memory:/x\n", mounts=V1.format(root="/"))
    first(tmp_path, "x", UNLIMITED_V1, 5 * GIB)
    first(tmp_path, "", UNLIMITED_V1, 9 * GIB)
    assert read_host_memory(tmp_path).source == "/proc/meminfo"


@pytest.mark.parametrize("version", [1, 2])
def test_a_group_above_may_be_the_one_that_limits(tmp_path: Path, version: int) -> None:
    group = "pod/service/unit"
    if version == 2:
        machine(tmp_path, groups=f"0::/{group}\n", mounts=V2)
        second(tmp_path, group, "max", GIB)
        second(tmp_path, "pod/service", 6 * GIB, 2 * GIB)
        second(tmp_path, "pod", 16 * GIB, 11 * GIB)
    else:
        machine(tmp_path, groups=f"4:memory:/{group}\n", mounts=V1.format(root="/"))
        first(tmp_path, group, UNLIMITED_V1, GIB)
        first(tmp_path, "pod/service", 6 * GIB, 2 * GIB)
        first(tmp_path, "pod", 16 * GIB, 11 * GIB)
    found = read_host_memory(tmp_path)
    assert (found.total, found.free) == (6 * GIB, 4 * GIB)
    folder = tmp_path / "sys/fs/cgroup" / ("" if version == 2 else "memory") / "pod/service"
    assert str(folder.stat().st_ino) in found.pool


def test_memory_used_by_others_in_a_parent_group_is_unavailable(tmp_path: Path) -> None:
    machine(tmp_path, groups="0::/pod/mine\n", mounts=V2)
    second(tmp_path, "pod/mine", 6 * GIB, 2 * GIB)
    second(tmp_path, "pod", 16 * GIB, 15 * GIB)
    found = read_host_memory(tmp_path)
    assert (found.total, found.free) == (6 * GIB, GIB)


def test_memory_used_by_others_on_the_machine_is_unavailable(tmp_path: Path) -> None:
    scarce = MACHINE.replace("MemAvailable: 25165824", "MemAvailable: 1048576")
    machine(tmp_path, groups="0::/\n", mounts=V2, meminfo=scarce)
    second(tmp_path, "", 8 * GIB, 2 * GIB)
    found = read_host_memory(tmp_path)
    assert (found.total, found.free) == (8 * GIB, GIB)


def test_memory_high_of_a_group_is_a_limit_too(tmp_path: Path) -> None:
    machine(tmp_path, groups="0::/\n", mounts=V2)
    second(tmp_path, "", 8 * GIB, 2 * GIB, high=4 * GIB)
    assert read_host_memory(tmp_path).total == 4 * GIB


@pytest.mark.parametrize(
    "spoilt",
    [
        {"memory.max": "garbage\n"},
        {"memory.current": ""},
        {"memory.current": "-1\n"},
    ],
)
def test_files_that_make_no_sense_are_as_good_as_none(tmp_path: Path, spoilt: dict[str, str]) -> None:
    machine(tmp_path, groups="0::/\n", mounts=V2)
    second(tmp_path, "", 8 * GIB, 2 * GIB)
    write(tmp_path, "sys/fs/cgroup", spoilt)
    assert read_host_memory(tmp_path).source == "/proc/meminfo"


@pytest.mark.parametrize("missing", ["memory.max", "memory.current"])
def test_without_limit_or_usage_it_is_the_machines(tmp_path: Path, missing: str) -> None:
    machine(tmp_path, groups="0::/\n", mounts=V2)
    second(tmp_path, "", 8 * GIB, 2 * GIB)
    (tmp_path / "sys/fs/cgroup" / missing).unlink()
    assert read_host_memory(tmp_path).source == "/proc/meminfo"


def test_without_statistics_everything_counts_as_used(tmp_path: Path) -> None:
    machine(tmp_path, groups="0::/\n", mounts=V2)
    second(tmp_path, "", 8 * GIB, 2 * GIB)
    (tmp_path / "sys/fs/cgroup/memory.stat").unlink()
    assert read_host_memory(tmp_path).used == 2 * GIB


def test_a_path_that_leads_out_of_the_mount_means_its_top(tmp_path: Path) -> None:
    """A process that was moved into a container's namespace from outside sees such a path."""
    machine(tmp_path, groups="0::/../elsewhere\n", mounts=V2)
    second(tmp_path, "", 8 * GIB, 2 * GIB)
    assert read_host_memory(tmp_path).total == 8 * GIB


def test_a_group_that_is_not_shown_is_looked_for_above(tmp_path: Path) -> None:
    machine(tmp_path, groups="0::/pod/hidden\n", mounts=V2)
    second(tmp_path, "pod", 8 * GIB, 2 * GIB)
    assert read_host_memory(tmp_path).total == 8 * GIB


def test_both_versions_side_by_side(tmp_path: Path) -> None:
    """On a hybrid machine, version 1 controls the memory; version 2 has an empty tree next to it."""
    both = V1.format(root="/") + V2.replace("/sys/fs/cgroup ", "/sys/fs/cgroup/unified ")
    machine(tmp_path, groups="4:memory:/x\n0::/x\n", mounts=both)
    first(tmp_path, "x", 8 * GIB, 2 * GIB)
    (tmp_path / "sys/fs/cgroup/unified/x").mkdir(parents=True)
    assert read_host_memory(tmp_path).source == "cgroup v1"


def test_two_containers_of_one_path_are_two_pools(tmp_path: Path) -> None:
    pools = set()
    for name in ("text", "image"):
        machine(tmp_path / name, groups="0::/\n", mounts=V2)
        second(tmp_path / name, "", 8 * GIB, 2 * GIB)
        pools |= {read_host_memory(tmp_path / name).pool, read_host_memory(tmp_path / name).pool}
    assert len(pools) == 2


def test_unknown_lines_are_ignored(tmp_path: Path) -> None:
    machine(
        tmp_path,
        groups="\nx\n0::/\n:::\n",
        mounts=f"nonsense\n- -\n1 2 - cgroup2\n{V2}",
        meminfo=f"Oddity\nA: b\n{MACHINE}",
    )
    second(tmp_path, "", 8 * GIB, 2 * GIB, "nonsense\ninactive_file x\n")
    assert read_host_memory(tmp_path).total == 8 * GIB


def test_outside_linux_psutil_reads_the_memory(tmp_path: Path) -> None:
    found = read_host_memory(tmp_path)
    assert found.source == "psutil"
    assert found.total == psutil.virtual_memory().total
    assert 0 < found.used < found.total


def test_memory_of_this_machine_is_read() -> None:
    found = read_host_memory()
    assert 0 < found.used < found.total <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert read_host_memory().pool == found.pool


MIB = 1024 * 1024
SIZE = 96 * MIB
SLACK = 8 * MIB

TAKES = f"kept = bytearray(os.urandom({MIB})) * {SIZE // MIB}"
TAKES_AND_GIVES_BACK = f"{TAKES}; del kept"
MAPS = "file = open(sys.argv[1], 'rb'); seen = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ); sum(seen[::4096])"
HAS_A_CHILD = (
    f"child = subprocess.Popen([sys.executable, '-c', \"import os; {TAKES}; print('x', flush=True); input()\"],"
    " stdin=subprocess.PIPE, stdout=subprocess.PIPE); child.stdout.readline()"
)


@pytest.fixture
def running() -> Iterator[Callable[..., int]]:
    started: list[subprocess.Popen[str]] = []

    def start(does: str, *arguments: str) -> int:
        program = f"import mmap, os, subprocess, sys; {does}; print('there', flush=True); sys.stdin.read()"
        command = [sys.executable, "-c", program, *arguments]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout
        assert process.stdout.readline() == "there\n"
        return process.pid

    yield start
    for process in started:
        process.communicate()


def above(pid: int, idle: int) -> ProcessMemory:
    now, before = read_process_memory(pid), read_process_memory(idle)
    return ProcessMemory(now.held - before.held, now.mapped - before.mapped, now.peak - before.peak)


def test_memory_of_a_process_is_reserved(running) -> None:
    taken = above(running(TAKES), running("pass"))
    assert abs(taken.held - SIZE) < SLACK
    assert abs(taken.mapped) < SLACK
    assert abs(taken.peak - SIZE) < SLACK
    assert taken.total == taken.held + taken.mapped


def test_released_memory_is_only_in_the_peak(running) -> None:
    taken = above(running(TAKES_AND_GIVES_BACK), running("pass"))
    assert taken.held < SLACK
    assert abs(taken.peak - SIZE) < SLACK


def test_a_mapped_file_is_mapped_and_not_held(running, tmp_path: Path) -> None:
    (tmp_path / "weights").write_bytes(os.urandom(MIB) * (SIZE // MIB))
    taken = above(running(MAPS, str(tmp_path / "weights")), running("pass"))
    assert abs(taken.mapped - SIZE) < SLACK
    assert taken.held < SLACK


@pytest.mark.parametrize("threads", [False, True])
def test_children_count_whichever_thread_started_them(running, threads: bool) -> None:
    does = HAS_A_CHILD
    if threads:  # this thread stays alive, because the kernel gives an ended thread's children to another thread
        started = f"exec({HAS_A_CHILD!r}, globals()); done.set(); threading.Event().wait()"
        thread = f"threading.Thread(target=exec, args=({started!r}, globals()), daemon=True)"
        does = f"import threading; done = threading.Event(); {thread}.start(); done.wait()"
    taken = above(running(does), running("pass"))
    assert taken.held > SIZE - SLACK


def test_ended_process_has_no_figures() -> None:
    process = subprocess.Popen([sys.executable, "-c", "pass"])
    process.wait()
    assert read_process_memory(process.pid) == ProcessMemory()


def test_outside_linux_psutil_reads_a_processs_memory(tmp_path: Path) -> None:
    found = read_process_memory(os.getpid(), tmp_path)
    assert found.held > 0
    assert (found.mapped, found.peak >= found.held) == (0, True)
