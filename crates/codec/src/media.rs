//! Media types: the `Content-Type` and `Accept` headers of requests.
use std::fmt;

/// The number of elements that are read from one `Accept` header.
pub const ACCEPT_ELEMENTS_MAX: usize = 64;

/// An encoding of objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Encoding {
    /// JSON, requested as `application/json`.
    Json,
    /// YAML, requested as `application/yaml`.
    Yaml,
    /// Protobuf, requested as `application/vnd.kubernetes.protobuf`.
    Protobuf,
}

impl Encoding {
    /// The name of the media type.
    pub fn media_type(self) -> &'static str {
        match self {
            Encoding::Json => "application/json",
            Encoding::Yaml => "application/yaml",
            Encoding::Protobuf => "application/vnd.kubernetes.protobuf",
        }
    }

    /// The media type of a watch stream in this encoding.
    pub fn watch_media_type(self) -> &'static str {
        match self {
            Encoding::Json | Encoding::Yaml => "application/json",
            Encoding::Protobuf => "application/vnd.kubernetes.protobuf;stream=watch",
        }
    }

    /// The encoding with this media type.
    pub fn of(name: &str) -> Option<Encoding> {
        match name {
            "application/json" => Some(Encoding::Json),
            "application/yaml" => Some(Encoding::Yaml),
            "application/vnd.kubernetes.protobuf" => Some(Encoding::Protobuf),
            _ => None,
        }
    }
}

impl fmt::Display for Encoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.media_type())
    }
}

/// One parsed media type with its parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MediaType {
    /// The media type in lower case, such as `application/json`. It may contain `*`.
    pub name: String,
    /// The parameters other than `q`. Their names are in lower case.
    pub parameters: Vec<(String, String)>,
    /// The weight in thousandths; 1000 if it was not given.
    pub quality: u16,
}

impl MediaType {
    /// Parses a media type of the form `type/subtype;name=value…`.
    pub fn parse(text: &str) -> Option<MediaType> {
        let mut parts = split_quoted(text, ';').into_iter();
        let name = parts.next()?.trim().to_ascii_lowercase();
        let (main, sub) = name.split_once('/')?;
        if main.is_empty() || sub.is_empty() || sub.contains('/') || name.contains(char::is_whitespace) {
            return None;
        }
        let mut out = MediaType { name: name.clone(), parameters: Vec::new(), quality: 1000 };
        for part in parts {
            let Some((key, value)) = part.split_once('=') else { continue };
            let (key, value) = (key.trim().to_ascii_lowercase(), value.trim().trim_matches('"').to_owned());
            if key == "q" {
                out.quality = quality(&value);
            } else {
                out.parameters.push((key, value));
            }
        }
        Some(out)
    }

    /// The value of a parameter.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        self.parameters.iter().find(|(k, _)| k == name).map(|(_, v)| v.as_str())
    }

    fn matches(&self, encoding: Encoding) -> bool {
        match self.name.as_str() {
            "*/*" | "application/*" => true,
            name => Encoding::of(name) == Some(encoding),
        }
    }
}

fn quality(text: &str) -> u16 {
    let value: f32 = text.parse().unwrap_or(1.0);
    (value.clamp(0.0, 1.0) * 1000.0) as u16
}

fn split_quoted(text: &str, separator: char) -> Vec<&str> {
    let (mut out, mut start, mut quoted) = (Vec::new(), 0, false);
    for (at, c) in text.char_indices() {
        if c == '"' {
            quoted = !quoted;
        } else if c == separator && !quoted {
            out.push(&text[start..at]);
            start = at + c.len_utf8();
        }
    }
    out.push(&text[start..]);
    out
}

/// The encoding of a request body. Without a `Content-Type` it is JSON. An `Err` contains the client's unsupported value.
pub fn content_type(header: Option<&str>) -> Result<Encoding, String> {
    let Some(text) = header.map(str::trim).filter(|t| !t.is_empty()) else { return Ok(Encoding::Json) };
    MediaType::parse(text).and_then(|m| Encoding::of(&m.name)).ok_or_else(|| text.to_owned())
}

/// The transformation of objects that a client asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TableRequest {
    /// `as=Table;g=meta.k8s.io;v=v1` (or `v1beta1`).
    Table(String),
    /// An object's metadata only: `as=PartialObjectMetadata;g=meta.k8s.io;v=…`.
    PartialObjectMetadata(String),
    /// A list with the metadata of its objects only: `as=PartialObjectMetadataList;g=meta.k8s.io;v=…`.
    PartialObjectMetadataList(String),
}

/// The form of a response, chosen from an `Accept` header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Accept {
    /// The encoding of the response.
    pub encoding: Encoding,
    /// The transformation, if any.
    pub transform: Option<TableRequest>,
    /// Whether `stream=watch` was given.
    pub stream_watch: bool,
    /// Whether `pretty=1` was given as a parameter.
    pub pretty: bool,
    /// `profile=nopeer` (aggregated discovery).
    pub profile: Option<String>,
    /// The requested version of aggregated discovery, from `as=APIGroupDiscoveryList;g=apidiscovery.k8s.io;v=…`.
    pub discovery: Option<String>,
}

impl Accept {
    /// Chooses the first of the `offered` encodings by weight, then by order. Returns `None` if none is acceptable (406). Elements that ask
    /// for an unknown transformation are skipped.
    pub fn negotiate(header: Option<&str>, offered: &[Encoding]) -> Option<Accept> {
        let header = header.map(str::trim).filter(|h| !h.is_empty()).unwrap_or("*/*");
        let mut wanted: Vec<MediaType> =
            split_quoted(header, ',').into_iter().take(ACCEPT_ELEMENTS_MAX).filter_map(MediaType::parse).collect();
        wanted.sort_by_key(|m| std::cmp::Reverse((m.quality, specificity(&m.name))));
        wanted.iter().filter(|m| m.quality > 0).find_map(|m| {
            let encoding = *offered.iter().find(|e| m.matches(**e))?;
            Self::transformed(m, encoding)
        })
    }

    fn transformed(m: &MediaType, encoding: Encoding) -> Option<Accept> {
        let mut accept = Accept {
            encoding,
            transform: None,
            stream_watch: m.parameter("stream") == Some("watch"),
            pretty: m.parameter("pretty") == Some("1"),
            profile: m.parameter("profile").map(str::to_owned),
            discovery: None,
        };
        let Some(target) = m.parameter("as").filter(|t| !t.is_empty()) else { return Some(accept) };
        let (group, version) = (m.parameter("g").unwrap_or(""), m.parameter("v").unwrap_or("").to_owned());
        match (group, version.as_str(), target) {
            ("meta.k8s.io", "v1" | "v1beta1", "Table") => accept.transform = Some(TableRequest::Table(version)),
            ("meta.k8s.io", "v1" | "v1beta1", "PartialObjectMetadata") => {
                accept.transform = Some(TableRequest::PartialObjectMetadata(version));
            }
            ("meta.k8s.io", "v1" | "v1beta1", "PartialObjectMetadataList") => {
                accept.transform = Some(TableRequest::PartialObjectMetadataList(version));
            }
            ("apidiscovery.k8s.io", "v2" | "v2beta1", "APIGroupDiscoveryList") => accept.discovery = Some(version),
            _ => return None,
        }
        Some(accept)
    }
}

fn specificity(name: &str) -> u8 {
    match name {
        "*/*" => 0,
        _ if name.ends_with("/*") => 1,
        _ => 2,
    }
}
