"""gflags.conf: a cube-server's flags, one ``--name=value`` per line. Without the file upstream's server exits."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field

from cloudedge.cube.formats._cube_conf import read_text_file
from cloudedge.errors import ConfigError

__all__ = ["ServerFlags"]

_FLAG = re.compile(r"--?([A-Za-z_][A-Za-z0-9_]*)(?:=(.*))?")
_TRUE = {"1", "t", "true", "y", "yes"}
_FALSE = {"0", "f", "false", "n", "no"}


@dataclass(frozen=True)
class ServerFlags:
    """A whole gflags.conf, with upstream's defaults."""

    port: int = 8000
    """RPC, HTTP and control share it."""
    dict_split: int = 1
    """Above 1: the number of sub-dictionaries, chosen by key mod dict_split."""
    in_mem: bool = True
    """False maps the data files instead of reading them."""
    log_dir: str = "./log"
    others: dict[str, str] = field(default_factory=dict)
    """Flags of brpc and glog."""

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> ServerFlags:
        """Read a file.

        Raises:
            ConfigError: the file cannot be read, or a line is no flag; the message names the line.
        """
        return cls.from_text(read_text_file(path), source=str(path))

    @classmethod
    def from_text(cls, text: str, *, source: str = "gflags.conf") -> ServerFlags:
        """Read a text; `source` names it in errors."""
        flags = cls()
        values: dict[str, int | bool | str] = {}
        others: dict[str, str] = {}
        for number, raw in enumerate(text.split("\n"), 1):
            line = raw.strip()
            if not line or line.startswith("#"):
                continue
            match = _FLAG.fullmatch(line)
            if match is None:
                raise ConfigError(f"{source}, line {number}: {line!r} is not --name=value", path=source, line=number)
            name, value = match[1], match[2]
            if value is None:  # --in_mem and --noin_mem
                name, value = (name[2:], "false") if name == "noin_mem" else (name, "true")
            if name in ("port", "dict_split"):
                values[name] = _number(value, 65535 if name == "port" else 2**31 - 1, name, source, number)
            elif name == "in_mem":
                values[name] = _boolean(value, source, number)
            elif name == "log_dir":
                values[name] = value
            else:
                others[name] = value
        return cls(**{**flags.__dict__, **values, "others": others})

    def to_text(self) -> str:
        """Write the file."""
        lines = [f"--port={self.port}", f"--dict_split={self.dict_split}"]
        lines += [f"--in_mem={str(self.in_mem).lower()}", f"--log_dir={self.log_dir}"]
        lines += [f"--{name}={value}" for name, value in self.others.items()]
        return "\n".join(lines) + "\n"


def _number(value: str, limit: int, name: str, source: str, line: int) -> int:
    if not re.fullmatch(r"[0-9]{1,10}", value) or not 1 <= int(value) <= limit:
        raise ConfigError(
            f"{source}, line {line}: {name} is {value!r}, not within 1 and {limit}", path=source, line=line
        )
    return int(value)


def _boolean(value: str, source: str, line: int) -> bool:
    if value.lower() not in _TRUE | _FALSE:
        raise ConfigError(f"{source}, line {line}: in_mem is {value!r}, not true or false", path=source, line=line)
    return value.lower() in _TRUE
