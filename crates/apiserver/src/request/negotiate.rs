//! Negotiate: which form of an answer the client accepts (`Accept`), in upstream's way: the first clause that can be
//! served wins, quality values ignored as long as they are not zero.
use http::HeaderMap;
use kelson_codec::Encoding;
use kelson_meta::url::Query;
use kelson_meta::{Reason, Status};

/// What is to be made of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum View {
    /// The object itself, all of it.
    #[default]
    Whole,
    /// `as=Table`, with its version.
    Table(&'static str),
    /// `as=PartialObjectMetadata` or its list, with its version.
    Partial(&'static str),
}

/// The chosen form.
#[derive(Debug, Clone, Copy)]
pub struct Accepted {
    pub encoding: Encoding,
    pub view: View,
    /// JSON is indented, as for a browser.
    pub pretty: bool,
}

impl Accepted {
    /// JSON of whole objects, not indented.
    pub const JSON: Self = Self { encoding: Encoding::Json, view: View::Whole, pretty: false };

    /// The answer's `Content-Type`.
    pub fn content_type(&self, watch: bool) -> &'static str {
        match (self.encoding, watch) {
            (Encoding::Json, _) => "application/json",
            (Encoding::Yaml, _) => "application/yaml",
            (Encoding::Protobuf, false) => "application/vnd.kubernetes.protobuf",
            (Encoding::Protobuf, true) => "application/vnd.kubernetes.protobuf;stream=watch",
        }
    }
}

/// One clause of an `Accept` header.
pub struct Clause<'a> {
    /// `application/json`, lower case expected.
    pub media: &'a str,
    params: Vec<(&'a str, &'a str)>,
}

impl Clause<'_> {
    /// A parameter's value.
    pub fn param(&self, name: &str) -> Option<&str> {
        self.params.iter().find(|(k, _)| k.eq_ignore_ascii_case(name)).map(|(_, v)| *v)
    }
}

/// Clauses considered of one request.
const CLAUSES_MAX: usize = 32;

/// The clauses of all `Accept` headers, in order; none means anything goes.
pub fn clauses(headers: &HeaderMap) -> Vec<Clause<'_>> {
    let mut out: Vec<Clause<'_>> = Vec::new();
    for value in headers.get_all(http::header::ACCEPT) {
        for clause in value.to_str().unwrap_or("").split(',').take(CLAUSES_MAX) {
            let mut parts = clause.split(';').map(str::trim);
            let media = parts.next().unwrap_or("");
            if media.is_empty() {
                continue;
            }
            let params = parts.filter_map(|p| p.split_once('=')).map(|(k, v)| (k.trim(), v.trim().trim_matches('"')));
            let clause = Clause { media, params: params.collect() };
            if clause.param("q") != Some("0") {
                out.push(clause);
            }
        }
    }
    out
}

/// Media types an object can be had in.
pub const OFFERED: [&str; 3] = ["application/json", "application/yaml", "application/vnd.kubernetes.protobuf"];

fn encoding(media: &str) -> Option<Encoding> {
    match media {
        "application/json" | "*/*" | "application/*" => Some(Encoding::Json),
        "application/yaml" => Some(Encoding::Yaml),
        "application/vnd.kubernetes.protobuf" => Some(Encoding::Protobuf),
        _ => None,
    }
}

fn view(clause: &Clause<'_>, tables: bool) -> Option<View> {
    let Some(name) = clause.param("as") else { return Some(View::Whole) };
    if clause.param("g").is_some_and(|g| g != "meta.k8s.io") {
        return None;
    }
    let version = match clause.param("v") {
        Some("v1") => "v1",
        Some("v1beta1") => "v1beta1",
        _ => return None,
    };
    match name {
        "Table" if tables => Some(View::Table(version)),
        "PartialObjectMetadata" | "PartialObjectMetadataList" => Some(View::Partial(version)),
        _ => None,
    }
}

/// Chooses the form of an object or list; `None` when no clause can be served.
pub fn accept(headers: &HeaderMap, query: &Query, tables: bool) -> Option<Accepted> {
    let pretty = pretty(headers, query);
    let clauses = clauses(headers);
    if clauses.is_empty() {
        return Some(Accepted { pretty, ..Accepted::JSON });
    }
    clauses.iter().find_map(|c| Some(Accepted { encoding: encoding(c.media)?, view: view(c, tables)?, pretty }))
}

/// The form of an error, which is never shown in another way: that of the first clause that asks for objects as they are.
pub fn of_errors(headers: &HeaderMap, accepted: Option<Accepted>) -> Accepted {
    match accepted {
        Some(accepted) if accepted.view == View::Whole => accepted,
        _ => {
            let whole = |c: &Clause<'_>| c.param("as").is_none().then(|| encoding(c.media)).flatten();
            let encoding = clauses(headers).iter().find_map(whole).unwrap_or(Encoding::Json);
            Accepted { encoding, view: View::Whole, pretty: accepted.is_some_and(|a| a.pretty) }
        }
    }
}

/// Whether a route that names what it gives would answer at all: it knows whole names and `*/*`, and looks at no parameter.
fn is_routed(headers: &HeaderMap) -> bool {
    let mut values = headers.get_all(http::header::ACCEPT).iter().peekable();
    let known = |clause: &str| {
        let media = clause.split(';').next().unwrap_or("").trim();
        media == "*/*" || OFFERED.contains(&media)
    };
    values.peek().is_none() || values.any(|v| v.to_str().is_ok_and(|v| v.is_empty() || v.split(',').any(known)))
}

/// The form that was chosen, where the route lets the request pass: those of what is compiled in name what they give, and lists
/// can be had as watches too.
///
/// # Errors
/// 406, in the words of whoever refuses.
pub fn settled(
    headers: &HeaderMap,
    accepted: Option<Accepted>,
    list: bool,
    compiled_in: impl Fn() -> bool,
) -> Result<Accepted, Status> {
    const WATCHED: [&str; 2] = ["application/json;stream=watch", "application/vnd.kubernetes.protobuf;stream=watch"];
    if is_routed(headers) || !compiled_in() {
        return accepted.ok_or_else(|| Status::not_acceptable(&OFFERED));
    }
    let watched = if list { &WATCHED[..] } else { &[] };
    let given = [&OFFERED[..], watched].concat().join(", ");
    let message = format!("406: Not Acceptable\n\nAvailable representations: {given}");
    Err(Status { details: Some(Box::default()), ..Status::failure(406, Reason::NotAcceptable, message) })
}

/// Whether to indent: asked for, or a person's client with nothing asked.
fn pretty(headers: &HeaderMap, query: &Query) -> bool {
    // Any other word for yes is none here.
    if let Some(asked) = query.get("pretty").filter(|asked| !asked.is_empty()) {
        return matches!(asked, "1" | "t" | "T" | "true" | "TRUE" | "True");
    }
    let agent = headers.get(http::header::USER_AGENT).and_then(|v| v.to_str().ok()).unwrap_or("");
    ["curl", "Wget", "Mozilla/5.0"].iter().any(|p| agent.starts_with(p))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(accept_header: &str, expected: &str) {
        let mut headers = HeaderMap::new();
        if !accept_header.is_empty() {
            headers.insert("accept", accept_header.parse().unwrap());
        }
        let got = match accept(&headers, &Query::default(), true) {
            Some(a) => format!("{:?} {:?}", a.encoding, a.view),
            None => "406".to_owned(),
        };
        assert_eq!(got, expected, "{accept_header}");
    }

    #[test]
    fn forms() {
        check("", "Json Whole");
        check("*/*", "Json Whole");
        check("application/json", "Json Whole");
        check("application/vnd.kubernetes.protobuf, application/json", "Protobuf Whole");
        check("application/cbor,application/json", "Json Whole");
        check(
            "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json",
            "Json Table(\"v1\")",
        );
        check("application/json;as=Other;v=v1;g=meta.k8s.io,application/yaml", "Yaml Whole");
        check("application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1", "Json Partial(\"v1\")");
        check("text/plain", "406");
    }

    #[test]
    fn errors_are_shown_whole() {
        for (accept_header, expected) in [
            ("application/yaml;as=Table;v=v1;g=meta.k8s.io", Encoding::Json),
            ("application/json;as=Table;v=v1;g=meta.k8s.io,application/yaml", Encoding::Yaml),
            ("application/yaml", Encoding::Yaml),
            ("text/html", Encoding::Json),
        ] {
            let headers = HeaderMap::from_iter([(http::header::ACCEPT, accept_header.parse().unwrap())]);
            let accepted = accept(&headers, &Query::default(), true);
            assert_eq!(of_errors(&headers, accepted).encoding, expected, "{accept_header}");
        }
    }
}
