"""Identities: an Ed25519 key in a file that only its owner can read.

In: a path. Out: the key, and what it can do: sign, seal for another agent, open what another sealed.
The file is the one that the TypeScript client of Pinch keeps, so either program can use the other's:

    {"version": 1, "public_key": "<base64, 32 bytes>", "private_key": "<base64, 64 bytes: seed, public key>",
     "created_at": "<ISO 8601>"}

A private_key of 32 bytes, the seed alone, is taken too. No key is ever printed, logged or sent.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import os
import stat
from functools import lru_cache
from pathlib import Path

from nacl.exceptions import CryptoError
from nacl.public import Box, PrivateKey
from nacl.signing import SigningKey, VerifyKey

from ..errors import BadAddress, BadEnvelope, BadIdentity

FILE_NAME = "identity.json"
NONCE_BYTES = 24
_FILE_BYTES_MAX = 16_384


class Identity:
    """One agent's key."""

    def __init__(self, seed: bytes) -> None:
        if len(seed) != 32:
            raise BadIdentity(f"a seed has 32 bytes, not {len(seed)}")
        self._signing = SigningKey(seed)
        self._private: PrivateKey = self._signing.to_curve25519_private_key()
        self.public_key = bytes(self._signing.verify_key)
        """Ed25519; it stands in the agent's address."""
        self._box_with = lru_cache(maxsize=1_024)(self._make_box)

    def __repr__(self) -> str:
        return f"<Identity {self.public_key.hex()[:16]}…>"

    def sign(self, data: bytes) -> bytes:
        """The signature, 64 bytes."""
        return self._signing.sign(data).signature

    def seal(self, peer_key: bytes, plain: bytes, nonce: bytes) -> bytes:
        """Encrypt for the owner of an Ed25519 key; BadAddress if nobody can own it."""
        return self._box_with(peer_key).encrypt(plain, nonce).ciphertext

    def open(self, peer_key: bytes, cipher: bytes, nonce: bytes) -> bytes:
        """Decrypt what that owner sealed for us, or we for him; BadEnvelope if it is not that."""
        if len(nonce) != NONCE_BYTES:
            raise BadEnvelope(f"a nonce has {NONCE_BYTES} bytes, not {len(nonce)}")
        try:
            return self._box_with(peer_key).decrypt(cipher, nonce)
        except (CryptoError, ValueError):
            raise BadEnvelope("it was not encrypted for this key by that sender") from None

    def _make_box(self, peer_key: bytes) -> Box:
        try:
            return Box(self._private, VerifyKey(peer_key).to_curve25519_public_key())
        except (CryptoError, ValueError):
            raise BadAddress("nobody can own this public key") from None

    # Files.

    @classmethod
    def generate(cls) -> Identity:
        """A new key."""
        return cls(os.urandom(32))

    @classmethod
    def load(cls, path: Path) -> Identity:
        """The key in a file; BadIdentity says what is wrong with it."""
        try:
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise BadIdentity(f"there is no identity at {path}; `posthouse agent identity create` makes one") from None
        except OSError as error:
            raise BadIdentity(f"cannot read {path}: {error.strerror}") from error
        with open(handle, "rb") as file:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                raise BadIdentity(f"{path} is no file")
            if status.st_mode & 0o077:
                mode = stat.S_IMODE(status.st_mode)
                raise BadIdentity(
                    f"others can read the key in {path} (mode {mode:04o}): chmod 600 it, or make a new one"
                )
            if status.st_uid not in (os.geteuid(), 0):
                raise BadIdentity(f"{path} belongs to somebody else")
            text = file.read(_FILE_BYTES_MAX + 1)
        return cls._from_json(path, text)

    @classmethod
    def _from_json(cls, path: Path, text: bytes) -> Identity:
        try:
            document = json.loads(text)
            version, private, public = document["version"], document["private_key"], document["public_key"]
            key = base64.b64decode(private, validate=True)
            shown = base64.b64decode(public, validate=True)
        except (ValueError, TypeError, KeyError, RecursionError, binascii.Error):
            raise BadIdentity(f"{path} is no identity: it has no version, private_key and public_key") from None
        if version != 1:
            raise BadIdentity(f"{path} is an identity of version {str(version)[:20]}; only 1 is known")
        if len(key) not in (32, 64):
            raise BadIdentity(f"the private key in {path} has {len(key)} bytes, not 64 (or 32: the seed alone)")
        identity = cls(key[:32])
        if identity.public_key != shown or key[32:] not in (b"", shown):
            raise BadIdentity(f"the private key in {path} does not belong to its public key")
        return identity

    def save(self, path: Path, created_at: str) -> None:
        """Write a new file, mode 0600; BadIdentity if something stands there already."""
        seed = bytes(self._signing)
        document = {
            "version": 1,
            "public_key": base64.b64encode(self.public_key).decode(),
            "private_key": base64.b64encode(seed + self.public_key).decode(),
            "created_at": created_at,
        }
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise BadIdentity(f"cannot write {path}: {error.strerror}") from error
        try:
            handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                with open(handle, "w", encoding="utf-8") as file:
                    json.dump(document, file, indent=2)
                    file.write("\n")
                    file.flush()
                    os.fsync(handle)
                # A link, not a rename: it never replaces a key that somebody else made meanwhile.
                os.link(draft, path)
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(draft)
        except FileExistsError:
            raise BadIdentity(f"there is an identity at {path} already") from None
        except OSError as error:
            raise BadIdentity(f"cannot write {path}: {error.strerror}") from error
