"""config.yml of Paddle Serving's Pipeline service: every key, typed, with upstream's defaults."""

from __future__ import annotations

from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from cloudedge.errors import ConfigError

__all__ = ["Dag", "LocalService", "PipelineConfig", "PipelineOp", "Tracer", "read_pipeline", "write_pipeline"]

_Port = Field(None, ge=1024, le=65535)


class _Section(BaseModel):
    # Strict, as upstream is: a port given as a string stops the service at start.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Tracer(_Section):
    """The interval of the tracer."""

    interval_s: int = Field(-1, description="1 and above turn the tracer on, and with it the metrics")


class Dag(_Section):
    """The graph of Ops as a whole."""

    is_thread_op: bool = Field(True, description="Ops as threads; false: as processes")
    retry: int = Field(1, ge=1, description="tries of the whole graph, after a timeout only")
    client_type: Literal["brpc", "grpc"] = "brpc"
    use_profile: bool = False
    channel_size: int = Field(0, ge=0, description="bound of the queues between Ops; 0: none")
    channel_recv_frist_arrive: bool = Field(False, description="take the first of several producers (sic)")
    tracer: Tracer = Tracer()
    enable_prometheus: bool = Field(False, description="needs the tracer")
    prometheus_port: int | None = _Port

    @model_validator(mode="after")
    def _metrics_need_the_tracer(self) -> Dag:
        if self.enable_prometheus and self.tracer.interval_s < 1:
            raise ValueError("enable_prometheus needs tracer.interval_s of 1 or more: without it /metrics answers 500")
        return self


class LocalService(_Section):
    """The model that an Op runs in its own process, or starts a server for."""

    client_type: Literal["local_predictor", "brpc", "grpc"] = Field(description="without it the service does not start")
    # Upstream's own name; pydantic keeps `model_config` for itself.
    model_folder: str | None = Field(None, alias="model_config", description="the model's directory; none: no model")
    fetch_list: list[str] | None = Field(None, description="aliases; all if left out")
    workdir: str = Field("", description="brpc and grpc only")
    thread_num: int = Field(2, ge=1)
    device_type: int = Field(-1, ge=-1, le=6, description="-1: by devices; 0 CPU, 1 GPU, 2 TensorRT, 3 ARM, 4 XPU...")
    devices: str = Field("", description="empty: CPU; 0,1: GPU ids")
    mem_optim: bool = Field(True, description="must be false for .json programs")
    ir_optim: bool = False
    precision: Literal["fp32", "fp16", "int8", "bf16"] = "fp32"
    use_calib: bool = False
    use_mkldnn: bool = False
    mkldnn_cache_capacity: int = 0
    mkldnn_op_list: list[str] | None = None
    mkldnn_bf16_op_list: list[str] | None = None
    min_subgraph_size: int = 3

    @field_validator("devices")
    @classmethod
    def _devices_are_numbers(cls, value: str) -> str:
        if value and not all(part.strip().isdecimal() for part in value.split(",")):
            raise ValueError("wanted nothing, or numbers with commas between them")
        return value


class PipelineOp(_Section):
    """One Op."""

    concurrency: int = Field(1, ge=1, description="threads or processes of this Op")
    timeout: int = Field(-1, description="milliseconds; 0 and below: no limit, and no retry")
    retry: int = Field(1, ge=1, description="checked and then ignored by upstream")
    batch_size: int = Field(1, ge=1)
    auto_batching_timeout: int = Field(-1, description="milliseconds")
    server_endpoints: list[str] | None = Field(None, description="a service elsewhere instead of a local one")
    client_type: Literal["brpc", "pipeline_grpc"] | None = None
    client_config: str | None = None
    fetch_list: list[str] | None = None
    use_encryption_model: bool | None = None
    encryption_key: str | None = None
    local_service_conf: LocalService | None = None

    @model_validator(mode="after")
    def _batches_need_a_timeout(self) -> PipelineOp:
        if self.batch_size > 1 and self.auto_batching_timeout <= 0:
            raise ValueError("batch_size above 1 needs auto_batching_timeout: else a call waits for a full batch")
        return self


class PipelineConfig(_Section):
    """A whole config.yml."""

    rpc_port: int | None = _Port
    http_port: int | None = _Port
    worker_num: int = Field(1, ge=1, description="calls in progress, or processes")
    build_dag_each_worker: bool = Field(False, description="a process with a whole graph per worker")
    grpc_gateway_port: int | None = Field(None, description="read by upstream, used by nothing")
    dag: Dag = Dag()
    op: dict[str, PipelineOp] = Field({}, description="by the Op's name in the service's code")

    @model_validator(mode="after")
    def _http_is_needed(self) -> PipelineConfig:
        if self.http_port is None:
            raise ValueError("http_port is missing: without it the service dies with a TypeError as it starts")
        if self.http_port == self.rpc_port:
            raise ValueError("http_port and rpc_port are the same")
        return self


def read_pipeline(text: str, what: str = "config.yml") -> PipelineConfig:
    """Read a config.yml.

    Raises:
        ConfigError: A key is unknown, or upstream does not take a value; names both.
    """
    try:
        value: Any = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{what} is not YAML: {error}") from error
    try:
        return PipelineConfig.model_validate({} if value is None else value)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(step) for step in first["loc"])
        raise ConfigError(f"{what}: {where or 'it'}: {first['msg']} (found {first['input']!r})", field=where) from error


def write_pipeline(config: PipelineConfig) -> str:
    """Write a config.yml: the keys that are set, in the order of upstream's examples."""
    value = config.model_dump(exclude_none=True, exclude_unset=True, by_alias=True)
    return str(yaml.safe_dump(value, sort_keys=False, allow_unicode=True))
