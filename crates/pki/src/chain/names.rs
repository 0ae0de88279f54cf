//! Name constraints: the names that a CA may issue for (RFC 5280, 4.2.1.10, as Go interprets it).
use x509_parser::extensions::{GeneralName, GeneralSubtree, NameConstraints};

use super::fault::ChainFault;

/// Comparisons of names with constraints in one check (as Go's limit).
const COMPARISONS_MAX: usize = 250_000;

/// A name in a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Name {
    Dns(String),
    Email(String),
    Uri(String),
    /// 4 or 16 bytes.
    Address(Vec<u8>),
}

impl Name {
    fn kind(&self) -> &'static str {
        match self {
            Self::Dns(_) => "DNS name",
            Self::Email(_) => "email address",
            Self::Uri(_) => "URI",
            Self::Address(_) => "IP address",
        }
    }
    fn shown(&self) -> String {
        match self {
            Self::Dns(text) | Self::Email(text) | Self::Uri(text) => text.clone(),
            Self::Address(bytes) => address(bytes),
        }
    }
}

/// A set of names.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Constraint {
    Dns(String),
    Email(String),
    Uri(String),
    /// Address and mask.
    Network(Vec<u8>, Vec<u8>),
}

impl Constraint {
    fn is_of(&self, name: &Name) -> bool {
        matches!(
            (self, name),
            (Self::Dns(_), Name::Dns(_))
                | (Self::Email(_), Name::Email(_))
                | (Self::Uri(_), Name::Uri(_))
                | (Self::Network(..), Name::Address(_))
        )
    }
    fn shown(&self) -> String {
        match self {
            Self::Dns(text) | Self::Email(text) | Self::Uri(text) => text.clone(),
            Self::Network(base, mask) => {
                format!("{}/{}", address(base), mask.iter().map(|byte| byte.count_ones()).sum::<u32>())
            }
        }
    }
}

fn address(bytes: &[u8]) -> String {
    let v4 = <[u8; 4]>::try_from(bytes).map(|octets| std::net::Ipv4Addr::from(octets).to_string());
    let v6 = <[u8; 16]>::try_from(bytes).map(|octets| std::net::Ipv6Addr::from(octets).to_string());
    v4.or(v6).unwrap_or_else(|_| "?".to_owned())
}

/// The names that a CA may issue for.
#[derive(Debug)]
pub(super) struct Constraints {
    permitted: Vec<Constraint>,
    excluded: Vec<Constraint>,
}

impl Constraints {
    /// The constraints, and whether all of them are of a kind that is checked.
    ///
    /// # Errors
    /// [`ChainFault::Malformed`].
    pub(super) fn of(parsed: &NameConstraints<'_>) -> Result<(Self, bool), ChainFault> {
        let mut all = true;
        let mut read = |list: &Option<Vec<GeneralSubtree<'_>>>| -> Result<Vec<Constraint>, ChainFault> {
            let mut found = Vec::new();
            for subtree in list.iter().flatten() {
                match constraint(&subtree.base)? {
                    Some(constraint) => found.push(constraint),
                    None => all = false,
                }
            }
            Ok(found)
        };
        let (permitted, excluded) = (read(&parsed.permitted_subtrees)?, read(&parsed.excluded_subtrees)?);
        Ok((Self { permitted, excluded }, all))
    }

    /// Whether all these names may be vouched for.
    ///
    /// # Errors
    /// [`ChainFault::Name`], [`ChainFault::TooManyChecks`].
    pub(super) fn check<'a>(&self, names: impl Iterator<Item = &'a Name>) -> Result<(), ChainFault> {
        let mut comparisons = 0_usize;
        for name in names {
            comparisons = comparisons.saturating_add(self.permitted.len()).saturating_add(self.excluded.len());
            if comparisons > COMPARISONS_MAX {
                return Err(ChainFault::TooManyChecks);
            }
            let refused = |why: &str| ChainFault::Name(format!("{} {:?} {why}", name.kind(), name.shown()));
            for constraint in self.excluded.iter().filter(|constraint| constraint.is_of(name)) {
                if covers(constraint, name, true).map_err(|why| refused(&why))? {
                    return Err(refused(&format!("is excluded by constraint {:?}", constraint.shown())));
                }
            }
            let mut any = false;
            let mut is_permitted = false;
            for constraint in self.permitted.iter().filter(|constraint| constraint.is_of(name)) {
                any = true;
                is_permitted = covers(constraint, name, false).map_err(|why| refused(&why))?;
                if is_permitted {
                    break;
                }
            }
            if any && !is_permitted {
                return Err(refused("is not permitted by any constraint"));
            }
        }
        Ok(())
    }
}

fn constraint(base: &GeneralName<'_>) -> Result<Option<Constraint>, ChainFault> {
    Ok(Some(match base {
        GeneralName::DNSName(name) => Constraint::Dns((*name).to_owned()),
        GeneralName::RFC822Name(name) => Constraint::Email((*name).to_owned()),
        GeneralName::URI(name) => Constraint::Uri((*name).to_owned()),
        GeneralName::IPAddress(bytes) if matches!(bytes.len(), 8 | 32) => {
            let (base, mask) = bytes.split_at(bytes.len() / 2);
            Constraint::Network(base.to_vec(), mask.to_vec())
        }
        GeneralName::IPAddress(_) | GeneralName::Invalid(..) => {
            return Err(ChainFault::Malformed("invalid name constraint".into()));
        }
        _ => return Ok(None),
    }))
}

fn covers(constraint: &Constraint, name: &Name, excludes: bool) -> Result<bool, String> {
    match (constraint, name) {
        (Constraint::Dns(constraint), Name::Dns(name)) => Ok(match name.strip_prefix("*.").filter(|_| excludes) {
            // A wildcard matches each name with one more label.
            Some(parent) => {
                let plain = constraint.strip_prefix('.').unwrap_or(constraint);
                domain(constraint, name)
                    || plain.split_once('.').is_some_and(|(_, rest)| rest.eq_ignore_ascii_case(parent))
            }
            None => domain(constraint, name),
        }),
        (Constraint::Email(constraint), Name::Email(name)) => {
            let (local, host) = name.rsplit_once('@').ok_or("cannot be parsed")?;
            Ok(match constraint.rsplit_once('@') {
                Some((of, at)) => of == local && at.eq_ignore_ascii_case(host),
                None => domain(constraint, host),
            })
        }
        (Constraint::Uri(constraint), Name::Uri(name)) => {
            let rest = name.split_once("://").map_or("", |(_, rest)| rest);
            let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
            let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
            let host = if host.starts_with('[') { host } else { host.split(':').next().unwrap_or_default() };
            if host.is_empty() || host.starts_with('[') || host.parse::<std::net::IpAddr>().is_ok() {
                return Err("has no host name that can be matched against constraints".to_owned());
            }
            Ok(domain(constraint, host))
        }
        (Constraint::Network(base, mask), Name::Address(address)) => {
            let masked = |bytes: &[u8]| bytes.iter().zip(mask).map(|(byte, mask)| byte & mask).collect::<Vec<u8>>();
            Ok(base.len() == address.len() && masked(base) == masked(address))
        }
        _ => Ok(false),
    }
}

/// Whether a domain is the constraint's or below it; after a leading dot only those below it count, and the empty one is any.
fn domain(constraint: &str, name: &str) -> bool {
    let (constraint, below_alone) = match constraint.strip_prefix('.') {
        Some(rest) => (rest, true),
        None => (constraint, false),
    };
    if constraint.is_empty() {
        return true;
    }
    let (constraint, name) = (constraint.to_ascii_lowercase(), name.to_ascii_lowercase());
    match name.strip_suffix(&constraint) {
        Some("") => !below_alone,
        Some(rest) => rest.ends_with('.'),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_within_constraints() {
        let dns = |constraint: &str, name: &str, excludes| {
            covers(&Constraint::Dns(constraint.into()), &Name::Dns(name.into()), excludes)
        };
        for (constraint, name, wanted) in [
            ("example.com", "example.com", true),
            ("example.com", "A.Example.com", true),
            ("example.com", "badexample.com", false),
            (".example.com", "example.com", false),
            (".example.com", "a.example.com", true),
            ("", "anything", true),
            ("a.example.com", "example.com", false),
        ] {
            assert_eq!(dns(constraint, name, false), Ok(wanted), "{constraint} {name}");
        }
        assert_eq!(dns("a.example.com", "*.example.com", true), Ok(true), "the wildcard stands for the excluded name");
        assert_eq!(dns("a.example.com", "*.example.com", false), Ok(false));
        assert_eq!(dns("a.b.example.com", "*.example.com", true), Ok(false));
        let email = |constraint: &str, name: &str| {
            covers(&Constraint::Email(constraint.into()), &Name::Email(name.into()), false)
        };
        assert_eq!(email("jane@example.com", "jane@Example.com"), Ok(true));
        assert_eq!(email("jane@example.com", "Jane@example.com"), Ok(false));
        assert_eq!(email("example.com", "jane@a.example.com"), Ok(true));
        assert!(email("example.com", "jane").is_err());
        let uri =
            |constraint: &str, name: &str| covers(&Constraint::Uri(constraint.into()), &Name::Uri(name.into()), false);
        assert_eq!(uri("example.com", "spiffe://a.example.com:80/x"), Ok(true));
        assert_eq!(uri("example.com", "spiffe://example.org/example.com"), Ok(false));
        assert!(uri("example.com", "https://127.0.0.1/").is_err() && uri("example.com", "urn:x").is_err());
        let network = Constraint::Network(vec![10, 0, 0, 0], vec![255, 0, 0, 0]);
        let within = |bytes: &[u8]| covers(&network, &Name::Address(bytes.to_vec()), false);
        assert_eq!(
            (within(&[10, 1, 2, 3]), within(&[11, 1, 2, 3]), within(&[0; 16])),
            (Ok(true), Ok(false), Ok(false))
        );
        assert_eq!(network.shown(), "10.0.0.0/8");
    }

    #[test]
    fn comparisons_are_bounded() {
        let many = |count: usize| (0..count).map(|i| Constraint::Dns(format!("x{i}"))).collect();
        let constraints = Constraints { permitted: Vec::new(), excluded: many(1_000) };
        let names: Vec<Name> = (0..251).map(|i| Name::Dns(format!("y{i}"))).collect();
        assert_eq!(constraints.check(names.iter()), Err(ChainFault::TooManyChecks));
        assert_eq!(constraints.check(names[..250].iter()), Ok(()));
    }
}
