"""The rights that the operator of a node gives to apps, be they signed or not.

An app gets a container of its own and folders below the node's. Everything that leads out of there is refused unless
an option of the node allows it. A key does not: it says who may release, and these options say what this machine
gives away. Versions that were accepted before go on running.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from cloudedge.edge_bie.model import DesiredApp, DesiredVolume
from cloudedge.errors import Rejected
from cloudedge.io import safe_path

__all__ = ["Rights", "host_path"]


@dataclass(frozen=True)
class Rights:
    """The rights of apps on a node."""

    privileged: bool = False
    """Containers may run privileged."""
    host_paths: Sequence[Path] = ()
    """Folders of this machine that apps may mount, with all below them."""

    def check(self, app: DesiredApp, folder: Path, *, in_container: bool) -> None:
        """Refuse an app that asks for more.

        Args:
            app: The app.
            folder: The folder of host paths that are relative.
            in_container: False for processes: they have what the node's user has, whatever an app asks for.

        Raises:
            Rejected: It asks for more; the message names the option that would allow it.
            InputError: A relative path leaves its folder.
        """
        if in_container:
            self._check_container(app)
        for volume in app.volumes:
            if volume.kind == "hostPath":
                self._check_host_path(app, volume, folder)

    def _check_container(self, app: DesiredApp) -> None:
        privileged = [service.name for service in app.services if service.privileged]
        if privileged and not self.privileged:
            raise Rejected(
                f"{app.ref.name}: {', '.join(privileged)} asks to run privileged; this node allows that only with "
                "--allow-privileged"
            )
        if app.host_access:
            raise Rejected(
                f"{app.ref.name} asks for {', '.join(app.host_access)}, which this kind of node gives to no container"
            )

    def _check_host_path(self, app: DesiredApp, volume: DesiredVolume, folder: Path) -> None:
        # An app may have written a link into a folder that the next one names: the path behind it counts.
        real = Path(os.path.realpath(host_path(folder, volume)))
        if not any(real.is_relative_to(os.path.realpath(root)) for root in (folder, *self.host_paths)):
            raise Rejected(
                f"{app.ref.name} mounts {volume.source} of this machine; this node allows that only with "
                f"--allow-host-path {real}"
            )


def host_path(folder: Path, volume: DesiredVolume) -> Path:
    """Return a volume's folder on this machine.

    Args:
        folder: The folder of paths that are relative.
        volume: The volume.

    Raises:
        InputError: A relative path leaves its folder.
    """
    if volume.source.startswith("/"):
        return Path(volume.source)
    return folder / safe_path(PurePosixPath(volume.source).as_posix(), "a host path")
