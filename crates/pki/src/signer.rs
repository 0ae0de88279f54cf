//! The rules of Kubernetes' built-in signers, and signing within them (upstream `controller/certificates/signer`,
//! `apis/certificates` helpers). Whether a request is approved was decided before.
use std::time::Duration;

use jiff::Timestamp;

use crate::authority::{DIGITAL_SIGNATURE, KEY_ENCIPHERMENT, Template, eku};
use crate::lifetime::BACKDATE;
use crate::{Authority, CertificateRequest, PkiError, San, der, pem};

/// Client certificates for the API server, any subject; never approved automatically.
pub const KUBE_APISERVER_CLIENT: &str = "kubernetes.io/kube-apiserver-client";
/// Client certificates of kubelets.
pub const KUBE_APISERVER_CLIENT_KUBELET: &str = "kubernetes.io/kube-apiserver-client-kubelet";
/// Serving certificates of kubelets.
pub const KUBELET_SERVING: &str = "kubernetes.io/kubelet-serving";
/// Anything; only through `certificates.k8s.io/v1beta1` or older tools.
pub const LEGACY_UNKNOWN: &str = "kubernetes.io/legacy-unknown";

/// Shortest lifetime signed: twice the back-dating.
const LIFETIME_MIN: Duration = Duration::from_secs(10 * 60);
/// Below this, back-dating does not shorten the end.
const SHORT_LIVED: Duration = Duration::from_secs(8 * 3600);

/// Why a signer will not sign: becomes condition `Failed`, reason `SignerValidationFailure`, with this message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SignerRefusal(pub String);

fn refuse<T>(why: &str) -> Result<T, SignerRefusal> {
    Err(SignerRefusal(why.to_owned()))
}

/// Checks a request against its signer's rules. `Ok(false)`: not one of the built-in signers, leave it alone.
pub fn validate_for_signer(
    signer: &str,
    request: &CertificateRequest,
    usages: &[String],
) -> Result<bool, SignerRefusal> {
    match signer {
        KUBELET_SERVING => validate_kubelet_serving(request, usages)?,
        KUBE_APISERVER_CLIENT_KUBELET => validate_kubelet_client(request, usages)?,
        KUBE_APISERVER_CLIENT => validate_client_usages(usages)?,
        LEGACY_UNKNOWN => {}
        _ => return Ok(false),
    }
    Ok(true)
}

fn validate_client_usages(usages: &[String]) -> Result<(), SignerRefusal> {
    for usage in usages {
        if !matches!(usage.as_str(), "digital signature" | "key encipherment" | "client auth") {
            return refuse(&format!("invalid usage for client certificate: {usage}"));
        }
    }
    if usages.iter().any(|u| u == "client auth") {
        Ok(())
    } else {
        refuse("missing required usage for client certificate: client auth")
    }
}

/// The rules of `kubernetes.io/kubelet-serving`, also what its approvers check.
pub fn validate_kubelet_serving(request: &CertificateRequest, usages: &[String]) -> Result<(), SignerRefusal> {
    nodes_only(request)?;
    if !request.has(|s| matches!(s, San::Dns(_) | San::Ip(_))) {
        return refuse("DNS or IP subjectAltName is required");
    }
    if request.has(|s| matches!(s, San::Email(_))) {
        return refuse("Email subjectAltNames are not allowed");
    }
    if request.has(|s| matches!(s, San::Uri(_))) {
        return refuse("URI subjectAltNames are not allowed");
    }
    exact_usages(usages, "server auth")?;
    node_name(request)
}

/// The rules of `kubernetes.io/kube-apiserver-client-kubelet`, also what its approvers check.
pub fn validate_kubelet_client(request: &CertificateRequest, usages: &[String]) -> Result<(), SignerRefusal> {
    nodes_only(request)?;
    if request.has(|s| matches!(s, San::Dns(_))) {
        return refuse("DNS subjectAltNames are not allowed");
    }
    if request.has(|s| matches!(s, San::Email(_))) {
        return refuse("Email subjectAltNames are not allowed");
    }
    if request.has(|s| matches!(s, San::Ip(_))) {
        return refuse("IP subjectAltNames are not allowed");
    }
    if request.has(|s| matches!(s, San::Uri(_))) {
        return refuse("URI subjectAltNames are not allowed");
    }
    node_name(request)?;
    exact_usages(usages, "client auth")
}

fn nodes_only(request: &CertificateRequest) -> Result<(), SignerRefusal> {
    if request.organizations == ["system:nodes"] { Ok(()) } else { refuse("subject organization is not system:nodes") }
}

fn node_name(request: &CertificateRequest) -> Result<(), SignerRefusal> {
    if request.common_name.starts_with("system:node:") {
        Ok(())
    } else {
        refuse("subject common name does not begin with system:node:")
    }
}

/// Exactly `digital signature`, `auth` and, optionally (RSA keys need it), `key encipherment`.
fn exact_usages(usages: &[String], auth: &str) -> Result<(), SignerRefusal> {
    let mut set: Vec<&str> = usages.iter().map(String::as_str).filter(|u| *u != "key encipherment").collect();
    set.sort_unstable();
    set.dedup();
    let mut want = ["digital signature", auth];
    want.sort_unstable();
    if set == want {
        return Ok(());
    }
    let mut full = ["digital signature", "key encipherment", auth];
    full.sort_unstable();
    refuse(&format!("usages did not match [{}]", full.join(" ")))
}

/// Signs an approved request: the subject and names as asked, usages as in the spec, no other extension passed on.
/// `expiration_seconds` is honoured between ten minutes and `lifetime_max`. Returns PEM,
/// of a server with the certificates up to the previous CA.
pub fn sign_request(
    ca: &Authority,
    request: &CertificateRequest,
    usages: &[String],
    expiration_seconds: Option<i32>,
    lifetime_max: Duration,
    now: Timestamp,
) -> Result<String, PkiError> {
    if now >= ca.info().not_after {
        let end = ca.info().not_after;
        return Err(PkiError::Request(format!(
            "refusing to sign a certificate that expired in the past: NotAfter={end}"
        )));
    }
    let (key_usage, extended) = usage_bits(usages)?;
    let asked = expiration_seconds.map(|s| Duration::from_secs(s.max(0) as u64)).unwrap_or(lifetime_max);
    let lifetime = if asked > lifetime_max { lifetime_max } else { asked.max(LIFETIME_MIN) };
    let end = if lifetime < SHORT_LIVED { lifetime } else { lifetime - BACKDATE };
    let der = ca.sign_template(&Template {
        subject: &request.subject,
        public: &request.public,
        not_before: now - BACKDATE,
        not_after: now + end,
        key_usage,
        extended_usages: &extended,
        sans: &request.sans,
        is_ca: false,
    })?;
    // A client certificate is checked by components that trust both CAs during a rotation. A server certificate is also
    // checked by clients that do not trust the new CA yet.
    let cross = if usages.iter().any(|usage| usage == "server auth") { ca.cross_pem() } else { "" };
    Ok(pem::pem_block("CERTIFICATE", &der) + cross)
}

/// Usage names of the API to KeyUsage bits and ExtendedKeyUsage OIDs.
fn usage_bits(usages: &[String]) -> Result<(u16, Vec<Vec<u8>>), PkiError> {
    let (mut bits, mut extended, mut unknown) = (0u16, Vec::new(), Vec::new());
    for usage in usages {
        let oid = match usage.as_str() {
            "signing" | "digital signature" => {
                bits |= DIGITAL_SIGNATURE;
                continue;
            }
            "content commitment" => {
                bits |= 1 << 1;
                continue;
            }
            "key encipherment" => {
                bits |= KEY_ENCIPHERMENT;
                continue;
            }
            "data encipherment" => {
                bits |= 1 << 3;
                continue;
            }
            "key agreement" => {
                bits |= 1 << 4;
                continue;
            }
            "cert sign" => {
                bits |= 1 << 5;
                continue;
            }
            "crl sign" => {
                bits |= 1 << 6;
                continue;
            }
            "encipher only" => {
                bits |= 1 << 7;
                continue;
            }
            "decipher only" => {
                bits |= 1 << 8;
                continue;
            }
            "any" => der::object_id(&[0x55, 0x1d, 0x25, 0x00]),
            "server auth" => eku(1),
            "client auth" => eku(2),
            "code signing" => eku(3),
            "email protection" | "s/mime" => eku(4),
            "ipsec end system" => eku(5),
            "ipsec tunnel" => eku(6),
            "ipsec user" => eku(7),
            "timestamping" => eku(8),
            "ocsp signing" => eku(9),
            "microsoft sgc" => der::object_id(&[0x2b, 0x06, 0x01, 0x04, 0x01, 0x82, 0x37, 0x0a, 0x03, 0x03]),
            "netscape sgc" => der::object_id(&[0x60, 0x86, 0x48, 0x01, 0x86, 0xf8, 0x42, 0x04, 0x01]),
            other => {
                unknown.push(format!("{other:?}"));
                continue;
            }
        };
        if !extended.contains(&oid) {
            extended.push(oid);
        }
    }
    if unknown.is_empty() {
        Ok((bits, extended))
    } else {
        Err(PkiError::Request(format!("unrecognized usage values: [{}]", unknown.join(" "))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CertInfo, Key, LEAF_LIFETIME, create_request};

    fn request(cn: &str, orgs: &[&str], sans: &[San]) -> CertificateRequest {
        let orgs: Vec<String> = orgs.iter().map(|o| (*o).to_owned()).collect();
        let key = Key::generate().unwrap();
        CertificateRequest::parse(&create_request(&key, cn, &orgs, sans).unwrap()).unwrap()
    }
    fn usages(list: &[&str]) -> Vec<String> {
        list.iter().map(|u| (*u).to_owned()).collect()
    }

    #[test]
    fn rules_of_each_signer() {
        let dns = San::Dns("n1".into());
        let ip = San::Ip("10.0.0.1".parse().unwrap());
        let uri = San::Uri("spiffe://x".into());
        let mail = San::Email("a@b".into());
        let client = ["digital signature", "client auth"];
        let client_rsa = ["digital signature", "key encipherment", "client auth"];
        let server = ["digital signature", "server auth"];
        let node = "system:node:n1";
        let nodes = ["system:nodes"];
        let k = KUBE_APISERVER_CLIENT_KUBELET;
        let s = KUBELET_SERVING;
        type Row<'a> = (&'a str, &'a str, &'a [&'a str], Vec<San>, &'a [&'a str], Result<bool, &'a str>);
        let rows: Vec<Row<'_>> = vec![
            (k, node, &nodes, vec![], &client, Ok(true)),
            (k, node, &nodes, vec![], &client_rsa, Ok(true)),
            (k, node, &["x"], vec![], &client, Err("subject organization is not system:nodes")),
            (k, node, &["system:nodes", "x"], vec![], &client, Err("subject organization is not system:nodes")),
            (k, "n1", &nodes, vec![], &client, Err("subject common name does not begin with system:node:")),
            (k, node, &nodes, vec![dns.clone()], &client, Err("DNS subjectAltNames are not allowed")),
            (k, node, &nodes, vec![ip.clone()], &client, Err("IP subjectAltNames are not allowed")),
            (k, node, &nodes, vec![mail.clone()], &client, Err("Email subjectAltNames are not allowed")),
            (k, node, &nodes, vec![uri.clone()], &client, Err("URI subjectAltNames are not allowed")),
            (
                k,
                node,
                &nodes,
                vec![],
                &server,
                Err("usages did not match [client auth digital signature key encipherment]"),
            ),
            (s, node, &nodes, vec![dns.clone()], &server, Ok(true)),
            (s, node, &nodes, vec![ip], &server, Ok(true)),
            (s, node, &nodes, vec![], &server, Err("DNS or IP subjectAltName is required")),
            (s, node, &nodes, vec![dns.clone(), uri], &server, Err("URI subjectAltNames are not allowed")),
            (s, node, &nodes, vec![dns.clone(), mail], &server, Err("Email subjectAltNames are not allowed")),
            (
                s,
                node,
                &nodes,
                vec![dns.clone()],
                &client,
                Err("usages did not match [digital signature key encipherment server auth]"),
            ),
            (s, "n1", &nodes, vec![dns], &server, Err("subject common name does not begin with system:node:")),
            (KUBE_APISERVER_CLIENT, "jane", &["dev", "ops"], vec![], &client_rsa, Ok(true)),
            (
                KUBE_APISERVER_CLIENT,
                "jane",
                &[],
                vec![],
                &server,
                Err("invalid usage for client certificate: server auth"),
            ),
            (
                KUBE_APISERVER_CLIENT,
                "jane",
                &[],
                vec![],
                &["digital signature"],
                Err("missing required usage for client certificate: client auth"),
            ),
            (LEGACY_UNKNOWN, "x", &[], vec![], &["signing"], Ok(true)),
            ("example.com/own", "x", &[], vec![], &["signing"], Ok(false)),
        ];
        for (signer, cn, orgs, sans, use_, want) in rows {
            let got = validate_for_signer(signer, &request(cn, orgs, &sans), &usages(use_));
            assert_eq!(got, want.map_err(|e| SignerRefusal(e.to_owned())), "{signer} {cn} {sans:?} {use_:?}");
        }
    }

    #[test]
    fn lifetimes_and_subject() {
        let now: Timestamp = "2026-05-06T07:08:09Z".parse().unwrap();
        let ca = Authority::create("ca", now).unwrap();
        let r = request("jane", &["dev", "ops"], &[]);
        let sign = |seconds| {
            let pem = sign_request(&ca, &r, &usages(&["client auth"]), seconds, LEAF_LIFETIME, now).unwrap();
            CertInfo::from_pem(&pem).unwrap()
        };
        let info = sign(None);
        assert_eq!((info.common_name.as_str(), info.organizations.len(), info.is_ca), ("jane", 2, false));
        assert_eq!(info.not_after, now + LEAF_LIFETIME - BACKDATE);
        assert_eq!(sign(Some(60)).not_after, now + LIFETIME_MIN);
        assert_eq!(sign(Some(3600)).not_after, now + Duration::from_secs(3600));
        assert_eq!(sign(Some(i32::MAX)).not_after, now + LEAF_LIFETIME - BACKDATE);
        let e = sign_request(&ca, &r, &usages(&["fly"]), None, LEAF_LIFETIME, now).unwrap_err();
        assert_eq!(e.to_string(), "unrecognized usage values: [\"fly\"]");
        let late = sign_request(&ca, &r, &[], None, LEAF_LIFETIME, ca.info().not_after);
        assert!(late.unwrap_err().to_string().starts_with("refusing to sign"));
    }
}
