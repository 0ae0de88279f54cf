//! Files a CertificateSigningRequest and awaits its certificate by a watch (upstream: client-go
//! `util/certificate/csr`, `pkg/kubelet/certificate/bootstrap`).
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kelson_client::{Client, ClientError, ListParams, WatchEvent};
use kelson_meta::Clock;
use kelson_pki::{CertificateRequest, Key, San, create_request};
use parking_lot::Mutex;
use serde_json::json;
use sha2::{Digest, Sha512_256};

use crate::CertError;

/// The pause after a broken watch.
const RETRY: Duration = Duration::from_secs(1);
/// The interval at which a pending request is logged.
const REPORT_FIRST: Duration = Duration::from_secs(5);
const REPORT_AGAIN: Duration = Duration::from_secs(60);

/// The requested certificate.
#[derive(Debug)]
pub struct RequestedCertificate<'a> {
    /// The key of the certificate.
    pub key: &'a Key,
    /// The subject's `CN`, which is the user name.
    pub common_name: String,
    /// The subject's `O`, which are the groups.
    pub organizations: Vec<String>,
    /// Names and addresses.
    pub sans: Vec<San>,
    /// The signer, such as `kubernetes.io/kubelet-serving`.
    pub signer: &'static str,
    /// `client auth` or `server auth`.
    pub usage: &'static str,
}

impl RequestedCertificate<'_> {
    fn usages(&self) -> Vec<&'static str> {
        // Only RSA keys encipher keys.
        match self.key.public().is_rsa() {
            true => vec!["digital signature", self.usage, "key encipherment"],
            false => vec!["digital signature", self.usage],
        }
    }
}

/// `node-csr-` and a digest of everything that matters, each part encoded and delimited, so that no two requests share it
/// and a retry finds its own. For a client certificate it is upstream's name of 1.36.
pub fn digested_name(wanted: &RequestedCertificate<'_>) -> String {
    let mut hash = Sha512_256::new();
    let mut write = |data: &[u8]| {
        hash.update(URL_SAFE_NO_PAD.encode(data));
        hash.update(b"|");
    };
    write(wanted.key.public().spki());
    write(wanted.common_name.as_bytes());
    wanted.organizations.iter().for_each(|o| write(o.as_bytes()));
    wanted.usages().iter().for_each(|u| write(u.as_bytes()));
    wanted.sans.iter().for_each(|san| write(format!("{san:?}").as_bytes()));
    format!("node-csr-{}", URL_SAFE_NO_PAD.encode(hash.finalize()))
}

/// The result of a request.
#[derive(Debug)]
pub struct Answered {
    /// The issued certificate chain, PEM.
    pub cert_pem: String,
    /// The request's name.
    pub name: String,
    /// Whether the request was there before, and perhaps its certificate too.
    pub found: bool,
}

/// Creates the request, or finds the same earlier one, and waits for its certificate.
///
/// # Errors
/// The request is rejected, denied, failed, deleted, or not decided within `limit`.
pub async fn certificate(
    client: &Client,
    wanted: &RequestedCertificate<'_>,
    limit: Duration,
    clock: &dyn Clock,
) -> Result<Answered, CertError> {
    let text = create_request(wanted.key, &wanted.common_name, &wanted.organizations, &wanted.sans)?;
    let usages = wanted.usages();
    let name = digested_name(wanted);
    let object = json!({"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
        "metadata": {"name": name},
        "spec": {"request": STANDARD.encode(&text), "signerName": wanted.signer, "usages": usages}});
    let (filed, found) = match client.create::<CertificateSigningRequest>("", &object).await {
        Ok(csr) => (csr, false),
        Err(e) if e.is_already_exists() => {
            let found: CertificateSigningRequest = client.get("", &name).await?;
            compatible(&found, &text, wanted, clock)?;
            tracing::info!(name, "certificate signing request already exists, reusing it");
            (found, true)
        }
        Err(e) => return Err(e.into()),
    };
    let wait = Wait { client, name: &name, uid: filed.metadata.uid.unwrap_or_default(), trouble: Mutex::default() };
    let cert_pem = tokio::select! {
        waited = tokio::time::timeout(limit, wait.run()) => waited.map_err(|_| CertError::Timeout(name.clone()))??,
        never = wait.report() => match never {},
    };
    if ended(&cert_pem, clock) {
        return Err(CertError::Expired(name));
    }
    Ok(Answered { cert_pem, name, found })
}

/// Whether a certificate has ended, or is none.
fn ended(pem: &str, clock: &dyn Clock) -> bool {
    kelson_pki::CertInfo::from_pem(pem).is_ok_and(|info| info.not_after < clock.now())
}

fn compatible(
    found: &CertificateSigningRequest,
    text: &str,
    wanted: &RequestedCertificate<'_>,
    clock: &dyn Clock,
) -> Result<(), CertError> {
    let theirs = CertificateRequest::parse(&String::from_utf8_lossy(&found.spec.request.0))?;
    let ours = CertificateRequest::parse(text)?;
    let same = theirs.public == ours.public
        && theirs.common_name == ours.common_name
        && theirs.organizations == ours.organizations
        && theirs.sans == ours.sans
        && found.spec.signer_name == wanted.signer;
    let name = found.metadata.name.clone().unwrap_or_default();
    let issued = found.status.as_ref().and_then(|s| s.certificate.as_ref()).map(|c| String::from_utf8_lossy(&c.0));
    match issued {
        _ if !same => Err(CertError::Incompatible(name)),
        Some(pem) if ended(&pem, clock) => Err(CertError::Expired(name)),
        _ => Ok(()),
    }
}

/// Waits for one request to be decided.
struct Wait<'a> {
    client: &'a Client,
    name: &'a str,
    uid: String,
    /// The last problem, for the log.
    trouble: Mutex<Option<String>>,
}

impl Wait<'_> {
    async fn run(&self) -> Result<String, CertError> {
        // A server that does not support watch-list is asked for a list, as client-go does. If its etcd does not report
        // progress, it starts such a stream and ends it with an error every time.
        let mut streams = true;
        loop {
            let outcome = match streams {
                true => self.stream(&mut streams).await,
                false => self.list_and_watch().await,
            };
            match outcome {
                Ok(Some(decided)) => return decided,
                Ok(None) => {}
                Err(e) => {
                    tracing::debug!(csr = self.name, error = %e, "watching the certificate signing request failed");
                    *self.trouble.lock() = Some(e.to_string());
                }
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Says what is waited for, after a few seconds and from then on.
    async fn report(&self) -> std::convert::Infallible {
        let mut pause = REPORT_FIRST;
        loop {
            tokio::time::sleep(pause).await;
            pause = REPORT_AGAIN;
            let trouble = self.trouble.lock().take();
            let trouble = trouble.as_deref().unwrap_or("none");
            tracing::info!(
                csr = self.name,
                trouble,
                "waiting for the certificate signing request to be approved and signed"
            );
        }
    }

    fn params(&self) -> ListParams {
        ListParams::default().with_fields(format!("metadata.name={}", self.name))
    }

    /// One watch that begins with what is there. Clears `whole` when that part did not come to its end.
    async fn stream(&self, whole: &mut bool) -> Result<Option<Result<String, CertError>>, ClientError> {
        *whole = false;
        let mut watch = self.client.watch::<CertificateSigningRequest>("", &self.params(), true).await?;
        let mut seen = false;
        while let Some(event) = watch.next().await? {
            match event {
                WatchEvent::Bookmark { initial_end: true, .. } => {
                    *whole = true;
                    if !seen {
                        return Ok(Some(Err(CertError::Deleted(self.name.to_owned()))));
                    }
                }
                other => {
                    seen = true;
                    if let Some(decided) = self.judge(&other) {
                        return Ok(Some(decided));
                    }
                }
            }
        }
        Ok(None)
    }

    async fn list_and_watch(&self) -> Result<Option<Result<String, CertError>>, ClientError> {
        let list = self.client.list::<CertificateSigningRequest>("", &self.params()).await?;
        let Some(found) = list.items.into_iter().find(|csr| csr.metadata.name.as_deref() == Some(self.name)) else {
            return Ok(Some(Err(CertError::Deleted(self.name.to_owned()))));
        };
        if let Some(decided) = self.judge(&WatchEvent::Added(found)) {
            return Ok(Some(decided));
        }
        let params = ListParams { resource_version: list.metadata.resource_version, ..self.params() };
        let mut watch = self.client.watch::<CertificateSigningRequest>("", &params, false).await?;
        while let Some(event) = watch.next().await? {
            if let Some(decided) = self.judge(&event) {
                return Ok(Some(decided));
            }
        }
        Ok(None)
    }

    /// Returns the result that an event decides, if any.
    fn judge(&self, event: &WatchEvent<CertificateSigningRequest>) -> Option<Result<String, CertError>> {
        let deleted = || Some(Err(CertError::Deleted(self.name.to_owned())));
        match event {
            WatchEvent::Bookmark { .. } => None,
            // A request with the same name and another UID belongs to another client, so the own one was deleted.
            WatchEvent::Added(csr) | WatchEvent::Modified(csr) if csr.metadata.uid.as_deref() == Some(&*self.uid) => {
                outcome(csr, self.name)
            }
            _ => deleted(),
        }
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
        let wanted = |cn: &str, org: &str| RequestedCertificate {
            key: &key,
            common_name: cn.into(),
            organizations: vec![org.into()],
            sans: vec![],
            signer: kelson_pki::KUBE_APISERVER_CLIENT_KUBELET,
            usage: "client auth",
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
