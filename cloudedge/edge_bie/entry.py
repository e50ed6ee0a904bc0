"""What a node checks before a server starts: the entry point inside a Serving container on stock BAETYL nodes.

One file, the standard library, Python 3.6 and later; it is mounted with the start script and cannot import cloudedge:

    python3 entry.py [options] [-- COMMAND ...]

It refuses to go on (exit code 1, and why on standard error) unless the statement is signed by the given key, is not
older than one that was accepted before, and every blob it names is here with the right SHA-256. Then it makes the model
folder and an OCI layout out of links to the blobs, mending what an earlier start left half made, and becomes COMMAND.

    /cloudedge/statement/statement.json, .sig    what the revision consists of, and who says so
    /cloudedge/blobs/CONFIG/sha256-HEX           the blobs, as the node downloaded them
    /cloudedge/state/APP.json                    the highest number accepted; a hostPath, or it is forgotten
    /cloudedge/hub                               made here: an OCI layout, for `cloudedge serve --hub`; tables are in it
    /home/work/SERVICE                           made here: dense files, and the parts of the bundle in .bundle/

Double braces may not occur in this file: BIE takes them for a template.
"""

import argparse
import base64
import glob
import hashlib
import json
import os
import subprocess
import sys
import tempfile
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


class Refused(Exception):
    """The server must not start."""


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
    """Check that the owner of the key signed these words: ECDSA P-256 over SHA-256, in DER."""
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
    """Return the statement and its SHA-256, if it may be believed."""
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
        raise Refused("what should be a statement is none")
    return statement, blobs, hashlib.sha256(words).hexdigest()


def check_number(path: str, statement: "dict[str, Any]", digest: str) -> None:
    """Refuse a statement that is older than one that was accepted."""
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
    """Publish a small file by rename, so that it survives a power cut whole."""
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
    """Return where each blob is, all of them checked."""
    found = {}
    for digest, size in blobs.items():
        paths = glob.glob(os.path.join(glob.escape(folder), "*", digest.replace(":", "-")))
        if not paths:
            raise Refused("blob {} is not here".format(digest))
        path = paths[0]
        if os.path.getsize(path) != size or digest_of(path) != digest:
            raise Refused("{} is not what the statement says: cut short, or changed".format(path))
        found[digest] = os.path.abspath(path)
    return found


def check_path(path: str) -> str:
    """Refuse a name that leaves its folder."""
    parts = path.split("/")
    if not path or path.startswith("/") or "\\" in path or "\0" in path or {"", ".", ".."} & set(parts):
        raise Refused("{!r} leaves its folder".format(path))
    return path


def members(manifest: "dict[str, Any]", blobs: "dict[str, int]") -> "dict[str, str]":
    """Return the files of the model folder: a blob's digest by path. Tables are in the layout."""
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
    """Make `target` a link to a blob; what is there already and right is left alone, what is wrong is replaced."""
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
    """Make an OCI layout of links to the blobs; one that is mounted, as nodes of ours do, is taken as it is."""
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
    """Check everything and make the folders; returns what the server should find in its environment."""
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
        # The number counts from here on: whatever starts now has been checked.
        write(number, json.dumps({"sequence": int(statement["sequence"]), "sha256": digest}).encode())
    except OSError as error:
        hint = "let user {} write to the node's folder that edge.state names".format(os.getuid())
        raise Refused("cannot remember the number in {}: {}; {}".format(options.state, error.strerror, hint)) from error
    for path, blob in files.items():
        link(found[blob], os.path.join(model, path), blob)
    make_layout(options.hub, statement, found)
    return {"CLOUDEDGE_BUNDLE": statement["bundle"], "CLOUDEDGE_HUB": options.hub, "CLOUDEDGE_MODEL": model}


def parse(arguments: "list[str]") -> argparse.Namespace:
    """Read the command line; everything has a default for the places BIE mounts things at."""
    root = os.environ.get("CLOUDEDGE_ROOT", "")
    own = root + "/cloudedge"
    keys = [path for path in (own + "/key.pub", "/etc/cloudedge/key.pub") if os.path.exists(path)]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--statement", default=own + "/statement", help="folder with statement.json and .sig")
    parser.add_argument("--blobs", default=own + "/blobs", help="folder with the blobs' folders")
    parser.add_argument("--state", default=os.environ.get("CLOUDEDGE_STATE") or own + "/state", help="a hostPath")
    parser.add_argument("--hub", default=os.environ.get("CLOUDEDGE_HUB") or own + "/hub", help="OCI layout to make")
    parser.add_argument("--model", default=os.environ.get("CLOUDEDGE_MODEL", ""), help="model folder to make")
    parser.add_argument("--work", default=root + "/home/work", help="where model folders are, if --model is left out")
    parser.add_argument("--service", default=os.environ.get("CLOUDEDGE_SERVICE", ""), help="name of the model folder")
    parser.add_argument("--app", default=os.environ.get("CLOUDEDGE_APP", ""), help="whose statement it has to be")
    parser.add_argument(
        "--key", default=os.environ.get("CLOUDEDGE_KEY") or (keys[0] if keys else ""), help="public key"
    )
    parser.add_argument(
        "--allow-unsigned",
        action="store_true",
        default=os.environ.get("CLOUDEDGE_ALLOW_UNSIGNED") == "1",
        help="without a key, do without a signature",
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, help="what to become, after --")
    return parser.parse_args(arguments)


def main(arguments: "list[str]") -> int:
    """Check, prepare, and become the server."""
    options = parse(arguments)
    try:
        found = prepare(options)
    except Refused as error:
        sys.stderr.write("cloudedge: refused: {}\n".format(error))
        return 1
    except OSError as error:
        sys.stderr.write("cloudedge: refused: {}\n".format(error))
        return 1
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if command:
        os.environ.update(found)
        os.execvp(command[0], command)  # noqa: S606 - what this is for
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
