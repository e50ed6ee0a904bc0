"""Hot loading for stock servers: new files in a running server's directory, or a tar that upstream's monitor fetches.

A C++ server checks one stamp file every few seconds and reads the model again when the stamp's time in whole seconds
has changed; it checks nothing else. So the stamp is touched last, once, and only after a change. Running the same
again repairs the state after a crash: a note names the bundle on its way, and only the last step marks it "live".
"""

from __future__ import annotations

import io
import json
import os
import shutil
import tarfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from cloudedge.bundle import Bundle
from cloudedge.clock import Clock, SystemClock
from cloudedge.errors import CloudEdgeError, InputError
from cloudedge.io import atomic_file, storage_errors
from cloudedge.serving.stock._export import ExportPlan

__all__ = ["HotLoad", "follow", "load_into", "publish_for_monitor"]

STAMP = "fluid_time_file"
_NOTE = ".cloudedge.json"
_PROGRAMS = (".pdmodel", "__model__", "model")
_PARAMETERS = (".pdiparams", "__params__", "params")
"""Endings of files that the engine takes for a program or for parameters: it takes the first it finds."""


@dataclass(frozen=True)
class HotLoad:
    """The changes of a hot load, done or planned."""

    written: tuple[str, ...]
    removed: tuple[str, ...] = ()
    stamp: Path | None = None
    """The file whose new time makes servers reload; None if there was nothing to change."""


def load_into(
    bundle: Bundle,
    plan: ExportPlan,
    live: str | os.PathLike[str],
    *,
    dry_run: bool = False,
    clock: Clock | None = None,
) -> HotLoad:
    """Put a bundle's files into the model directory of a running C++ server.

    Each file is replaced by renaming; the server reads none before the stamp changes.

    Raises:
        InputError: The directory does not exist, or holds no model.
        StorageError: It cannot be written.
    """
    folder = Path(live)
    stamp = folder / STAMP
    if not stamp.is_file():
        raise InputError(
            f"{folder} is not the model directory of a server: it has no {STAMP}",
            hint="Name the `model_dir` of model_toolkit.prototxt.",
            path=str(folder),
        )
    wanted = plan.server_files()
    stale = [
        path.name
        for path in sorted(folder.iterdir())
        if path.is_file() and path.name not in wanted and path.name.endswith((*_PROGRAMS, *_PARAMETERS))
    ]
    if _state(folder) == {"digest": bundle.digest, "live": True}:
        return HotLoad(())
    result = HotLoad(tuple(sorted(wanted)), tuple(stale), stamp)
    if dry_run:
        return result
    bundle.verify()
    with storage_errors(f"loading {bundle.name}:{bundle.version}", folder):
        _replace(folder / _NOTE, json.dumps({"digest": bundle.digest, "live": False}).encode())
        for name, source in sorted(wanted.items()):
            _replace(folder / name, source)
        for name in stale:
            (folder / name).unlink()
        _touch(stamp, clock or SystemClock())
        _replace(folder / _NOTE, json.dumps({"digest": bundle.digest, "live": True}).encode())
    return result


def publish_for_monitor(
    bundle: Bundle,
    plan: ExportPlan,
    folder: str | os.PathLike[str],
    *,
    model: str = "model",
    donefile: str = "donefile",
    dry_run: bool = False,
    clock: Clock | None = None,
) -> HotLoad:
    """Put a tar and then a donefile where ``paddle_serving_server.monitor`` looks for them.

    The monitor is started with ``--remote_model_name MODEL.tar --unpacked_filename MODEL --remote_donefile_name
    DONEFILE``. It copies the tar's files over the live ones and touches the stamp; so the tar has no stamp in it.

    Raises:
        StorageError: The folder cannot be written.
    """
    root = Path(folder)
    archive, done = root / f"{model}.tar", root / donefile
    if archive.is_file() and done.is_file() and done.read_text() == bundle.digest:
        return HotLoad(())
    result = HotLoad((archive.name, done.name), (), done)
    if dry_run:
        return result
    bundle.verify()
    with storage_errors(f"publishing {bundle.name}:{bundle.version}", root):
        root.mkdir(parents=True, exist_ok=True)
        temporary = archive.with_name(f".{archive.name}.new")
        _write_tar(temporary, model, plan.server_files())
        temporary.replace(archive)
        # A monitor compares times in whole seconds: a new donefile must not have the old one's.
        before = int(done.stat().st_mtime) if done.exists() else 0
        unstamped = done.with_name(f".{done.name}.new")
        unstamped.write_text(bundle.digest)
        _stamp(unstamped, before, clock or SystemClock())
        unstamped.replace(done)
    return result


def follow(
    find: Callable[[], Bundle],
    hand_over: Callable[[Bundle], HotLoad],
    *,
    every_s: float = 5.0,
    clock: Clock | None = None,
) -> Iterator[tuple[Bundle, HotLoad] | CloudEdgeError]:
    """Hand over the bundle of a name, and each new one when the name moves; never ends by itself.

    Yields each hand-over, and each error once; a later try may succeed.

    Args:
        find: Finds the name's current bundle.
        hand_over: Delivers it: `load_into` or `publish_for_monitor`.
        every_s: Interval between two looks.
        clock: Waits in between.
    """
    clock = clock or SystemClock()
    handed_over, reported = "", ""
    while True:
        try:
            bundle = find()
            if bundle.digest != handed_over:
                yield bundle, hand_over(bundle)
                handed_over, reported = bundle.digest, ""
        except CloudEdgeError as error:
            if error.message != reported:
                reported = error.message
                yield error
        clock.sleep(every_s)


def _state(folder: Path) -> object:
    try:
        return json.loads((folder / _NOTE).read_bytes())
    except (FileNotFoundError, ValueError):
        return None


def _replace(path: Path, source: bytes | Path) -> None:
    """Write a file beside its place and rename it there. The name meanwhile ends in nothing the engine looks for."""
    with atomic_file(path, scratch=path.with_name(f".{path.name}.new")) as file:
        if isinstance(source, Path):
            with source.open("rb") as held:
                shutil.copyfileobj(held, file, 1 << 20)
        else:
            file.write(source)


def _touch(stamp: Path, clock: Clock) -> None:
    _stamp(stamp, int(stamp.stat().st_mtime), clock)


def _stamp(path: Path, before: int, clock: Clock) -> None:
    """Set a file's time to now, or to one second after `before` if that is later."""
    at = max(int(clock.now().timestamp()), before + 1)
    os.utime(path, (at, at))


def _write_tar(path: Path, folder: str, files: Mapping[str, bytes | Path]) -> None:
    """Write files below a folder; the same files give the same bytes."""
    with path.open("wb") as out:
        with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as archive:
            top = tarfile.TarInfo(folder)
            top.type, top.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(top)
            for name, source in sorted(files.items()):
                info = tarfile.TarInfo(f"{folder}/{name}")
                if isinstance(source, Path):
                    info.size = source.stat().st_size
                    with source.open("rb") as held:
                        archive.addfile(info, held)
                else:
                    info.size = len(source)
                    archive.addfile(info, io.BytesIO(source))
        out.flush()
        os.fsync(out.fileno())
