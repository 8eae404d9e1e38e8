"""Keys: our own Ed25519 key in a file that only its owner can read, and the public keys of others.

In: a path, or bytes of libp2p's key messages. Out: keys that sign or verify. Our own key is always Ed25519. Of others,
Ed25519, RSA, ECDSA (P-256) and secp256k1 are verified, since a peer chooses its own. The key file is the one that other
implementations keep: the private key message, 68 bytes. No key is ever printed or logged.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_der_public_key

from . import protobuf
from .errors import BadKey, ProtobufError

RSA, ED25519, SECP256K1, ECDSA = range(4)
"""Kinds of keys, as libp2p numbers them."""

RSA_BITS_MIN = 2_048
RSA_BITS_MAX = 8_192
"""Longer ones would make verifying expensive for us."""
KEY_BYTES_MAX = 4_096
_FILE_HEAD = bytes((0x08, ED25519, 0x12, 64))
_FILE_BYTES = len(_FILE_HEAD) + 64

_Verifier = Ed25519PublicKey | rsa.RSAPublicKey | ec.EllipticCurvePublicKey


class PublicKey:
    """A public key of any kind."""

    __slots__ = ("_verifier", "encoded", "kind")

    def __init__(self, kind: int, data: bytes) -> None:
        self.kind = kind
        self.encoded = protobuf.number_field(1, kind) + protobuf.bytes_field(2, data)
        """The key as libp2p's message; what peer ids are made of."""
        self._verifier = _verifier(kind, data)

    @classmethod
    def from_bytes(cls, encoded: bytes) -> PublicKey:
        """From libp2p's message; BadKey if it holds none."""
        if len(encoded) > KEY_BYTES_MAX:
            raise BadKey(f"a public key of {len(encoded)} bytes; at most {KEY_BYTES_MAX} are taken")
        found = dict(_fields(encoded))
        kind, data = found.get(1), found.get(2)
        if not isinstance(kind, int) or not isinstance(data, bytes):
            raise BadKey("a public key needs a kind and data")
        return cls(kind, data)

    def verifies(self, signature: bytes, data: bytes) -> bool:
        """Whether the owner of this key signed the data."""
        verifier = self._verifier
        try:
            if isinstance(verifier, Ed25519PublicKey):
                verifier.verify(signature, data)
            elif isinstance(verifier, rsa.RSAPublicKey):
                verifier.verify(signature, data, padding.PKCS1v15(), SHA256())
            else:
                verifier.verify(signature, data, ec.ECDSA(SHA256()))
        except InvalidSignature:
            return False
        return True

    def raw(self) -> bytes:
        """The 32 bytes of an Ed25519 key; BadKey for other kinds."""
        if self.kind != ED25519:
            raise BadKey("only Ed25519 keys are 32 plain bytes")
        return self.encoded[-32:]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PublicKey) and other.encoded == self.encoded

    def __hash__(self) -> int:
        return hash(self.encoded)


class PrivateKey:
    """Our own key."""

    __slots__ = ("_signer", "public")

    def __init__(self, seed: bytes) -> None:
        if len(seed) != 32:
            raise BadKey(f"a seed has 32 bytes, not {len(seed)}")
        self._signer = Ed25519PrivateKey.from_private_bytes(seed)
        self.public = PublicKey(ED25519, self._signer.public_key().public_bytes_raw())

    def __repr__(self) -> str:
        return f"<PrivateKey of {self.public.raw().hex()[:16]}…>"

    @classmethod
    def generate(cls) -> PrivateKey:
        """A new key."""
        return cls(os.urandom(32))

    @classmethod
    def from_bytes(cls, encoded: bytes) -> PrivateKey:
        """From libp2p's message; BadKey if it is no whole Ed25519 key."""
        if len(encoded) > KEY_BYTES_MAX:
            raise BadKey("this is no key: it is too long")
        found = dict(_fields(encoded))
        data = found.get(2)
        if found.get(1) != ED25519 or not isinstance(data, bytes):
            raise BadKey("only Ed25519 keys can be used")
        # Old programs wrote the public key twice.
        if len(data) not in (64, 96) or data[32:64] != data[-32:]:
            raise BadKey("an Ed25519 key has 64 bytes: seed and public key")
        key = cls(data[:32])
        if key.public.raw() != data[32:64]:
            raise BadKey("the private key does not belong to its public key")
        return key

    def sign(self, data: bytes) -> bytes:
        """The signature, 64 bytes."""
        return self._signer.sign(data)

    def seed(self) -> bytes:
        """The 32 bytes from which the key is made. Keep them to yourself."""
        return self._signer.private_bytes_raw()

    def to_bytes(self) -> bytes:
        """The key as libp2p's message: 68 bytes. Keep them to yourself."""
        return _FILE_HEAD + self.seed() + self.public.raw()

    # Files.

    @classmethod
    def load(cls, path: Path) -> PrivateKey:
        """The key in a file; BadKey says what is wrong with it."""
        try:
            file = open(path, "rb")  # noqa: SIM115 (closed below)
        except OSError as error:
            raise BadKey(f"cannot read the key file {path}: {error.strerror}") from error
        with file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise BadKey(f"{path} is no file")
            if status.st_mode & 0o077:
                mode = stat.S_IMODE(status.st_mode)
                raise BadKey(f"others can read the key in {path} (mode {mode:04o}): chmod 600 it, or make a new one")
            data = file.read(KEY_BYTES_MAX + 1)
        try:
            return cls.from_bytes(data)
        except BadKey as error:
            raise BadKey(f"{path} is no key file: {error}") from None

    def save(self, path: Path) -> None:
        """Write a new file, mode 0600; BadKey if something stands there already."""
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                with open(handle, "wb") as file:
                    file.write(self.to_bytes())
                    file.flush()
                    os.fsync(handle)
                # A link, not a rename: it never replaces a key that somebody else made meanwhile.
                os.link(draft, path)
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(draft)
        except FileExistsError:
            raise BadKey(f"there is a key at {path} already") from None
        except OSError as error:
            raise BadKey(f"cannot write {path}: {error.strerror}") from error

    @classmethod
    def load_or_create(cls, path: Path) -> PrivateKey:
        """The key in a file, which is made if there is none."""
        if not path.exists():
            key = cls.generate()
            try:
                key.save(path)
            except BadKey:
                # Somebody else was first: then theirs is the key.
                if not path.exists():
                    raise
            else:
                return key
        return cls.load(path)


def _fields(encoded: bytes) -> list[tuple[int, int | bytes]]:
    try:
        return list(protobuf.fields(encoded, protobuf.Budget(8)))
    except ProtobufError as error:
        raise BadKey(f"no key: {error}") from None


def _verifier(kind: int, data: bytes) -> _Verifier:
    try:
        if kind == ED25519:
            return Ed25519PublicKey.from_public_bytes(data)
        if kind == SECP256K1:
            return ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256K1(), data)
        if kind in (RSA, ECDSA):
            key = load_der_public_key(data)
            if kind == RSA and isinstance(key, rsa.RSAPublicKey):
                if RSA_BITS_MIN <= key.key_size <= RSA_BITS_MAX:
                    return key
                raise BadKey(f"an RSA key of {key.key_size} bits; {RSA_BITS_MIN} to {RSA_BITS_MAX} are taken")
            if kind == ECDSA and isinstance(key, ec.EllipticCurvePublicKey):
                return key
    except (ValueError, UnsupportedAlgorithm):
        raise BadKey("nobody can own this public key") from None
    raise BadKey(f"a public key of a kind that is not known: {kind}")
