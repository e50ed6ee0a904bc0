"""config.yml of the Pipeline service: what upstream takes, and what it would stumble over."""

import pytest

from cloudedge.errors import ConfigError
from cloudedge.serving import conf

pytestmark = pytest.mark.rules

EVERY_KEY = """
rpc_port: 18079
http_port: 18080
worker_num: 4
build_dag_each_worker: false
grpc_gateway_port: 18081
dag:
  is_thread_op: false
  retry: 2
  client_type: grpc
  use_profile: true
  channel_size: 10
  channel_recv_frist_arrive: true
  tracer:
    interval_s: 10
  enable_prometheus: true
  prometheus_port: 19393
op:
  model:
    concurrency: 2
    timeout: 3000
    retry: 1
    batch_size: 8
    auto_batching_timeout: 2
    server_endpoints:
    - 127.0.0.1:9393
    client_type: brpc
    client_config: serving_client
    fetch_list:
    - ctr
    use_encryption_model: false
    encryption_key: ./key
    local_service_conf:
      client_type: local_predictor
      model_config: serving_server
      fetch_list:
      - ctr
      workdir: w
      thread_num: 2
      device_type: 0
      devices: 0,1
      mem_optim: false
      ir_optim: true
      precision: fp16
      use_calib: true
      use_mkldnn: true
      mkldnn_cache_capacity: 10
      mkldnn_op_list:
      - conv2d
      mkldnn_bf16_op_list:
      - conv2d
      min_subgraph_size: 5
"""


def test_every_key_comes_back():
    config = conf.read_pipeline(EVERY_KEY)
    assert conf.write_pipeline(config) == EVERY_KEY.lstrip()
    assert config.op["model"].local_service_conf.model_folder == "serving_server"


def test_defaults_are_upstreams():
    config = conf.read_pipeline("http_port: 18080\nop: {m: {local_service_conf: {client_type: local_predictor}}}")
    assert (config.worker_num, config.dag.is_thread_op, config.dag.retry, config.dag.tracer.interval_s) == (
        1,
        True,
        1,
        -1,
    )
    op = config.op["m"]
    assert (op.concurrency, op.timeout, op.batch_size, op.auto_batching_timeout) == (1, -1, 1, -1)
    local = op.local_service_conf
    assert (local.thread_num, local.device_type, local.mem_optim, local.precision) == (2, -1, True, "fp32")
    assert conf.write_pipeline(conf.read_pipeline("http_port: 18080")) == "http_port: 18080\n"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("rpc_port: 18079", "http_port is missing"),
        ("http_port: 80", "http_port.*1024"),
        ('http_port: "18080"', "http_port"),
        ("http_port: 18080\nrpc_port: 18080", "the same"),
        ("http_port: 18080\nworkers: 3", "workers"),
        ("http_port: 18080\ndag: {channel_recv_first_arrive: true}", "channel_recv_first_arrive"),
        ("http_port: 18080\ndag: {enable_prometheus: true}", "tracer"),
        ("http_port: 18080\nop: {m: {batch_size: 8}}", "auto_batching_timeout"),
        ("http_port: 18080\nop: {m: {local_service_conf: {}}}", "client_type"),
        ("http_port: 18080\nop: {m: {local_service_conf: {client_type: local_predictor, devices: gpu}}}", "devices"),
        ("[1, 2]", "config.yml"),
        ("a: [", "not YAML"),
    ],
)
def test_what_would_stop_the_service_is_named(text, problem):
    with pytest.raises(ConfigError, match=problem):
        conf.read_pipeline(text)
