//! The context of one request: its head without the body, its user, and what is sent or recorded besides the response.
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
use crate::request::negotiate::{self, Accepted, Unacceptable, View};
use crate::request::route::RequestInfo;
use crate::request::routes::Route;
use crate::request::selectors::ParsedSelectors;
use crate::request::view::ViewOptions;
use crate::shared::Server;
use crate::shared::flow::Permit;

/// Warnings sent with one response, and bytes of them (upstream truncates beyond 4 KiB).
const WARNINGS_MAX: usize = 40;
const WARNING_BYTES_MAX: usize = 4096;

/// Response headers with the classification of the request.
const FLOW_SCHEMA_UID: HeaderName = HeaderName::from_static("x-kubernetes-pf-flowschema-uid");
const PRIORITY_LEVEL_UID: HeaderName = HeaderName::from_static("x-kubernetes-pf-prioritylevel-uid");

/// The context of one authenticated request, which the filters and the handler share: the parsed head, the user after impersonation,
/// and the server. The fields with a `Mutex` are filled by one step and read by a later one, such as warnings for the response's headers
/// and notes for the audit event. Work on behalf of another request gets a context by [`RequestContext::derive`].
pub struct RequestContext {
    /// The parts that all requests share.
    pub server: Arc<Server>,
    /// The method of the request's head.
    pub method: Method,
    /// Path and query as they arrived.
    pub uri: Uri,
    /// The headers of the request.
    pub headers: HeaderMap,
    /// The query, decoded once.
    pub query: Query,
    /// The parsed path and verb.
    pub info: RequestInfo,
    /// The target; `None` for the server's own paths and for paths that are not served.
    pub route: Option<Route>,
    /// `labelSelector` and `fieldSelector`.
    pub selectors: ParsedSelectors,
    /// The negotiated form of the response, or why there is none.
    pub accepted: Result<Accepted, Unacceptable>,
    /// The ID that identifies the request in the logs of client and server.
    pub audit_id: HeaderValue,
    /// The request's span, the parent of spans of work on its behalf.
    pub trace: Current,
    /// The HTTP version.
    pub version: Version,
    /// The other end of the connection.
    pub peer: IpAddr,
    /// Deadline of the request; for a watch or stream, of its beginning.
    pub deadline: Instant,
    /// Whether an audit event is recorded for the request.
    pub audited: bool,
    /// The user, after impersonation.
    pub user: Arc<UserInfo>,
    /// Set by a watcher in this process that reads objects instead of encoded frames.
    pub takes_objects: Option<TakesObjects>,
    /// The pending upgrade of the connection, for streaming subresources.
    pub upgrade: Mutex<Option<hyper::upgrade::OnUpgrade>>,
    /// UIDs of the flow schema and the priority level of the request.
    pub classification: Mutex<Option<[HeaderValue; 2]>>,
    /// The permit under which a watch begins. It is released when the watch has begun.
    pub watch_permit: Mutex<Option<Permit>>,
    /// The handler's span. A handler that continues after the response has begun takes it.
    pub handler_span: Mutex<Option<Span>>,
    /// Values of `Warning` headers.
    pub warnings: Mutex<Vec<String>>,
    /// Notes of authorization and admission for the audit event: annotations, the plugin that rejected, plugins that changed the
    /// object.
    pub notes: Mutex<Notes>,
}

impl RequestContext {
    /// Adds a warning, unless it is a duplicate or exceeds the limits.
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
    /// Moves the warnings into a response's headers.
    pub fn put_warnings(&self, headers: &mut HeaderMap) {
        for text in self.warnings.lock().drain(..) {
            if let Some(value) = warning(&text) {
                headers.append(http::header::WARNING, value);
            }
        }
    }
    /// Adds the request's classification to a response's headers.
    pub fn put_classification(&self, headers: &mut HeaderMap) {
        if let Some([schema, level]) = self.classification.lock().take() {
            headers.insert(FLOW_SCHEMA_UID, schema);
            headers.insert(PRIORITY_LEVEL_UID, level);
        }
    }
    /// The negotiated form of the response.
    ///
    /// # Errors
    /// 406 if the client accepts no existing form.
    pub fn accept(&self) -> Result<Accepted, Status> {
        let list = matches!(self.info.verb, "list" | "watch");
        let (group, version) = (&self.info.group, &self.info.version);
        let compiled_in = || resource::group_versions().iter().any(|gv| gv.group == group && gv.version == version);
        negotiate::settle(&self.headers, self.accepted, list, compiled_in)
    }
    /// The options for tables, of which other forms of the response ignore what is unknown.
    ///
    /// # Errors
    /// 400 for an unknown value.
    pub fn view(&self, accepted: &Accepted) -> Result<ViewOptions, Status> {
        let now = self.server.clock.now();
        match ViewOptions::new(&self.query, now) {
            Err(_) if !matches!(accepted.view, View::Table(_)) => Ok(ViewOptions::usual(now)),
            options => options,
        }
    }
    /// Whether nothing is stored (`dryRun`). Every write calls this first, so it also validates the other options.
    ///
    /// # Errors
    /// 422 for a `dryRun` other than `All`, a `fieldManager` that is too long or not printable, and an unknown `fieldValidation`.
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
    /// Adds an audit annotation if the request is audited.
    pub fn annotate(&self, key: &'static str, value: impl FnOnce() -> String) {
        if self.audited {
            self.notes.lock().annotate(key, value());
        }
    }
    /// Adds the warnings and annotations about the credentials.
    pub fn add_remarks(&self, remarks: &Remarks) {
        remarks.warnings.iter().for_each(|text| self.warn(*text));
        remarks.annotations.iter().for_each(|(key, value)| self.annotate(key, || value.clone()));
    }
    /// Reads a stored object in the request's namespace.
    ///
    /// # Errors
    /// 404 if it does not exist.
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
    /// The owner of the fields that a write sets: `fieldManager`, or the beginning of the user agent.
    pub fn manager(&self) -> String {
        let given = self.query.text("fieldManager");
        if !given.is_empty() {
            return given.to_owned();
        }
        let agent = self.headers.get(http::header::USER_AGENT).and_then(|v| v.to_str().ok()).unwrap_or("");
        let mut name: String = agent.split('/').next().unwrap_or("").chars().filter(|c| is_print(*c)).collect();
        while name.len() > MANAGER_BYTES_MAX {
            name.pop();
        }
        if name.is_empty() { "unknown".to_owned() } else { name }
    }
    /// Attributes of the store's spans.
    pub fn storage_attributes(&self, served: &Served) -> Vec<KeyValue> {
        let audit_id = KeyValue::text("audit-id", self.audit_id.to_str().unwrap_or(""));
        vec![audit_id, KeyValue::text("type", served.gr.to_string())]
    }
    /// The namespace in the store's key; empty for cluster-scoped kinds.
    pub fn namespace<'a>(&'a self, served: &Served) -> &'a str {
        if served.namespaced { &self.info.namespace } else { "" }
    }
    /// The user in the form that strategies take.
    pub fn strategy_user(&self) -> kelson_resources::User<'_> {
        let u = &self.user;
        kelson_resources::User { name: &u.name, uid: &u.uid, groups: &u.groups, extra: &u.extra }
    }
    /// The context of a strategy's hooks.
    pub fn strategy_cx(&self) -> kelson_resources::Context<'_> {
        kelson_resources::Context { now: self.server.clock.now(), user: Some(self.strategy_user()) }
    }
    /// Takes over the warnings and audit notes of a derived context.
    pub fn absorb(&self, other: &Self) {
        std::mem::take(&mut *other.warnings.lock()).into_iter().for_each(|w| self.warn(w));
        let notes = std::mem::take(&mut *other.notes.lock());
        self.notes.lock().absorb(notes);
    }
    /// A context for work on behalf of this request with another `RequestInfo`: eviction deletes a pod, for example. See
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
            classification: Mutex::default(),
            watch_permit: Mutex::default(),
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

/// Limit of the bytes of a field manager's name, which every object that it writes stores (apimachinery `ValidateFieldManager`).
const MANAGER_BYTES_MAX: usize = 128;

fn check_manager(name: &str) -> Result<(), FieldErrors> {
    let mut errors = FieldErrors::new();
    let path = FieldPath::new("fieldManager");
    if name.len() > MANAGER_BYTES_MAX {
        errors.too_long(&path, MANAGER_BYTES_MAX);
    } else if let Some((at, c)) = name.char_indices().find(|(_, c)| !is_print(*c)) {
        errors.invalid(&path, name, format!("invalid character U+{:04X} (at position {at})", u32::from(c)));
    }
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

/// Whether a character is printable as in Go: a letter, mark, number, punctuation, symbol or space.
fn is_print(c: char) -> bool {
    if c.is_ascii() {
        return !c.is_ascii_control();
    }
    // Marks are escaped unless a letter precedes them.
    let mut behind_a_letter = String::from("a");
    behind_a_letter.push(c);
    behind_a_letter.escape_debug().count() == 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn field_manager_names_are_short_and_printable() {
        let said = |name: &str| check_manager(name).err().map(|errors| errors.0[0].to_string());
        assert_eq!(said(""), None);
        assert_eq!(said(&"m".repeat(128)), None);
        assert_eq!(said("kubectl client-side é"), None);
        let long = said(&"m".repeat(129));
        assert_eq!(long.as_deref(), Some("fieldManager: Too long: may not be more than 128 bytes"));
        let line = said("a\nb").expect("rejected");
        assert!(line.ends_with("invalid character U+000A (at position 1)"), "{line}");
        for odd in ['\u{feff}', '\u{200b}', '\u{a0}', '\u{2028}', '\u{ad}', '\u{e000}', '\t', '\u{7f}'] {
            assert!(said(&format!("a{odd}")).is_some(), "{odd:?}");
        }
        for fine in ["e\u{301}", "\"'\\", "日本", "😀", "~"] {
            assert_eq!(said(fine), None, "{fine}");
        }
    }
}
