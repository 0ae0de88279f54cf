//! The REST facts of built-in resources: what is served where, under which names, with which verbs. Discovery and routing
//! are made from it; what each kind's storage does is `resources`' and `apiserver`'s.
use crate::generated::resources::GROUP_VERSIONS;

/// One served group version, in the order of the published discovery.
#[derive(Debug)]
pub struct GroupVersion {
    /// API group; empty for the core group.
    pub group: &'static str,
    /// Version, such as `v1`.
    pub version: &'static str,
    /// Whether clients prefer this version of the group.
    pub preferred: bool,
    /// The sort key of groups: `groupPriorityMinimum` of its APIService; 0 where there is none.
    pub group_priority: u32,
    /// The sort key of versions in a group: `versionPriority` of its APIService; 0 where there is none.
    pub version_priority: u32,
    /// Its resources, by plural name.
    pub resources: &'static [Resource],
}

/// One served resource.
#[derive(Debug)]
pub struct Resource {
    /// The API group, empty for the core group.
    pub group: &'static str,
    /// The API version, such as `v1`.
    pub version: &'static str,
    /// Kind of its objects.
    pub kind: &'static str,
    /// Plural name, as in paths.
    pub plural: &'static str,
    /// Singular name, as kubectl shows it.
    pub singular: &'static str,
    /// Names that kubectl takes too, such as `po`.
    pub short_names: &'static [&'static str],
    /// Categories, such as `all`.
    pub categories: &'static [&'static str],
    /// Whether objects live in namespaces.
    pub namespaced: bool,
    /// The verbs that discovery lists, sorted.
    pub verbs: &'static [&'static str],
    /// The published hash of the storage version; empty for resources that are not stored.
    pub storage_version_hash: &'static str,
    /// Subresources by name.
    pub subresources: &'static [Subresource],
}

/// A subresource, such as `pods/log`.
#[derive(Debug)]
pub struct Subresource {
    /// Name, such as `status`.
    pub name: &'static str,
    /// Kind it takes and gives.
    pub kind: &'static str,
    /// Group of that kind when discovery names one (`autoscaling` for `scale`), else empty.
    pub group: &'static str,
    /// Version of that kind when discovery names one, else empty.
    pub version: &'static str,
    /// Whether its objects live in namespaces.
    pub namespaced: bool,
    /// The verbs that discovery lists, sorted.
    pub verbs: &'static [&'static str],
}

/// All served group versions: the core group first, then in published order.
pub fn group_versions() -> &'static [GroupVersion] {
    GROUP_VERSIONS
}

/// All served resources.
pub fn resources() -> impl Iterator<Item = &'static Resource> {
    GROUP_VERSIONS.iter().flat_map(|gv| gv.resources)
}

/// One resource by its path.
pub fn resource(group: &str, version: &str, plural: &str) -> Option<&'static Resource> {
    let gv = GROUP_VERSIONS.iter().find(|gv| gv.group == group && gv.version == version)?;
    gv.resources.iter().find(|r| r.plural == plural)
}

/// One resource in the version that clients prefer; in the first published one where the group's preferred version lacks it.
pub fn preferred(group: &str, plural: &str) -> Option<&'static Resource> {
    let with = |gv: &GroupVersion| gv.resources.iter().find(|r| r.plural == plural);
    let mut versions =
        GROUP_VERSIONS.iter().filter(|gv| gv.group == group).filter_map(|gv| Some((gv.preferred, with(gv)?)));
    let first = versions.next()?;
    let found = if first.0 { first } else { versions.find(|v| v.0).unwrap_or(first) };
    Some(found.1)
}

/// The resource that holds objects of a kind.
pub fn resource_of_kind(group: &str, version: &str, kind: &str) -> Option<&'static Resource> {
    let gv = GROUP_VERSIONS.iter().find(|gv| gv.group == group && gv.version == version)?;
    gv.resources.iter().find(|r| r.kind == kind)
}

impl Resource {
    /// A subresource by name.
    pub fn subresource(&self, name: &str) -> Option<&'static Subresource> {
        self.subresources.iter().find(|s| s.name == name)
    }

    /// `v1` or `apps/v1`.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.to_owned() } else { format!("{}/{}", self.group, self.version) }
    }
}
