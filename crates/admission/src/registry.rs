//! Which plugins there are, in which order, and building the chain from the command line's wishes.
use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use crate::plugin::Passes::{self, Admit, Both, Validate};
use crate::plugins::{
    always, certificates, classes, images, limit_ranger, namespaces, node_restriction, node_selector, owner_references,
    pod_security, priority, quota, runtime_class, service_account, services, storage, tolerations,
};
use crate::{Chain, Dependencies, Plugin, policies, webhooks};

/// The command line's wishes.
#[derive(Clone, Debug, Default)]
pub struct AdmissionOptions {
    /// `--enable-admission-plugins`, beyond the default set.
    pub enable: Vec<String>,
    /// `--disable-admission-plugins`
    pub disable: Vec<String>,
    /// `plugins[]` of `--admission-control-config-file`: name to configuration.
    pub configuration: BTreeMap<String, Value>,
}

/// Why the server must not start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BuildError {
    /// No such plugin.
    #[error("{flag} plugin {name:?} is unknown")]
    Unknown {
        /// The flag that names it.
        flag: &'static str,
        /// The name that is not known.
        name: String,
    },
    /// A plugin of upstream's that this version does not have yet.
    #[error("admission plugin {0:?} is not available in this version of Kelson")]
    Unavailable(String),
    /// Both wanted and not.
    #[error("[{0}] in enable-admission-plugins and disable-admission-plugins overlapped")]
    Overlap(String),
    /// A plugin refuses its configuration.
    #[error("couldn't init admission plugin {name:?}: {why}")]
    Configuration {
        /// Which plugin it is.
        name: String,
        /// What is wrong.
        why: String,
    },
}

type Build = fn(&Dependencies, &Value) -> Result<Arc<dyn Plugin>, String>;

struct Entry {
    name: &'static str,
    by_default: bool,
    passes: Passes,
    /// `None`: known upstream, not available here.
    build: Option<Build>,
}

const fn on(name: &'static str, passes: Passes, build: Build) -> Entry {
    Entry { name, by_default: true, passes, build: Some(build) }
}
const fn off(name: &'static str, passes: Passes, build: Build) -> Entry {
    Entry { name, by_default: false, passes, build: Some(build) }
}
const fn absent(name: &'static str) -> Entry {
    Entry { name, by_default: false, passes: Both, build: None }
}

/// All plugins in the order they are asked (upstream `kubeapiserver/options/plugins.go`), the removed ones that are kept
/// known at the end.
const PLUGINS: &[Entry] = &[
    off("AlwaysAdmit", Both, |_, _| Ok(Arc::new(always::AlwaysAdmit))),
    absent("NamespaceAutoProvision"),
    on("NamespaceLifecycle", Both, |d, _| Ok(Arc::new(namespaces::NamespaceLifecycle::new(d)))),
    off("NamespaceExists", Both, |d, _| Ok(Arc::new(namespaces::NamespaceExists::new(d)))),
    off("LimitPodHardAntiAffinityTopology", Validate, |_, _| Ok(Arc::new(always::LimitPodHardAntiAffinityTopology))),
    on("LimitRanger", Both, |d, _| Ok(Arc::new(limit_ranger::LimitRanger::new(d)))),
    on("ServiceAccount", Both, |d, _| Ok(Arc::new(service_account::ServiceAccount::new(d)))),
    off("NodeRestriction", Admit, |d, _| Ok(Arc::new(node_restriction::NodeRestriction::new(d)))),
    on("TaintNodesByCondition", Admit, |_, _| Ok(Arc::new(tolerations::TaintNodesByCondition))),
    off("AlwaysPullImages", Both, |_, _| Ok(Arc::new(images::AlwaysPullImages))),
    absent("ImagePolicyWebhook"),
    on("PodSecurity", Validate, |d, c| Ok(Arc::new(pod_security::PodSecurity::new(d, c)?))),
    off("PodNodeSelector", Both, |d, c| Ok(Arc::new(node_selector::PodNodeSelector::new(d, c)?))),
    on("Priority", Both, |d, _| Ok(Arc::new(priority::Priority::new(d)))),
    on("DefaultTolerationSeconds", Admit, |_, _| Ok(Arc::new(tolerations::DefaultTolerationSeconds::default()))),
    absent("PodTolerationRestriction"),
    absent("EventRateLimit"),
    off("ExtendedResourceToleration", Admit, |_, _| Ok(Arc::new(tolerations::ExtendedResourceToleration))),
    on("DefaultStorageClass", Admit, |d, _| Ok(Arc::new(classes::DefaultStorageClass::new(d)))),
    on("StorageObjectInUseProtection", Admit, |_, _| Ok(Arc::new(storage::StorageObjectInUseProtection))),
    absent("PodGroupProtection"),
    off("OwnerReferencesPermissionEnforcement", Validate, |d, _| {
        Ok(Arc::new(owner_references::OwnerReferences::new(d)))
    }),
    on("PersistentVolumeClaimResize", Validate, |d, _| Ok(Arc::new(storage::PersistentVolumeClaimResize::new(d)))),
    on("RuntimeClass", Both, |d, _| Ok(Arc::new(runtime_class::RuntimeClass::new(d)))),
    on("CertificateApproval", Validate, |d, _| Ok(Arc::new(certificates::CertificateApproval::new(d)))),
    on("CertificateSigning", Validate, |d, _| Ok(Arc::new(certificates::CertificateSigning::new(d)))),
    absent("ClusterTrustBundleAttest"),
    on("CertificateSubjectRestriction", Validate, |_, _| Ok(Arc::new(certificates::CertificateSubjectRestriction))),
    on("DefaultIngressClass", Admit, |d, _| Ok(Arc::new(classes::DefaultIngressClass::new(d)))),
    off("DenyServiceExternalIPs", Validate, |_, _| Ok(Arc::new(services::DenyServiceExternalIps))),
    absent("PodTopologyLabels"),
    absent("PodGroupWorkloadExists"),
    absent("NodeDeclaredFeatureValidator"),
    absent("JobValidation"),
    absent("PodResizeValidator"),
    on("MutatingAdmissionPolicy", Admit, |d, _| Ok(Arc::new(policies::MutatingPolicies::new(d)))),
    on("MutatingAdmissionWebhook", Admit, |d, c| Ok(Arc::new(webhooks::MutatingWebhooks::new(d, c)?))),
    on("ValidatingAdmissionPolicy", Validate, |d, _| Ok(Arc::new(policies::ValidatingPolicies::new(d)))),
    on("ValidatingAdmissionWebhook", Validate, |d, c| Ok(Arc::new(webhooks::ValidatingWebhooks::new(d, c)?))),
    on("ResourceQuota", Validate, |d, c| Ok(Arc::new(quota::ResourceQuota::new(d, c)?))),
    off("AlwaysDeny", Both, |_, _| Ok(Arc::new(always::AlwaysDeny))),
    absent("DenyEscalatingExec"),
    absent("SecurityContextDeny"),
];

/// Every name known, in order.
pub fn known_plugins() -> Vec<&'static str> {
    PLUGINS.iter().map(|e| e.name).collect()
}

/// The names enabled unless disabled: upstream's default set, as far as it is available.
pub fn default_plugins() -> Vec<&'static str> {
    PLUGINS.iter().filter(|e| e.by_default).map(|e| e.name).collect()
}

/// Builds the chain.
pub fn build(options: &AdmissionOptions, dependencies: &Dependencies) -> Result<Chain, BuildError> {
    for (flag, names) in
        [("enable-admission-plugins", &options.enable), ("disable-admission-plugins", &options.disable)]
    {
        for name in names {
            let entry = PLUGINS.iter().find(|e| e.name == name);
            let Some(entry) = entry else { return Err(BuildError::Unknown { flag, name: name.clone() }) };
            if entry.build.is_none() && flag.starts_with("enable") {
                return Err(BuildError::Unavailable(name.clone()));
            }
        }
    }
    if let Some(name) = options.configuration.keys().find(|n| !PLUGINS.iter().any(|e| e.name == *n)) {
        return Err(BuildError::Unknown { flag: "admission-control-config-file", name: name.clone() });
    }
    let both: Vec<&str> = options.enable.iter().filter(|n| options.disable.contains(n)).map(String::as_str).collect();
    if !both.is_empty() {
        return Err(BuildError::Overlap(both.join(" ")));
    }
    let mut plugins = Vec::new();
    for entry in PLUGINS {
        let wanted = entry.by_default || options.enable.iter().any(|n| n == entry.name);
        let Some(make) = entry.build.filter(|_| wanted && !options.disable.iter().any(|n| n == entry.name)) else {
            continue;
        };
        let configuration = options.configuration.get(entry.name).unwrap_or(&Value::Null);
        let plugin = make(dependencies, configuration)
            .map_err(|why| BuildError::Configuration { name: entry.name.to_owned(), why })?;
        plugins.push((plugin, entry.passes));
    }
    Ok(Chain::new(plugins, Arc::clone(&dependencies.metrics)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::dependencies;

    #[test]
    fn names_are_unique_and_order_is_kept() {
        let mut names = known_plugins();
        let chain = build(&AdmissionOptions::default(), &dependencies(&[])).unwrap();
        assert_eq!(chain.names(), default_plugins());
        let n = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), n, "a name registered twice");
        let s = |l: &[&str]| l.iter().map(|x| (*x).to_owned()).collect::<Vec<_>>();
        let options = AdmissionOptions {
            enable: s(&["AlwaysDeny", "NodeRestriction"]),
            disable: s(&["Priority"]),
            ..Default::default()
        };
        let names = build(&options, &dependencies(&[])).unwrap().names();
        let at = |n| names.iter().position(|x| *x == n);
        assert!(at("ServiceAccount") < at("NodeRestriction") && at("AlwaysDeny") == Some(names.len() - 1));
        assert_eq!(at("Priority"), None);
        let fails = |enable: &[&str], disable: &[&str]| {
            let options = AdmissionOptions { enable: s(enable), disable: s(disable), ..Default::default() };
            build(&options, &dependencies(&[])).err().unwrap().to_string()
        };
        assert_eq!(fails(&["Nope"], &[]), "enable-admission-plugins plugin \"Nope\" is unknown");
        assert_eq!(fails(&[], &["Nope"]), "disable-admission-plugins plugin \"Nope\" is unknown");
        assert!(fails(&["ImagePolicyWebhook"], &[]).contains("not available"));
        assert!(fails(&["AlwaysDeny"], &["AlwaysDeny"]).contains("overlapped"));
    }

    #[test]
    fn every_entry_builds_under_its_own_name() {
        for entry in PLUGINS {
            if let Some(make) = entry.build {
                assert_eq!(make(&dependencies(&[]), &Value::Null).ok().unwrap().name(), entry.name);
            }
        }
    }
}
