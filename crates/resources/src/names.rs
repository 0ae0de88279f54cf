//! Rules for names of objects, by kind.
use kelson_meta::{is_dns1035_label, is_dns1123_label, is_dns1123_subdomain, is_path_segment_name};

use crate::addresses;

/// A rule for names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameRule {
    /// RFC 1123 subdomain; for most kinds.
    Subdomain,
    /// RFC 1123 label; for namespaces and services.
    Label,
    /// RFC 1035 label.
    Label1035,
    /// Any single URL path segment; for RBAC.
    PathSegment,
    /// No rule; for certificate requests and similar kinds.
    Any,
    /// A canonical IP address; for IPAddress objects.
    Ip,
}

impl NameRule {
    /// Validates `name`; with `prefix`, `name` is a `generateName` and may end in a dash.
    pub fn check(self, name: &str, prefix: bool) -> Result<(), Vec<String>> {
        let masked;
        let name = if prefix && name.len() > 1 && name.ends_with('-') && name.is_ascii() {
            masked = format!("{}a", &name[..name.len() - 2]);
            masked.as_str()
        } else {
            name
        };
        match self {
            Self::Subdomain => is_dns1123_subdomain(name),
            Self::Label => is_dns1123_label(name),
            Self::Label1035 => is_dns1035_label(name),
            Self::PathSegment => is_path_segment_name(name),
            Self::Any => Ok(()),
            Self::Ip => addresses::canonical_ip(name).map_err(|why| vec![why]),
        }
    }
}
