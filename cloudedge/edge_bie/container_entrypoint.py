"""The entry point of a Serving container on stock BAETYL nodes: verifies a revision before its server starts.

One file, the standard library, Python 3.6 and later; it is mounted with the start script and cannot import cloudedge:

    python3 entry.py [options] [-- COMMAND ...]

It refuses to go on (exit code 1, the reason on standard error) unless the statement is signed with the given key, is
not older than an accepted one, and every blob it names is here with the right SHA-256. Then it makes the model folder
and an OCI layout of links to the blobs, completes what an interrupted start left, and becomes COMMAND.

    /cloudedge/statement/statement.json, .sig    the parts of the revision, and their signature
    /cloudedge/blobs/CONFIG/sha256-HEX           the blobs, as the node downloaded them
    /cloudedge/state/APP.json                    the highest number accepted; on a hostPath, to survive the container
    /cloudedge/hub                               made here: an OCI layout, for `cloudedge serve --hub`; tables are in it
    /home/work/SERVICE                           made here: dense files, and the parts of the bundle in .bundle/

With --trial it starts COMMAND, sends it the bundle's recorded requests, ends it, and exits with 0 only if the answers
were right. An init container does that before the server starts, so a node reports Running only for a tested server.

Double braces must not occur in this file: BIE takes them for a template.
"""

import argparse
import ast
import base64
import glob
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from http import HTTPStatus
from typing import Any

__all__ = ["Refused", "main", "prepare"]

FORMAT = 2
STATEMENT_LIMIT = 1 << 20
MANIFEST_LIMIT = 4 << 20
DIGEST = 7 + 64
FILE_PATH = "org.cncf.model.filepath"
PARTS = {
    "application/vnd.cloudedge.signature.v1+json": "signature.json",
    "application/vnd.cloudedge.probes.v1+json": "probes.json",
    "application/vnd.cloudedge.lineage.v1+json": "lineage.json",
    "application/vnd.cloudedge.needs.v1+json": "needs.json",
}
INDEX = "application/vnd.oci.image.index.v1+json"
PROBES_LIMIT = 64 << 20
NOT_YET = (429, 502, 503, 504)
SHOWN = re.compile(r"\s*array\((.*?)(,\s*shape=\([\d, ]*\))?(,\s*dtype=[^()]+)?\)\s*", re.DOTALL)


class Refused(Exception):
    """The server must not start."""


class NotYet(Exception):
    """The server does not answer yet."""


def read(path: str, limit: int) -> bytes:
    """Return a small file's bytes."""
    try:
        with open(path, "rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise Refused("cannot read {}: {}".format(path, error.strerror)) from error
    if len(data) > limit:
        raise Refused("{} has more than {} bytes".format(path, limit))
    return data


def check_signature(words: bytes, encoded: bytes, key: str) -> None:
    """Check the signature of these words: ECDSA P-256 over SHA-256, in DER."""
    try:
        signature = base64.b64decode(b"".join(encoded.split()), validate=True)
    except ValueError:
        raise Refused("the statement's signature is not base64")
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.backends import default_backend
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.serialization import load_pem_public_key
    except ImportError:
        check_by_openssl(words, signature, key)
        return
    try:
        public: Any = load_pem_public_key(read(key, 1 << 16), default_backend())
        public.verify(signature, words, ec.ECDSA(SHA256()))
    except (InvalidSignature, ValueError, TypeError, AttributeError):
        raise Refused("the statement was not signed with {}".format(key))


def check_by_openssl(words: bytes, signature: bytes, key: str) -> None:
    """Check a signature with the openssl program."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [os.path.join(folder, name) for name in ("words", "signature")]
        for path, data in zip(paths, (words, signature)):
            with open(path, "wb") as file:
                file.write(data)
        command = ["openssl", "dgst", "-sha256", "-verify", key, "-signature", paths[1], paths[0]]
        try:
            code = subprocess.call(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        except OSError:
            raise Refused("there is neither the package cryptography nor the program openssl to check a signature with")
    if code != 0:
        raise Refused("the statement was not signed with {}".format(key))


def read_statement(folder: str, key: str, *, allow_unsigned: bool) -> "tuple[dict[str, Any], dict[str, int], str]":
    """Return the verified statement, its blobs and its SHA-256."""
    words = read(os.path.join(folder, "statement.json"), STATEMENT_LIMIT)
    if key:
        check_signature(words, read(os.path.join(folder, "statement.sig"), 1 << 16), key)
    elif not allow_unsigned:
        raise Refused("there is no key to check the statement with; give --key, or --allow-unsigned to do without")
    try:
        statement = json.loads(words.decode())
        if statement["cloudedge-statement"] != FORMAT:
            raise Refused("the statement is of a format this entry point does not know")
        blobs = {}
        for blob in [statement["manifest"]] + statement["blobs"]:
            is_digest = len(blob["digest"]) == DIGEST and not set(blob["digest"][7:]) - set("0123456789abcdef")
            if not (blob["digest"].startswith("sha256:") and is_digest and int(blob["size"]) >= 0):
                raise Refused("the statement names a blob that cannot be")
            blobs[blob["digest"]] = blob["size"]
        name, _, digest = statement["bundle"].rpartition("@")
        if digest != statement["manifest"]["digest"] or not name:
            raise Refused("the statement does not name its bundle's manifest")
        check_path(statement["app"])
        int(statement["sequence"])
    except (ValueError, KeyError, TypeError, AttributeError):
        raise Refused("the bytes are not a statement")
    return statement, blobs, hashlib.sha256(words).hexdigest()


def check_number(path: str, statement: "dict[str, Any]", digest: str) -> None:
    """Refuse a statement that is older than an accepted one."""
    if not os.path.exists(path):
        return
    try:
        known = json.loads(read(path, 1 << 16).decode())
        highest, accepted = int(known["sequence"]), known["sha256"]
    except (ValueError, KeyError, TypeError):
        raise Refused("{} cannot be read".format(path))
    number = int(statement["sequence"])
    if number < highest or (number == highest and digest != accepted):
        raise Refused("the statement has number {}; number {} was accepted before".format(number, highest))


def write(path: str, data: bytes) -> None:
    """Publish a small file by rename, so that a power cut leaves it complete."""
    temporary = "{}.{}.new".format(path, os.getpid())
    with open(temporary, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def digest_of(path: str) -> str:
    """Return the SHA-256 of a file."""
    sha256 = hashlib.sha256()
    with open(path, "rb") as file:
        for chunk in iter(lambda: file.read(1 << 20), b""):
            sha256.update(chunk)
    return "sha256:" + sha256.hexdigest()


def find_blobs(folder: str, blobs: "dict[str, int]") -> "dict[str, str]":
    """Return the path of each blob, after a check of its digest."""
    found = {}
    for digest, size in blobs.items():
        paths = glob.glob(os.path.join(glob.escape(folder), "*", digest.replace(":", "-")))
        if not paths:
            raise Refused("blob {} is not here".format(digest))
        path = paths[0]
        if os.path.getsize(path) != size or digest_of(path) != digest:
            raise Refused("{} does not match the statement: cut short, or changed".format(path))
        found[digest] = os.path.abspath(path)
    return found


def check_path(path: str) -> str:
    """Refuse a name that leaves its folder."""
    parts = path.split("/")
    if not path or path.startswith("/") or "\\" in path or "\0" in path or {"", ".", ".."} & set(parts):
        raise Refused("{!r} leaves its folder".format(path))
    return path


def members(manifest: "dict[str, Any]", blobs: "dict[str, int]") -> "dict[str, str]":
    """Return the files of the model folder: the blob's digest by path. Tables are in the layout."""
    found = {}
    for layer in manifest["layers"]:
        if blobs.get(layer["digest"]) != layer["size"]:
            raise Refused("the manifest names blob {}, the statement does not".format(layer["digest"]))
        path = layer.get("annotations", {}).get(FILE_PATH)
        if path is None and layer["mediaType"] in PARTS:
            path = ".bundle/" + PARTS[layer["mediaType"]]
        if path is not None:
            found[check_path(path)] = layer["digest"]
    return found


def link(source: str, target: str, digest: str) -> None:
    """Make `target` a link to a blob; a right file stays, a wrong one is replaced."""
    if os.path.islink(target):
        if os.readlink(target) == source:
            return
    elif os.path.isfile(target) and digest_of(target) == digest:
        return
    folder = os.path.dirname(target)
    if not os.path.isdir(folder):
        os.makedirs(folder)
    temporary = "{}.{}.new".format(target, os.getpid())
    os.symlink(source, temporary)
    os.replace(temporary, target)


def make_layout(folder: str, statement: "dict[str, Any]", found: "dict[str, str]") -> None:
    """Make an OCI layout of links to the blobs; a mounted one, as on cloudedge's own nodes, stays as it is."""
    manifest = statement["manifest"]
    if os.path.exists(os.path.join(folder, "blobs", "sha256", manifest["digest"][7:])) and not os.access(
        folder, os.W_OK
    ):
        return
    for digest, path in found.items():
        link(path, os.path.join(folder, "blobs", "sha256", digest[7:]), digest)
    entry = {"mediaType": manifest["media_type"], "digest": manifest["digest"], "size": manifest["size"]}
    index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [entry]}
    for name, value in (("oci-layout", {"imageLayoutVersion": "1.0.0"}), ("index.json", index)):
        if not os.path.exists(os.path.join(folder, name)):
            write(os.path.join(folder, name), json.dumps(value).encode())


def prepare(options: argparse.Namespace) -> "dict[str, str]":
    """Check everything and make the folders; return the variables for the server's environment."""
    statement, blobs, digest = read_statement(options.statement, options.key, allow_unsigned=options.allow_unsigned)
    if options.app and options.app != statement["app"]:
        raise Refused("the statement speaks for {}, not for {}".format(statement["app"], options.app))
    number = os.path.join(options.state, statement["app"] + ".json")
    check_number(number, statement, digest)
    found = find_blobs(options.blobs, blobs)
    try:
        raw = read(found[statement["manifest"]["digest"]], MANIFEST_LIMIT)
        files = members(json.loads(raw.decode()), blobs)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise Refused("the bundle's manifest cannot be read")
    name = statement["bundle"].rpartition("@")[0]
    model = options.model or os.path.join(options.work, options.service or name.rpartition("/")[2])
    try:
        if not os.path.isdir(options.state):
            os.makedirs(options.state)
        # The number counts from here on: everything is checked.
        write(number, json.dumps({"sequence": int(statement["sequence"]), "sha256": digest}).encode())
    except OSError as error:
        hint = "Let user {} write to the node's folder that `edge.state` names.".format(os.getuid())
        raise Refused("cannot save the number in {}: {}. {}".format(options.state, error.strerror, hint)) from error
    for path, blob in files.items():
        link(found[blob], os.path.join(model, path), blob)
    make_layout(options.hub, statement, found)
    return {"CLOUDEDGE_BUNDLE": statement["bundle"], "CLOUDEDGE_HUB": options.hub, "CLOUDEDGE_MODEL": model}


def call(url: str, value: "dict[str, Any]") -> "tuple[int, Any]":
    """Send a request; return status and answer."""
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(value).encode(), headers)  # noqa: S310 - always http, on loopback
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30) as answer:
            status, body = answer.status, answer.read(PROBES_LIMIT)
    except urllib.error.HTTPError as error:
        status, body = error.code, error.read(1 << 16)
    except (OSError, ValueError) as error:  # urllib's own errors among them
        raise NotYet(str(error))
    try:
        return status, json.loads(body.decode())
    except ValueError:
        return status, None


def predict(base: str, service: str, feed: "dict[str, Any]") -> "dict[str, Any]":
    """Ask for a prediction, in the form of `cloudedge serve` or of a Pipeline service."""
    status, body = call(base + "/v1/predict", {"inputs": feed})
    if status == HTTPStatus.OK and isinstance(body, dict) and isinstance(body.get("outputs"), dict):
        return dict(body["outputs"])
    if status in NOT_YET:
        raise NotYet("it says {}".format(status))
    if status == HTTPStatus.BAD_REQUEST:
        raise Refused("it refuses the request: {}".format(str(body)[:300]))
    texts = [value if isinstance(value, str) else json.dumps(value) for value in feed.values()]
    status, body = call("{}/{}/prediction".format(base, service), {"key": list(feed), "value": texts})
    if status != HTTPStatus.OK or not isinstance(body, dict):
        raise NotYet("/{}/prediction says {}".format(service, status))
    if body.get("err_no"):
        raise Refused("it answers err_no {}: {}".format(body["err_no"], str(body.get("err_msg"))[:300]))
    return dict(zip(body.get("key") or (), body.get("value") or ()))


def numbers(value: Any) -> "tuple[tuple[int, ...], list[float]]":
    """Return the shape of a nested list, or of the text of one, and its numbers."""
    if isinstance(value, str):
        shown = SHOWN.fullmatch(value)
        if shown and shown.group(2):  # an empty array: its printed form has the shape
            return tuple(ast.literal_eval(shown.group(2).partition("=")[2])), []
        value = ast.literal_eval(shown.group(1)) if shown else json.loads(value)
    if not isinstance(value, (list, tuple)):
        return (), [float(value)]
    parts = [numbers(item) for item in value]
    shapes = {shape for shape, _ in parts}
    if len(shapes) > 1:
        raise ValueError
    return (len(parts),) + (shapes.pop() if shapes else ()), [item for _, items in parts for item in items]


def compare(name: str, expected: Any, found: Any, tolerance: float) -> None:
    """Refuse an answer that is not the recorded one."""
    if found is None:
        raise Refused("{} is not among what it answers".format(name))
    if isinstance(expected, str):
        if found != expected:
            raise Refused("{} is {!r}, expected {!r}".format(name, str(found)[:100], expected[:100]))
        return
    try:
        (shape, wanted), (seen, answer) = numbers(expected), numbers(found)
    except (ValueError, TypeError, SyntaxError):
        raise Refused("{} is no array of numbers".format(name))
    if seen != shape:
        raise Refused("{} has shape {}, expected {}".format(name, list(seen), list(shape)))
    off = max([abs(one - other) for one, other in zip(answer, wanted)] or [0.0])
    if not off <= tolerance:
        raise Refused("{} is off by {:g}, allowed are {:g}".format(name, off, tolerance))


def ask(base: str, service: str, model: str) -> None:
    """Send the bundle's recorded requests and compare the answers; without any, one answer of any kind suffices."""
    names = {}
    parts = []
    for part in ("signature.json", "probes.json"):
        path = os.path.join(model, ".bundle", part)
        parts.append(json.loads(read(path, PROBES_LIMIT).decode()) if os.path.exists(path) else {})
    for variable in list(parts[0].get("feed", ())) + list(parts[0].get("fetch", ())):
        names[variable["name"]] = variable.get("alias") or variable["name"]
    requests = parts[1].get("requests", ())
    if not requests:
        call(base + "/readyz", {})
    for request in requests:
        feed = {names.get(name, name): value for name, value in request["feed"].items()}
        outputs = predict(base, service, feed)
        for name, expected in request["expect"].items():
            found = outputs.get(names.get(name, name), outputs.get(name))
            compare(name, expected, found, float(request.get("tolerance", 1e-5)))


def try_out(command: "list[str]", base: str, service: str, model: str, within_s: float) -> None:
    """Start the server, probe it, end it."""
    server = subprocess.Popen(command, start_new_session=True)
    end = time.monotonic() + within_s
    try:
        while True:
            if server.poll() is not None:
                raise Refused("on trial the server ended with exit code {}".format(server.returncode))
            try:
                return ask(base, service, model)
            except NotYet as error:
                if time.monotonic() > end:
                    raise Refused("on trial the server did not answer within {:g} s: {}".format(within_s, error))
            time.sleep(0.5)
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(server.pid, number)
                server.wait(10)
            except (OSError, subprocess.TimeoutExpired):
                pass


def parse(arguments: "list[str]") -> argparse.Namespace:
    """Parse the command line; the defaults are the paths of BIE's mounts."""
    root = os.environ.get("CLOUDEDGE_ROOT", "")
    own = root + "/cloudedge"
    keys = [path for path in (own + "/key.pub", "/etc/cloudedge/key.pub") if os.path.exists(path)]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--statement", default=own + "/statement", help="folder with statement.json and .sig")
    parser.add_argument("--blobs", default=own + "/blobs", help="folder with the blobs' folders")
    parser.add_argument("--state", default=os.environ.get("CLOUDEDGE_STATE") or own + "/state", help="a hostPath")
    parser.add_argument("--hub", default=os.environ.get("CLOUDEDGE_HUB") or own + "/hub", help="OCI layout to make")
    parser.add_argument("--model", default=os.environ.get("CLOUDEDGE_MODEL", ""), help="model folder to make")
    parser.add_argument("--work", default=root + "/home/work", help="parent of model folders, if --model is left out")
    parser.add_argument("--service", default=os.environ.get("CLOUDEDGE_SERVICE", ""), help="name of the model folder")
    parser.add_argument("--app", default=os.environ.get("CLOUDEDGE_APP", ""), help="app that the statement has to name")
    parser.add_argument(
        "--key", default=os.environ.get("CLOUDEDGE_KEY") or (keys[0] if keys else ""), help="public key"
    )
    parser.add_argument(
        "--allow-unsigned",
        action="store_true",
        default=os.environ.get("CLOUDEDGE_ALLOW_UNSIGNED") == "1",
        help="without a key, accept an unsigned statement",
    )
    parser.add_argument("--trial", action="store_true", help="start COMMAND, send it the recorded requests, end it")
    parser.add_argument("--port", default=os.environ.get("CLOUDEDGE_PORT", "18082"), help="its port on trial")
    parser.add_argument(
        "--trial-s",
        type=float,
        default=float(os.environ.get("CLOUDEDGE_TRIAL_S", "600")),
        help="longest time of the trial",
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the command to become, after --")
    return parser.parse_args(arguments)


def main(arguments: "list[str]") -> int:
    """Check, prepare, and become the server."""
    options = parse(arguments)
    try:
        found = prepare(options)
        os.environ.update(found)
        if options.trial:
            command = options.command[1:] if options.command[:1] == ["--"] else options.command
            base, model = "http://127.0.0.1:" + options.port, found["CLOUDEDGE_MODEL"]
            try_out(command, base, options.service or os.path.basename(model), model, options.trial_s)
            return 0
    except Refused as error:
        sys.stderr.write("cloudedge: refused: {}\n".format(error))
        return 1
    except OSError as error:
        sys.stderr.write("cloudedge: refused: {}\n".format(error))
        return 1
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if command:
        os.execvp(command[0], command)  # noqa: S606 - what this is for
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
