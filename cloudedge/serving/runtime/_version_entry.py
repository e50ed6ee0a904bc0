"""The runtime's record of a version from the order to load it: queued, loading, ready, unloading or failed."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from pathlib import Path

from cloudedge.admin import states
from cloudedge.bundle import Bundle
from cloudedge.hub import LocalHub
from cloudedge.serving.model import ProbeResult, VersionQueue
from cloudedge.serving.runtime._config import VersionInfo
from cloudedge.serving.runtime._saved_state import LoadedRef

__all__ = ["VersionEntry", "open_bundle"]


@dataclass
class VersionEntry:
    """One version and its state."""

    bundle: Bundle
    name: str
    tables: Mapping[str, str]
    state: str = states.QUEUED
    error: str = ""
    queue: VersionQueue | None = None
    done: Future[None] | None = None

    @property
    def ref(self) -> LoadedRef:
        """The version as the state file saves it."""
        return LoadedRef(pin=self.bundle.pin, bundle=f"{self.bundle.name}@{self.bundle.digest}", tables=self.tables)

    def info(self, *, active: bool) -> VersionInfo:
        """Describe the version."""
        base = VersionInfo(
            pin=self.bundle.pin,
            name=self.name,
            bundle=self.ref.bundle,
            version=self.bundle.version,
            state=self.state,
            active=active,
            error=self.error,
            tables=self.tables,
        )
        if self.queue is None:
            return base
        version = self.queue.version
        probed = version.probed or ProbeResult(0, (), 0)
        tuning = version.tuning
        return VersionInfo(
            **asdict(base)
            | {"probes": probed.asked, "probes_failed": probed.failures, "pending": self.queue.pending}
            | {"threads": tuning.threads, "max_batch_rows": tuning.max_batch_rows, "inline": self.queue.is_inline}
            | {"run_us": round(tuning.run_s * 1e6, 1), "memory_bytes": version.memory_bytes}
        )


def open_bundle(ref: str, hub: LocalHub) -> Bundle:
    """Open a bundle in the hub, or pack a folder with a model.

    Raises:
        NotFound: There is no such bundle.
    """
    folder = Path(ref)
    if "@" in ref or not folder.is_dir():
        return Bundle.open(ref, hub=hub)
    name = "".join(c if c.isalnum() else "-" for c in folder.resolve().name.lower()).strip("-")
    return Bundle.pack(folder, name=name or "model", hub=hub)
