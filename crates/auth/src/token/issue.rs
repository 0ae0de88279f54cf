//! The `token` subresource of service accounts: answers a TokenRequest with a token (upstream
//! `registry/core/serviceaccount/storage/token.go`).
use std::fmt;

use jiff::Timestamp;
use kelson_meta::{FieldErrors, FieldPath, GroupKind, GroupResource, Status, format_seconds, is_path_segment_name};
use kelson_pki::Key;
use serde::Deserialize;
use serde_json::{Value, json};
use uuid::Uuid;

use super::jwt::{self, Claims};
use super::{Bound, DEFAULT_ISSUER, EXTENDED_SECONDS, KubernetesClaims, WARN_ONLY_SECONDS};
use crate::objects::{Objects, decode};
use crate::user::service_account_username;

const EXPIRATION_DEFAULT_SECONDS: i64 = 3600;
const EXPIRATION_MIN_SECONDS: i64 = 600;
const EXPIRATION_MAX_SECONDS: i64 = 1 << 32;

/// The settings of issued tokens.
#[derive(Clone, Debug)]
pub struct IssuerOptions {
    /// The `iss` claim, a URL (`--service-account-issuer`).
    pub issuer: String,
    /// The value of `--api-audiences`, for requests without audiences.
    pub audiences: Vec<String>,
    /// The lifetimes of tokens.
    pub terms: TokenTerms,
}

/// Settings of a cluster's administrator for issued tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenTerms {
    /// The value of `--service-account-max-token-expiration` in seconds; longer requests are reduced to it.
    pub expiration_max_seconds: Option<i64>,
    /// The value of `--service-account-extend-token-expiration`: a pod's default token is valid for a year, with
    /// warnings after an hour.
    pub extend_expiration: bool,
    /// The value of `--service-account-jwks-uri`: the address of the keys, if not this server.
    pub jwks_uri: Option<String>,
}

impl Default for TokenTerms {
    fn default() -> Self {
        Self { expiration_max_seconds: None, extend_expiration: true, jwks_uri: None }
    }
}

impl Default for IssuerOptions {
    fn default() -> Self {
        Self {
            issuer: DEFAULT_ISSUER.to_owned(),
            audiences: vec![DEFAULT_ISSUER.to_owned()],
            terms: TokenTerms::default(),
        }
    }
}

/// Issues service account tokens.
#[derive(Clone, Debug)]
pub struct TokenIssuer {
    key: Key,
    options: IssuerOptions,
}

/// The answer to a TokenRequest. Its `Debug` output contains no token.
#[derive(Clone)]
pub struct MintedToken {
    /// The TokenRequest with `status.token` set. Secret.
    pub response: Value,
    /// The values of the client's `Warning` headers.
    pub warnings: Vec<String>,
    /// The value of the audit annotation `authentication.kubernetes.io/issued-credential-id`.
    pub credential_id: String,
}

impl fmt::Debug for MintedToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MintedToken").field("credential_id", &self.credential_id).finish_non_exhaustive()
    }
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct ObjectView {
    metadata: Meta,
    spec: Option<PodSpecView>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Meta {
    uid: String,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct PodSpecView {
    service_account_name: String,
    node_name: String,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct RequestView {
    metadata: RequestMeta,
    spec: RequestSpec,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RequestMeta {
    name: String,
    namespace: String,
    uid: String,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct RequestSpec {
    audiences: Option<Vec<String>>,
    expiration_seconds: Option<i64>,
    bound_object_ref: Option<BoundRef>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct BoundRef {
    kind: String,
    api_version: String,
    name: String,
    uid: String,
}

/// The object that a token is bound to.
#[derive(Default)]
struct TokenBinding {
    pod: Option<Bound>,
    node: Option<Bound>,
    secret: Option<Bound>,
}

fn token_request() -> GroupKind {
    GroupKind { group: "authentication.k8s.io".into(), kind: "TokenRequest".into() }
}

fn find(objects: &dyn Objects, resource: &str, namespace: &str, name: &str) -> Result<ObjectView, Status> {
    if name.is_empty() {
        return Err(Status::bad_request("Name parameter required."));
    }
    if let Err(faults) = is_path_segment_name(name) {
        return Err(Status::bad_request(format!("Name parameter invalid: {name:?}: {}", faults.join(";"))));
    }
    objects
        .get_live("", resource, namespace, name)
        .and_then(|b| decode(&b, resource))
        .ok_or_else(|| Status::not_found(&GroupResource::new("", resource), name))
}

impl TokenIssuer {
    /// Creates an issuer that signs with `key`.
    pub fn new(key: Key, options: IssuerOptions) -> Self {
        Self { key, options }
    }

    /// Returns the options.
    pub fn options(&self) -> &IssuerOptions {
        &self.options
    }

    /// Answers `POST …/serviceaccounts/NAME/token`. `request` is the decoded TokenRequest.
    pub fn answer(
        &self,
        objects: &dyn Objects,
        namespace: &str,
        name: &str,
        request: &Value,
        now: Timestamp,
    ) -> Result<MintedToken, Status> {
        let view = RequestView::deserialize(request).map_err(|e| Status::bad_request(e.to_string()))?;
        check_identity(&view, namespace, name)?;
        let account = find(objects, "serviceaccounts", namespace, name)?.metadata.uid;
        if !view.metadata.uid.is_empty() && view.metadata.uid != account {
            let why = format!(
                "the UID in the token request ({}) does not match the UID of the service account ({account})",
                view.metadata.uid
            );
            return Err(Status::conflict(&GroupResource::new("authentication.k8s.io", "TokenRequest"), name, &why));
        }
        let audiences = view.spec.audiences.filter(|a| !a.is_empty()).unwrap_or_else(|| self.options.audiences.clone());
        let mut seconds = view.spec.expiration_seconds.unwrap_or(EXPIRATION_DEFAULT_SECONDS);
        check_expiration(seconds)?;
        let binding = match &view.spec.bound_object_ref {
            Some(reference) => bind(objects, namespace, name, reference)?,
            None => TokenBinding::default(),
        };
        let mut warnings = Vec::new();
        if let Some(max) = self.options.terms.expiration_max_seconds.filter(|max| *max > 0 && seconds > *max) {
            warnings.push(format!("requested expiration of {seconds} seconds shortened to {max} seconds"));
            seconds = max;
        }
        let extend = self.options.terms.extend_expiration
            && binding.pod.is_some()
            && seconds == WARN_ONLY_SECONDS
            && audiences.iter().all(|a| self.options.audiences.contains(a));
        let (life, warnafter) =
            if extend { (EXTENDED_SECONDS, Some(now.as_second() + seconds)) } else { (seconds, None) };
        let bound_account = Bound { name: name.to_owned(), uid: account.clone() };
        let kubernetes = KubernetesClaims {
            namespace: namespace.to_owned(),
            node: binding.node,
            pod: binding.pod,
            secret: binding.secret,
            serviceaccount: bound_account,
            warnafter,
        };
        let (token, jti) = self.mint(&audiences, life, kubernetes, now)?;

        let mut response = request.clone();
        let end = Timestamp::from_second(now.as_second() + seconds).unwrap_or(now);
        if !response["metadata"].is_object() {
            response["metadata"] = json!({});
        }
        let meta = &mut response["metadata"];
        meta["name"] = name.into();
        meta["namespace"] = namespace.into();
        meta["uid"] = account.into();
        meta["creationTimestamp"] = format_seconds(now).into();
        response["apiVersion"] = "authentication.k8s.io/v1".into();
        response["kind"] = "TokenRequest".into();
        response["spec"]["audiences"] = json!(audiences);
        response["spec"]["expirationSeconds"] = seconds.into();
        response["status"] = json!({"token": token, "expirationTimestamp": format_seconds(end)});
        Ok(MintedToken { response, warnings, credential_id: format!("JTI={jti}") })
    }

    fn mint(
        &self,
        audiences: &[String],
        seconds: i64,
        kubernetes: KubernetesClaims,
        now: Timestamp,
    ) -> Result<(String, String), Status> {
        let at = now.as_second();
        let jti = Uuid::new_v4().to_string();
        let claims = Claims {
            aud: audiences.to_vec(),
            exp: Some(at + seconds),
            iat: Some(at),
            iss: self.options.issuer.clone(),
            jti: jti.clone(),
            nbf: Some(at),
            sub: service_account_username(&kubernetes.namespace, &kubernetes.serviceaccount.name),
            kubernetes: Some(kubernetes),
            ..Claims::default()
        };
        let token = jwt::sign(&self.key, &claims).ok_or_else(|| Status::internal("failed to generate token"))?;
        Ok((token, jti))
    }

    /// Returns a token for a secret of type `kubernetes.io/service-account-token`; it does not expire. Secret.
    pub fn legacy_token(
        &self,
        namespace: &str,
        account: &str,
        account_uid: &str,
        secret: &str,
    ) -> Result<String, Status> {
        let claims = Claims {
            iss: super::LEGACY_ISSUER.to_owned(),
            sub: service_account_username(namespace, account),
            legacy_namespace: namespace.to_owned(),
            legacy_secret: secret.to_owned(),
            legacy_name: account.to_owned(),
            legacy_uid: account_uid.to_owned(),
            ..Claims::default()
        };
        jwt::sign(&self.key, &claims).ok_or_else(|| Status::internal("failed to generate token"))
    }
}

fn check_identity(view: &RequestView, namespace: &str, name: &str) -> Result<(), Status> {
    let meta = FieldPath::new("metadata");
    let mut faults = FieldErrors::new();
    if !view.metadata.name.is_empty() && view.metadata.name != name {
        faults.invalid(&meta.child("name"), &view.metadata.name, "must match the service account name if specified");
    } else if !view.metadata.namespace.is_empty() && view.metadata.namespace != namespace {
        let why = "must match the service account namespace if specified";
        faults.invalid(&meta.child("namespace"), &view.metadata.namespace, why);
    }
    if faults.is_empty() { Ok(()) } else { Err(Status::invalid(&token_request(), name, &faults)) }
}

fn check_expiration(seconds: i64) -> Result<(), Status> {
    let path = FieldPath::new("spec").child("expirationSeconds");
    let mut faults = FieldErrors::new();
    if seconds < EXPIRATION_MIN_SECONDS {
        faults.invalid(&path, seconds, "may not specify a duration less than 10 minutes");
    }
    if seconds > EXPIRATION_MAX_SECONDS {
        faults.invalid(&path, seconds, "may not specify a duration larger than 2^32 seconds");
    }
    if faults.is_empty() { Ok(()) } else { Err(Status::invalid(&token_request(), "", &faults)) }
}

fn bind(objects: &dyn Objects, namespace: &str, account: &str, wanted: &BoundRef) -> Result<TokenBinding, Status> {
    let mut out = TokenBinding::default();
    let core = !wanted.api_version.contains('/');
    let bound = |name: &str, uid: &str| Some(Bound { name: name.to_owned(), uid: uid.to_owned() });
    let uid = match wanted.kind.as_str() {
        "Pod" if core => {
            let pod = find(objects, "pods", namespace, &wanted.name)?;
            let spec = pod.spec.unwrap_or_default();
            if spec.service_account_name != account {
                return Err(Status::bad_request(format!(
                    "cannot bind token for serviceaccount {account:?} to pod running with different serviceaccount name."
                )));
            }
            if !spec.node_name.is_empty() {
                // A node that does not exist (yet) is named without its UID.
                let uid = find(objects, "nodes", "", &spec.node_name).map(|n| n.metadata.uid).unwrap_or_default();
                out.node = bound(&spec.node_name, &uid);
            }
            out.pod = bound(&wanted.name, &pod.metadata.uid);
            pod.metadata.uid
        }
        "Node" if core => {
            let node = find(objects, "nodes", "", &wanted.name)?;
            out.node = bound(&wanted.name, &node.metadata.uid);
            node.metadata.uid
        }
        "Secret" if core => {
            let secret = find(objects, "secrets", namespace, &wanted.name)?;
            out.secret = bound(&wanted.name, &secret.metadata.uid);
            secret.metadata.uid
        }
        kind => {
            let (group, version) = wanted.api_version.split_once('/').unwrap_or(("", wanted.api_version.as_str()));
            let why = format!("cannot bind token to object of type {group}/{version}, Kind={kind}");
            return Err(Status::bad_request(why));
        }
    };
    if !wanted.uid.is_empty() && wanted.uid != uid {
        let group = wanted.api_version.split_once('/').map_or("", |(g, _)| g);
        let why = format!(
            "the UID in the bound object reference ({}) does not match the UID in record. The object might have been \
             deleted and then recreated",
            wanted.uid
        );
        return Err(Status::conflict(&GroupResource::new(group, &wanted.kind), &wanted.name, &why));
    }
    Ok(out)
}
