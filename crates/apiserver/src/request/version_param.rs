//! `resourceVersion`, `resourceVersionMatch` and `continue`: the revision that a read sees.
use base64::Engine as _;
use base64::alphabet::URL_SAFE;
use base64::engine::general_purpose::{GeneralPurpose, NO_PAD};
use jiff::Timestamp;
use kelson_meta::url::{Query, unread_number};
use kelson_meta::{Reason, Status};
use kelson_store::{ListView, Store, StoreError};
use serde::{Deserialize, Serialize};

use crate::catalog::Served;
use crate::request::list_options::{self, ReadOperation};
use crate::request::selectors::Selectors;

/// Like Go's decoder, it ignores the bits that are left over after the last byte.
const TOKEN_ENCODING: GeneralPurpose = GeneralPurpose::new(&URL_SAFE, NO_PAD.with_decode_allow_trailing_bits(true));

/// The meaning of a `resourceVersion` (`resourceVersionMatch`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Match {
    /// The parameter is absent; the meaning depends on other parameters.
    Unset,
    NotOlderThan,
    Exact,
}

/// Parses a `resourceVersion`; `None` if it is absent or empty.
///
/// # Errors
/// 500 if it is not a number. Upstream parses it first in its storage, where the error gets no reason.
pub fn parse(text: &str) -> Result<Option<u64>, Status> {
    if text.is_empty() {
        return Ok(None);
    }
    // Rust accepts a leading plus sign, upstream does not.
    let digits = if text.starts_with('+') { "+" } else { text };
    digits.parse().map(Some).map_err(|e| {
        let why = format!("resourceVersion: Invalid value: {text:?}: {}", unread_number("ParseUint", text, &e));
        Status::failure(500, Reason::Unknown, why)
    })
}

/// Seconds after which a position in a paged list expires, whether or not anything changed. Upstream's expires when etcd compacts its
/// history, every five minutes. Clients can then start a new list or read an inconsistent remainder.
const CONTINUE_AGE_MAX_S: i64 = 300;

/// Position in a paged list. Clients treat it as opaque. Except for the time, it is upstream's format, so that another server on the
/// same storage, Kelson's or upstream's, can continue a list.
#[derive(Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Continue {
    #[serde(rename = "v")]
    api_version: String,
    /// Revision of all pages; -1 once that revision is compacted and the client chose an inconsistent remainder.
    #[serde(rename = "rv")]
    pub revision: i64,
    /// The first key of the next page, relative to what is listed: the last object that was sent as `namespace/name` (or `name` in a
    /// list of one namespace or of a cluster-scoped kind), followed by a 0 byte.
    #[serde(rename = "start")]
    start: String,
    /// Time when the list began, in seconds since the epoch; 0 if another server began it.
    #[serde(rename = "t", default, skip_serializing_if = "is_zero")]
    pub begun_s: i64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands a reference")]
fn is_zero(n: &i64) -> bool {
    *n == 0
}

/// The error for bytes that are not a token, in the words of Go's decoder.
fn decode_error(json: &[u8], error: &serde_json::Error) -> String {
    match json.first() {
        Some(byte @ 0x80..0xa0) => format!("invalid character '\\u{byte:04x}' looking for beginning of value"),
        Some(byte @ 0xa0..) => format!("invalid character '{}' looking for beginning of value", char::from(*byte)),
        _ => match kelson_codec::json::decode(None, json, false) {
            Err(why) => why.to_string(),
            Ok(_) => error.to_string(),
        },
    }
}

impl Continue {
    /// A position after an object. `namespace` is the object's namespace in a list of all namespaces, else empty; `begun_s` is the time
    /// when the list began.
    pub fn after(revision: i64, namespace: &str, name: &str, begun_s: i64) -> Self {
        let start = if namespace.is_empty() { format!("{name}\0") } else { format!("{namespace}/{name}\0") };
        Self { api_version: "meta.k8s.io/v1".into(), revision, start, begun_s }
    }
    pub fn token(&self) -> String {
        TOKEN_ENCODING.encode(serde_json::to_vec(self).unwrap_or_default())
    }
    /// Parses a token.
    ///
    /// # Errors
    /// 400 for an invalid token.
    pub fn parse(token: &str) -> Result<Self, Status> {
        let bad = |why: &str| Status::bad_request(format!("invalid continue token: continue key is not valid: {why}"));
        let bytes = TOKEN_ENCODING.decode(token).map_err(|e| {
            use base64::DecodeError::{InvalidByte, InvalidLastSymbol, InvalidLength, InvalidPadding};
            let at = match e {
                InvalidByte(at, _) | InvalidLastSymbol(at, _) => at,
                // The beginning of the last, incomplete group of characters.
                InvalidLength(_) => token.len() - token.len() % 4,
                InvalidPadding => token.len(),
            };
            bad(&format!("illegal base64 data at input byte {at}"))
        })?;
        let token: Self = kelson_meta::from_json(&bytes).map_err(|e| bad(&decode_error(&bytes, &e)))?;
        if token.api_version != "meta.k8s.io/v1" {
            return Err(bad(&format!("server does not recognize this encoded version {}", token.api_version)));
        }
        if token.revision == 0 {
            return Err(bad("incorrect encoded start resourceVersion (version meta.k8s.io/v1)"));
        }
        if token.start.is_empty() {
            return Err(bad("encoded start key empty (version meta.k8s.io/v1)"));
        }
        // Reject path traversal. A key may begin with one slash, which is skipped.
        let start = token.start.strip_prefix('/').unwrap_or(&token.start);
        if start.split('/').any(|part| ["", ".", ".."].contains(&part)) {
            return Err(bad(&token.start));
        }
        Ok(token)
    }
    /// Namespace and name of the object after which the list continues. `listed` is the namespace of a list of one namespace.
    pub fn start_after<'a>(&'a self, listed: Option<&'a str>) -> (&'a str, &'a str) {
        let start = self.start.strip_prefix('/').unwrap_or(&self.start);
        let last = start.strip_suffix('\0').unwrap_or(start);
        match listed {
            Some(namespace) => (namespace, last),
            None => last.split_once('/').unwrap_or(("", last)),
        }
    }
    /// The same position at the newest revision.
    fn inconsistent(&self) -> Self {
        Self { api_version: self.api_version.clone(), revision: -1, start: self.start.clone(), begun_s: 0 }
    }
}

/// The parameters of a list.
pub struct ListParams {
    /// Page size; 0 means all.
    pub limit: usize,
    /// Position at which the list continues.
    pub position: Option<Continue>,
    now_s: i64,
    revision: Option<u64>,
    matching: Match,
}

impl ListParams {
    /// Parses and checks the parameters of a request that arrived at `now`.
    ///
    /// # Errors
    /// 400 and 422 as upstream.
    pub fn new(query: &Query, now: Timestamp) -> Result<Self, Status> {
        list_options::check(query, ReadOperation::List)?;
        let matching = match query.text("resourceVersionMatch") {
            "NotOlderThan" => Match::NotOlderThan,
            "Exact" => Match::Exact,
            _ => Match::Unset,
        };
        let limit = query.integer("limit")?.unwrap_or(0).max(0);
        let token = query.text("continue");
        let text = query.text("resourceVersion");
        let revision =
            parse(text).map_err(|e| Status::bad_request(format!("invalid resource version: {}", e.message)))?;
        let position = if token.is_empty() { None } else { Some(Continue::parse(token)?) };
        if position.is_some() && revision.is_some_and(|r| r != 0) {
            return Err(Status::bad_request("specifying resource version is not allowed when using continue"));
        }
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        Ok(Self { limit, position, now_s: now.as_second(), revision, matching })
    }

    /// When the list began, in seconds since the epoch. An inconsistent remainder counts as a new list.
    pub fn begun_s(&self) -> i64 {
        self.position.as_ref().filter(|p| p.revision >= 0).map_or(self.now_s, |p| p.begun_s)
    }

    /// The view to list from, without records that cannot match the selectors where these are easy to find. Waits a limited time for a revision that this server has not reached yet.
    ///
    /// # Errors
    /// 410 for a compacted revision, 504 for a future one.
    pub async fn view(
        &self,
        store: &Store,
        served: &Served,
        namespace: Option<&str>,
        selectors: &Selectors,
    ) -> Result<ListView, Status> {
        let current = |after| selectors.candidates(store, served, namespace, after);
        if let Some(position) = &self.position {
            let after = Some(position.start_after(namespace));
            let Ok(revision) = u64::try_from(position.revision) else {
                return Ok(current(after));
            };
            if position.begun_s != 0 && self.now_s - position.begun_s > CONTINUE_AGE_MAX_S {
                return Err(expired_page(position));
            }
            // Another server may have sent the page before.
            wait_for_revision(store, revision).await?;
            let view = store.list_at(revision, served.store, namespace, after, None).map_err(|e| match e {
                StoreError::Compacted { .. } => expired_page(position),
                other => store_error(&other),
            });
            return Ok(selectors.narrow(view?, served, namespace));
        }
        match self.revision {
            Some(revision)
                if revision != 0
                    && (self.matching == Match::Exact || (self.matching == Match::Unset && self.limit > 0)) =>
            {
                wait_for_revision(store, revision).await?;
                let view = store.list_at(revision, served.store, namespace, None, None).map_err(|e| match e {
                    StoreError::Compacted { .. } => {
                        Status::expired("The resourceVersion for the provided list is too old.")
                    }
                    other => store_error(&other),
                });
                Ok(selectors.narrow(view?, served, namespace))
            }
            Some(revision) if revision != 0 => {
                wait_for_revision(store, revision).await?;
                Ok(current(None))
            }
            _ => Ok(current(None)),
        }
    }
}

/// The time for which a read waits for a revision that this server has not reached yet (as upstream's cacher).
const FRESH_WAIT: std::time::Duration = std::time::Duration::from_secs(3);

/// Waits until the store reaches a revision.
///
/// # Errors
/// 504 with upstream's message if it does not in time.
pub async fn wait_for_revision(store: &Store, revision: u64) -> Result<(), Status> {
    if store.current_revision() >= revision {
        return Ok(());
    }
    match tokio::time::timeout(FRESH_WAIT, store.wait_for_revision(revision)).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(e)) => Err(store_error(&e)),
        Err(_) => Err(too_large(revision, store.current_revision())),
    }
}

fn too_large(wanted: u64, current: u64) -> Status {
    let mut status = Status::timeout(format!("Too large resource version: {wanted}, current: {current}"), 1);
    if let Some(details) = &mut status.details {
        details.causes.push(kelson_meta::StatusCause {
            reason: "ResourceVersionTooLarge".into(),
            message: "Too large resource version".into(),
            field: String::new(),
        });
    }
    status
}

/// The client's error for an error of the store.
pub fn store_error(error: &StoreError) -> Status {
    match error {
        StoreError::Compacted { requested, oldest } => {
            Status::expired(format!("too old resource version: {requested} ({oldest})"))
        }
        StoreError::FutureRevision { requested, current } => too_large(*requested, *current),
        StoreError::Closed => Status::unavailable("the server is shutting down"),
        StoreError::TooLarge { limit, .. } => Status::too_large(*limit),
        StoreError::Sealed(why) => Status::internal(why),
        StoreError::Full { .. } | StoreError::NamespaceFull { .. } => {
            Status::failure(507, Reason::Unknown, error.to_string())
        }
        StoreError::Elsewhere(why) => Status::failure(500, Reason::Unknown, why.clone()),
        other => {
            tracing::error!(error = %other, "storage error; the request fails");
            Status::internal("the storage is not available")
        }
    }
}

fn expired_page(position: &Continue) -> Status {
    let mut status = Status::expired(
        "The provided continue parameter is too old to display a consistent list result. You can start a new list \
         without the continue parameter, or use the continue token in this response to retrieve the remainder of the \
         results. Continuing with the provided token results in an inconsistent list - objects that were created, \
         modified, or deleted between the time the first chunk was returned and now may show up in the list.",
    );
    // The Status type has no `metadata.continue`: the encoder moves the token there from this cause.
    status.details.get_or_insert_default().causes.push(kelson_meta::StatusCause {
        reason: CONTINUE_CAUSE.into(),
        message: position.inconsistent().token(),
        field: String::new(),
    });
    status
}

/// Reason of the cause that the encoder moves to `metadata.continue`.
pub const CONTINUE_CAUSE: &str = "kelson/continue";

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn tokens_round_trip() {
        let c = Continue::after(7, "a", "b", 11);
        assert_eq!(Continue::parse(&c.token()).unwrap(), c);
        assert_eq!(c.start_after(None), ("a", "b"));
        assert_eq!(Continue::after(7, "", "b", 11).start_after(Some("a")), ("a", "b"));
        assert_eq!(Continue::after(7, "", "b", 11).start_after(None), ("", "b"));
        assert_eq!(Continue::parse("!!").unwrap_err().code, 400);
    }

    #[test]
    fn tokens_are_compatible_with_upstream() {
        let token = |text: &str| TOKEN_ENCODING.encode(text);
        let theirs = r#"{"v":"meta.k8s.io/v1","rv":7,"start":"default/b\u0000"}"#;
        let read = Continue::parse(&token(theirs)).unwrap();
        assert_eq!((read.start_after(None), read.revision, read.begun_s), (("default", "b"), 7, 0));
        assert_eq!(read.token(), token(theirs));
        assert_eq!(Continue::after(7, "default", "b", 0).token(), token(theirs));
        for (garbage, why) in [
            ("garbage", "invalid character '\\u0081' looking for beginning of value"),
            ("eA", "invalid character 'x' looking for beginning of value"),
            ("ew", "unexpected end of JSON input"),
        ] {
            let refused = Continue::parse(garbage).unwrap_err().message;
            assert_eq!(refused, format!("invalid continue token: continue key is not valid: {why}"));
        }
        for start in ["../secrets/a", "a//b", "a/./b", "/"] {
            let text = json!({"v": "meta.k8s.io/v1", "rv": 7, "start": start}).to_string();
            let refused = Continue::parse(&token(&text)).unwrap_err();
            let why = format!("invalid continue token: continue key is not valid: {start}");
            assert_eq!((refused.code, refused.message), (400, why));
        }
    }

    #[tokio::test]
    async fn positions_end_with_age() {
        let store = Store::in_memory(kelson_store::StoreOptions::default());
        let served = crate::catalog::Catalog::builtin().find("", "v1", "configmaps").unwrap();
        let view = async |token: &str, now_s: i64| {
            let query = Query::parse(Some(&format!("limit=2&continue={token}")));
            let at = ListParams::new(&query, Timestamp::from_second(now_s).unwrap()).unwrap();
            at.view(&store, &served, None, &Selectors::default()).await.map(|_| at.begun_s())
        };
        let token = Continue::after(store.current_revision().cast_signed(), "a", "b", 1000).token();
        assert_eq!(view(&token, 1300).await.unwrap(), 1000, "pages count from the first one's time");
        let gone = view(&token, 1301).await.unwrap_err();
        assert_eq!(gone.code, 410);
        let rest = gone.details.unwrap().causes[0].message.clone();
        assert_eq!(view(&rest, 9999).await.unwrap(), 9999, "the remainder is a new list");
        let timeless = Continue::after(store.current_revision().cast_signed(), "a", "b", 0).token();
        assert!(view(&timeless, 9999).await.is_ok(), "another server's list expires when its revision is compacted");
    }

    #[test]
    fn parameters_are_checked() {
        for (query, code) in [
            ("resourceVersionMatch=Exact", 422),
            ("resourceVersionMatch=Exact&resourceVersion=0", 422),
            ("resourceVersionMatch=Odd&resourceVersion=1", 422),
            ("resourceVersion=x", 400),
            ("continue=x", 400),
            ("continue=x&resourceVersion=7", 400),
        ] {
            assert_eq!(
                ListParams::new(&Query::parse(Some(query)), Timestamp::UNIX_EPOCH).err().map(|s| s.code),
                Some(code),
                "{query}"
            );
        }
    }
}
