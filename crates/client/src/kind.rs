//! The client's view of a type: its path and the key of its objects. It is implemented for every type of `k8s-openapi`.
//! A component that needs few fields of many objects implements it for its own slim struct.
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta as FullMeta;
use kelson_meta::ObjectKey;
use serde::de::DeserializeOwned;

/// A resource as the API serves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ResourceType {
    /// The API group; empty for the core group.
    pub group: &'static str,
    /// The version without the group: `v1`.
    pub version: &'static str,
    /// Plural, as in the path.
    pub plural: &'static str,
    /// Kind of its objects, as `kind` names it.
    pub kind: &'static str,
    /// Whether the resource is namespaced.
    pub namespaced: bool,
}

impl ResourceType {
    /// A namespaced resource.
    pub const fn namespaced(
        group: &'static str,
        version: &'static str,
        plural: &'static str,
        kind: &'static str,
    ) -> Self {
        Self { group, version, plural, kind, namespaced: true }
    }
    /// A cluster-scoped resource.
    pub const fn cluster(group: &'static str, version: &'static str, plural: &'static str, kind: &'static str) -> Self {
        Self { group, version, plural, kind, namespaced: false }
    }
    /// The `apiVersion` value.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.to_owned() } else { format!("{}/{}", self.group, self.version) }
    }
    /// `/api/v1/namespaces/NS/pods` and so on; an empty namespace addresses all of them.
    pub fn path(&self, namespace: &str) -> String {
        let root = if self.group.is_empty() { "/api" } else { "/apis/" };
        if self.namespaced && !namespace.is_empty() {
            format!("{root}{}/{}/namespaces/{namespace}/{}", self.group, self.version, self.plural)
        } else {
            format!("{root}{}/{}/{}", self.group, self.version, self.plural)
        }
    }
}

/// A type the client can read and cache.
pub trait Object: DeserializeOwned + Send + Sync + 'static {
    /// The resource of the type.
    const TYPE: ResourceType;
    /// Whether `metadata.managedFields` are among what it reads. They are often as long as the rest of an object, and a watch
    /// within the process leaves them out for those that do not.
    const READS_MANAGED_FIELDS: bool = false;
    /// `metadata.name`, which is unique in a namespace.
    fn name(&self) -> &str;
    /// Namespace; empty for cluster-scoped objects.
    fn namespace(&self) -> &str;
    /// `metadata.uid`, which distinguishes an object from a later one with the same name.
    fn uid(&self) -> &str;
    /// `metadata.resourceVersion`, from which a watch continues.
    fn resource_version(&self) -> &str;
    /// Namespace and name.
    fn key(&self) -> ObjectKey {
        ObjectKey::new(self.namespace(), self.name())
    }
}

/// Whether a scope of `k8s-openapi` has namespaces.
pub trait Scope {
    /// True for namespaced resources.
    const NAMESPACED: bool;
}
impl Scope for k8s_openapi::NamespaceResourceScope {
    const NAMESPACED: bool = true;
}
impl Scope for k8s_openapi::ClusterResourceScope {
    const NAMESPACED: bool = false;
}

impl<T> Object for T
where
    T: k8s_openapi::Metadata<Ty = FullMeta> + DeserializeOwned + Send + Sync + 'static,
    <T as k8s_openapi::Resource>::Scope: Scope,
{
    const TYPE: ResourceType = ResourceType {
        group: T::GROUP,
        version: T::VERSION,
        plural: T::URL_PATH_SEGMENT,
        kind: T::KIND,
        namespaced: <T::Scope as Scope>::NAMESPACED,
    };
    const READS_MANAGED_FIELDS: bool = true;
    fn name(&self) -> &str {
        self.metadata().name.as_deref().unwrap_or_default()
    }
    fn namespace(&self) -> &str {
        self.metadata().namespace.as_deref().unwrap_or_default()
    }
    fn uid(&self) -> &str {
        self.metadata().uid.as_deref().unwrap_or_default()
    }
    fn resource_version(&self) -> &str {
        self.metadata().resource_version.as_deref().unwrap_or_default()
    }
}

/// Implements [`Object`] for a slim view with a `metadata: kelson_meta::ObjectMeta` field:
/// `slim_object!(PodView, ResourceType::namespaced("", "v1", "pods", "Pod"));`
/// One that keeps all of an object says so by a third argument, `whole`.
#[macro_export]
macro_rules! slim_object {
    ($type:ty, $resource:expr $(, $whole:ident)?) => {
        impl $crate::Object for $type {
            const TYPE: $crate::ResourceType = $resource;
            $( const READS_MANAGED_FIELDS: bool = stringify!($whole).len() > 0; )?
            fn name(&self) -> &str {
                &self.metadata.name
            }
            fn namespace(&self) -> &str {
                &self.metadata.namespace
            }
            fn uid(&self) -> &str {
                &self.metadata.uid
            }
            fn resource_version(&self) -> &str {
                &self.metadata.resource_version
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::{apps::v1::Deployment, core::v1::Node};

    #[test]
    fn paths() {
        assert_eq!(<Deployment as Object>::TYPE.path("a"), "/apis/apps/v1/namespaces/a/deployments");
        assert_eq!(<Deployment as Object>::TYPE.path(""), "/apis/apps/v1/deployments");
        assert_eq!(<Node as Object>::TYPE.path("ignored"), "/api/v1/nodes");
    }
}
