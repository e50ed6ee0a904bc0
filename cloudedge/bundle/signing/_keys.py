"""Signing key files: ECDSA P-256, the private half as PKCS#8 PEM, the public half as SPKI PEM.

``openssl`` reads both, ``cosign verify --key`` reads the public one, and ``cosign import-key-pair --key`` converts a
private key without a passphrase to cosign's own format. Other curves and algorithms are refused, so that there is
one kind of key and one kind of signature.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from cloudedge.errors import Conflict, InputError, NotFound, StorageError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["load_private", "load_public", "needs_passphrase", "new_key_pair"]

_KEY_LIMIT = 64 * 1024
_SIGSTORE = b"SIGSTORE PRIVATE KEY"  # both of cosign's own headers, with and without ENCRYPTED before it


def new_key_pair(directory: Path, name: str, passphrase: bytes | None) -> tuple[Path, Path]:
    """Create a key pair: ``<name>.key`` (mode 0600, encrypted if a passphrase is given) and ``<name>.pub``.

    Raises:
        InputError: `name` is not a plain file name, or the passphrase is empty or too long.
        Conflict: one of the files exists; keys are never overwritten.
        StorageError: the directory cannot be written.
    """
    if not name or name != os.path.basename(name) or name.startswith("."):  # noqa: PTH119 - a check, not a path
        raise InputError(f"not a key name: {name!r} (wanted: a plain file name without extension)")
    private_path, public_path = directory / f"{name}.key", directory / f"{name}.pub"
    key = ec.generate_private_key(ec.SECP256R1())
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, _encryption(passphrase))
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    _create_key_file(private_path, private, 0o600)
    try:
        _create_key_file(public_path, public, 0o644)
    except BaseException:
        private_path.unlink()  # created above; half a pair is useless
        raise
    return private_path, public_path


def load_private(path: Path, passphrase: bytes | None = None) -> ec.EllipticCurvePrivateKey:
    """Read a private key, decrypting it if it is encrypted.

    Raises:
        NotFound: the file does not exist.
        InputError: the file is unreadable, needs another passphrase, or holds another kind of key.
    """
    data = _read_key_file(path)
    if _SIGSTORE in data:
        raise InputError(
            f"{path} is in cosign's own private key format, which only cosign reads",
            hint="Sign with cosign, or create a key with `cloudedge key new` (`cosign import-key-pair` reads it).",
            path=path,
        )
    try:
        key = serialization.load_pem_private_key(data, passphrase)
    except TypeError as error:  # a passphrase is missing or superfluous; the error's text does not say which
        wanted = "is encrypted: a passphrase is needed" if passphrase is None else "is not encrypted"
        raise InputError(f"private key {path} {wanted}", path=path) from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise InputError(
            f"{path} is not a private key in PEM form, or the passphrase is wrong",
            hint="Give a PKCS#8 PEM file with an ECDSA P-256 key.",
            path=path,
        ) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise _wrong_key_type(path)
    return key


def load_public(path: Path) -> ec.EllipticCurvePublicKey:
    """Read a public key.

    Raises:
        NotFound: the file does not exist.
        InputError: the file is unreadable, or holds another kind of key.
    """
    data = _read_key_file(path)
    try:
        key = serialization.load_pem_public_key(data)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise InputError(
            f"{path} is not a public key in PEM form",
            hint="Give the pair's .pub file, which begins with -----BEGIN PUBLIC KEY-----.",
            path=path,
        ) from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise _wrong_key_type(path)
    return key


def needs_passphrase(path: Path) -> bool:
    """Return True if a private key is encrypted."""
    return b"ENCRYPTED" in _read_key_file(path)


def _encryption(passphrase: bytes | None) -> serialization.KeySerializationEncryption:
    if passphrase is None:
        return serialization.NoEncryption()
    try:
        return serialization.BestAvailableEncryption(passphrase)
    except ValueError as error:
        raise InputError(
            "the passphrase is empty", hint="Give no passphrase for a key that is not encrypted."
        ) from error


def _wrong_key_type(path: Path) -> InputError:
    return InputError(
        f"{path} does not hold an ECDSA P-256 key",
        hint="Give a key on the curve P-256, which openssl calls prime256v1.",
        path=path,
    )


def _read_key_file(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(_KEY_LIMIT + 1)
    except FileNotFoundError as error:
        raise NotFound(f"the key file {path} does not exist", path=path) from error
    except OSError as error:
        raise InputError(f"cannot read key file {path}: {error.strerror}", path=path) from error
    if len(data) > _KEY_LIMIT:
        raise InputError(f"{path} is over {_KEY_LIMIT} bytes and therefore not a key file", path=path)
    return data


def _create_key_file(path: Path, data: bytes, mode: int) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError as error:
        raise Conflict(
            f"key file {path} exists, and keys are never overwritten",
            hint="Choose another name, or move the old pair away.",
            path=path,
        ) from error
    except OSError as error:
        raise StorageError(f"cannot write key file {path}: {error.strerror}", path=path) from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
    except OSError as error:
        path.unlink()
        raise StorageError(f"cannot write key file {path}: {error.strerror}", path=path) from error
