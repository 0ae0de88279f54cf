//! Files a CertificateSigningRequest and awaits its certificate by a watch (upstream: client-go
//! `util/certificate/csr`, `pkg/kubelet/certificate/bootstrap`).
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kelson_client::{Client, ListParams, WatchEvent};
use kelson_pki::{CertificateRequest, Key, San, create_request};
use serde_json::json;
use sha2::{Digest, Sha512_256};

use super::CertError;

/// Between watches that broke.
const RETRY: Duration = Duration::from_secs(1);

/// What is asked for.
#[derive(Debug)]
pub struct Wanted<'a> {
    /// The key that the certificate is to be for.
    pub key: &'a Key,
    /// The subject's `CN`, the user it is to be.
    pub common_name: String,
    /// The subject's `O`, the groups it is to be in.
    pub organizations: Vec<String>,
    /// Names and addresses.
    pub sans: Vec<San>,
    /// The signer that is asked, such as `kubernetes.io/kubelet-serving`.
    pub signer: &'static str,
    /// `client auth` or `server auth`.
    pub usage: &'static str,
    /// Name of the request; `None`: a generated one.
    pub name: Option<String>,
}

impl Wanted<'_> {
    fn usages(&self) -> Vec<&'static str> {
        // Only RSA keys encipher keys.
        match self.key.public().is_rsa() {
            true => vec!["digital signature", "key encipherment", self.usage],
            false => vec!["digital signature", self.usage],
        }
    }
}

/// `node-csr-` and a digest of everything that matters, each part encoded and delimited, so that no two requests share it
/// and a retry finds its own.
pub fn digested_name(wanted: &Wanted<'_>) -> String {
    let mut hash = Sha512_256::new();
    let mut write = |data: &[u8]| {
        hash.update(URL_SAFE_NO_PAD.encode(data));
        hash.update(b"|");
    };
    write(wanted.key.public().spki());
    write(wanted.common_name.as_bytes());
    wanted.organizations.iter().for_each(|o| write(o.as_bytes()));
    wanted.usages().iter().for_each(|u| write(u.as_bytes()));
    format!("node-csr-{}", URL_SAFE_NO_PAD.encode(hash.finalize()))
}

/// Files the request (or finds the same one of before) and waits for its certificate, as PEM.
pub async fn certificate(client: &Client, wanted: &Wanted<'_>, limit: Duration) -> Result<String, CertError> {
    let text = create_request(wanted.key, &wanted.common_name, &wanted.organizations, &wanted.sans)?;
    let usages = wanted.usages();
    let metadata = match &wanted.name {
        Some(n) => json!({"name": n}),
        None => json!({"generateName": "csr-"}),
    };
    let object = json!({"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": metadata,
        "spec": {"request": STANDARD.encode(&text), "signerName": wanted.signer, "usages": usages}});
    let filed = match client.create::<CertificateSigningRequest>("", &object).await {
        Ok(csr) => csr,
        Err(e) if e.status().is_some_and(|s| s.code == 409) && wanted.name.is_some() => {
            let name = wanted.name.as_deref().unwrap_or_default();
            let found: CertificateSigningRequest = client.get("", name).await?;
            compatible(&found, &text, wanted)?;
            tracing::info!(name, "certificate signing request already exists, reusing it");
            found
        }
        Err(e) => return Err(e.into()),
    };
    let name = filed.metadata.name.clone().unwrap_or_default();
    let waited =
        tokio::time::timeout(limit, wait(client, &name, filed.metadata.uid.as_deref().unwrap_or_default())).await;
    waited.map_err(|_| CertError::Timeout(name))?
}

fn compatible(found: &CertificateSigningRequest, text: &str, wanted: &Wanted<'_>) -> Result<(), CertError> {
    let theirs = CertificateRequest::parse(&String::from_utf8_lossy(&found.spec.request.0))?;
    let ours = CertificateRequest::parse(text)?;
    let same = theirs.public == ours.public
        && theirs.common_name == ours.common_name
        && theirs.organizations == ours.organizations
        && found.spec.signer_name == wanted.signer;
    if same { Ok(()) } else { Err(CertError::Incompatible(found.metadata.name.clone().unwrap_or_default())) }
}

async fn wait(client: &Client, name: &str, uid: &str) -> Result<String, CertError> {
    let params = ListParams::default().with_fields(format!("metadata.name={name}"));
    loop {
        match client.watch::<CertificateSigningRequest>("", &params, true).await {
            Ok(mut watch) => loop {
                match watch.next().await {
                    Ok(Some(WatchEvent::Added(csr) | WatchEvent::Modified(csr))) => {
                        if csr.metadata.uid.as_deref() == Some(uid)
                            && let Some(done) = outcome(&csr, name)
                        {
                            return done;
                        }
                    }
                    Ok(Some(WatchEvent::Deleted(_) | WatchEvent::Bookmark { .. })) => {}
                    Ok(None) => break,
                    Err(e) => {
                        tracing::debug!(error = %e, "watch of a certificate signing request broke");
                        break;
                    }
                }
            },
            Err(e) => tracing::debug!(error = %e, "certificate signing request not watched"),
        }
        tokio::time::sleep(RETRY).await;
    }
}

fn outcome(csr: &CertificateSigningRequest, name: &str) -> Option<Result<String, CertError>> {
    let status = csr.status.as_ref()?;
    for c in status.conditions.iter().flatten() {
        let (reason, message) = (c.reason.clone().unwrap_or_default(), c.message.clone().unwrap_or_default());
        let name = name.to_owned();
        match c.type_.as_str() {
            "Denied" => return Some(Err(CertError::Denied { name, reason, message })),
            "Failed" => return Some(Err(CertError::Failed { name, reason, message })),
            _ => {}
        }
    }
    let approved = status.conditions.iter().flatten().any(|c| c.type_ == "Approved");
    let certificate = status.certificate.as_ref().filter(|c| approved && !c.0.is_empty())?;
    Some(Ok(String::from_utf8_lossy(&certificate.0).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn names_are_unambiguous_and_stable() {
        let key = Key::generate().expect("key");
        let wanted = |cn: &str, org: &str| Wanted {
            key: &key,
            common_name: cn.into(),
            organizations: vec![org.into()],
            sans: vec![],
            signer: kelson_pki::KUBE_APISERVER_CLIENT_KUBELET,
            usage: "client auth",
            name: None,
        };
        let a = digested_name(&wanted("foo", "bar"));
        assert_eq!(a, digested_name(&wanted("foo", "bar")));
        assert_ne!(a, digested_name(&wanted("foob", "ar")));
        assert!(a.starts_with("node-csr-") && a.len() == "node-csr-".len() + 43);
    }

    #[test]
    fn outcomes() {
        let csr = |status: Value| -> CertificateSigningRequest {
            let spec = json!({"request": "", "signerName": "x", "usages": []});
            serde_json::from_value(json!({"metadata": {"name": "n"}, "spec": spec, "status": status})).expect("csr")
        };
        assert!(outcome(&csr(json!({})), "n").is_none());
        let condition = |t: &str| json!([{"type": t, "status": "True", "reason": "R", "message": "M"}]);
        assert!(outcome(&csr(json!({"conditions": condition("Approved")})), "n").is_none());
        let pem = STANDARD.encode("PEM");
        let issued = csr(json!({"conditions": condition("Approved"), "certificate": pem}));
        assert_eq!(outcome(&issued, "n").expect("done").expect("certificate"), "PEM");
        let denied = outcome(&csr(json!({"conditions": condition("Denied")})), "n").expect("done").expect_err("denied");
        assert_eq!(denied.to_string(), "certificate signing request n is denied, reason: R, message: M");
    }
}
