"""Properties and load of a node's machine, read from the kernel; unknown figures are left out."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any

__all__ = ["Machine"]

_ARCH = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm"}


class Machine:
    """The machine a node runs on.

    Args:
        folder: A folder on the disk to measure.
        address: The machine's address.
    """

    def __init__(self, folder: Path, *, address: str = "") -> None:
        self.name = socket.gethostname()
        self._folder = folder
        self._address = address or _own_address()
        self._cpu = _cpu_times()

    def node(self) -> dict[str, Any]:
        """Describe the machine in the form of ``report.node``."""
        return {
            "hostname": self.name,
            "address": self._address,
            "arch": _ARCH.get(platform.machine(), platform.machine()),
            "os": "linux",
            "kernelVer": platform.release(),
            "containerRuntime": "",
            "machineID": _text("/etc/machine-id"),
            "bootID": _text("/proc/sys/kernel/random/boot_id"),
            "systemUUID": "",
            "osImage": _os_image(),
            "role": "master",
            "labels": {},
        }

    def stats(self) -> dict[str, Any]:
        """Measure the load in the form of ``report.nodestats``; processor usage counts from the last call."""
        cores = os.cpu_count() or 1
        before, self._cpu = self._cpu, _cpu_times()
        total, idle = (now - then for now, then in zip(self._cpu, before, strict=True))
        busy = 1.0 - idle / total if total > 0 else 0.0
        memory = _memory()
        disk = os.statvfs(self._folder)
        disk_all, disk_free = disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize
        used = memory["MemTotal"] - memory["MemAvailable"]
        usage = {"cpu": f"{busy * cores:.3f}", "memory": str(used), "disk": str(disk_all - disk_free)}
        capacity = {"cpu": str(cores), "memory": str(memory["MemTotal"]), "disk": str(disk_all)}
        percent = {
            "cpu": f"{busy:.4f}",
            "memory": f"{used / max(1, memory['MemTotal']):.4f}",
            "disk": f"{1 - disk_free / max(1, disk_all):.4f}",
        }
        gpu = _gpu()
        if gpu is not None:
            usage["gpu"], capacity["gpu"], percent["gpu"] = gpu
        return {
            "ready": True,
            "diskPressure": disk_free < disk_all // 20,
            "memoryPressure": memory["MemAvailable"] < memory["MemTotal"] // 20,
            "pidPressure": False,
            "usage": usage,
            "capacity": capacity,
            "percent": percent,
            "netio": _network(),
        }


def _cpu_times() -> tuple[float, float]:
    fields = [float(word) for word in _text("/proc/stat").splitlines()[0].split()[1:9]]
    return sum(fields), fields[3] + fields[4]


def _memory() -> dict[str, int]:
    lines = (line.split() for line in _text("/proc/meminfo").splitlines())
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines if len(words) > 1}


def _network() -> dict[str, str]:
    sums = [0, 0, 0, 0]
    for line in _text("/proc/net/dev").splitlines()[2:]:
        name, _, rest = line.partition(":")
        words = rest.split()
        if name.strip() != "lo" and len(words) > 9:  # noqa: PLR2004 - received, then sent
            sums = [a + int(words[b]) for a, b in zip(sums, (0, 1, 8, 9), strict=True)]
    names = ("netBytesRecv", "netPacketsRecv", "netBytesSent", "netPacketsSent")
    return {name: str(value) for name, value in zip(names, sums, strict=True)}


def _gpu() -> tuple[str, str, str] | None:
    """Return used memory, memory and busy share of all Nvidia GPUs; None if there are none."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    query = [program, "--query-gpu=memory.used,memory.total,utilization.gpu", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True)
        rows = [[float(cell) for cell in line.split(",")] for line in done.stdout.splitlines() if line.strip()]
        used, total, busy = (sum(column) for column in zip(*rows, strict=True))
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return str(int(used) << 20), str(int(total) << 20), f"{busy / len(rows) / 100:.4f}"


def _own_address() -> str:
    """Return this machine's outgoing address; sends nothing."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"


def _os_image() -> str:
    for line in _text("/etc/os-release").splitlines():
        key, _, value = line.partition("=")
        if key == "PRETTY_NAME":
            return value.strip('"')
    return platform.system()


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return ""
