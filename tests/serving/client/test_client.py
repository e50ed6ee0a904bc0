"""The client over every protocol, and what it does when servers are away, slow or wrong."""

import json
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest
from typer.testing import CliRunner

from cloudedge.cli import app
from cloudedge.clock import ManualClock
from cloudedge.errors import (
    ConfigError,
    DeadlineExceeded,
    InputError,
    NotFound,
    Overloaded,
    Rejected,
    Unavailable,
)
from cloudedge.serving import Client
from cloudedge.serving.engine import HttpAnswer
from cloudedge.serving.protocols._auth import DataPortAuth
from cloudedge.serving.protocols._baidu_std import serve_baidu_std
from cloudedge.serving.protocols._grpc import serve_grpc
from tests.serving.protocols.engine import PIN, TinyEngine
from tests.serving.protocols.event_loop import loop_in_thread
from tests.serving.protocols.http_server import http_server

pytestmark = pytest.mark.parts

ROWS = {"x": np.array([[0.5, 0.25], [1, 2]], np.float32)}
SCHEMES = ["http", "pipeline+http", "general+http", "grpc", "general+grpc", "pipeline+grpc", "brpc"]


@contextmanager
def serving(engine, scheme):
    """One server for a scheme; yields its URL."""
    if scheme.endswith("http"):
        with http_server(engine) as (port, _):
            yield f"{scheme}://127.0.0.1:{port}" + ("/uci" if scheme.startswith("pipeline") else "")
        return
    with loop_in_thread() as call:
        if scheme == "brpc":
            server = call(serve_baidu_std(engine))
            yield f"brpc://127.0.0.1:{server.sockets[0].getsockname()[1]}"

            async def close():
                server.close()

            call(close())
        else:
            server = call(serve_grpc(DataPortAuth(engine), service="uci"))
            yield f"{scheme}://127.0.0.1:{server.port}" + ("/uci" if scheme.startswith("pipeline") else "")
            call(server.stop(0))


@pytest.fixture(params=SCHEMES)
def asked(request):
    engine = TinyEngine()
    with serving(engine, request.param) as url, Client(url, timeout_s=10, retries=1, clock=ManualClock()) as client:
        yield engine, client, request.param


def refused_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


# -- every protocol --------------------------------------------------------------------------------------------------


def test_arrays_in_arrays_out_and_the_pin(asked):
    _, client, scheme = asked
    answer = client.predict(ROWS)
    np.testing.assert_array_equal(answer["price"], [[0.75], [3]])
    np.testing.assert_array_equal(answer["rank"], [0, 1])
    assert answer["rank"].dtype == np.int64
    assert answer["price"].dtype == (np.float64 if scheme == "http" else np.float32)
    assert answer.pin == PIN
    assert answer.endpoint.startswith(scheme)


def test_only_what_is_wanted(asked):
    assert list(asked[1].predict(ROWS, ["rank"]).outputs) == ["rank"]


def test_lists_will_do(asked):
    answer = asked[1].predict({"x": np.array([[1, 2]], np.float32).tolist()})
    assert answer["price"].tolist() == [[3]]


def test_errors_have_the_same_kind_everywhere(asked):
    engine, client, scheme = asked
    if scheme != "http":  # whose codec belongs to the runtime
        with pytest.raises(InputError):
            client.predict({"y": ROWS["x"]})
        with pytest.raises(InputError):
            client.predict(ROWS, ["prise"])
        for fault, kind in [(Overloaded("full"), Overloaded), (Unavailable("shard"), Unavailable)]:
            engine.fail, before = fault, len(engine.calls)
            with pytest.raises(kind):
                client.predict(ROWS)
            assert len(engine.calls) == before + 2  # the first try and one more


def test_a_variant_of_the_server(asked):
    _, client, scheme = asked
    if scheme == "brpc":
        with pytest.raises(InputError, match="baidu_std"):
            client.predict(ROWS, tag="a")
        return
    assert client.predict(ROWS, tag="a").tag == "a"
    if scheme != "http":
        with pytest.raises(NotFound):
            client.predict(ROWS, tag="b")


def test_threads_share_it(asked):
    def one(number):
        x = np.array([[number, 1]], np.float32)
        return float(asked[1].predict({"x": x})["price"][0, 0]) == number + 1

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(one, range(200)))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_silent_server_is_given_up_at_the_deadline(scheme):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        path = "/uci" if scheme.startswith("pipeline") else ""
        url = f"{scheme}://127.0.0.1:{silent.getsockname()[1]}{path}"
        with Client(url, timeout_s=0.3) as client:
            begin = time.monotonic()
            with pytest.raises((DeadlineExceeded, Unavailable)):
                client.predict(ROWS)
            assert time.monotonic() - begin < 10


@pytest.mark.parametrize("scheme", SCHEMES)
def test_nobody_there(scheme):
    path = "/uci" if scheme.startswith("pipeline") else ""
    clock = ManualClock()
    with Client(f"{scheme}://127.0.0.1:{refused_port()}{path}", retries=2, clock=clock) as client:
        with pytest.raises(Unavailable):
            client.predict(ROWS)
        assert 0 < clock.elapsed <= 0.05 + 0.1  # it waited between tries, at most twice as long each time


@pytest.mark.parametrize("scheme", SCHEMES)
def test_another_server_is_asked_instead(scheme):
    path = "/uci" if scheme.startswith("pipeline") else ""
    dead = f"{scheme}://127.0.0.1:{refused_port()}{path}"
    with serving(TinyEngine(), scheme) as url, Client(dead, url, clock=ManualClock()) as client:
        for _ in range(10):
            assert client.predict(ROWS).endpoint == url


# -- connections -----------------------------------------------------------------------------------------------------


def test_connections_are_kept():
    with http_server(TinyEngine()) as (port, seen), Client(f"http://127.0.0.1:{port}") as client:
        for _ in range(5):
            client.predict(ROWS)
        assert len({peer for _, peer in seen}) == 1


@pytest.mark.parametrize("scheme", ["http", "brpc"])
def test_a_connection_the_server_closed_is_replaced(scheme):
    with serving(TinyEngine(), scheme) as url, Client(url, retries=0) as client:
        client.predict(ROWS)
        if scheme == "brpc":
            client._variants[0].endpoints[0].transport._idle[0].shutdown(socket.SHUT_RDWR)
        else:
            pool = client._variants[0].endpoints[0].transport._pool
            pool.pool.queue[-1].sock.shutdown(socket.SHUT_RDWR)
        assert client.predict(ROWS).pin == PIN


def test_servers_take_turns():
    with http_server(TinyEngine()) as (first, a), http_server(TinyEngine()) as (second, b):
        with Client(f"http://127.0.0.1:{first}", f"http://127.0.0.1:{second}") as client:
            for _ in range(6):
                client.predict(ROWS)
        assert (len(a), len(b)) == (3, 3)


def statuses(*codes):
    left = list(codes)

    def answer(call):
        status = left.pop(0) if left else 200
        body = {"outputs": {"price": [[1]]}, "pin": PIN} if status == 200 else {"error": "no"}
        return None if status == 0 else HttpAnswer(status, json.dumps(body).encode())

    return answer


@pytest.mark.parametrize("code", [0, 429, 500, 502, 503])
def test_what_is_safe_is_asked_again(code):
    with http_server(None, answer=statuses(code, code)) as (port, seen):
        with Client(f"http://127.0.0.1:{port}", retries=2, clock=ManualClock()) as client:
            assert client.predict(ROWS).pin == PIN
        assert len(seen) == 3


@pytest.mark.parametrize(
    ("code", "kind"), [(400, InputError), (401, Rejected), (403, Rejected), (404, NotFound), (413, InputError),
                       (504, DeadlineExceeded), (302, Rejected)]
)  # fmt: skip
def test_what_would_not_help_is_not(code, kind):
    with http_server(None, answer=statuses(code)) as (port, seen):
        with Client(f"http://127.0.0.1:{port}", clock=ManualClock()) as client, pytest.raises(kind) as raised:
            client.predict(ROWS)
        assert len(seen) == 1
        assert raised.value.status == code


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"outputs":[]}', b'{"outputs":{"y":[[1],[2,3]]}}', b"\xff" * 99])
@pytest.mark.parametrize("scheme", ["http", "pipeline+http", "general+http"])
def test_answers_that_make_no_sense(scheme, body):
    path = "/uci" if scheme.startswith("pipeline") else ""
    with (
        http_server(None, answer=lambda call: HttpAnswer(200, body)) as (port, _),
        Client(f"{scheme}://127.0.0.1:{port}{path}", retries=0) as client,
    ):
        if scheme == "general+http" and body == b"":
            assert client.predict(ROWS).outputs == {}  # an empty message, and a Response of nothing
            return
        with pytest.raises(Unavailable):
            client.predict(ROWS)


def test_a_genuine_pipeline_answers_texts():
    told = {"err_no": 0, "err_msg": "", "tensors": [], "key": ["a", "b", "c"],
            "value": ["array([[2.46], [2.46]], dtype=float32)", "[[0.5]]", "cat"]}  # fmt: skip
    with (
        http_server(None, answer=lambda call: HttpAnswer(200, json.dumps(told).encode())) as (port, _),
        Client(f"pipeline+http://127.0.0.1:{port}/uci") as client,
    ):
        answer = client.predict({"image": "base64 text"})
    assert answer["a"].dtype == np.float32
    assert answer["b"].tolist() == [[0.5]]
    assert str(answer["c"]) == "cat"
    assert answer.pin == ""


@pytest.mark.parametrize(
    ("err_no", "kind"), [(51, Rejected), (3002, NotFound), (5000, InputError), (8000, InputError), (10000, Rejected)]
)
def test_err_no_of_a_genuine_pipeline(err_no, kind):
    told = {"err_no": err_no, "err_msg": "why", "tensors": [], "key": [], "value": []}
    with http_server(None, answer=lambda call: HttpAnswer(200, json.dumps(told).encode())) as (port, seen):
        with Client(f"pipeline+http://127.0.0.1:{port}/uci") as client, pytest.raises(kind, match="why") as raised:
            client.predict(ROWS)
        assert raised.value.err_no == err_no
        assert len(seen) == 1


# -- deadlines, variants, tokens -------------------------------------------------------------------------------------


def test_all_tries_share_one_deadline():
    clock = ManualClock()
    with http_server(None, answer=statuses(*[503] * 100)) as (port, seen):
        client = Client(f"http://127.0.0.1:{port}", timeout_s=3, retries=99, clock=clock)
        with client, pytest.raises((DeadlineExceeded, Unavailable)):
            client.predict(ROWS)
        assert len(seen) < 99
    assert clock.elapsed <= 3.01


def test_the_server_is_told_how_long():
    with http_server(TinyEngine()) as (port, seen), Client(f"http://127.0.0.1:{port}") as client:
        client.predict(ROWS, timeout_s=2)
        assert 0 < int(seen[0][0].headers["grpc-timeout"].removesuffix("m")) <= 2000


def test_variants_by_weight():
    with ExitStack() as stack:
        ports = [stack.enter_context(http_server(TinyEngine()))[0] for _ in range(2)]
        client = stack.enter_context(Client(clock=ManualClock(seed=7)))
        client.add_variant("old", [f"http://127.0.0.1:{ports[0]}"], 90)
        client.add_variant("new", [f"http://127.0.0.1:{ports[1]}"], 10)
        tags = [client.predict(ROWS).tag for _ in range(300)]
        assert 10 <= tags.count("new") <= 60
        assert client.predict(ROWS, tag="new").endpoint.endswith(str(ports[1]))
        with pytest.raises(InputError, match="variant"):
            client.predict(ROWS, tag="newer")
        with pytest.raises(ConfigError):
            client.add_variant("new", ["http://127.0.0.1:1"], 1)
        for weight in (0, -1, float("nan")):
            with pytest.raises(ConfigError):
                client.add_variant("other", ["http://127.0.0.1:1"], weight)


def test_a_token_is_sent_and_never_in_clear_to_others():
    with http_server(TinyEngine()) as (port, seen), Client(f"http://127.0.0.1:{port}", token="secret") as client:
        client.predict(ROWS)
        assert seen[0][0].headers["authorization"] == "Bearer secret"
    with pytest.raises(ConfigError, match="clear"):
        Client("http://192.0.2.1:80", token="secret")
    with pytest.raises(ConfigError, match="clear"):
        Client("grpc://192.0.2.1:80", token="secret")
    Client("https://192.0.2.1", token="secret").close()


@pytest.mark.parametrize(
    "url",
    ["", "127.0.0.1:80", "ftp://h:1", "http://", "grpc://h", "brpc://h", "pipeline+brpc://h:1", "http://u:p@h:1",
     "http://h:99999999", "pipeline+http://h:1/", "pipeline+http://h:1/a/b/c"],
)  # fmt: skip
def test_urls_that_cannot_be_used(url):
    with pytest.raises((ConfigError, InputError)):
        Client(url)


def test_no_server_at_all():
    with pytest.raises(ConfigError):
        Client().predict(ROWS)


def test_nan_cannot_be_said_in_plain_json():
    with Client(f"http://127.0.0.1:{refused_port()}") as client, pytest.raises(InputError, match="NaN"):
        client.predict({"x": np.array([[np.nan]], np.float32)})


# -- command line ----------------------------------------------------------------------------------------------------


def test_command_line(tmp_path):
    np.save(tmp_path / "rows.npy", ROWS["x"])
    with http_server(TinyEngine()) as (port, _):
        url = f"http://127.0.0.1:{port}"
        command = [
            sys.executable,
            "-m",
            "cloudedge",
            "predict",
            url,
            "-i",
            f"x=@{tmp_path / 'rows.npy'}",
            "-o",
            "price",
        ]
        done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == {"outputs": {"price": [[0.75], [3]]}, "pin": PIN, "tag": "", "endpoint": url}
        done = CliRunner().invoke(app, ["predict", url, "-i", "x=[[1,2]]"])
        assert done.exit_code == 0
        assert "price" in done.stdout
        assert PIN[:20] in done.output.replace("\n", "")


def test_the_command_line_writes_a_float32_in_as_many_digits_as_it_needs():
    with http_server(TinyEngine()) as (port, _):
        command = ["predict", f"general+http://127.0.0.1:{port}", "-i", "x=[[0.1,0.25]]", "-o", "price"]
        assert json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)["outputs"] == {"price": [[0.35]]}
        assert CliRunner().invoke(app, command).stdout.split()[-1] == "0.35"


@pytest.mark.parametrize("given", ["x", "=1", "x=@missing.npy", "x=nothing", "x=@.", "x=@pickled.npy"])
def test_inputs_of_the_command_line_that_cannot_be_read(given, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("pickled.npy", np.array([{}]), allow_pickle=True)
    done = CliRunner().invoke(app, ["predict", "http://127.0.0.1:1", "-i", given])
    assert isinstance(done.exception, InputError)


def test_the_command_line_says_who_is_not_there():
    done = CliRunner().invoke(app, ["predict", f"http://127.0.0.1:{refused_port()}", "-i", "x=[1]", "--retries", "0"])
    assert isinstance(done.exception, Unavailable)
    assert "could not be reached" in done.exception.message
