"""Credentials, challenges and tokens: read strictly, kept secret, asked for once."""

from __future__ import annotations

import base64
import json
import logging
import pickle
import traceback

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudedge.clock import ManualClock
from cloudedge.errors import CloudEdgeError, ConfigError, Rejected
from cloudedge.hub.core._oci import Descriptor
from cloudedge.hub.registry._auth import (
    Authenticator,
    Challenge,
    Credentials,
    find_credentials,
    parse_challenges,
)
from cloudedge.hub.registry._registry_hub import RegistryHub, RegistrySettings
from tests.hub.registry.servers import HTPASSWD, PASSWORD, USER, Answer, Server, TokenServer, push, reader, registry

CHALLENGES = {
    'Basic realm="registry"': [("basic", {"realm": "registry"})],
    'Bearer realm="https://a/t",service="r",scope="repository:a/b:pull,push"': [
        ("bearer", {"realm": "https://a/t", "service": "r", "scope": "repository:a/b:pull,push"})
    ],
    'bearer  REALM = "x" ,  service=plain': [("bearer", {"realm": "x", "service": "plain"})],
    r'Basic realm="a \"quoted\" \\ one, with = and Bearer"': [
        ("basic", {"realm": 'a "quoted" \\ one, with = and Bearer'})
    ],
    'Negotiate, Basic realm="x", Bearer realm="y"': [
        ("negotiate", {}),
        ("basic", {"realm": "x"}),
        ("bearer", {"realm": "y"}),
    ],
    "Negotiate abc==, Basic": [("negotiate", {}), ("basic", {})],
    ', ,Basic realm="x",': [("basic", {"realm": "x"})],
    'Basic realm=""': [("basic", {"realm": ""})],
    'Basic realm="never closed': [("basic", {})],
    "": [],
    "=": [],
    '"quoted"': [],
}


@pytest.mark.rules
@pytest.mark.parametrize("header", CHALLENGES)
def test_challenges(header):
    assert [(c.scheme, c.params) for c in parse_challenges(header)][: len(CHALLENGES[header])] == CHALLENGES[header]


@pytest.mark.rules
@given(st.text(alphabet='abB =",\\\t;:/', max_size=60))
def test_no_challenge_breaks_the_reader(header):
    for challenge in parse_challenges(header):
        assert challenge.scheme


printable = st.text(st.characters(min_codepoint=32, max_codepoint=126))


@pytest.mark.rules
@given(
    st.lists(
        st.tuples(
            st.from_regex(r"[a-z]{1,6}", fullmatch=True),
            st.dictionaries(
                st.from_regex(r"[a-z]{1,6}", fullmatch=True),
                printable,
                min_size=1,
                max_size=3,
            ),
        ),
        max_size=3,
    )
)
def test_what_is_written_by_the_rules_is_read_back(challenges):
    def quoted(text):
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

    header = ", ".join(
        f"{scheme} " + ", ".join(f"{k}={quoted(v)}" for k, v in params.items()) for scheme, params in challenges
    )
    assert parse_challenges(header) == [Challenge(scheme, params) for scheme, params in challenges]


@pytest.fixture
def docker(tmp_path, monkeypatch):
    """Write docker's configuration, and helper programs that answer with the given text and status."""
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def write(config, **helpers):
        (tmp_path / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
        for name, (answer, status) in helpers.items():
            program = tmp_path / f"docker-credential-{name}"
            program.write_text(
                f'#!/bin/sh\n[ "$1" = get ] || exit 9\ncat >/dev/null\ncat <<E\n{answer}\nE\nexit {status}\n'
            )
            program.chmod(0o755)

    return write


AUTH = base64.b64encode(b"ada:pa:ss").decode()
KEPT = json.dumps({"ServerURL": "h", "Username": "kept", "Secret": "secret"})


@pytest.mark.rules
def test_given_credentials_win(docker):
    docker({"auths": {"r.example": {"auth": AUTH}}})
    assert find_credentials("r.example", RegistrySettings("u", "p")) == Credentials("u", "p")


@pytest.mark.rules
@pytest.mark.parametrize("address", ["r.example:5000", "https://r.example:5000", "https://r.example:5000/v1/"])
def test_stored_by_docker_login(docker, address):
    docker({"auths": {"elsewhere": {"auth": "eA=="}, address: {"auth": AUTH}}})
    assert find_credentials("r.example:5000", RegistrySettings()) == Credentials("ada", "pa:ss")
    assert find_credentials("r.example", RegistrySettings()) is None


@pytest.mark.parts
def test_helpers(docker):
    docker(
        {"auths": {"a": {}}, "credHelpers": {"a": "one"}, "credsStore": "two"},
        one=(KEPT, 0),
        two=("credentials not found in native keychain", 1),
    )
    assert find_credentials("a", RegistrySettings()) == Credentials("kept", "secret")
    assert find_credentials("b", RegistrySettings()) is None


@pytest.mark.parts
@pytest.mark.parametrize(
    ("config", "helper"),
    [
        ("{", None),
        ("[]", None),
        ({"auths": {"a": {"auth": "?"}}}, None),
        ({"credHelpers": {"a": "absent"}}, None),
        ({"credHelpers": {"a": "../../bin/sh"}}, None),
        ({"credsStore": "x"}, ("boom", 1)),
        ({"credsStore": "x"}, ('{"Username": "secret-leaks"', 0)),
        ({"credsStore": "x"}, ('{"Username": "<token>", "Secret": "secret-leaks"}', 0)),
    ],
)
def test_what_docker_stored_and_cannot_be_used(docker, config, helper):
    docker(config, **({"x": helper} if helper else {}))
    with pytest.raises(ConfigError) as caught:
        find_credentials("a", RegistrySettings())
    assert "secret-leaks" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.rules
def test_nothing_stored(docker):
    assert find_credentials("a", RegistrySettings()) is None


@pytest.mark.rules
def test_secrets_stay_out_of_sight():
    assert "hush" not in repr(RegistrySettings("u", "hush")) + repr(Credentials("u", "hush"))


class TestAuthenticator:
    def make(self, answers, settings=None):
        self.asked, self.clock = [], ManualClock()

        def fetch(url, authorization):
            self.asked.append((url, authorization))
            return answers.pop(0)

        return Authenticator("r", settings or RegistrySettings("u", "p"), fetch, self.clock)

    BEARER = 'Bearer realm="https://t/token?x=1",service="the service",scope="repository:a:pull"'

    @pytest.mark.rules
    def test_a_token_is_asked_for_once_per_scope_until_it_expires(self):
        auth = self.make([{"token": "t1", "expires_in": 100}, {"access_token": "t2"}, {"token": "t3"}])
        assert auth.header("s") is None
        assert auth.answer(self.BEARER, "s", None) == "Bearer t1"
        assert self.asked == [
            (
                "https://t/token?x=1&service=the+service&scope=repository%3Aa%3Apull",
                Credentials("u", "p").basic,
            )
        ]
        assert auth.header("s") == "Bearer t1"
        assert auth.header("other") is None
        self.clock.elapsed = 94
        assert auth.answer(self.BEARER, "s", None) == "Bearer t1"  # another thread fetched it meanwhile
        self.clock.elapsed = 96
        assert auth.header("s") is None
        assert auth.answer(self.BEARER, "s", None) == "Bearer t2"
        assert auth.answer(self.BEARER, "s", "Bearer t2") == "Bearer t3"  # refused before its time

    @pytest.mark.rules
    def test_a_wrong_password_is_not_repeated(self):
        auth = self.make([])
        header = auth.answer('Basic realm="x"', "s", None)
        assert header == Credentials("u", "p").basic
        assert auth.answer('Basic realm="x"', "s", header) is None

    @pytest.mark.rules
    @pytest.mark.parametrize("challenge", ["Negotiate", "Bearer", 'Bearer realm="ftp://x"', ""])
    def test_what_we_do_not_do(self, challenge):
        with pytest.raises(Rejected):
            self.make([]).answer(challenge, "s", None)

    @pytest.mark.rules
    @pytest.mark.parametrize("answer", [{}, {"token": ""}, {"token": 3}, {"token": "a\r\nInjected: b"}])
    def test_an_answer_without_a_token(self, answer):
        with pytest.raises(Rejected, match="returned no token"):
            self.make([answer]).answer(self.BEARER, "s", None)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """A registry that wants Basic authentication."""
    root = tmp_path_factory.mktemp("guarded")
    (root / "htpasswd").write_text(HTPASSWD)
    with registry(root, auth={"htpasswd": {"realm": 'the "lab"', "path": str(root / "htpasswd")}}) as host:
        yield host


@pytest.mark.parts
def test_basic(guarded, docker):
    url = f"oci://{guarded}/basic"
    hub = RegistryHub(url, RegistrySettings(USER, PASSWORD))
    manifest = push(hub, "ctr", b"x" * 5_000_000)
    hub.move_tag("ctr", "live", manifest.descriptor, by="u", at="2026-01-01T00:00:00Z")
    assert hub.names() == ["ctr"]
    docker({"auths": {guarded: {"auth": base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()}}})
    assert RegistryHub(url).read_manifest("ctr", manifest.digest) == manifest


@pytest.mark.parts
@pytest.mark.parametrize("settings", [RegistrySettings(), RegistrySettings(USER, "hush hush")])
def test_basic_refused(guarded, settings, caplog):
    caplog.set_level(logging.DEBUG)
    hub = RegistryHub(f"oci://{guarded}/basic", settings)
    with pytest.raises(Rejected, match="401") as caught:
        hub.tags("ctr")
    assert "docker login" in caught.value.hint
    seen = "".join(traceback.format_exception(caught.value)) + caplog.text + repr(vars(caught.value)) + repr(hub)
    assert "hush" not in seen
    assert base64.b64encode(f"{USER}:hush hush".encode()).decode() not in seen


@pytest.fixture(scope="module")
def token_server():
    with TokenServer() as server:
        yield server


@pytest.fixture(scope="module")
def token_registry(tmp_path_factory, token_server):
    root = tmp_path_factory.mktemp("tokens")
    (root / "bundle.pem").write_bytes(token_server.bundle)
    auth = {
        "realm": f"http://{token_server.host}/token",
        "service": token_server.SERVICE,
        "issuer": token_server.ISSUER,
        "rootcertbundle": str(root / "bundle.pem"),
    }
    with registry(root, auth={"token": auth}) as host:
        yield host


@pytest.mark.parts
def test_tokens(token_registry, token_server):
    clock = ManualClock()
    hub = RegistryHub(f"oci://{token_registry}/t", RegistrySettings(USER, PASSWORD), clock=clock)
    token_server.seen.clear()
    manifest = push(hub, "ctr", b"x" * 5_000_000)
    assert len(token_server.seen) == 2  # one to read, one to write
    hub.move_tag("ctr", "live", manifest.descriptor, by="u", at="2026-01-01T00:00:00Z")
    assert hub.tags("ctr")[0].target == manifest.descriptor
    assert len(token_server.seen) == 2
    assert hub.names() == ["ctr"]
    hub.move_tag("ctr", "live", None, by="u", at="2026-01-02T00:00:00Z")
    assert len(token_server.seen) == 4  # the catalog, and deleting
    clock.elapsed = 400
    hub.read_manifest("ctr", manifest.digest)
    assert len(token_server.seen) == 5  # the old one expired


@pytest.mark.parts
def test_tokens_for_strangers(token_registry, token_server):
    owner = RegistryHub(f"oci://{token_registry}/t", RegistrySettings(USER, PASSWORD))
    manifest = push(owner, "open", b"x")
    stranger = RegistryHub(f"oci://{token_registry}/t")
    assert stranger.read_manifest("open", manifest.digest) == manifest
    blob = Descriptor.of(b"new", "x")
    with pytest.raises(Rejected, match="401"):
        stranger.write_blob("open", blob, reader(b"new"), lambda n: None)


@pytest.mark.parts
def test_a_token_server_that_says_no(token_registry):
    hub = RegistryHub(f"oci://{token_registry}/t", RegistrySettings(USER, "hush"))
    with pytest.raises(Rejected, match="fetching a token") as caught:
        hub.tags("ctr")
    assert "hush" not in "".join(traceback.format_exception(caught.value))
    assert isinstance(pickle.loads(pickle.dumps(caught.value)), CloudEdgeError)


@pytest.mark.parts
def test_one_new_login_when_a_token_is_refused(token_registry, token_server):
    """A token may be withdrawn before its time; a second refusal is final."""
    with Server(token_registry) as proxy:
        hub = RegistryHub(f"oci://{proxy.host}/t", RegistrySettings(USER, PASSWORD))
        push(hub, "again", b"x")
        challenge = f'Bearer realm="http://{token_server.host}/token",service="{token_server.SERVICE}"'
        proxy.seen.clear()
        proxy.rule = lambda seen: Answer(401, {"WWW-Authenticate": challenge}) if len(proxy.seen) == 1 else None
        assert hub.tags("again") == []
        first, second = proxy.seen[:2]
        assert first.headers["Authorization"] != second.headers["Authorization"]
        proxy.seen.clear()
        proxy.rule = lambda seen: Answer(401, {"WWW-Authenticate": challenge})
        with pytest.raises(Rejected):
            hub.tags("again")
        assert len(proxy.seen) == 2
