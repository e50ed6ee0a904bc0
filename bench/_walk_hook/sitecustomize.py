"""Record the call stacks of a package, in any Python process that has this folder on PYTHONPATH.

Each new stack of the package's functions becomes one line of a file of the process: a process that is killed has
written what it called. Functions of other packages, class bodies, lambdas and comprehensions are passed over.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TextIO


class StackRecorder:
    """Writes each stack once.

    Args:
        package: The folder whose functions count.
        folder: Where each process writes its file.
    """

    def __init__(self, package: Path, folder: Path) -> None:
        self._package = f"{package}{os.sep}"
        self._folder = folder
        self._seen: set[tuple[str, ...]] = set()
        self._labels: dict[CodeType, str] = {}
        self._file: TextIO | None = None
        self._pid = 0
        self._lock = threading.Lock()

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        """Take note of a call, as `sys.setprofile` reports it."""
        if event != "call" or not self._label(frame.f_code):
            return
        stack = []
        at: FrameType | None = frame
        while at is not None:
            if label := self._label(at.f_code):
                stack.append(label)
            at = at.f_back
        self._write(tuple(reversed(stack)))

    def close(self) -> None:
        """Close the file of this process."""
        if self._file is not None:
            self._file.close()

    def _label(self, code: CodeType) -> str:
        if (label := self._labels.get(code)) is None:
            is_function = code.co_flags & CO_OPTIMIZED and not code.co_name.startswith("<")
            inside = is_function and code.co_filename.startswith(self._package)
            path = code.co_filename.removeprefix(self._package)
            label = self._labels[code] = f"{path}:{code.co_qualname.replace('<locals>.', '')}" if inside else ""
        return label

    def _write(self, stack: tuple[str, ...]) -> None:
        if stack in self._seen:
            return
        with self._lock:
            if self._file is None or self._pid != os.getpid():  # the first stack, or the first of a forked process
                self._pid = os.getpid()
                self._file = (self._folder / f"{self._pid}.jsonl").open("a", buffering=1)
            self._seen.add(stack)
            self._file.write(json.dumps(stack) + "\n")


if "WALK_FOLDER" in os.environ:
    recorder = StackRecorder(Path(os.environ["WALK_PACKAGE"]), Path(os.environ["WALK_FOLDER"]))
    threading.setprofile(recorder)
    sys.setprofile(recorder)
