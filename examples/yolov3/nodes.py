"""Edge nodes on this machine: one agent each, a process of its own, with a folder and a port of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from cloudedge.supervisor import down

PROCESSES = "processes"
"""Where, in its folder, a node keeps what it runs."""
_STOP_S = 60


class EdgeNode:
    """A node whose agent can be started, cut off and started again.

    Args:
        name: What the cloud calls it.
        folder: What it keeps.
        port: Where its service answers; apps ask for `wanted`, and there is only one of that on this machine.
        wanted: The port that the app asks for.
        runtime: `process` or `docker`.
    """

    def __init__(self, name: str, folder: Path, *, port: int, wanted: int, runtime: str = "process") -> None:
        self.name, self.folder, self.port, self.runtime = name, folder, port, runtime
        self._wanted = wanted
        self._agent: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where its service answers."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        """What its agent writes."""
        return self.folder.with_suffix(".log")

    def start(self, cloud: str, key: Path) -> None:
        """Start the agent; it goes on with what its folder says."""
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        command = [
            sys.executable,
            "-W",
            "ignore",
            "-m",
            "cloudedge",
            "edge",
            "node",
            "--cloud",
            cloud,
            "--name",
            self.name,
        ]
        command += ["--state", str(self.folder), "--key", str(key), "--runtime", self.runtime, "--interval-s", "0.5"]
        command += ["--port-map", f"{self._wanted}={self.port}", "--on-stop", "stop"]
        with self.log.open("ab") as log:
            self._agent = subprocess.Popen(command, stdout=log, stderr=log)

    def cut_off(self) -> None:
        """Kill the agent, as a power cut would; the service it had started goes on."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End the agent and everything it runs, also what it left behind when it was cut off."""
        self._end(signal.SIGTERM)
        down(self.folder / PROCESSES)

    def _end(self, how: signal.Signals) -> None:
        if self._agent is not None:
            self._agent.send_signal(how)
            self._agent.wait(_STOP_S)
            self._agent = None


def docker_image() -> tuple[str, str]:
    """Return an image for a node that runs containers, pinned by digest; else nothing, and what to do about that.

    It holds cloudedge with Paddle: what `cloudedge image build serving` makes, or what `CLOUDEDGE_EDGE_IMAGE` names.
    The app brings what it starts, so the image's own entry point does not matter. One that is in no registry is pinned
    by its ID, which only this machine's engine knows.
    """
    name = os.environ.get("CLOUDEDGE_EDGE_IMAGE", "cloudedge-serving")
    ask = ["docker", "image", "inspect", "--format", "[{{json .Id}}, {{json .RepoDigests}}]", name]
    try:
        answer = subprocess.run(ask, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "", "no Docker engine here: all nodes run plain processes"
    if answer.returncode != 0:
        if "o such image" not in answer.stderr and "not found" not in answer.stderr:
            return "", "no Docker engine answers: all nodes run plain processes"
        how = "cloudedge image build serving" if name == "cloudedge-serving" else f"docker pull {name}"
        return "", f"the Docker engine has no image {name}: with it ({how}), one node would run a container"
    own_id, digests = json.loads(answer.stdout)
    return str(digests[0]) if digests else f"{name.rpartition('/')[2].partition(':')[0]}@{own_id}", ""
