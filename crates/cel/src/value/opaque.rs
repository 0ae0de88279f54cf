//! The values of libraries' types.
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use kelson_meta::Quantity;

/// A value of a library's type.
#[derive(Clone, Debug)]
pub enum Opaque<'a> {
    /// `kubernetes.URL`.
    Url(Arc<Url>),
    /// `net.IP`.
    Ip(IpAddr),
    /// `net.CIDR`: an address and the length of its prefix.
    Cidr(IpAddr, u8),
    /// `kubernetes.Quantity`.
    Quantity(Quantity),
    /// `kubernetes.Semver`.
    Semver(Arc<Semver>),
    /// `kubernetes.NamedFormat`, with its name.
    Format(&'static str),
    /// A check of the authorization library, in one of its steps.
    Check(Check<'a>),
}

/// A URL with its parts.
#[derive(Debug, PartialEq, Eq)]
pub struct Url {
    /// The whole URL.
    pub text: String,
    /// The scheme, without its colon.
    pub scheme: String,
    /// The host and port, as written.
    pub host: String,
    /// The path, with its escapes.
    pub path: String,
    /// The query, without its question mark.
    pub query: String,
}

/// A version according to semver.org.
#[derive(Debug, PartialEq, Eq)]
pub struct Semver {
    /// The numbers: major, minor and patch.
    pub numbers: [u64; 3],
    /// The pre-release identifiers, after the hyphen.
    pub pre: Vec<String>,
    /// The build metadata, after the plus. It does not affect the order.
    pub build: Vec<String>,
}

/// An authorization check that is being built, or its decision.
#[derive(Clone, Debug)]
pub struct Check<'a> {
    /// The authorizer that decides.
    pub authorizer: &'a dyn Authorizer,
    /// The step that the check has reached.
    pub stage: Stage,
    /// The attributes that are set so far.
    pub request: Arc<AccessRequest>,
    /// The decision, in the last step.
    pub decision: Option<Arc<Decision>>,
}

/// The types of the authorizer library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// `kubernetes.authorization.Authorizer`.
    Authorizer,
    /// `kubernetes.authorization.PathCheck`.
    Path,
    /// `kubernetes.authorization.GroupCheck`.
    Group,
    /// `kubernetes.authorization.ResourceCheck`.
    Resource,
    /// `kubernetes.authorization.Decision`.
    Decision,
}

/// The attributes of an authorization check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessRequest {
    /// The service account (namespace, name) to check instead of the request's user.
    pub service_account: Option<(String, String)>,
    /// The path of a check that is not about a resource.
    pub path: Option<String>,
    /// The API group of the resource.
    pub group: String,
    /// The plural name of the resource.
    pub resource: String,
    /// The subresource; empty for the object itself.
    pub subresource: String,
    /// The namespace; empty for all namespaces and for cluster-scoped resources.
    pub namespace: String,
    /// The name of the object.
    pub name: String,
    /// The field selector, as written.
    pub field_selector: Option<String>,
    /// The label selector, as written.
    pub label_selector: Option<String>,
    /// The verb, such as `get`.
    pub verb: String,
}

/// The decision of the authorizer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// Whether the access is allowed.
    pub allowed: bool,
    /// The authorizer's reason.
    pub reason: String,
    /// The error of the authorizer, if there was one.
    pub error: Option<String>,
}

/// The authorizer that `authorizer.….check(verb)` calls.
pub trait Authorizer: fmt::Debug + Sync {
    /// Decides whether the request's user, or the service account in the request, has this access.
    fn check(&self, request: &AccessRequest) -> Decision;
}

impl Opaque<'_> {
    pub(crate) fn type_name(&self) -> &'static str {
        match self {
            Opaque::Url(_) => "kubernetes.URL",
            Opaque::Ip(_) => "net.IP",
            Opaque::Cidr(..) => "net.CIDR",
            Opaque::Quantity(_) => "kubernetes.Quantity",
            Opaque::Semver(_) => "kubernetes.Semver",
            Opaque::Format(_) => "kubernetes.NamedFormat",
            Opaque::Check(check) => match check.stage {
                Stage::Authorizer => "kubernetes.authorization.Authorizer",
                Stage::Path => "kubernetes.authorization.PathCheck",
                Stage::Group => "kubernetes.authorization.GroupCheck",
                Stage::Resource => "kubernetes.authorization.ResourceCheck",
                Stage::Decision => "kubernetes.authorization.Decision",
            },
        }
    }

    /// The bytes of an address or prefix, by which the cost of comparisons is counted.
    pub(crate) fn size(&self) -> Option<usize> {
        match self {
            Opaque::Ip(ip) => Some(if ip.is_ipv4() { 4 } else { 16 }),
            Opaque::Cidr(_, length) => Some(usize::from(*length).div_ceil(8)),
            _ => None,
        }
    }
}

impl PartialEq for Opaque<'_> {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Opaque::Url(a), Opaque::Url(b)) => a.text == b.text,
            (Opaque::Ip(a), Opaque::Ip(b)) => a == b,
            (Opaque::Cidr(a, n), Opaque::Cidr(b, m)) => (a, n) == (b, m),
            (Opaque::Quantity(a), Opaque::Quantity(b)) => a == b,
            // Build metadata does not distinguish versions.
            (Opaque::Semver(a), Opaque::Semver(b)) => (a.numbers, &a.pre) == (b.numbers, &b.pre),
            (Opaque::Format(a), Opaque::Format(b)) => a == b,
            (Opaque::Check(a), Opaque::Check(b)) => {
                a.stage == b.stage && a.request == b.request && a.decision == b.decision
            }
            _ => false,
        }
    }
}

impl fmt::Display for Opaque<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Opaque::Url(url) => f.write_str(&url.text),
            Opaque::Ip(ip) => write!(f, "{ip}"),
            Opaque::Cidr(ip, bits) => write!(f, "{ip}/{bits}"),
            Opaque::Quantity(q) => write!(f, "{q}"),
            Opaque::Semver(v) => {
                write!(f, "{}.{}.{}", v.numbers[0], v.numbers[1], v.numbers[2])?;
                for (sign, parts) in [('-', &v.pre), ('+', &v.build)] {
                    if !parts.is_empty() {
                        write!(f, "{sign}{}", parts.join("."))?;
                    }
                }
                Ok(())
            }
            Opaque::Format(name) => f.write_str(name),
            Opaque::Check(_) => f.write_str(self.type_name()),
        }
    }
}
