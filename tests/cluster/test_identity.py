"""Certificates: what they say, that OpenSSL accepts them, and whom the membership refuses."""

from __future__ import annotations

import contextlib
import hashlib
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from dcnr_app.cluster.identity import (
    ClusterAuthority,
    Credentials,
    Identity,
    fingerprint,
    read_identity,
    refuse_stranger,
)
from dcnr_app.cluster.transport import Member
from dcnr_app.errors import RefusedError, UserError
from dcnr_app.ids import PNodeId

A, B = PNodeId("a1b2-0"), PNodeId("c3d4-1")


@pytest.fixture(scope="module")
def authority() -> ClusterAuthority:
    return ClusterAuthority.create("home")


@pytest.fixture(scope="module")
def leaf(authority: ClusterAuthority) -> Credentials:
    return authority.issue(A, "home", "worker")


def parsed(leaf: Credentials) -> x509.Certificate:
    return x509.load_pem_x509_certificate(leaf.cert_pem)


def test_leaf_names_pnode_cluster_and_role(leaf: Credentials) -> None:
    names = parsed(leaf).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["a1b2-0.dcnr"]
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == ["dcnr://home/worker"]
    assert read_identity(leaf.cert_pem) == Identity(
        pnode=A, cluster="home", role="worker", fingerprint=fingerprint(leaf.cert_pem)
    )


def test_leaf_is_p256_no_authority_and_for_both_ends_of_tls(leaf: Credentials) -> None:
    certificate = parsed(leaf)
    key = certificate.public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    assert key.curve.name == "secp256r1"
    constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints)
    assert (constraints.critical, constraints.value.ca) == (True, False)
    usage = certificate.extensions.get_extension_for_class(x509.KeyUsage).value
    assert (usage.digital_signature, usage.key_cert_sign) == (True, False)
    purposes = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert {purpose._name for purpose in purposes} == {"serverAuth", "clientAuth"}


def test_certificates_are_valid_from_1970_to_2049(authority: ClusterAuthority, leaf: Credentials) -> None:
    for certificate in (parsed(leaf), x509.load_pem_x509_certificate(authority.ca_pem)):
        assert certificate.not_valid_before_utc.year == 1970
        assert certificate.not_valid_after_utc.year == 2049


def test_fingerprint_is_the_sha256_of_the_der(leaf: Credentials) -> None:
    der = ssl.PEM_cert_to_DER_cert(leaf.cert_pem.decode())
    assert fingerprint(leaf.cert_pem) == hashlib.sha256(der).hexdigest()


def context(side: int, own: Credentials, folder: Path) -> ssl.SSLContext:
    made = ssl.SSLContext(side)
    path = folder / f"{fingerprint(own.cert_pem)}.pem"
    path.write_bytes(own.cert_pem + own.key_pem)
    made.load_cert_chain(path)
    made.load_verify_locations(cadata=own.ca_pem.decode())
    made.verify_mode = ssl.CERT_REQUIRED
    return made


def shake_hands(client: Credentials, server: Credentials, name: str, folder: Path) -> None:
    """A TLS handshake in memory with OpenSSL, both sides verifying."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    dialler = context(ssl.PROTOCOL_TLS_CLIENT, client, folder).wrap_bio(
        to_client, to_server, server_hostname=name
    )
    listener = context(ssl.PROTOCOL_TLS_SERVER, server, folder).wrap_bio(
        to_server, to_client, server_side=True
    )

    def step(action: Callable[[], object]) -> None:
        with contextlib.suppress(ssl.SSLWantReadError):
            action()

    for _ in range(4):
        step(dialler.do_handshake)
        step(listener.do_handshake)
    listener.write(b"welcome")
    assert dialler.read(7) == b"welcome"


def test_openssl_accepts_both_ends_under_the_expected_name(
    authority: ClusterAuthority, leaf: Credentials, tmp_path: Path
) -> None:
    shake_hands(leaf, authority.issue(B, "home", "orchestrator"), "c3d4-1.dcnr", tmp_path)


def test_openssl_refuses_another_name(authority: ClusterAuthority, leaf: Credentials, tmp_path: Path) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match="not valid for"):
        shake_hands(leaf, authority.issue(B, "home", "worker"), "a1b2-0.dcnr", tmp_path)


def test_openssl_refuses_a_leaf_of_another_authority(leaf: Credentials, tmp_path: Path) -> None:
    other = ClusterAuthority.create("home").issue(B, "home", "worker")
    with pytest.raises(ssl.SSLError):
        shake_hands(leaf, other, "c3d4-1.dcnr", tmp_path)


def test_authority_that_is_loaded_again_issues_for_the_same_cluster(
    authority: ClusterAuthority, leaf: Credentials, tmp_path: Path
) -> None:
    again = ClusterAuthority(authority.key_pem, authority.ca_pem)
    shake_hands(leaf, again.issue(B, "home", "worker"), "c3d4-1.dcnr", tmp_path)


def test_key_and_certificate_of_two_authorities_are_refused(authority: ClusterAuthority) -> None:
    with pytest.raises(RefusedError, match="do not belong together"):
        ClusterAuthority(ClusterAuthority.create("home").key_pem, authority.ca_pem)


def test_certified_key_stays_with_its_holder(authority: ClusterAuthority) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    public_pem = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    certificate = x509.load_pem_x509_certificate(authority.certify(public_pem, A, "home", "worker"))
    assert certificate.public_key() == key.public_key()


def test_ed25519_keys_are_not_certified(authority: ClusterAuthority) -> None:
    public_pem = (
        ed25519.Ed25519PrivateKey.generate()
        .public_key()
        .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    with pytest.raises(RefusedError, match="P-256"):
        authority.certify(public_pem, A, "home", "worker")


@pytest.mark.parametrize("text", ["", "../x", "a/b", "A", "a b"])
def test_names_that_could_mean_something_else_are_not_certified(
    authority: ClusterAuthority, text: str
) -> None:
    for names in ((PNodeId(text), "home", "worker"), (A, text, "worker"), (A, "home", text)):
        with pytest.raises(UserError):
            authority.issue(*names)


def test_printed_credentials_hide_the_private_key(leaf: Credentials) -> None:
    assert "PRIVATE" not in repr(leaf)
    assert fingerprint(leaf.cert_pem) in repr(leaf)


def test_certificate_without_names_is_no_identity(authority: ClusterAuthority) -> None:
    for pem in (authority.ca_pem, b"", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"):
        with pytest.raises(RefusedError):
            read_identity(pem)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, ""),
        ({"pnode": B}, "is not a member"),
        ({"cluster": "office"}, "belongs to cluster 'office'"),
        ({"fingerprint": "0" * 64}, "another certificate"),
        ({"role": "orchestrator"}, "admitted as 'worker'"),
    ],
)
def test_only_the_admitted_certificate_in_its_role_is_a_member(
    leaf: Credentials, change: dict[str, str], reason: str
) -> None:
    own = fingerprint(leaf.cert_pem)
    members = {A: Member(pnode=A, address="", fingerprint=own, role="worker")}
    facts = {"pnode": A, "cluster": "home", "role": "worker", "fingerprint": own, **change}
    answer = refuse_stranger(Identity(**facts), "home", members)  # type: ignore[arg-type]
    assert reason in answer
    assert bool(answer) == bool(reason)
