"""cube.conf: the servers of each table, as clients read them.

A JSON array with one object per table, which the file calls a dictionary. Upstream's client crashes with fewer nodes
than shards and writes out of bounds with more; both are refused here. Unknown fields are kept.
"""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, RootModel, ValidationError, model_validator

from cloudedge._renamed_arguments import renamed_arguments
from cloudedge.errors import ConfigError
from cloudedge.io import parse_address

__all__ = ["CubeConf", "CubeTable", "Endpoint", "Node", "NodeList", "read_text_file"]

Endpoint = tuple[str, int]
"""Host and port."""

_Milliseconds = Annotated[int, Field(strict=True, ge=0, le=2**31 - 1)]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="allow", populate_by_name=True)


class Node(_Model):
    """One server, for `ipport` and `ipport_parallel`."""

    ip: str = Field(min_length=1)
    port: int = Field(strict=True, ge=1, le=65535)


class NodeList(_Model):
    """The replicas of one shard, for `ipport_list`: a brpc naming URL such as ``list://a:8000,b:8000``."""

    ipport_list: str = Field(pattern=r"^[a-z]+://.")


class CubeTable(_Model):
    """One table, which upstream calls a dictionary."""

    table_name: str = Field(alias="dict_name", min_length=1)
    shards: int = Field(alias="shard", strict=True, ge=1)
    """The modulus; must be the number of shards that were built."""
    dup: int = Field(strict=True, ge=0, default=1)
    """Stored and never used by upstream; replicas are in `nodes`."""
    timeout_ms: _Milliseconds = Field(alias="timeout")
    """For a whole call, retries included."""
    retry: int = Field(strict=True, ge=0)
    backup_request_ms: _Milliseconds = Field(alias="backup_request")
    """Above 0: send the request a second time after this long; the first answer wins."""
    type: Literal["ipport", "ipport_list", "ipport_parallel"]
    load_balancer: str = "rr"
    """The choice among the replicas of `ipport_list`."""
    nodes: tuple[Node | NodeList, ...]
    """The i-th node is shard i; with `ipport_parallel` the first one is every shard."""

    @model_validator(mode="after")
    def _one_node_per_shard(self) -> CubeTable:
        kind = NodeList if self.type == "ipport_list" else Node
        for i, node in enumerate(self.nodes):
            if not isinstance(node, kind):
                wanted = '{"ipport_list": "list://..."}' if kind is NodeList else '{"ip": "...", "port": 8000}'
                raise ValueError(f"nodes.{i} does not fit type {self.type!r}: write {wanted}")  # noqa: TRY004 - pydantic wants it
        wanted_count = range(1, self.shards + 1) if self.type == "ipport_parallel" else [self.shards]
        if len(self.nodes) not in wanted_count:
            raise ValueError(f"{len(self.nodes)} nodes for {self.shards} shards")
        return self

    @property
    def dict_name(self) -> str:
        """The old name of `table_name`."""
        warnings.warn("CubeTable.dict_name is now CubeTable.table_name", DeprecationWarning, stacklevel=2)
        return self.table_name

    def replicas(self, shard: int) -> tuple[Endpoint, ...]:
        """Return the servers of a shard.

        Raises:
            ConfigError: the servers are behind a naming service other than ``list://``.
        """
        node = self.nodes[0 if self.type == "ipport_parallel" else shard]
        if isinstance(node, Node):
            return ((node.ip, node.port),)
        scheme, _, rest = node.ipport_list.partition("://")
        found = tuple(_endpoint(each) for each in rest.split(",") if each) if scheme == "list" else ()
        if not found or None in found:
            raise ConfigError(
                f"table {self.table_name!r}, shard {shard}: {node.ipport_list!r} names no servers",
                hint="Write list://host:port,host:port; other brpc naming services are not supported.",
            )
        return tuple(each for each in found if each is not None)


class _Conf(RootModel[tuple[CubeTable, ...]]):
    pass


@renamed_arguments(dicts="tables")
class CubeConf:
    """A whole cube.conf."""

    def __init__(self, tables: tuple[CubeTable, ...]) -> None:
        """Take tables; their names must differ."""
        self.tables = tables

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> CubeConf:
        """Read a file.

        Raises:
            ConfigError: the file cannot be read or is no cube.conf; the message names the field and its value.
        """
        return cls.from_text(read_text_file(path), source=str(path))

    @classmethod
    def from_text(cls, text: str, *, source: str = "cube.conf") -> CubeConf:
        """Read a text; `source` names it in errors."""
        try:
            parsed = json.loads(text)
            tables = _Conf.model_validate(parsed).root
        except ValidationError as error:
            problem = error.errors()[0]
            field = ".".join(map(str, problem["loc"])) or "the file"
            value = "" if problem["type"] == "missing" else f" (it is {_short(problem['input'])})"
            raise ConfigError(
                f"{source}: {field}: {problem['msg']}{value}",
                hint="A cube.conf is a JSON array of tables; docs/reference/cube.md lists their fields.",
                path=source,
                field=field,
            ) from error
        except json.JSONDecodeError as error:
            raise ConfigError(f"{source}, line {error.lineno}: not JSON: {error.msg}", path=source) from error
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{source}: not JSON: {error}", path=source) from error
        names = [each.table_name for each in tables]
        if len(set(names)) != len(names):
            raise ConfigError(f"{source}: two tables have the same dict_name", path=source, names=names)
        return cls(tables)

    def to_text(self) -> str:
        """Write the file, unknown fields included."""
        plain = _Conf(self.tables).model_dump(mode="json", by_alias=True)
        return json.dumps(plain, indent=2, ensure_ascii=False) + "\n"

    def __getitem__(self, table: str) -> CubeTable:
        """Return a table by name.

        Raises:
            ConfigError: there is no table of that name.
        """
        for each in self.tables:
            if each.table_name == table:
                return each
        names = ", ".join(each.table_name for each in self.tables) or "none"
        raise ConfigError(f"cube.conf has no table {table!r}", hint=f"It has: {names}.")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CubeConf) and self.tables == other.tables

    def __hash__(self) -> int:
        return hash(tuple(each.table_name for each in self.tables))


def read_text_file(path: str | os.PathLike[str]) -> str:
    """Read a configuration file.

    Raises:
        ConfigError: the file is absent or not UTF-8.
    """
    try:
        return Path(path).read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", path=str(path)) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}, byte {error.start}: not UTF-8", path=str(path), offset=error.start) from error


def _endpoint(text: str) -> Endpoint | None:
    try:
        return parse_address(text.strip())
    except ConfigError:
        return None


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."  # noqa: PLR2004 - a readable piece
