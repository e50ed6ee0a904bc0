"""proj.conf: flags of the C++ server for ``--flagfile``, one ``--name=value`` per line."""

from __future__ import annotations

import re
from collections.abc import Mapping

from cloudedge.errors import ConfigError

__all__ = ["read_flags", "server_flags", "write_flags"]

_FLAG = re.compile(r"--?([A-Za-z_][A-Za-z0-9_]*)(?:=(.*))?")


def server_flags(
    workdir: str, *, port: int, threads: int = 4, max_body_bytes: int = 512 * 1024 * 1024
) -> dict[str, str]:
    """Return the flags that upstream's launcher gives the server, in its order."""
    return {
        "enable_model_toolkit": "true",
        "inferservice_path": workdir,
        "inferservice_file": "infer_service.prototxt",
        "max_concurrency": "0",
        "num_threads": str(threads),
        "port": str(port),
        "precision": "fp32",
        "use_calib": "false",
        "reload_interval_s": "10",
        "resource_path": workdir,
        "resource_file": "resource.prototxt",
        "workflow_path": workdir,
        "workflow_file": "workflow.prototxt",
        "bthread_concurrency": str(threads),
        "max_body_size": str(max_body_bytes),
    }


def write_flags(flags: Mapping[str, str]) -> str:
    """Write flags, in their order.

    Raises:
        ConfigError: A name or a value would not survive reading.
    """
    for name, value in flags.items():
        if not _FLAG.fullmatch(f"--{name}") or "\n" in value or value != value.strip():
            raise ConfigError(f"not a flag that a flag file can hold: {name}={value!r}", flag=name)
    return "".join(f"--{name}={value}\n" for name, value in flags.items())


def read_flags(text: str, what: str = "the flag file") -> dict[str, str]:
    """Read flags; a flag without a value is true, and the last of several wins.

    Raises:
        ConfigError: A line is neither a flag nor a comment; names the line.
    """
    flags = {}
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        found = _FLAG.fullmatch(stripped)
        if found is None:
            raise ConfigError(f"{what}, line {number}: wanted --name=value, found {stripped!r}", line=number)
        flags[found[1]] = "true" if found[2] is None else found[2]
    return flags
