"""transfer.conf: the table that cube-transfer builds, and the agents and servers it delivers to.

Upstream's parser is reproduced: lines are trimmed; a leading ``#`` is a comment; a line with ``[...]`` anywhere in it
is a section header; key and value part at the first colon; a blank before ``#`` or ``//`` starts a comment; empty
values and lines before the first section are ignored. Every key is required.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import Any

from cloudedge._renamed_arguments import renamed_arguments
from cloudedge.cube.formats._cube_conf import Endpoint, read_text_file
from cloudedge.errors import ConfigError

__all__ = ["CubeAddress", "TransferConf"]

_SECTION = re.compile(r"\[([^\]]*)\]")
_COMMENT = re.compile(r"[\t ](#|//).*")
_INSTANCE = re.compile(r"(agent|cube)([0-9]{1,6})_([0-9]{1,6})")
_KEYS = (
    "dict_name",
    "mode",
    "download_mode",
    "wget_port",
    "buildtool_local",
    "donefile_address",
    "output_address",
    "tmp_address",
    "shard_num",
    "copy_num",
    "deploy_path",
    "transfer_address",
)
_FIELDS = {"dict_name": "table"}
"""By key: the field, where its name differs."""
_NUMBERS = ("wget_port", "shard_num", "copy_num")
_CHOICES = {"mode": ("base_only", "base_delta"), "download_mode": ("http", "ftp")}


@dataclass(frozen=True)
class CubeAddress:
    """A cube-server and its working directory."""

    host: str
    port: int
    deploy_path: str


@renamed_arguments(dict_name="table")
@dataclass(frozen=True)
class TransferConf:
    """A whole transfer.conf. Instances are named by (shard, copy)."""

    table: str
    """`dict_name` in the file."""
    mode: str
    """`base_only` or `base_delta`."""
    download_mode: str
    """`http` or `ftp`: the scheme agents fetch parts with."""
    wget_port: int
    buildtool_local: str
    donefile_address: str
    output_address: str
    tmp_address: str
    shard_num: int
    copy_num: int
    deploy_path: str
    transfer_address: str
    agents: dict[tuple[int, int], Endpoint]
    cubes: dict[tuple[int, int], CubeAddress]
    others: dict[str, str] = field(default_factory=dict)
    """Keys of the default section that are unknown here."""

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> TransferConf:
        """Read a file.

        Raises:
            ConfigError: the file cannot be read, or a key is missing or wrong; the message names it.
        """
        return cls.from_text(read_text_file(path), source=str(path))

    @classmethod
    def from_text(cls, text: str, *, source: str = "transfer.conf") -> TransferConf:
        """Read a text; `source` names it in errors."""
        sections = _parse(text, source)
        default = sections.get("default", {})
        values: dict[str, Any] = {}
        for key in _KEYS:
            if key not in default:
                raise ConfigError(f"{source}: [default] lacks {key}", hint="Every key is required.", path=source)
            line, value = default[key]
            values[_FIELDS.get(key, key)] = _number(value, source, line, key) if key in _NUMBERS else value
            if value not in _CHOICES.get(key, (value,)):
                accepted = " or ".join(_CHOICES[key])
                raise ConfigError(f"{source}, line {line}: {key} is {value!r}, not {accepted}", path=source, line=line)
        agents: dict[tuple[int, int], Endpoint] = {}
        cubes: dict[tuple[int, int], CubeAddress] = {}
        for key, (line, value) in sections.get("cube_agent", {}).items():
            match = _INSTANCE.fullmatch(key)
            if match is None:
                continue
            place = (int(match[2]), int(match[3]))
            if match[1] == "agent":
                agents[place] = _agent(value, source, line, key)
            else:
                cubes[place] = _cube(value, source, line, key)
        conf = cls(
            **values,
            agents=agents,
            cubes=cubes,
            others={key: value for key, (_, value) in default.items() if key not in _KEYS},
        )
        conf._require_instances(source)
        return conf

    def _require_instances(self, source: str) -> None:
        if self.shard_num * self.copy_num > 1_000_000:  # noqa: PLR2004 - a typing mistake
            raise ConfigError(f"{source}: {self.shard_num} x {self.copy_num} instances", path=source)
        for shard in range(self.shard_num):
            for copy in range(self.copy_num):
                for name, known in (("agent", self.agents), ("cube", self.cubes)):
                    if (shard, copy) not in known:
                        raise ConfigError(
                            f"{source}: [cube_agent] lacks {name}{shard}_{copy}",
                            hint=f"{self.shard_num} shards x {self.copy_num} copies need an agent and a cube each.",
                            path=source,
                        )

    def to_text(self) -> str:
        """Write the file."""
        lines = ["[default]"]
        lines += [f"{key}: {getattr(self, _FIELDS.get(key, key))}" for key in _KEYS]
        lines += [f"{key}: {value}" for key, value in self.others.items()]
        lines += ["", "[cube_agent]"]
        for shard, copy in sorted(self.agents.keys() | self.cubes.keys()):
            if agent := self.agents.get((shard, copy)):
                lines.append(f"agent{shard}_{copy}: {agent[0]}:{agent[1]}")
            if cube := self.cubes.get((shard, copy)):
                lines.append(f"cube{shard}_{copy}: {cube.host}:{cube.port}:{cube.deploy_path}")
        return "\n".join(lines) + "\n"


def _parse(text: str, source: str) -> dict[str, dict[str, tuple[int, str]]]:
    """Return section to key to (line number, value)."""
    sections: dict[str, dict[str, tuple[int, str]]] = {}
    current: dict[str, tuple[int, str]] | None = None
    for number, raw in enumerate(text.split("\n"), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        if header := _SECTION.search(line):
            current = sections.setdefault(header[1].strip(), {})
            continue
        if current is None:
            continue
        key, colon, value = _COMMENT.sub("", line).partition(":")
        if not colon:
            raise ConfigError(f"{source}, line {number}: {line!r} is not 'key: value'", path=source, line=number)
        if value.strip():
            current[key.strip()] = (number, value.strip())
    return sections


def _number(value: str, source: str, line: int, key: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", value) or int(value) < 1:
        raise ConfigError(f"{source}, line {line}: {key} is {value!r}, not a number", path=source, line=line)
    return int(value)


def _agent(value: str, source: str, line: int, key: str) -> Endpoint:
    host, _, port = value.rpartition(":")
    if not host or not _is_port(port):
        raise ConfigError(f"{source}, line {line}: {key} is {value!r}, not ip:port", path=source, line=line)
    return host, int(port)


def _cube(value: str, source: str, line: int, key: str) -> CubeAddress:
    fields = value.split(":")
    if len(fields) != 3 or not fields[0] or not _is_port(fields[1]) or not fields[2]:  # noqa: PLR2004 - upstream: exactly three
        raise ConfigError(f"{source}, line {line}: {key} is {value!r}, not ip:port:deploy_path", path=source, line=line)
    return CubeAddress(fields[0], int(fields[1]), fields[2])


def _is_port(text: str) -> bool:
    return bool(re.fullmatch(r"[0-9]{1,5}", text)) and 0 < int(text) < 65536  # noqa: PLR2004 - 16 bits
