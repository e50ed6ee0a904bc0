"""Signing keys as files: ECDSA over P-256, the private half as PKCS#8 PEM, the public half as SPKI PEM.

``openssl`` reads both, ``cosign verify --key`` the public one, and ``cosign import-key-pair --key`` turns the
private one, if it has no passphrase, into cosign's own format. Other curves and algorithms are refused: one
kind of key, one kind of signature.
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
    """Make a key pair: ``<name>.key`` (mode 0600, encrypted if a passphrase is given) and ``<name>.pub``.

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
    _create(private_path, private, 0o600)
    try:
        _create(public_path, public, 0o644)
    except BaseException:
        private_path.unlink()  # ours, made a moment ago: half a pair is of no use to anyone
        raise
    return private_path, public_path


def load_private(path: Path, passphrase: bytes | None = None) -> ec.EllipticCurvePrivateKey:
    """Read a private key, decrypting it if it is encrypted.

    Raises:
        NotFound: there is no such file.
        InputError: it cannot be read, needs another passphrase, or is another kind of key.
    """
    data = _read(path)
    if _SIGSTORE in data:
        raise InputError(
            f"{path} is in cosign's own private key format, which only cosign reads",
            hint="Sign with cosign, or make a key with cloudedge and give it to cosign by import-key-pair.",
            path=path,
        )
    try:
        key = serialization.load_pem_private_key(data, passphrase)
    except TypeError as error:  # a passphrase missing, or one too many; the text names neither
        wanted = "is encrypted: a passphrase is needed" if passphrase is None else "is not encrypted"
        raise InputError(f"private key {path} {wanted}", path=path) from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise InputError(
            f"{path} is not a private key in PEM form, or the passphrase is wrong",
            hint="Wanted: PKCS#8 PEM with an ECDSA P-256 key.",
            path=path,
        ) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise _wrong_kind(path)
    return key


def load_public(path: Path) -> ec.EllipticCurvePublicKey:
    """Read a public key.

    Raises:
        NotFound: there is no such file.
        InputError: it cannot be read, or is another kind of key.
    """
    data = _read(path)
    try:
        key = serialization.load_pem_public_key(data)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise InputError(
            f"{path} is not a public key in PEM form",
            hint="Wanted: the .pub file of the pair, beginning with -----BEGIN PUBLIC KEY-----.",
            path=path,
        ) from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise _wrong_kind(path)
    return key


def needs_passphrase(path: Path) -> bool:
    """Tell whether a private key is encrypted."""
    return b"ENCRYPTED" in _read(path)


def _encryption(passphrase: bytes | None) -> serialization.KeySerializationEncryption:
    if passphrase is None:
        return serialization.NoEncryption()
    try:
        return serialization.BestAvailableEncryption(passphrase)
    except ValueError as error:
        raise InputError("the passphrase is empty", hint="Give none at all for a key that is not encrypted.") from error


def _wrong_kind(path: Path) -> InputError:
    return InputError(
        f"{path} holds another kind of key than ECDSA P-256",
        hint="Wanted: a key on the curve P-256, which openssl calls prime256v1.",
        path=path,
    )


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(_KEY_LIMIT + 1)
    except FileNotFoundError as error:
        raise NotFound(f"there is no key file {path}", path=path) from error
    except OSError as error:
        raise InputError(f"cannot read key file {path}: {error.strerror}", path=path) from error
    if len(data) > _KEY_LIMIT:
        raise InputError(f"{path} is over {_KEY_LIMIT} bytes and no key file", path=path)
    return data


def _create(path: Path, data: bytes, mode: int) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError as error:
        raise Conflict(
            f"key file {path} exists and keys are never overwritten",
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
