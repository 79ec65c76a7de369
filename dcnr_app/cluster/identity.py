"""Who a PNode is: the cluster's small CA, leaf certificates, and what a certificate says. No network.

Leaves are ECDSA P-256 (gRPC refuses Ed25519), CA:FALSE, SAN DNS `<pnode>.dcnr`, SAN URI `dcnr://<cluster>/<role>`.
All are valid 1970-2049, so that a wrong clock locks nobody out: the membership, not time, revokes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from dcnr_app.cluster.transport import Member
from dcnr_app.errors import RefusedError
from dcnr_app.ids import PNodeId, check_id

_VALID_FROM: Final = datetime(1970, 1, 1, tzinfo=UTC)
_VALID_UNTIL: Final = datetime(2049, 12, 31, 23, 59, 59, tzinfo=UTC)
_DNS_SUFFIX: Final = ".dcnr"
_URI_SCHEME: Final = "dcnr://"
AGENT_ROLE: Final = "agent"


class Credentials(msgspec.Struct, frozen=True, kw_only=True):
    """What a PNode proves itself with: certificate chain, private key and the cluster's CA, all PEM."""

    cert_pem: bytes
    key_pem: bytes
    ca_pem: bytes

    def __repr__(self) -> str:
        """Without the private key, so that no log can hold it."""
        return f"Credentials(fingerprint={fingerprint(self.cert_pem)})"


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """What a certificate says about its holder."""

    pnode: PNodeId
    cluster: str
    role: str
    fingerprint: str


def agent_id(machine: str) -> PNodeId:
    """The id under which a machine's agent speaks to others."""
    return PNodeId(f"agent-{machine}")


def pnode_id(machine: str, ordinal: int) -> PNodeId:
    """The id of the PNode that runs on a machine's device number `ordinal`."""
    return PNodeId(f"{machine}-{ordinal}")


def dns_name(pnode: PNodeId) -> str:
    """The name that a PNode's certificate carries and a client demands."""
    return f"{pnode}{_DNS_SUFFIX}"


def fingerprint(cert_pem: bytes) -> str:
    """sha256 of the certificate's DER, hex. Raises RefusedError if it is no certificate."""
    return hashlib.sha256(_load(cert_pem).public_bytes(serialization.Encoding.DER)).hexdigest()


def read_identity(cert_pem: bytes) -> Identity:
    """PNode, cluster and role from the certificate's alternative names. Raises RefusedError if they are not
    there."""
    certificate = _load(cert_pem)
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        (dns,) = names.get_values_for_type(x509.DNSName)
        (uri,) = names.get_values_for_type(x509.UniformResourceIdentifier)
        cluster, role = uri.removeprefix(_URI_SCHEME).split("/")
    except (x509.ExtensionNotFound, x509.DuplicateExtension, ValueError) as error:
        raise RefusedError("the certificate names no PNode", why=str(error)) from error
    if not dns.endswith(_DNS_SUFFIX) or not uri.startswith(_URI_SCHEME):
        raise RefusedError("the certificate names no PNode", why=f"it carries {dns!r} and {uri!r}")
    return Identity(
        pnode=PNodeId(dns.removesuffix(_DNS_SUFFIX)),
        cluster=cluster,
        role=role,
        fingerprint=fingerprint(cert_pem),
    )


def check_certificate(cert_pem: bytes, ca_pem: bytes, public_key_pem: bytes, wanted: Identity) -> None:
    """Raise RefusedError unless the CA issued this certificate to this key under the wanted PNode, cluster
    and role (its `fingerprint` is not looked at), and it cannot issue others."""
    certificate, authority = _load(cert_pem), _load(ca_pem)
    try:
        certificate.verify_directly_issued_by(authority)
    except (InvalidSignature, ValueError, TypeError) as error:
        raise RefusedError("the certificate is not from this cluster's authority", why=str(error)) from error
    if certificate.public_key() != serialization.load_pem_public_key(public_key_pem):
        raise RefusedError("the certificate is for another key than the one that was sent")
    try:
        constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
    except (x509.ExtensionNotFound, x509.DuplicateExtension, ValueError) as error:
        raise RefusedError("the certificate does not say whether it may issue others") from error
    if constraints.ca:
        raise RefusedError("the certificate may issue others, which no PNode's may")
    found = read_identity(cert_pem)
    if (found.pnode, found.cluster, found.role) != (wanted.pnode, wanted.cluster, wanted.role):
        raise RefusedError(
            "the certificate names another PNode than the one that asked",
            why=f"{found.pnode} as {found.role} in {found.cluster}, "
            f"not {wanted.pnode} as {wanted.role} in {wanted.cluster}",
        )


def refuse_stranger(identity: Identity, cluster: str, members: Mapping[PNodeId, Member]) -> str:
    """Why the holder of a valid certificate is not a current member, or an empty text."""
    member = members.get(identity.pnode)
    if identity.cluster != cluster:
        return f"{identity.pnode} belongs to cluster {identity.cluster!r}, not {cluster!r}"
    if member is None:
        return f"{identity.pnode} is not a member of this cluster"
    if member.fingerprint != identity.fingerprint:
        return f"{identity.pnode} shows another certificate than the one it was admitted with"
    if member.role != identity.role:
        return f"{identity.pnode} is admitted as {member.role!r}, its certificate says {identity.role!r}"
    return ""


class ClusterAuthority:
    """The cluster's certificate authority: an ECDSA P-256 key that the orchestrator alone holds."""

    def __init__(self, key_pem: bytes, ca_pem: bytes) -> None:
        key = serialization.load_pem_private_key(key_pem, password=None)
        certificate = _load(ca_pem)
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
            raise RefusedError("the cluster's key and certificate do not belong together")
        self._key = key
        self._certificate = certificate
        self.ca_pem = ca_pem

    @classmethod
    def create(cls, cluster: str) -> ClusterAuthority:
        """A new authority with a fresh key."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = _name(f"dcnr cluster {check_id(cluster, 'cluster')}"[:64])
        certificate = (
            _builder(name, name, key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(signs_certificates=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        return cls(_private_pem(key), certificate.public_bytes(serialization.Encoding.PEM))

    @property
    def key_pem(self) -> bytes:
        """The private key, for the file that keeps it."""
        return _private_pem(self._key)

    def certify(self, public_key_pem: bytes, pnode: PNodeId, cluster: str, role: str) -> bytes:
        """A leaf certificate (PEM) for a key that its holder made. Raises RefusedError if it is not
        P-256."""
        public_key = serialization.load_pem_public_key(public_key_pem)
        if not isinstance(public_key, ec.EllipticCurvePublicKey) or public_key.curve.name != "secp256r1":
            raise RefusedError("only ECDSA P-256 keys are certified", why="gRPC speaks no other in its TLS")
        uri = f"{_URI_SCHEME}{check_id(cluster, 'cluster')}/{check_id(role, 'role')}"
        names = [
            x509.DNSName(dns_name(PNodeId(check_id(pnode, "PNode")))),
            x509.UniformResourceIdentifier(uri),
        ]
        issuer_key = self._key.public_key()
        certificate = (
            _builder(_name("dcnr pnode"), self._certificate.subject, public_key)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
                critical=False,
            )
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return certificate.public_bytes(serialization.Encoding.PEM)

    def issue(self, pnode: PNodeId, cluster: str, role: str) -> Credentials:
        """A fresh key with its certificate, for a PNode on this machine."""
        key = ec.generate_private_key(ec.SECP256R1())
        public_pem = key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        return Credentials(
            cert_pem=self.certify(public_pem, pnode, cluster, role),
            key_pem=_private_pem(key),
            ca_pem=self.ca_pem,
        )


def _load(cert_pem: bytes) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(cert_pem)
    except ValueError as error:
        raise RefusedError("not a certificate", why=str(error)) from error


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _builder(
    subject: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    return x509.CertificateBuilder(
        issuer_name=issuer,
        subject_name=subject,
        public_key=public_key,
        serial_number=x509.random_serial_number(),
        not_valid_before=_VALID_FROM,
        not_valid_after=_VALID_UNTIL,
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
