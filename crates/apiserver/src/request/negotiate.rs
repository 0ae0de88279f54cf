//! Content negotiation: chooses the form of a response from the `Accept` header and the forms that the kind has. As in upstream, clauses
//! are tried by quality, and the first that can be served wins (`endpoints/handlers/negotiation/negotiate.go`).
use http::HeaderMap;
use kelson_codec::Encoding;
use kelson_meta::url::Query;
use kelson_meta::{Reason, Status};

/// The representation of an object in the response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum View {
    /// The whole object.
    #[default]
    Whole,
    /// `as=Table`, with its version.
    Table(&'static str),
    /// `as=PartialObjectMetadata` or its list, with its version.
    Partial(&'static str),
}

/// The negotiated form of a response.
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

    /// The response's `Content-Type`.
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
    /// The media type, such as `application/json`; compared in lower case.
    pub media: &'a str,
    params: Vec<(&'a str, &'a str)>,
    quality: f32,
}

impl<'a> Clause<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let mut parts = text.split(';').map(str::trim);
        let media = parts.next().filter(|media| !media.is_empty())?;
        let params = parts.filter_map(|p| p.split_once('=')).map(|(k, v)| (k.trim(), v.trim().trim_matches('"')));
        let mut clause =
            Self { media: if media == "*" { "*/*" } else { media }, params: params.collect(), quality: 1.0 };
        if let Some(quality) = clause.param("q") {
            clause.quality = quality.parse().unwrap_or(0.0);
        }
        Some(clause)
    }

    /// The value of a parameter.
    pub fn param(&self, name: &str) -> Option<&str> {
        self.params.iter().find(|(k, _)| k.eq_ignore_ascii_case(name)).map(|(_, v)| *v)
    }

    /// Whether it is tried before `other`: a higher quality first, then a specific type before a wildcard.
    fn precedes(&self, other: &Self) -> bool {
        let any_type = |c: &Self| c.media.starts_with("*/");
        let any_subtype = |c: &Self| c.media.ends_with("/*");
        self.quality > other.quality
            || (!any_type(self) && any_type(other))
            || (!any_subtype(self) && any_subtype(other))
    }
}

/// Limit of clauses considered per request.
const CLAUSES_MAX: usize = 32;

/// The clauses of the first `Accept` header in the order in which they are tried; empty accepts anything. `Clause::precedes` is not a
/// total order, so the result depends on the sorting algorithm: insertion sort, like upstream's library for headers of this length.
pub fn clauses(headers: &HeaderMap) -> Vec<Clause<'_>> {
    let header = headers.get(http::header::ACCEPT).and_then(|v| v.to_str().ok()).unwrap_or("");
    let mut out: Vec<Clause<'_>> = header.split(',').take(CLAUSES_MAX).filter_map(Clause::parse).collect();
    for sorted in 1..out.len() {
        let mut at = sorted;
        while at > 0 && out[at].precedes(&out[at - 1]) {
            out.swap(at, at - 1);
            at -= 1;
        }
    }
    out
}

/// Media types of objects.
pub const OFFERED: [&str; 3] = ["application/json", "application/yaml", "application/vnd.kubernetes.protobuf"];
/// Media types of watches.
const OFFERED_WATCH: [&str; 2] = ["application/json;stream=watch", "application/vnd.kubernetes.protobuf;stream=watch"];

/// Number of objects in a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    One,
    List,
    Watch,
}

/// The forms in which a request can be answered. Upstream: `handlers.RequestScope.AllowsMediaTypeTransform`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offer {
    /// Objects have a protobuf form. Custom resources have none, although their metadata and errors do.
    pub protobuf: bool,
    /// Objects can be shown as table rows.
    pub tables: bool,
    /// Objects can be shown as their metadata only.
    pub metadata: bool,
    pub extent: Extent,
}

impl Offer {
    /// Forms of errors and of documents that are not objects.
    pub const PLAIN: Self = Self { protobuf: true, tables: false, metadata: false, extent: Extent::One };

    /// The view that a clause asks for, if it exists in `encoding`.
    fn view(self, clause: &Clause<'_>, encoding: Encoding) -> Option<View> {
        // A parameter without a value counts as unset.
        let param = |name: &str| clause.param(name).filter(|v| !v.is_empty());
        if param("stream").is_some_and(|stream| stream != "watch" || encoding == Encoding::Yaml)
            || param("sv").is_some_and(|version| version != "v1")
        {
            return None;
        }
        let (kind, group, version) = (param("as"), param("g"), param("v"));
        if kind.is_none() && group.is_none() && version.is_none() {
            return Some(View::Whole).filter(|_| self.protobuf || encoding != Encoding::Protobuf);
        }
        let version = match (group?, version?) {
            ("meta.k8s.io", "v1") => "v1",
            ("meta.k8s.io", "v1beta1") => "v1beta1",
            _ => return None,
        };
        match kind? {
            "Table" if self.tables && encoding != Encoding::Protobuf => Some(View::Table(version)),
            "PartialObjectMetadata" | "PartialObjectMetadataList" if self.metadata => Some(View::Partial(version)),
            _ => None,
        }
    }

    /// Checks that the kind in a clause fits the response's extent.
    fn fits(self, clause: &Clause<'_>, accepted: Accepted) -> Result<Accepted, Unacceptable> {
        match (clause.param("as"), self.extent) {
            (_, Extent::Watch) if accepted.encoding == Encoding::Yaml => Err(Unacceptable::Stream),
            (Some("PartialObjectMetadata"), Extent::List) => Err(Unacceptable::IsList),
            (Some("PartialObjectMetadataList"), Extent::One) => Err(Unacceptable::IsNotList),
            _ => Ok(accepted),
        }
    }
}

/// Reason why a response has no acceptable form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unacceptable {
    /// No clause matches an existing form.
    Form,
    /// The first matching form does not exist for watches.
    Stream,
    /// The client asked for the metadata of one object, and the response is a list.
    IsList,
    /// The client asked for a list of metadata, and the response is one object.
    IsNotList,
}

impl Unacceptable {
    /// The error in upstream's words.
    pub fn status(self) -> Status {
        let shape = |asked: &str, is: &str| {
            let message = format!("you requested {asked}, but the requested object is {is}");
            Status::failure(406, Reason::NotAcceptable, message)
        };
        match self {
            Self::Form => Status::not_acceptable(&OFFERED),
            Self::Stream => Status::not_acceptable(&OFFERED_WATCH),
            Self::IsList => shape("PartialObjectMetadata", "a list"),
            Self::IsNotList => shape("PartialObjectMetadataList", "not a list"),
        }
    }
}

/// The encodings of a media type in the order in which they are tried.
fn encodings(media: &str) -> &'static [Encoding] {
    match media {
        "application/json" => &[Encoding::Json],
        "application/yaml" => &[Encoding::Yaml],
        "application/vnd.kubernetes.protobuf" => &[Encoding::Protobuf],
        "*/*" | "application/*" => &[Encoding::Json, Encoding::Yaml, Encoding::Protobuf],
        _ => &[],
    }
}

/// The parsed `Accept` header and the wish for indented JSON.
pub struct Accepts<'a> {
    clauses: Vec<Clause<'a>>,
    pretty: bool,
}

impl<'a> Accepts<'a> {
    pub fn of(headers: &'a HeaderMap, query: &Query) -> Self {
        Self { clauses: clauses(headers), pretty: pretty(headers, query) }
    }

    /// Chooses the form of a response: that of the first clause that can be served.
    ///
    /// # Errors
    /// No clause can be served.
    pub fn choose(&self, offer: Offer) -> Result<Accepted, Unacceptable> {
        if self.clauses.is_empty() {
            return Ok(Accepted { pretty: self.pretty, ..Accepted::JSON });
        }
        for clause in &self.clauses {
            for encoding in encodings(clause.media) {
                if let Some(view) = offer.view(clause, *encoding) {
                    let pretty = self.pretty || clause.param("pretty") == Some("1");
                    return offer.fits(clause, Accepted { encoding: *encoding, view, pretty });
                }
            }
        }
        Err(Unacceptable::Form)
    }

    /// The form of errors, which are always shown whole. If no clause can be served, it is indented JSON.
    pub fn of_errors(&self) -> Accepted {
        self.choose(Offer::PLAIN).unwrap_or(Accepted { pretty: true, ..Accepted::JSON })
    }
}

/// Whether upstream's router for built-in kinds lets the request pass. It knows full media types and `*/*`, and ignores parameters.
fn is_routed(headers: &HeaderMap) -> bool {
    let mut values = headers.get_all(http::header::ACCEPT).iter().peekable();
    let known = |clause: &str| {
        let media = clause.split(';').next().unwrap_or("").trim();
        media == "*/*" || OFFERED.contains(&media)
    };
    values.peek().is_none() || values.any(|v| v.to_str().is_ok_and(|v| v.is_empty() || v.split(',').any(known)))
}

/// The negotiated form, if the router lets the request pass. Routes of built-in kinds list their media types; lists can also be had as
/// watches.
///
/// # Errors
/// 406, with the message of the router or of the negotiation.
pub fn settle(
    headers: &HeaderMap,
    accepted: Result<Accepted, Unacceptable>,
    list: bool,
    compiled_in: impl Fn() -> bool,
) -> Result<Accepted, Status> {
    if is_routed(headers) || !compiled_in() {
        return accepted.map_err(Unacceptable::status);
    }
    let watched = if list { &OFFERED_WATCH[..] } else { &[] };
    let given = [&OFFERED[..], watched].concat().join(", ");
    let message = format!("406: Not Acceptable\n\nAvailable representations: {given}");
    Err(Status { details: Some(Box::default()), ..Status::failure(406, Reason::NotAcceptable, message) })
}

/// Whether to indent JSON: on request, or for a client that people use interactively if the request does not say.
fn pretty(headers: &HeaderMap, query: &Query) -> bool {
    // Other spellings of true are false here, as in upstream.
    if let Some(asked) = query.get("pretty").filter(|asked| !asked.is_empty()) {
        return matches!(asked, "1" | "t" | "T" | "true" | "TRUE" | "True");
    }
    let agent = headers.get(http::header::USER_AGENT).and_then(|v| v.to_str().ok()).unwrap_or("");
    ["curl", "Wget", "Mozilla/5.0"].iter().any(|p| agent.starts_with(p))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUILT_IN: Offer = Offer { protobuf: true, tables: true, metadata: true, extent: Extent::List };
    const CUSTOM: Offer = Offer { protobuf: false, ..BUILT_IN };

    fn chosen(accept_header: &str, offer: Offer) -> String {
        let mut headers = HeaderMap::new();
        if !accept_header.is_empty() {
            headers.insert("accept", accept_header.parse().unwrap());
        }
        match Accepts::of(&headers, &Query::default()).choose(offer) {
            Ok(a) => format!("{:?} {:?}", a.encoding, a.view),
            Err(why) => format!("406 {why:?}"),
        }
    }

    /// Clauses by class of kind and extent; what upstream 1.36.2 answers.
    #[test]
    fn forms() {
        const PROTO: &str = "application/vnd.kubernetes.protobuf";
        let one = |offer: Offer| Offer { extent: Extent::One, ..offer };
        let watch = |offer: Offer| Offer { extent: Extent::Watch, ..offer };
        for (accept_header, built_in, custom) in [
            ("", "Json Whole", "Json Whole"),
            ("*", "Json Whole", "Json Whole"),
            ("*/*", "Json Whole", "Json Whole"),
            ("application/json", "Json Whole", "Json Whole"),
            ("application/yaml", "Yaml Whole", "Yaml Whole"),
            (PROTO, "Protobuf Whole", "406 Form"),
            (&format!("{PROTO}, application/json"), "Protobuf Whole", "Json Whole"),
            (&format!("{PROTO},*/*"), "Protobuf Whole", "Json Whole"),
            (&format!("{PROTO};stream=watch,application/json;stream=watch"), "Protobuf Whole", "Json Whole"),
            (&format!("{PROTO};stream=other,application/yaml;stream=watch"), "406 Form", "406 Form"),
            ("application/cbor,application/json", "Json Whole", "Json Whole"),
            ("application/json;q=0.5,application/yaml", "Yaml Whole", "Yaml Whole"),
            (&format!("*/*,{PROTO}"), "Protobuf Whole", "Json Whole"),
            (&format!("*/*;q=0.8,application/yaml;q=0.9,{PROTO}"), "Protobuf Whole", "Yaml Whole"),
            (
                "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json",
                "Json Table(\"v1\")",
                "Json Table(\"v1\")",
            ),
            (&format!("{PROTO};as=Table;v=v1;g=meta.k8s.io"), "406 Form", "406 Form"),
            ("application/json;as=Table;v=v1", "406 Form", "406 Form"),
            ("application/json;g=meta.k8s.io;v=v1", "406 Form", "406 Form"),
            ("application/json;as=Other;v=v1;g=meta.k8s.io,application/yaml", "Yaml Whole", "Yaml Whole"),
            (
                &format!("{PROTO};as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"),
                "Protobuf Partial(\"v1\")",
                "Protobuf Partial(\"v1\")",
            ),
            ("application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1", "406 IsList", "406 IsList"),
            ("text/plain", "406 Form", "406 Form"),
        ] {
            assert_eq!(chosen(accept_header, BUILT_IN), built_in, "{accept_header}");
            assert_eq!(chosen(accept_header, CUSTOM), custom, "{accept_header} of a custom kind");
        }
        for (accept_header, offer, expected) in [
            ("application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1", one(CUSTOM), "Json Partial(\"v1\")"),
            ("application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1", one(BUILT_IN), "406 IsNotList"),
            ("application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1", watch(BUILT_IN), "Json Partial(\"v1\")"),
            ("application/json;as=Table;v=v1;g=meta.k8s.io", Offer::PLAIN, "406 Form"),
            (PROTO, watch(CUSTOM), "406 Form"),
            ("application/yaml", watch(BUILT_IN), "406 Stream"),
            ("application/yaml,application/json", watch(CUSTOM), "406 Stream"),
            (&format!("{PROTO};as=Table;v=v1;g=meta.k8s.io"), watch(BUILT_IN), "406 Form"),
            ("application/json;g=meta.k8s.io;v=v1", watch(BUILT_IN), "406 Form"),
        ] {
            assert_eq!(chosen(accept_header, offer), expected, "{accept_header} {offer:?}");
        }
    }

    #[test]
    fn errors_are_shown_whole() {
        for (accept_header, expected) in [
            ("application/yaml;as=Table;v=v1;g=meta.k8s.io", Encoding::Json),
            ("application/json;as=Table;v=v1;g=meta.k8s.io,application/yaml", Encoding::Yaml),
            ("application/vnd.kubernetes.protobuf,application/json", Encoding::Protobuf),
            ("application/yaml", Encoding::Yaml),
            ("text/html", Encoding::Json),
        ] {
            let headers = HeaderMap::from_iter([(http::header::ACCEPT, accept_header.parse().unwrap())]);
            let errors = Accepts::of(&headers, &Query::default()).of_errors();
            assert_eq!((errors.encoding, errors.view), (expected, View::Whole), "{accept_header}");
        }
    }
}
