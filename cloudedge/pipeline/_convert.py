"""Conversion of a Paddle 3 inference model into Paddle Serving's folders, and into one archive of them."""

from __future__ import annotations

import gzip
import shutil
import tarfile
from pathlib import Path

from cloudedge.bundle import published
from cloudedge.errors import InputError
from cloudedge.serving import conf
from cloudedge.serving.model import read_signature

__all__ = ["convert", "pack"]


def convert(inference: Path, output: Path) -> None:
    """Write ``server`` and ``client`` below a fresh folder, as Paddle Serving's converter does.

    Raises:
        InputError: there is no such model, or it does not describe its inputs.
    """
    programs = sorted(inference.glob("*.json")) if inference.is_dir() else []
    if len(programs) != 1:
        raise InputError(f"{inference} holds {len(programs)} programs of Paddle 3 (*.json) instead of one")
    described = conf.model_config(read_signature(programs[0], programs[0].name))
    text, binary = conf.write_text(described).encode(), conf.write_binary(described)
    if output.is_dir():
        shutil.rmtree(output)
    with published(output, f"converting {inference}") as draft:
        shutil.copytree(inference, draft / "server")
        for side in ("server", "client"):
            (draft / side).mkdir(exist_ok=True)
            (draft / side / f"serving_{side}_conf.prototxt").write_bytes(text)
            (draft / side / f"serving_{side}_conf.stream.prototxt").write_bytes(binary)


def pack(folder: Path, target: Path) -> None:
    """Pack a folder as NAME.tar.gz; the same files always give the same bytes."""
    target.unlink(missing_ok=True)
    with (
        published(target, f"packing {folder}") as draft,
        draft.open("wb") as raw,
        gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w") as archive,
    ):
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                archive.add(path, f"{folder.name}/{path.relative_to(folder)}", filter=_plain)


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.mtime = member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mode = 0o644
    return member
