//! The names of records: the interned resource, and the key, whose order is that of the keys in Kubernetes' etcd storage.

use std::cell::Cell;
use std::cmp::Ordering;
use std::collections::HashMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, LazyLock};

use parking_lot::RwLock;

/// A stored resource ("group/plural", or "plural" in the core group), interned while the process runs: it is as cheap as a pointer to
/// copy, compare and hash. The table grows with the number of distinct resources ever named, which administrators bound by creating
/// custom resource definitions. Never create one from an unchecked request path.
#[derive(Clone, Copy)]
pub struct Resource(&'static str);

static RESOURCES: LazyLock<RwLock<HashMap<&'static str, Resource>>> = LazyLock::new(RwLock::default);

/// The number of cached resources that a thread named last. A request names about a dozen, some of them several times.
const NAMED_LAST: usize = 64;
thread_local! {
    static LAST: [Cell<Option<Resource>>; NAMED_LAST] = const { [const { Cell::new(None) }; NAMED_LAST] };
}

/// The index of a resource in the cache. The lengths and a few letters distinguish nearly all resources.
fn place(group: &str, plural: &str) -> usize {
    let letter = |text: &str, at: usize| text.as_bytes().get(at).map_or(0, |b| usize::from(*b));
    let of_plural = letter(plural, 0) + 3 * letter(plural, plural.len() / 2) + 5 * plural.len();
    (of_plural + letter(group, 0) + 7 * group.len()) % NAMED_LAST
}

impl Resource {
    /// The resource with an API group (empty for the core group) and a plural name.
    #[must_use]
    pub fn new(group: &str, plural: &str) -> Self {
        LAST.with(|last| {
            let Some(last) = last.get(place(group, plural)) else { return Self::named(group, plural) };
            if let Some(found) = last.get().filter(|found| found.is(group, plural)) {
                return found;
            }
            let found = Self::named(group, plural);
            last.set(Some(found));
            found
        })
    }

    fn named(group: &str, plural: &str) -> Self {
        if group.is_empty() { Self::parse(plural) } else { Self::parse(&format!("{group}/{plural}")) }
    }

    /// Whether this resource has this group and plural name.
    fn is(self, group: &str, plural: &str) -> bool {
        match self.0.strip_suffix(plural) {
            Some("") => group.is_empty(),
            Some(before) => before.strip_suffix('/').is_some_and(|before| !group.is_empty() && before == group),
            None => false,
        }
    }

    /// Parses a name in the form that [`Resource::as_str`] returns.
    #[must_use]
    pub fn parse(name: &str) -> Self {
        if let Some(found) = RESOURCES.read().get(name) {
            return *found;
        }
        let mut table = RESOURCES.write();
        if let Some(found) = table.get(name) {
            return *found;
        }
        let name: &'static str = Box::leak(name.to_owned().into_boxed_str());
        table.insert(name, Self(name));
        Self(name)
    }

    /// The name: "group/plural", or "plural" in the core group.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.0
    }

    /// The API group, empty for the core group.
    #[must_use]
    pub fn group(self) -> &'static str {
        self.0.rsplit_once('/').map_or("", |(group, _)| group)
    }

    /// The plural name.
    #[must_use]
    pub fn plural(self) -> &'static str {
        self.0.rsplit_once('/').map_or(self.0, |(_, plural)| plural)
    }
}

impl PartialEq for Resource {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.0, other.0)
    }
}
impl Eq for Resource {}
impl Hash for Resource {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.0.as_ptr() as usize).hash(state);
    }
}
impl PartialOrd for Resource {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Resource {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.cmp(other.0)
    }
}
impl fmt::Debug for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}
impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// The key of one record.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Key {
    /// The resource. Keys are sorted by it first.
    pub resource: Resource,
    /// The namespace, empty for cluster-scoped resources.
    pub namespace: Arc<str>,
    /// The object's name.
    pub name: Arc<str>,
}

impl Key {
    /// Makes a key from its parts. `namespace` is empty for cluster-scoped resources.
    #[must_use]
    pub fn new(resource: Resource, namespace: &str, name: &str) -> Self {
        Self { resource, namespace: namespace.into(), name: name.into() }
    }

    /// Compares this key with a namespace and name of the same resource.
    pub(crate) fn cmp_place(&self, place: RecordName<'_>) -> Ordering {
        RecordName { namespace: &self.namespace, name: &self.name }.cmp(&place)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() {
            write!(f, "{}/{}", self.resource, self.name)
        } else {
            write!(f, "{}/{}/{}", self.resource, self.namespace, self.name)
        }
    }
}

/// The namespace and name of a record of one resource. The order is that of the strings "namespace/name" ('-' and '.' sort before '/'),
/// as in Kubernetes' etcd storage, so that lists over all namespaces have the same order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RecordName<'a> {
    pub namespace: &'a str,
    pub name: &'a str,
}

impl Ord for RecordName<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        if self.namespace == other.namespace {
            return self.name.as_bytes().cmp(other.name.as_bytes());
        }
        let (a, b) = (self.namespace.as_bytes(), other.namespace.as_bytes());
        let shared = a.len().min(b.len());
        match a[..shared].cmp(&b[..shared]) {
            Ordering::Equal if a.len() < b.len() => b'/'.cmp(&b[shared]),
            Ordering::Equal => a[shared].cmp(&b'/'),
            unequal => unequal,
        }
    }
}
impl PartialOrd for RecordName<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resources_are_one_pointer_per_name() {
        let a = Resource::new("apps", "deployments");
        assert_eq!(a, Resource::parse("apps/deployments"));
        assert_eq!((a.group(), a.plural()), ("apps", "deployments"));
        let core = Resource::new("", "pods");
        assert_eq!((core.group(), core.plural(), core.as_str()), ("", "pods", "pods"));
        assert_ne!(a, core);
    }

    #[test]
    fn the_cache_returns_the_resource_that_was_named() {
        let groups = ["", "apps", "spas", "a.example.com", "b.example.com"];
        let plurals = ["pods", "podt", "ds", "spods", "s"];
        for _ in 0..2 {
            for group in groups {
                for plural in plurals {
                    let named = if group.is_empty() { plural.to_owned() } else { format!("{group}/{plural}") };
                    // The second call takes the resource from the cache.
                    assert_eq!(Resource::new(group, plural).as_str(), named);
                    assert_eq!(Resource::new(group, plural), Resource::parse(&named));
                }
            }
        }
        assert!(groups.iter().all(|group| plurals.iter().all(|plural| place(group, plural) < NAMED_LAST)));
        assert_eq!(place("", "pods"), place("", "podt"), "two of them share a place");
    }

    #[test]
    fn places_sort_like_joined_strings() {
        let names = ["a", "a-b", "a.b", "a0", "ab", "b", "a-"];
        for a in names {
            for b in names {
                for (x, y) in [("p", "p"), ("p", "q"), ("z", "a")] {
                    let left = RecordName { namespace: a, name: x };
                    let right = RecordName { namespace: b, name: y };
                    assert_eq!(left.cmp(&right), format!("{a}/{x}").cmp(&format!("{b}/{y}")), "{a}/{x} {b}/{y}");
                }
            }
        }
    }
}
