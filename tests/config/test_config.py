"""cloudedge.yaml: what is understood, and how the rest is refused."""

from datetime import timedelta

import pytest

from cloudedge.config import Config, load, reveal
from cloudedge.errors import ConfigError

pytestmark = pytest.mark.rules

GOOD = """
hubs:
  office: ./hub
  prod:
    url: oci://registry.example/models
    username: ci
    password: env:HUB_PASSWORD
  bucket: {url: s3://models/x, endpoint: "http://127.0.0.1:9000", access_key: a, secret_key: file:/run/secret}
default_hub: prod
targets:
  eu: {kind: local, hub: office, sparse: {shards: 2, replicas: 2}, dense: {replicas: 2}}
transfers:
  ctr: {bandwidth: 50MB, tables: {emb: {shards: [[{address: "10.0.0.1:8027"}], [{address: "[::1]:8027"}]]}}}
limits: {history: 12h, max_bundle: 2GiB}
"""


def write(tmp_path, text):
    path = tmp_path / "cloudedge.yaml"
    path.write_text(text)
    return path


def test_everything_has_a_type(tmp_path):
    config = load(write(tmp_path, GOOD))
    assert config.hubs["office"].url == "./hub"
    assert config.targets["eu"].sparse.shards == 2
    assert config.limits.history == timedelta(hours=12)
    assert config.limits.max_bundle == 2 << 30
    assert config.limits.transfer_jobs == 4
    assert config.transfers["ctr"].bandwidth == 50_000_000
    assert (config.transfers["ctr"].servers, config.transfers["ctr"].keep) == ("cube", 2)


def test_it_is_found_here_above_or_by_name(tmp_path, monkeypatch):
    (tmp_path / "a/b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a/b")
    assert load() == Config()
    write(tmp_path, "default_hub: x\nhubs: {x: ./x}")
    assert load().default_hub == "x"
    (tmp_path / "other.yaml").write_text("hubs: {y: ./y}")
    monkeypatch.setenv("CLOUDEDGE_CONFIG", str(tmp_path / "other.yaml"))
    assert list(load().hubs) == ["y"]


def test_an_empty_file_is_all_defaults(tmp_path):
    assert load(write(tmp_path, "")) == Config()


BAD = {
    "unknown key": ("limmits: {}", "limmits: cloudedge knows no such key"),
    "unknown nested key": ("limits: {histroy: 3d}", "limits.histroy: cloudedge knows no such key"),
    "bad duration": ("limits: {history: soon}", "limits.history: wanted a number and a unit.*found 'soon'"),
    "bad size": ("limits: {max_bundle: big}", "limits.max_bundle: wanted bytes.*found 'big'"),
    "bad number": ("limits: {transfer_jobs: 0}", "limits.transfer_jobs: .*greater than or equal to 1.*found 0"),
    "unknown scheme": ("hubs: {x: 'ftp://h'}", "hubs.x: no hub has the scheme ftp://"),
    "field of another kind": ("hubs: {x: {url: ./h, region: eu}}", "hubs.x: region does not apply to a file hub"),
    "no url": ("hubs: {x: {region: eu}}", "hubs.x.url: Field required"),
    "bad name": ("hubs: {'X Y': ./h}", "hubs.X Y"),
    "unknown hub": ("default_hub: nope", "default_hub names the hub 'nope'; hubs has none"),
    "unknown hub of a target": ("targets: {t: {kind: local, hub: q}}", "targets.t.hub names the hub 'q'"),
    "unknown kind": ("targets: {t: {kind: moon}}", "targets.t.kind: .*'local'.*found 'moon'"),
    "servers without an agent": (
        "transfers: {t: {servers: upstream, tables: {e: {shards: [[{address: 'a:1'}]]}}}}",
        "transfers.t: e, shard 0: a:1 needs agent and folder",
    ),
    "an agent of a cube server": (
        "transfers: {t: {tables: {e: {shards: [[{address: 'a:1', agent: 'a:2'}]]}}}}",
        "transfers.t: e, shard 0: agent and folder do not apply to a cube server",
    ),
    "no address": ("transfers: {t: {tables: {e: {shards: [[{address: a}]]}}}}", "shards.0.0.address: .*found 'a'"),
    "no servers": ("transfers: {t: {tables: {e: {shards: [[]]}}}}", "transfers.t.tables.e.shards.0: .*at least 1"),
    "bad poll": ("transfers: {t: {poll: often, tables: {}}}", "transfers.t.poll: wanted a number and a unit"),
    "not a mapping": ("- 1", "the file: "),
    "not yaml": ("a: [", "is not YAML"),
    "not text": ("\0", "is not YAML"),
}


@pytest.mark.parametrize(("text", "message"), BAD.values(), ids=BAD)
def test_bad_files_are_refused_with_path_value_and_form(tmp_path, text, message):
    path = write(tmp_path, text)
    with pytest.raises(ConfigError, match=f"(?s).*{message}") as caught:
        load(path)
    assert str(path) in str(caught.value)


def test_a_pasted_secret_is_refused_and_not_repeated(tmp_path):
    path = write(tmp_path, "hubs: {x: {url: 'oci://h/p', password: hunter2}}")
    with pytest.raises(ConfigError, match="wanted env:NAME or file:PATH") as caught:
        load(path)
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_secrets_are_revealed_only_when_asked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("HUB_PASSWORD", "s3cret")
    config = load(write(tmp_path, GOOD))
    assert "s3cret" not in repr(config)
    assert reveal(config.hubs["prod"].password) == "s3cret"
    (tmp_path / "f").write_text("from file\n")
    assert reveal(f"file:{tmp_path / 'f'}") == "from file"
    with pytest.raises(ConfigError, match="NOT_THERE is not set"):
        reveal("env:NOT_THERE")
    with pytest.raises(ConfigError, match="cannot read the secret file"):
        reveal(f"file:{tmp_path}/absent")


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(ConfigError, match="cannot read"):
        load(tmp_path / "absent.yaml")
