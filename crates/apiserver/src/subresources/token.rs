//! Token: `POST serviceaccounts/NAME/token`, answered by the token issuer.
use http::StatusCode;
use kelson_admission::Operation;
use kelson_meta::{Gvk, Status, format_seconds};
use kelson_patch::{FieldManager, FieldSet};

use crate::catalog::{ObjectSchema, Served};
use crate::request::answer::{self, Answer};
use crate::request::body::RequestBody;
use crate::shared::context::RequestContext;
use crate::write::admit::Admission;
use crate::write::decode;

/// Audit annotation: the ID of the issued credential, which its later users have in their extra fields.
const ISSUED_CREDENTIAL_ID: &str = "authentication.kubernetes.io/issued-credential-id";
/// Default lifetime of a token in seconds.
const EXPIRATION_DEFAULT_SECONDS: i64 = 3600;

/// Serves a token request.
///
/// # Errors
/// 400, 404, 409, 422; 404 for the path if the server issues no tokens.
pub async fn serve(cx: &RequestContext, served: &Served, body: RequestBody) -> Result<Answer, Status> {
    let accepted = cx.accept()?;
    let issuer = cx.server.auth.issuer.as_ref().ok_or_else(Status::no_such_path)?;
    let gvk = Gvk::new("authentication.k8s.io", "v1", "TokenRequest");
    let schema = ObjectSchema::builtin(&gvk.group, &gvk.version, &gvk.kind);
    let mut request = decode::object(cx, &gvk, &schema, &body.read().await?)?;
    let now = cx.server.clock.now();
    if request["spec"]["expirationSeconds"].is_null() {
        request["spec"]["expirationSeconds"] = EXPIRATION_DEFAULT_SECONDS.into();
    }
    let manager = FieldManager::new(schema.shape(), &gvk.api_version(), &gvk.kind, "token", FieldSet::default());
    manager.update(None, &mut request, &cx.manager(), &format_seconds(now));
    // Needed for NodeRestriction, which decides which tokens a node may request.
    let (name, dry_run) = (&cx.info.name, cx.dry_run()?);
    let admission = Admission { cx, served, kind: &gvk, operation: Operation::Create, name, dry_run, options: None };
    let request = admission.mutate(Some(request), None).await?;
    let request = admission.validate(request, None).await?.unwrap_or_default();
    let minted = issuer.answer(cx.server.objects.as_ref(), &cx.info.namespace, &cx.info.name, &request, now)?;
    cx.annotate(ISSUED_CREDENTIAL_ID, || minted.credential_id.clone());
    minted.warnings.iter().for_each(|w| cx.warn(w.clone()));
    answer::tree(StatusCode::CREATED, &accepted, &schema, minted.response)
}
