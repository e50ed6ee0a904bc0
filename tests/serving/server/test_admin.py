"""The admin API, through its own client."""

import threading

import pytest
import requests

from cloudedge.errors import ConfigError, Conflict, InputError, NotFound, Rejected, Unavailable
from cloudedge.serving import AdminClient, AdminServer, Runtime, Server, ServerConfig, Shadow, Variant
from cloudedge.serving.model._row_source import BundleRows
from cloudedge.serving.server._report import prometheus, stats
from tests.serving.models import pack_rows, row_table
from tests.serving.raw_http import Http

pytestmark = pytest.mark.parts

TOKEN = "a token"
X = [[1.0, 2.0]]


@pytest.fixture
def admin(server):
    with AdminServer(server, token=TOKEN) as made:
        yield made


@pytest.fixture
def client(admin):
    with AdminClient(f"127.0.0.1:{admin.port}", token=TOKEN, timeout_s=30) as made:
        yield made


def test_a_release_from_loading_to_unloading(client, server, models):
    zero, one = models.marked[0], models.marked[1]
    found = client.load(models.ref(one), name="second")
    assert found["pin"] == one.pin
    assert client.wait_loaded(one.pin)["name"] == "second"
    assert client.probe(one.pin) == {"pin": one.pin, "asked": 1, "failures": [], "passed": True}
    assert client.predict(one.pin, {"x": X}) == {"outputs": {"y": [[2, 3]]}, "pin": one.pin}
    with Http(server.port) as http:
        assert http.predict(X).json()["pin"] == zero.pin
        client.set_shadow(Shadow(one.pin, tolerance=2.0))
        client.set_weights([Variant(one.pin, 1, "canary")])
        reply = http.predict(X)
        assert (reply.json()["tag"], reply.headers["x-cloudedge-tag"]) == ("canary", "canary")
        client.activate(one.pin)
        assert http.predict(X).json() == {"outputs": {"y": [[2, 3]]}, "pin": one.pin}
        state = client.versions()
        assert (state["active"], state["variants"], state["shadow"]) == (one.pin, [], None)
        client.activate(zero.pin)
        assert http.predict(X).json()["pin"] == zero.pin
    client.unload(one.pin)
    client.unload(one.pin)
    with pytest.raises(NotFound):
        client.version(one.pin)
    assert client.is_ready()
    assert client.stats()["versions"][zero.pin]["answered"] >= 2


def test_what_a_version_takes_and_what_is_free_is_said(client, models):
    found = client.versions()
    (version,) = found["versions"]
    dense = sum(path.stat().st_size for path in models.marked[0].dense.values())
    assert version["memory_bytes"] == dense > 0
    assert found["free_memory_bytes"] == found["memory_free_bytes"] > dense


def test_keys_are_counted_under_both_names(models, tmp_path):
    """Clients of the version before read the old names."""
    bundle = pack_rows(tmp_path / "rows", models.hub, row_table())
    with Runtime(hub=models.hub) as runtime:
        runtime.load(models.ref(bundle))
        metrics = runtime.queues[bundle.pin].version.metrics
        metrics.count_lookups(9, 2, 1)
        (found,) = stats(runtime)["versions"].values()
        lines = prometheus(runtime).splitlines()
    for new, old, count in (
        ("keys", "ids", metrics.keys),
        ("missing_keys", "ids_missing", metrics.missing_keys),
        ("defaulted_keys", "ids_defaulted", metrics.defaulted_keys),
    ):
        assert found[new] == found[old] == count > 0
        for name in (new, old):
            (line,) = (line for line in lines if line.startswith(f"cloudedge_serving_{name}_total{{"))
            assert line.endswith(f" {count}")


def test_a_table_that_is_merged_in_memory_counts(models, tmp_path):
    arrays = row_table()
    base = pack_rows(tmp_path / "base", models.hub, arrays)
    changed = arrays | {"values": arrays["values"] + 1}
    delta = pack_rows(tmp_path / "base", models.hub, changed, parent=base)
    with Runtime(hub=models.hub) as runtime:
        mapped, merged = (runtime.load(models.ref(bundle)).memory_bytes for bundle in (base, delta))
    is_delta = len(delta.sparse["t"].files) > 1
    assert is_delta
    assert merged - mapped == len(arrays["keys"]) * (8 + 3 * 4)


def test_latencies_between_two_moments_can_be_told(client, server, models):
    pin = models.marked[0].pin

    def buckets():
        return dict(map(tuple, client.stats()["versions"][pin]["latency_buckets"]))

    with Http(server.port) as http:
        http.predict(X)
        before = buckets()
        for _ in range(5):
            http.predict(X)
    after = buckets()
    assert list(after)[-1] is None
    assert list(after)[:-1] == sorted(list(after)[:-1])
    assert sum(after[upper] - before[upper] for upper in after) == 5


def test_repeating_is_answered_as_doing(client, models):
    client.load(models.ref(models.marked[1]))
    client.wait_loaded(models.marked[1].pin)
    assert client.load(models.ref(models.marked[1]))["state"] == "ready"
    for _ in range(2):
        client.activate(models.marked[1].pin)
        client.set_shadow(None)
        client.set_weights([])


def test_without_a_pointer_nobody_answers_until_there_is_one_again(client, server, models):
    zero = models.marked[0]
    client.deactivate()
    client.deactivate()
    assert (client.versions()["active"], client.is_ready()) == (None, False)
    with Http(server.port) as http:
        assert http.predict(X).status == 503
        client.activate(zero.pin)
        assert http.predict(X).json()["pin"] == zero.pin


def test_an_order_is_remembered_across_a_restart(server, tmp_path):
    for order, status in (("12", 200), ("11", 409), ("12", 200)):
        with AdminServer(server, orders=tmp_path / "state.json.order") as admin:
            url = f"http://127.0.0.1:{admin.port}/versions"
            headers = {"Cloudedge-Order": order, "Authorization": f"Bearer {admin.token}"}
            assert requests.get(url, headers=headers, timeout=10).status_code == status


def test_what_cube_calls_a_table_is_remembered(models, tmp_path):
    """Versions whose tables were cut differently are read under different names, also after a restart."""
    asked = []

    def rows(bundle, tables):
        asked.append(dict(tables))
        return BundleRows(bundle.sparse)

    def runtime():
        return Runtime(hub=models.hub, rows=rows, state=tmp_path / "state.json")

    bundle = models.ctr
    with runtime() as first:
        first.load(models.ref(bundle), tables={"embedding": "embedding@3"})
    with runtime() as again:
        assert again.restore() == []
        assert again.version(bundle.pin).tables == {"embedding": "embedding@3"}
    assert asked == [{"embedding": "embedding@3"}] * 2


def test_a_failed_load_says_why(client, models, tmp_path):
    folder = tmp_path / "broken"
    folder.mkdir()
    (folder / "model.json").write_text("{}")
    (folder / "model.pdiparams").write_bytes(b"")
    pin = client.load(str(folder))["pin"]
    with pytest.raises(InputError, match="could not load"):
        client.wait_loaded(pin)
    client.unload(pin)


def test_refusals(client, admin, models):
    with pytest.raises(NotFound):
        client.load("nobody:1")
    with pytest.raises(NotFound):
        client.activate("0" * 16)
    with pytest.raises(Conflict):
        client.unload(models.marked[0].pin)
    with pytest.raises(NotFound):
        client.set_weights([Variant("0" * 16, 1)])
    url, headers = f"http://127.0.0.1:{admin.port}", {"Authorization": f"Bearer {TOKEN}"}
    for method, path, body in (
        ("POST", "/versions", {}),
        ("POST", "/versions", {"bundle": 3}),
        ("POST", "/versions", {"bundle": "x", "more": 1}),
        ("PUT", "/weights", {"variants": [3]}),
        ("PUT", "/weights", {"variants": [{"pin": "x", "weight": True}]}),
        ("PUT", "/weights", {"variants": [{"pin": models.marked[0].pin, "weight": -1}]}),
        ("PUT", "/shadow", {"share": 1}),
        ("POST", "/drain", {"within_s": "soon"}),
        ("POST", f"/versions/{models.marked[0].pin}/predict", {"inputs": {"x": [[1]]}}),
    ):
        assert requests.request(method, url + path, json=body, headers=headers, timeout=10).status_code == 400, path
    assert requests.get(f"{url}/nope", headers=headers, timeout=10).status_code == 404


def test_the_token_is_needed_for_everything_but_health(admin, server):
    url = f"http://127.0.0.1:{admin.port}"
    assert requests.get(f"{url}/health", timeout=10).status_code == 200
    assert requests.get(f"{url}/ready", timeout=10).status_code == 200
    for path in ("/versions", "/metrics", "/stats"):
        assert requests.get(url + path, timeout=10).status_code == 401
    with AdminClient(url, token="wrong") as stranger, pytest.raises(Rejected):
        stranger.versions()
    with pytest.raises(ConfigError):
        AdminServer(server, host="0.0.0.0")


def test_nobody_there_is_unavailable():
    with AdminClient("127.0.0.1:1", timeout_s=1) as client, pytest.raises(Unavailable):
        client.versions()


def test_drain_lets_requests_finish_and_tells_balancers(marked):
    drained = threading.Event()
    server = Server(marked, ServerConfig(port=0)).start()
    with (
        AdminServer(server, on_drained=drained.set) as admin,
        AdminClient(f"127.0.0.1:{admin.port}") as client,
        Http(server.port) as busy,
    ):
        busy.send(b"POST /v1/predict HTTP/1.1\r\nContent-Length: 25\r\n\r\n")
        assert client.is_ready()
        client.drain(5)
        with pytest.raises(Conflict):
            client.drain(5)
        assert not client.is_ready()
        busy.send(b'{"inputs":{"x":[[5,6]]}} ')
        reply = busy.reply()
        assert (reply.status, reply.headers["connection"]) == (200, "close")
        assert drained.wait(10)
