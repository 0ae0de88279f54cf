//! CertificateApproval, CertificateSigning, CertificateSubjectRestriction, ClusterTrustBundleAttest: permissions to
//! approve, sign and attest, by signer.
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use kelson_auth::{Attributes as Request, Authorizer, UserInfo};
use kelson_meta::{FieldErrors, FieldPath, GroupKind, Status};
use kelson_pki::{CertificateRequest, KUBE_APISERVER_CLIENT};
use serde_json::Value;

use crate::{Attributes, Dependencies, Notes, Operation, Operations, Plugin};
use kelson_meta::tree::path::{at, text};
use kelson_meta::tree::same;

const GROUP: &str = "certificates.k8s.io";

/// Reports whether `user` has the permission `verb` for `signer`, by its name or by its whole domain (`example.com/*`).
fn may(authorizer: &dyn Authorizer, user: &UserInfo, verb: &str, signer: &str) -> bool {
    let ask = |name: &str| authorizer.authorize(&Request::resource(user, verb, GROUP, "signers", "", name)).is_allow();
    let domain = signer.split('/').next().unwrap_or_default();
    ask(signer) || ask(&format!("{domain}/*"))
}

fn signer(csr: &Value) -> &str {
    text(csr, &["spec", "signerName"])
}

/// Decodes the request inside a CertificateSigningRequest object.
pub(crate) fn request_of(csr: &Value) -> Result<CertificateRequest, String> {
    let pem = STANDARD.decode(text(csr, &["spec", "request"])).ok().and_then(|b| String::from_utf8(b).ok());
    CertificateRequest::parse(&pem.unwrap_or_default()).map_err(|e| e.to_string())
}

/// Approving or denying requires the permission `approve` for the signer.
pub struct CertificateApproval {
    authorizer: Arc<dyn Authorizer>,
}

impl CertificateApproval {
    /// Creates the plugin with the authorizer of the dependencies.
    pub fn new(d: &Dependencies) -> Self {
        Self { authorizer: d.authorizer.clone() }
    }
}

impl Plugin for CertificateApproval {
    fn name(&self) -> &'static str {
        "CertificateApproval"
    }
    fn handles(&self, op: Operation) -> bool {
        Operations::UPDATE.contains(op)
    }
    fn validate(&self, a: &Attributes<'_>, _: &mut Notes) -> Result<(), Status> {
        if a.subresource != "approval" || !a.is(GROUP, "certificatesigningrequests") {
            return Ok(());
        }
        // The stored signer name: an update may try to change it.
        let signer = signer(a.stored());
        if may(self.authorizer.as_ref(), a.user, "approve", signer) {
            return Ok(());
        }
        Err(a.forbidden(&format!("user not permitted to approve requests with signerName {signer:?}")))
    }
}

/// Setting the certificate or its conditions requires the permission `sign` for the signer.
pub struct CertificateSigning {
    authorizer: Arc<dyn Authorizer>,
}

impl CertificateSigning {
    /// Creates the plugin with the authorizer of the dependencies.
    pub fn new(d: &Dependencies) -> Self {
        Self { authorizer: d.authorizer.clone() }
    }

    /// Checks an update of a PodCertificateRequest's status. Upstream returns the error of validation here.
    fn judge_of_pod(&self, a: &Attributes<'_>) -> Result<(), Status> {
        let signer = signer(a.stored());
        if same(at(a.stored(), &["status"]), at(a.new_object(), &["status"]))
            || may(self.authorizer.as_ref(), a.user, "sign", signer)
        {
            return Ok(());
        }
        let why = format!("User {:?} is not permitted to \"sign\" for signer {signer:?}", a.user.name);
        let mut errors = FieldErrors::new();
        errors.forbidden(&FieldPath::new("spec").child("signerName"), why);
        let kind = GroupKind { group: GROUP.into(), kind: "PodCertificateRequest".into() };
        Err(Status::invalid(&kind, a.object_name(), &errors))
    }
}

impl Plugin for CertificateSigning {
    fn name(&self) -> &'static str {
        "CertificateSigning"
    }
    fn handles(&self, op: Operation) -> bool {
        Operations::UPDATE.contains(op)
    }
    fn validate(&self, a: &Attributes<'_>, _: &mut Notes) -> Result<(), Status> {
        let of_pod = a.is(GROUP, "podcertificaterequests");
        if a.subresource != "status" || !(of_pod || a.is(GROUP, "certificatesigningrequests")) {
            return Ok(());
        }
        if of_pod {
            return self.judge_of_pod(a);
        }
        let unchanged = |field: &str| same(at(a.stored(), &["status", field]), at(a.new_object(), &["status", field]));
        let signer = signer(a.stored());
        if (unchanged("certificate") && unchanged("conditions"))
            || may(self.authorizer.as_ref(), a.user, "sign", signer)
        {
            return Ok(());
        }
        Err(a.forbidden(&format!("user not permitted to sign requests with signerName {signer:?}")))
    }
}

/// Setting a signer's trust bundle requires the permission `attest` for the signer.
pub struct ClusterTrustBundleAttest {
    authorizer: Arc<dyn Authorizer>,
}

impl ClusterTrustBundleAttest {
    /// Creates the plugin with the authorizer of the dependencies.
    pub fn new(d: &Dependencies) -> Self {
        Self { authorizer: d.authorizer.clone() }
    }
}

/// Reports whether an update only changes fields that the garbage collector sets.
fn only_collected(old: &Value, new: &Value) -> bool {
    let bare = |object: &Value| {
        let mut object = object.clone();
        if let Some(meta) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            for field in ["ownerReferences", "finalizers", "managedFields", "resourceVersion", "generation"] {
                meta.remove(field);
            }
        }
        object
    };
    same(&bare(old), &bare(new))
}

impl Plugin for ClusterTrustBundleAttest {
    fn name(&self) -> &'static str {
        "ClusterTrustBundleAttest"
    }
    fn handles(&self, op: Operation) -> bool {
        Operations::WRITE.contains(op)
    }
    fn validate(&self, a: &Attributes<'_>, _: &mut Notes) -> Result<(), Status> {
        // A bundle without a signer needs no permission besides writing it.
        if !a.is(GROUP, "clustertrustbundles") || signer(a.new_object()).is_empty() {
            return Ok(());
        }
        if a.operation == Operation::Update && only_collected(a.stored(), a.new_object()) {
            return Ok(());
        }
        let signer = signer(a.new_object());
        if may(self.authorizer.as_ref(), a.user, "attest", signer) {
            return Ok(());
        }
        Err(a.forbidden(&format!("user not permitted to attest for signerName {signer:?}")))
    }
}

/// Rejects certificate requests for the group `system:masters`.
pub struct CertificateSubjectRestriction;

impl Plugin for CertificateSubjectRestriction {
    fn name(&self) -> &'static str {
        "CertificateSubjectRestriction"
    }
    fn handles(&self, op: Operation) -> bool {
        Operations::CREATE.contains(op)
    }
    fn validate(&self, a: &Attributes<'_>, _: &mut Notes) -> Result<(), Status> {
        if !a.is_main(GROUP, "certificatesigningrequests") || signer(a.new_object()) != KUBE_APISERVER_CLIENT {
            return Ok(());
        }
        let request = request_of(a.new_object()).map_err(|e| a.forbidden(&format!("failed to parse CSR: {e}")))?;
        if request.organizations.iter().any(|o| o == "system:masters") {
            return Err(a.forbidden(&format!(
                "use of {KUBE_APISERVER_CLIENT} signer with system:masters group is not allowed"
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Ask, dependencies, object};
    use kelson_pki::{Key, create_request};
    use serde_json::json;

    const CSR: &str = "certificates.k8s.io/certificatesigningrequests";

    #[tokio::test]
    async fn approving_and_signing() {
        let d = dependencies(&[]);
        let csr = |signer: &str, status: Value| json!({"metadata": {"name": "x"}, "spec": {"signerName": signer}, "status": status});
        let approve = |user: &str, signer: &str| {
            let resource = "certificates.k8s.io/certificatesigningrequests/approval";
            let ask = Ask::update(resource, csr(signer, json!({})), csr("example.com/a", json!({}))).by(user, "g");
            object(CertificateApproval::new(&d), ask)
        };
        assert!(approve("signer", "example.com/a").await.is_ok() && approve("root", "other.io/x").await.is_ok());
        assert!(
            approve("signer", "other.io/x")
                .await
                .unwrap_err()
                .ends_with("is forbidden: user not permitted to approve requests with signerName \"other.io/x\"")
        );
        let sign = |user: &str, status: Value| {
            let resource = "certificates.k8s.io/certificatesigningrequests/status";
            let ask = Ask::update(resource, csr("other.io/x", json!({})), csr("other.io/x", status)).by(user, "g");
            object(CertificateSigning::new(&d), ask)
        };
        assert!(sign("jane", json!({"certificate": null, "conditions": []})).await.is_ok());
        assert!(sign("jane", json!({"certificate": "eA=="})).await.unwrap_err().contains("not permitted to sign"));
        assert!(sign("root", json!({"certificate": "eA=="})).await.is_ok());
    }

    #[tokio::test]
    async fn masters_by_request() {
        let ask = |signer: &str, org: &str| {
            let pem = create_request(&Key::generate().unwrap(), "x", &[org.to_owned()], &[]).unwrap();
            let csr =
                json!({"metadata": {"name": "x"}, "spec": {"signerName": signer, "request": STANDARD.encode(pem)}});
            object(CertificateSubjectRestriction, Ask::create(CSR, csr))
        };
        assert!(ask(KUBE_APISERVER_CLIENT, "dev").await.is_ok());
        assert!(ask("example.com/a", "system:masters").await.is_ok());
        assert!(
            ask(KUBE_APISERVER_CLIENT, "system:masters")
                .await
                .unwrap_err()
                .ends_with("system:masters group is not allowed")
        );
        let junk = json!({"metadata": {"name": "x"}, "spec": {"signerName": KUBE_APISERVER_CLIENT, "request": "eA=="}});
        assert!(
            object(CertificateSubjectRestriction, Ask::create(CSR, junk))
                .await
                .unwrap_err()
                .contains("failed to parse CSR")
        );
    }

    #[tokio::test]
    async fn vouching_for_a_signer() {
        const BUNDLES: &str = "certificates.k8s.io/clustertrustbundles";
        let d = dependencies(&[]);
        let bundle = |signer: &str, pem: &str, owners: Value| json!({"metadata": {"name": "b", "ownerReferences": owners}, "spec": {"signerName": signer, "trustBundle": pem}});
        let ask = |ask: Ask<'static>, user: &str| object(ClusterTrustBundleAttest::new(&d), ask.by(user, "g"));
        let create = |signer: &str| Ask::create(BUNDLES, bundle(signer, "x", json!([])));
        assert!(ask(create("example.com/a"), "signer").await.is_ok());
        assert!(ask(create(""), "jane").await.is_ok());
        assert_eq!(
            ask(create("other.io/a"), "jane").await.unwrap_err(),
            "clustertrustbundles.certificates.k8s.io \"b\" is forbidden: user not permitted to attest for signerName \
             \"other.io/a\""
        );
        let update = |pem: &str, owners: Value| {
            Ask::update(BUNDLES, bundle("other.io/a", "x", json!([])), bundle("other.io/a", pem, owners))
        };
        assert!(ask(update("x", json!([{"name": "o"}])), "jane").await.is_ok());
        assert!(ask(update("y", json!([])), "jane").await.is_err());
    }
}
