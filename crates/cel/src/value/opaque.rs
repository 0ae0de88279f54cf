//! Values of the libraries' own types.
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
    /// `net.CIDR`: an address with the length of its prefix.
    Cidr(IpAddr, u8),
    /// `kubernetes.Quantity`.
    Quantity(Quantity),
    /// `kubernetes.Semver`.
    Semver(Arc<Semver>),
    /// `kubernetes.NamedFormat`, by its name.
    Format(&'static str),
    /// What a check of authorization is made of.
    Check(Check<'a>),
}

/// A URL by its parts.
#[derive(Debug, PartialEq, Eq)]
pub struct Url {
    /// The whole text.
    pub text: String,
    /// Before the colon.
    pub scheme: String,
    /// Host and port, as written.
    pub host: String,
    /// The path with its escapes.
    pub path: String,
    /// The query without its question mark.
    pub query: String,
}

/// A version by semver.org.
#[derive(Debug, PartialEq, Eq)]
pub struct Semver {
    /// Major, minor and patch.
    pub numbers: [u64; 3],
    /// Parts after the hyphen.
    pub pre: Vec<String>,
    /// Parts after the plus; without meaning for the order.
    pub build: Vec<String>,
}

/// A question to the authorizer that is being put together, or its answer.
#[derive(Clone, Debug)]
pub struct Check<'a> {
    /// Whom to ask.
    pub authorizer: &'a dyn Authorizer,
    /// Which step it is at.
    pub stage: Stage,
    /// What has been said so far.
    pub request: Arc<AccessRequest>,
    /// The answer, at the last stage.
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

/// What an expression asks whether somebody may do it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessRequest {
    /// A service account to ask for (namespace, name) in place of the request's user.
    pub service_account: Option<(String, String)>,
    /// A path that is no resource.
    pub path: Option<String>,
    /// The API group that is asked about.
    pub group: String,
    /// The plural name of the resource that is asked about.
    pub resource: String,
    /// Its subresource; empty for the object itself.
    pub subresource: String,
    /// Where; empty for all namespaces and for cluster-scoped resources.
    pub namespace: String,
    /// Name of the object.
    pub name: String,
    /// Field selector, as written.
    pub field_selector: Option<String>,
    /// Label selector, as written.
    pub label_selector: Option<String>,
    /// What is to be done with it, such as `get`.
    pub verb: String,
}

/// The authorizer's answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// Whether it is allowed.
    pub allowed: bool,
    /// Why, as the authorizer says.
    pub reason: String,
    /// What went wrong while asking.
    pub error: Option<String>,
}

/// Who answers `authorizer.….check(verb)`.
pub trait Authorizer: fmt::Debug + Sync {
    /// Whether the request's user, or the service account that the request names, may do it.
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

    /// Bytes of an address or of a prefix, which is what costs of comparing are counted in.
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
            // What is built differently is the same version.
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
