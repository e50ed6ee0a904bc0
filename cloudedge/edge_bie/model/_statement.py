"""The signed statement: the parts of one revision of an app, in bytes that a node can check by itself.

BIE checks MD5 at most and signs nothing, so the statement holds everything that a node needs to know before it runs a
model: the bundle, each of its blobs with size and SHA-256, the image, the scripts and settings of the server
(`content_of`), and a number that only grows. A node remembers the highest number it has accepted for an app and refuses
a lower one, so a replayed old statement is refused. A rollback is therefore a new statement about an old bundle, and
moves no blob.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cloudedge.bundle import check_words, sign_words
from cloudedge.errors import InputError, IntegrityError
from cloudedge.hub import canonical_json, parse_json

__all__ = ["SIGNATURE_KEY", "STATEMENT_KEY", "STATEMENT_LIMIT", "Blob", "Statement"]

STATEMENT_KEY = "statement.json"
SIGNATURE_KEY = "statement.sig"
"""Items of a statement config: the bytes as text, and the signature over them in base64."""
STATEMENT_LIMIT = 1 << 20
_REVISION = 10
_FORMAT = 2


@dataclass(frozen=True)
class Blob:
    """One blob of a bundle: its manifest, a part, a dense file, a table or a delta of one, a signature."""

    digest: str
    size: int
    media_type: str


@dataclass(frozen=True)
class Statement:
    """The parts of a revision."""

    app: str
    """The app without its revision: ``paddle-serving``."""
    sequence: int
    """A number that grows with every statement about this app, a rollback's too."""
    bundle: str
    """The one exact bundle: name@digest."""
    pin: str
    image: str = ""
    """The Serving image by digest; empty where nodes run plain processes."""
    content: str = ""
    """The digest of the app's services and mounts: `content_of`."""
    scripts: tuple[str, ...] = ()
    """The digest (`texts_digest`) of every config with texts that the app mounts, this statement aside."""
    manifest: Blob | None = None
    """The bundle's manifest."""
    blobs: tuple[Blob, ...] = ()
    """All blobs of the manifest, and of its signatures."""

    @property
    def every_blob(self) -> tuple[Blob, ...]:
        """The manifest and all other blobs, once each."""
        every = (*([self.manifest] if self.manifest else []), *self.blobs)
        return tuple({blob.digest: blob for blob in every}.values())

    def to_bytes(self) -> bytes:
        """Return the canonical bytes, which the signature covers."""
        return canonical_json({"cloudedge-statement": _FORMAT, **asdict(self)})

    @classmethod
    def from_bytes(cls, data: bytes) -> Statement:
        """Parse the bytes of `to_bytes`.

        Raises:
            IntegrityError: They are no statement, or one of a format that this cloudedge does not know.
        """
        if len(data) > STATEMENT_LIMIT:
            raise IntegrityError(f"a statement of {len(data)} bytes is over the limit of {STATEMENT_LIMIT}")
        try:
            value: Any = parse_json(data, "statement")
            version = value.pop("cloudedge-statement")
            if version != _FORMAT:
                raise IntegrityError(
                    f"a statement of format {version}; this cloudedge knows {_FORMAT}", hint="Upgrade cloudedge."
                )
            manifest, blobs, scripts = value.pop("manifest"), value.pop("blobs"), value.pop("scripts")
            return cls(
                **value,
                manifest=Blob(**manifest) if manifest else None,
                blobs=tuple(Blob(**blob) for blob in blobs),
                scripts=tuple(scripts),
            )
        except (InputError, AttributeError, KeyError, TypeError) as error:
            raise IntegrityError("the bytes are not a statement") from error

    @property
    def revision(self) -> str:
        """The name of this revision: the beginning of the statement's SHA-256."""
        return hashlib.sha256(self.to_bytes()).hexdigest()[:_REVISION]

    def sign(self, key: Path, passphrase: bytes | None = None) -> bytes:
        """Sign it with a key that `cloudedge key new` made."""
        return sign_words(self.to_bytes(), key, passphrase)

    def check(self, signature: bytes, key: Path) -> None:
        """Check its signature.

        Raises:
            SignatureInvalid: The signature was not made with that key.
        """
        check_words(self.to_bytes(), signature, key, what=f"the statement of {self.app} revision {self.revision}")
