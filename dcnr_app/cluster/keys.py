"""ECDSA P-256 keys as PEM: made, named by their hash, and used to sign. Knows no file and no certificate."""

from __future__ import annotations

import hashlib
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from dcnr_app.errors import RefusedError

_MACHINE_DIGITS: Final = 16


def new_key_pem() -> bytes:
    """A fresh private key."""
    return ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def public_pem(key_pem: bytes) -> bytes:
    """The public half of a private key. Raises RefusedError if it is no P-256 key."""
    return (
        _private(key_pem)
        .public_key()
        .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )


def key_fingerprint(public_key_pem: bytes) -> str:
    """sha256 of the public key's DER, hex. Raises RefusedError if it is no P-256 key."""
    der = _public(public_key_pem).public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return hashlib.sha256(der).hexdigest()


def machine_id(public_key_pem: bytes) -> str:
    """The id of the machine that holds this key: the first 16 hex digits of its fingerprint.

    Raises RefusedError if it is no P-256 key."""
    return key_fingerprint(public_key_pem)[:_MACHINE_DIGITS]


def sign(key_pem: bytes, data: bytes) -> bytes:
    """A DER signature over `data`."""
    return _private(key_pem).sign(data, ec.ECDSA(hashes.SHA256()))


def is_signed(public_key_pem: bytes, data: bytes, signature: bytes) -> bool:
    """Whether the holder of this key signed `data`. Raises RefusedError if it is no P-256 key."""
    try:
        _public(public_key_pem).verify(signature, data, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        return False
    return True


def _private(key_pem: bytes) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(key_pem, password=None)
    except (ValueError, TypeError) as error:
        raise RefusedError("not a private key", why=str(error)) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.curve.name != "secp256r1":
        raise RefusedError("not an ECDSA P-256 key", why="gRPC speaks no other in its TLS")
    return key


def _public(public_key_pem: bytes) -> ec.EllipticCurvePublicKey:
    try:
        key = serialization.load_pem_public_key(public_key_pem)
    except (ValueError, TypeError) as error:
        raise RefusedError("not a public key", why=str(error)) from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name != "secp256r1":
        raise RefusedError("not an ECDSA P-256 key", why="gRPC speaks no other in its TLS")
    return key
