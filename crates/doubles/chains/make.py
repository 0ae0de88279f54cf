#!/usr/bin/env python3
"""Writes rows.txt: certificate chains of every kind that a TLS peer may show, with the answer that Go's x509.Verify gives.
Usage: make.py FILE. Needs pyca/cryptography."""
import base64, datetime, ipaddress, sys
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID, ExtendedKeyUsageOID as E

def day(y): return datetime.datetime(y, 1, 1)
LONG = (day(2020), day(2219)); ENDED = (day(2020), day(2021)); FUTURE = (day(2218), day(2219))
p256 = lambda: ec.generate_private_key(ec.SECP256R1())
leaf_key, root_key, mid_key, other_key = p256(), p256(), p256(), p256()
p521_key = ec.generate_private_key(ec.SECP521R1())
rsa_key, small_key = rsa.generate_private_key(65537, 2048), rsa.generate_private_key(65537, 1024)

def name(cn, o=None):
    parts = [x509.NameAttribute(NameOID.COMMON_NAME, cn)]
    return x509.Name(([x509.NameAttribute(NameOID.ORGANIZATION_NAME, o)] if o else []) + parts)

def cert(subject, key, issuer, issuer_key, when=LONG, ca=None, path=None, usage=None, eku=None, names=None, constraints=None, extra=None, algorithm=None):
    b = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    b = b.serial_number(x509.random_serial_number()).not_valid_before(when[0]).not_valid_after(when[1])
    if ca is not None: b = b.add_extension(x509.BasicConstraints(ca, path), True)
    if usage is not None:
        flags = dict.fromkeys("digital_signature content_commitment key_encipherment data_encipherment key_agreement key_cert_sign crl_sign encipher_only decipher_only".split(), False)
        flags.update({k: True for k in usage}); b = b.add_extension(x509.KeyUsage(**flags), True)
    if eku: b = b.add_extension(x509.ExtendedKeyUsage(eku), False)
    if names: b = b.add_extension(x509.SubjectAlternativeName(names), False)
    if constraints: b = b.add_extension(constraints, True)
    if extra: b = b.add_extension(extra, True)
    return b.sign(issuer_key, algorithm or hashes.SHA256())

ROOT, MID, LEAF = name("root"), name("intermediate"), name("jane", "system:masters")
SAN = [x509.DNSName("server.example.com"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
SIGN = ["key_cert_sign", "crl_sign"]

def root(**k):
    key = k.pop("key", root_key)
    return cert(ROOT, key, ROOT, key, **{"ca": True, "usage": SIGN, **k})
def mid(**k): return cert(MID, mid_key, ROOT, root_key, **{"ca": True, "usage": SIGN, **k})

def rows(mine, other):
    leaf = lambda by=(ROOT, root_key), **k: cert(LEAF, leaf_key, *by, **{"eku": [mine], "names": SAN, "usage": ["digital_signature"], **k})
    below = lambda **k: leaf(by=(MID, mid_key), **k)
    own = lambda **k: cert(LEAF, leaf_key, LEAF, leaf_key, **{"eku": [mine], "names": SAN, **k})
    dns = lambda permitted, excluded: x509.NameConstraints([x509.DNSName(n) for n in permitted] or None, [x509.DNSName(n) for n in excluded] or None)
    yes, no = True, False
    yield "a leaf of a root", yes, [leaf()], [root()]
    yield "a root with an RSA key", yes, [leaf(by=(ROOT, rsa_key))], [root(key=rsa_key)]
    yield "a root with a P-521 key", yes, [leaf(by=(ROOT, p521_key), algorithm=hashes.SHA512())], [root(key=p521_key)]
    # Go takes this one; keys of so few bits are refused here.
    yield "a root with an RSA key of 1024 bits", no, [leaf(by=(ROOT, small_key))], [root(key=small_key)]
    yield "a leaf below an intermediate", yes, [below(), mid()], [root()]
    yield "a leaf below an intermediate that is not shown", no, [below()], [root()]
    yield "an intermediate that is no authority", no, [below(), mid(ca=False)], [root()]
    yield "an intermediate for another use", no, [below(), mid(eku=[other])], [root()]
    yield "an intermediate that may not sign certificates", no, [below(), mid(usage=["digital_signature"])], [root()]
    yield "an intermediate below a root of path length 0", no, [below(), mid()], [root(path=0)]
    yield "a leaf below a root of path length 0", yes, [leaf()], [root(path=0)]
    yield "a leaf that has expired", no, [leaf(when=ENDED)], [root()]
    yield "a leaf that is not valid yet", no, [leaf(when=FUTURE)], [root()]
    yield "a leaf for another use", no, [leaf(eku=[other])], [root()]
    yield "a leaf without a use", yes, [leaf(eku=None)], [root()]
    yield "a leaf for another use and any", yes, [leaf(eku=[other, E.ANY_EXTENDED_KEY_USAGE])], [root()]
    yield "a leaf that says it is an authority", yes, [leaf(ca=True)], [root()]
    yield "a leaf with an unknown critical extension", no, [leaf(extra=x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4"), b"\x05\x00"))], [root()]
    yield "a root that is no authority", no, [leaf()], [root(ca=False)]
    yield "a root without basic constraints", no, [leaf()], [root(ca=None)]
    yield "a root that may not sign certificates", no, [leaf()], [root(usage=["digital_signature"])]
    yield "a root that has expired", no, [leaf()], [root(when=ENDED)]
    yield "a root that is not valid yet", no, [leaf()], [root(when=FUTURE)]
    yield "a root for another use", no, [leaf()], [root(eku=[other])]
    yield "a root for this use", yes, [leaf()], [root(eku=[mine])]
    yield "a root with the same name and another key", no, [leaf()], [root(key=other_key)]
    yield "names that the root permits", yes, [leaf()], [root(constraints=x509.NameConstraints([x509.DNSName("example.com"), x509.IPAddress(ipaddress.ip_network("127.0.0.0/8"))], None))]
    yield "names that the root does not permit", no, [leaf()], [root(constraints=dns(["example.org"], []))]
    yield "names that the root excludes", no, [leaf()], [root(constraints=dns([], ["example.com"]))]
    for what, answer, facts in [
        ("a leaf that is in the bundle", yes, {}),
        ("a leaf that is in the bundle as no authority", yes, {"ca": False}),
        ("a leaf that is in the bundle as an authority", yes, {"ca": True}),
        ("a leaf that is in the bundle and has expired", no, {"when": ENDED}),
        ("a leaf that is in the bundle for another use", no, {"eku": [other]}),
    ]:
        pinned = [own(**facts)]
        yield what, answer, pinned, pinned
    yield "a self-signed leaf that is not in the bundle", no, [own(ca=True)], [root()]

b64 = lambda der: base64.b64encode(der).decode()
out = open(sys.argv[1], "w")
der = lambda c: c.public_bytes(serialization.Encoding.DER)
key = leaf_key.private_bytes(serialization.Encoding.DER, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
out.write("key " + b64(key) + "\n")
for use, mine, other in [("client", E.CLIENT_AUTH, E.SERVER_AUTH), ("server", E.SERVER_AUTH, E.CLIENT_AUTH)]:
    for what, ok, chain, bundle in rows(mine, other):
        out.write(f"row {use} {'accepted' if ok else 'refused'} {what}\n")
        for c in chain: out.write("shown " + b64(der(c)) + "\n")
        for c in bundle: out.write("bundle " + b64(der(c)) + "\n")
