//! What the steps of one request share: the request without its body, who asks, what for, and what to tell them beside
//! the answer.
use std::net::IpAddr;
use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, Version};
use kelson_admission::Notes;
use kelson_auth::UserInfo;
use kelson_auth::token::uses::Remarks;
use kelson_codec::FieldValidation;
use kelson_meta::url::Query;
use kelson_meta::{FieldErrors, FieldPath, Status};
use kelson_schema::resource;
use kelson_store::Record;
use kelson_traces::{Current, KeyValue, Span};
use kelson_transport::TakesObjects;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::catalog::Served;
use crate::request::answer::warning;
use crate::request::negotiate::{self, Accepted, Unacceptable};
use crate::request::route::RequestInfo;
use crate::request::routes::Route;
use crate::request::selectors::ParsedSelectors;
use crate::request::view::ViewOptions;
use crate::shared::Server;
use crate::shared::flow::Permit;

/// Warnings sent with one answer, and bytes of them (upstream truncates beyond 4 KiB).
const WARNINGS_MAX: usize = 40;
const WARNING_BYTES_MAX: usize = 4096;

/// Say how a request was sorted.
const FLOW_SCHEMA_UID: HeaderName = HeaderName::from_static("x-kubernetes-pf-flowschema-uid");
const PRIORITY_LEVEL_UID: HeaderName = HeaderName::from_static("x-kubernetes-pf-prioritylevel-uid");

/// One request past authorization.
pub struct RequestContext {
    /// The parts that all requests share.
    pub server: Arc<Server>,
    /// The method of the request's head.
    pub method: Method,
    /// Path and query as they came.
    pub uri: Uri,
    /// The headers of the request.
    pub headers: HeaderMap,
    /// The query, decoded once per request.
    pub query: Query,
    /// What is asked.
    pub info: RequestInfo,
    /// Where it ends; `None` for the server's own paths and for what nobody serves.
    pub route: Option<Route>,
    /// `labelSelector` and `fieldSelector`.
    pub selectors: ParsedSelectors,
    /// The form of the answer, or why the client accepts none that there is.
    pub accepted: Result<Accepted, Unacceptable>,
    /// Names the request in logs on both sides.
    pub audit_id: HeaderValue,
    /// The span of the request, for those who work on its behalf.
    pub trace: Current,
    /// The version of HTTP.
    pub version: Version,
    /// The other end of the connection.
    pub peer: IpAddr,
    /// When the request must be over; one that lasts (a watch, a stream) has its beginning done by then.
    pub deadline: Instant,
    /// Something of the request is written to an audit log.
    pub audited: bool,
    /// Who asks, after impersonation.
    pub user: Arc<UserInfo>,
    /// A watcher of this process that reads objects instead of frames.
    pub takes_objects: Option<TakesObjects>,
    /// The pending upgrade of the connection, for streaming subresources.
    pub upgrade: Mutex<Option<hyper::upgrade::OnUpgrade>>,
    /// UIDs of the flow schema and of the priority level that the request was sorted into.
    pub sorted: Mutex<Option<[HeaderValue; 2]>>,
    /// What lets a watch begin; it gives that back when it has.
    pub beginning: Mutex<Option<Permit>>,
    /// The span of whoever makes the answer; who is not done with it when the answer begins takes it.
    pub handler_span: Mutex<Option<Span>>,
    /// Texts for `Warning` headers.
    pub warnings: Mutex<Vec<String>>,
    /// What authorization and admission left behind for the audit event: annotations, who refused, who changed the object.
    pub notes: Mutex<Notes>,
}

impl RequestContext {
    /// Adds a warning once.
    pub fn warn(&self, text: impl Into<String>) {
        let text = text.into();
        let mut warnings = self.warnings.lock();
        let bytes: usize = warnings.iter().map(String::len).sum();
        if !text.is_empty()
            && warnings.len() < WARNINGS_MAX
            && bytes + text.len() <= WARNING_BYTES_MAX
            && !warnings.contains(&text)
        {
            warnings.push(text);
        }
    }
    /// Puts the warnings into an answer's headers.
    pub fn put_warnings(&self, headers: &mut HeaderMap) {
        for text in self.warnings.lock().drain(..) {
            if let Some(value) = warning(&text) {
                headers.append(http::header::WARNING, value);
            }
        }
    }
    /// Says in an answer's headers how the request was sorted.
    pub fn put_sorted(&self, headers: &mut HeaderMap) {
        if let Some([schema, level]) = self.sorted.lock().take() {
            headers.insert(FLOW_SCHEMA_UID, schema);
            headers.insert(PRIORITY_LEVEL_UID, level);
        }
    }
    /// The form of the answer.
    ///
    /// # Errors
    /// 406.
    pub fn accept(&self) -> Result<Accepted, Status> {
        let list = matches!(self.info.verb, "list" | "watch");
        let (group, version) = (&self.info.group, &self.info.version);
        let compiled_in = || resource::group_versions().iter().any(|gv| gv.group == group && gv.version == version);
        negotiate::settled(&self.headers, self.accepted, list, compiled_in)
    }
    /// Choices for tables.
    ///
    /// # Errors
    /// 400.
    pub fn view(&self) -> Result<ViewOptions, Status> {
        ViewOptions::new(&self.query, self.server.clock.now())
    }
    /// Whether nothing is to be stored. The first that every write asks, so the other options are judged here too.
    ///
    /// # Errors
    /// 422 for a `dryRun` that is not `All`, a `fieldManager` that is long or cannot be printed, and an unknown `fieldValidation`.
    pub fn dry_run(&self) -> Result<bool, Status> {
        let mut errors = check_manager(self.query.text("fieldManager")).err().unwrap_or_default();
        let asked: Vec<&str> = self.query.all("dryRun").collect();
        if asked.iter().any(|value| !matches!(*value, "" | "All")) {
            errors.not_supported(&FieldPath::new("dryRun"), &asked, &["All"]);
        }
        if matches!(self.info.verb, "create" | "update" | "patch") {
            errors.extend(check_validation(self.query.text("fieldValidation")));
        }
        match errors.is_empty() {
            true => Ok(asked.contains(&"All")),
            false => Err(bad_options(self.verb_options(), &errors)),
        }
    }
    /// Notes something for the audit log, if it hears of this request.
    pub fn annotate(&self, key: &'static str, value: impl FnOnce() -> String) {
        if self.audited {
            self.notes.lock().annotate(key, value());
        }
    }
    /// Passes on what is to be told of the credentials.
    pub fn remark(&self, remarks: &Remarks) {
        remarks.warnings.iter().for_each(|text| self.warn(*text));
        remarks.annotations.iter().for_each(|(key, value)| self.annotate(key, || value.clone()));
    }
    /// A stored object in the request's namespace.
    ///
    /// # Errors
    /// 404.
    pub fn stored(&self, served: &Served, name: &str) -> Result<Arc<Record>, Status> {
        let found = self.server.store.get(served.store, self.namespace(served), name);
        found.ok_or_else(|| Status::not_found(&served.gr, name))
    }
    fn verb_options(&self) -> &'static str {
        match self.info.verb {
            "create" => "CreateOptions",
            "update" => "UpdateOptions",
            "patch" => "PatchOptions",
            _ => "DeleteOptions",
        }
    }
    /// Who owns the fields that a write sets: `fieldManager`, or the first word of the user agent.
    pub fn manager(&self) -> String {
        let given = self.query.text("fieldManager");
        if !given.is_empty() {
            return given.to_owned();
        }
        let agent = self.headers.get(http::header::USER_AGENT).and_then(|v| v.to_str().ok()).unwrap_or("");
        let mut name: String = agent.split('/').next().unwrap_or("").chars().filter(|c| !c.is_control()).collect();
        while name.len() > MANAGER_BYTES_MAX {
            name.pop();
        }
        if name.is_empty() { "unknown".to_owned() } else { name }
    }
    /// What spans of the store's work say of it.
    pub fn traced_storage(&self, served: &Served) -> Vec<KeyValue> {
        let audit_id = KeyValue::text("audit-id", self.audit_id.to_str().unwrap_or(""));
        vec![audit_id, KeyValue::text("type", served.gr.to_string())]
    }
    /// The namespace as the store keys it.
    pub fn namespace<'a>(&'a self, served: &Served) -> &'a str {
        if served.namespaced { &self.info.namespace } else { "" }
    }
    /// The requester as strategies see it.
    pub fn strategy_user(&self) -> kelson_resources::User<'_> {
        let u = &self.user;
        kelson_resources::User { name: &u.name, uid: &u.uid, groups: &u.groups, extra: &u.extra }
    }
    /// What a strategy's hooks run in.
    pub fn strategy_cx(&self) -> kelson_resources::Context<'_> {
        kelson_resources::Context { now: self.server.clock.now(), user: Some(self.strategy_user()) }
    }
    /// Takes over what work done on its behalf has to say: its warnings, and its notes for the audit log.
    pub fn absorb(&self, other: &Self) {
        std::mem::take(&mut *other.warnings.lock()).into_iter().for_each(|w| self.warn(w));
        let notes = std::mem::take(&mut *other.notes.lock());
        self.notes.lock().absorb(notes);
    }
    /// The same request under another `RequestInfo`, for work done on its behalf (eviction deletes a pod); see
    /// [`RequestContext::absorb`].
    pub fn derive(&self, info: RequestInfo) -> Self {
        Self {
            server: Arc::clone(&self.server),
            method: self.method.clone(),
            uri: self.uri.clone(),
            headers: self.headers.clone(),
            query: self.query.clone(),
            info,
            route: self.route.clone(),
            selectors: self.selectors.clone(),
            accepted: self.accepted,
            audit_id: self.audit_id.clone(),
            trace: self.trace.clone(),
            version: self.version,
            peer: self.peer,
            deadline: self.deadline,
            audited: self.audited,
            user: Arc::clone(&self.user),
            takes_objects: None,
            upgrade: Mutex::new(None),
            sorted: Mutex::default(),
            beginning: Mutex::default(),
            handler_span: Mutex::default(),
            warnings: Mutex::default(),
            notes: Mutex::default(),
        }
    }
}

fn check_validation(word: &str) -> FieldErrors {
    let mut errors = FieldErrors::new();
    if FieldValidation::parse(word).is_none() {
        let known = ["", "Ignore", "Strict", "Warn"];
        errors.not_supported(&FieldPath::new("fieldValidation"), word, &known);
    }
    errors
}

fn bad_options(options: &str, errors: &FieldErrors) -> Status {
    Status::invalid(&kelson_meta::GroupKind { group: "meta.k8s.io".into(), kind: options.into() }, "", errors)
}

/// Bytes of a manager's name, which every object it writes keeps (apimachinery `ValidateFieldManager`).
const MANAGER_BYTES_MAX: usize = 128;

fn check_manager(name: &str) -> Result<(), FieldErrors> {
    let mut errors = FieldErrors::new();
    let path = FieldPath::new("fieldManager");
    if name.len() > MANAGER_BYTES_MAX {
        errors.too_long(&path, MANAGER_BYTES_MAX);
    } else if let Some((at, c)) = name.char_indices().find(|(_, c)| c.is_control() || (c.is_whitespace() && *c != ' '))
    {
        errors.invalid(&path, name, format!("invalid character U+{:04X} (at position {at})", u32::from(c)));
    }
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_field_managers_are_short_and_printable() {
        let said = |name: &str| check_manager(name).err().map(|errors| errors.0[0].to_string());
        assert_eq!(said(""), None);
        assert_eq!(said(&"m".repeat(128)), None);
        assert_eq!(said("kubectl client-side é"), None);
        let long = said(&"m".repeat(129));
        assert_eq!(long.as_deref(), Some("fieldManager: Too long: may not be more than 128 bytes"));
        let line = said("a\nb").expect("refused");
        assert!(line.ends_with("invalid character U+000A (at position 1)"), "{line}");
    }
}
