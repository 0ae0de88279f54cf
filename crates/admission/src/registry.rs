//! The list of all plugins in their order, and building the chain from command-line options.
use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::Value;

use crate::configuration::Parts;
use crate::plugin::Passes::{self, Admit, Both, Validate};
use crate::plugins::tolerations::DefaultTolerationSeconds;
use crate::plugins::{
    always, certificates, classes, event_rate_limit, exec, image_policy, images, limit_ranger, namespace_provision,
    namespaces, node_restriction, node_selector, owner_references, pod_groups, pod_security, pod_updates, priority,
    quota, runtime_class, security_context, service_account, services, storage, toleration_restriction, tolerations,
    topology_labels, volume_labels,
};
use crate::{Chain, Dependencies, Plugin, policies, webhooks};

/// The command-line options of admission.
#[derive(Clone, Debug, Default)]
pub struct AdmissionOptions {
    /// `--enable-admission-plugins`, in addition to the default set.
    pub enable: Vec<String>,
    /// `--disable-admission-plugins`.
    pub disable: Vec<String>,
    /// `--admission-control`: exactly these plugins. Excludes the two above.
    pub exactly: Option<Vec<String>>,
    /// Plugins that the server adds to the default set.
    pub usual: Vec<&'static str>,
    /// `--admission-control-config-file`, by plugin.
    pub configuration: Parts,
    /// `--default-not-ready-toleration-seconds` and `--default-unreachable-toleration-seconds`.
    pub toleration_seconds: DefaultTolerationSeconds,
}

/// Why the server cannot start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BuildError {
    /// The plugin does not exist.
    #[error("{flag} plugin {name:?} is unknown")]
    Unknown {
        /// The flag that names it.
        flag: &'static str,
        /// The unknown name.
        name: String,
    },
    /// A plugin is given twice.
    #[error("admission plugin {0:?} was registered twice")]
    Twice(&'static str),
    /// A plugin is both enabled and disabled.
    #[error("[{0}] in enable-admission-plugins and disable-admission-plugins overlapped")]
    Overlap(String),
    /// The old flag is combined with the new ones.
    #[error("admission-control and enable-admission-plugins/disable-admission-plugins flags are mutually exclusive")]
    Exclusive,
    /// The configuration of a plugin is invalid.
    #[error("couldn't init admission plugin {name:?}: {why}")]
    Configuration {
        /// The name of the plugin.
        name: String,
        /// The error of the plugin that read its configuration.
        why: String,
    },
}

/// Builds a plugin from its dependencies and its section of the configuration.
type Build = fn(&Dependencies, &Value, &AdmissionOptions) -> Result<Arc<dyn Plugin>, String>;

#[derive(Clone, Copy)]
struct Entry {
    name: &'static str,
    by_default: bool,
    passes: Passes,
    build: Build,
    /// Feature gates without which the plugin admits everything, though it is built and listed.
    gates: &'static [&'static str],
}

impl Entry {
    const fn gated(self, gates: &'static [&'static str]) -> Self {
        Self { gates, ..self }
    }
}

const fn on(name: &'static str, passes: Passes, build: Build) -> Entry {
    Entry { name, by_default: true, passes, build, gates: &[] }
}
const fn off(name: &'static str, passes: Passes, build: Build) -> Entry {
    Entry { name, by_default: false, passes, build, gates: &[] }
}
/// All plugins in the order in which they run (upstream `kubeapiserver/options/plugins.go`), including plugins that
/// upstream removed, in their former positions.
const PLUGINS: &[Entry] = &[
    off("AlwaysAdmit", Both, |_, _, _| Ok(Arc::new(always::AlwaysAdmit))),
    off("NamespaceAutoProvision", Admit, |d, _, _| Ok(Arc::new(namespace_provision::NamespaceAutoProvision::new(d)))),
    on("NamespaceLifecycle", Both, |d, _, _| Ok(Arc::new(namespaces::NamespaceLifecycle::new(d)))),
    off("NamespaceExists", Both, |d, _, _| Ok(Arc::new(namespaces::NamespaceExists::new(d)))),
    off("SecurityContextDeny", Validate, |_, _, _| Ok(Arc::new(security_context::SecurityContextDeny))),
    off("LimitPodHardAntiAffinityTopology", Validate, |_, _, _| Ok(Arc::new(always::LimitPodHardAntiAffinityTopology))),
    on("LimitRanger", Both, |d, _, _| Ok(Arc::new(limit_ranger::LimitRanger::new(d)))),
    on("ServiceAccount", Both, |d, _, _| Ok(Arc::new(service_account::ServiceAccount::new(d)))),
    off("NodeRestriction", Admit, |d, _, _| Ok(Arc::new(node_restriction::NodeRestriction::new(d)))),
    on("TaintNodesByCondition", Admit, |_, _, _| Ok(Arc::new(tolerations::TaintNodesByCondition))),
    off("AlwaysPullImages", Both, |_, _, _| Ok(Arc::new(images::AlwaysPullImages))),
    off("ImagePolicyWebhook", Validate, |d, c, _| Ok(Arc::new(image_policy::ImagePolicyWebhook::new(d, c)?))),
    on("PodSecurity", Validate, |d, c, _| Ok(Arc::new(pod_security::PodSecurity::new(d, c)?))),
    off("PodNodeSelector", Both, |d, c, _| Ok(Arc::new(node_selector::PodNodeSelector::new(d, c)?))),
    on("Priority", Both, |d, _, _| Ok(Arc::new(priority::Priority::new(d)))),
    on("DefaultTolerationSeconds", Admit, |_, _, o| Ok(Arc::new(o.toleration_seconds))),
    off("PodTolerationRestriction", Both, |d, c, _| {
        Ok(Arc::new(toleration_restriction::PodTolerationRestriction::new(d, c)?))
    }),
    off("DenyEscalatingExec", Validate, |d, _, _| Ok(Arc::new(exec::DenyEscalatingExec::new(d)))),
    off("EventRateLimit", Validate, |_, c, _| Ok(Arc::new(event_rate_limit::EventRateLimit::new(c)?))),
    off("ExtendedResourceToleration", Admit, |_, _, _| Ok(Arc::new(tolerations::ExtendedResourceToleration))),
    off("PersistentVolumeLabel", Admit, |_, _, _| Ok(Arc::new(volume_labels::PersistentVolumeLabel))),
    on("DefaultStorageClass", Admit, |d, _, _| Ok(Arc::new(classes::DefaultStorageClass::new(d)))),
    on("StorageObjectInUseProtection", Admit, |_, _, _| Ok(Arc::new(storage::StorageObjectInUseProtection))),
    on("PodGroupProtection", Admit, |_, _, _| Ok(Arc::new(pod_groups::PodGroupProtection))).gated(&["GenericWorkload"]),
    off("OwnerReferencesPermissionEnforcement", Validate, |d, _, _| {
        Ok(Arc::new(owner_references::OwnerReferences::new(d)))
    }),
    on("PersistentVolumeClaimResize", Validate, |d, _, _| Ok(Arc::new(storage::PersistentVolumeClaimResize::new(d)))),
    on("RuntimeClass", Both, |d, _, _| Ok(Arc::new(runtime_class::RuntimeClass::new(d)))),
    on("CertificateApproval", Validate, |d, _, _| Ok(Arc::new(certificates::CertificateApproval::new(d)))),
    on("CertificateSigning", Validate, |d, _, _| Ok(Arc::new(certificates::CertificateSigning::new(d)))),
    on("ClusterTrustBundleAttest", Validate, |d, _, _| Ok(Arc::new(certificates::ClusterTrustBundleAttest::new(d)))),
    on("CertificateSubjectRestriction", Validate, |_, _, _| Ok(Arc::new(certificates::CertificateSubjectRestriction))),
    on("DefaultIngressClass", Admit, |d, _, _| Ok(Arc::new(classes::DefaultIngressClass::new(d)))),
    off("DenyServiceExternalIPs", Validate, |_, _, _| Ok(Arc::new(services::DenyServiceExternalIps))),
    on("PodTopologyLabels", Admit, |d, _, _| Ok(Arc::new(topology_labels::PodTopologyLabels::new(d))))
        .gated(&["PodTopologyLabelsAdmission"]),
    on("PodGroupWorkloadExists", Validate, |d, _, _| Ok(Arc::new(pod_groups::PodGroupWorkloadExists::new(d))))
        .gated(&["GenericWorkload"]),
    on("NodeDeclaredFeatureValidator", Validate, |d, _, _| {
        Ok(Arc::new(pod_updates::NodeDeclaredFeatureValidator::new(d)))
    })
    .gated(&["NodeDeclaredFeatures"]),
    on("JobValidation", Validate, |d, _, _| Ok(Arc::new(pod_groups::JobValidation::new(d))))
        .gated(&["GenericWorkload"]),
    on("PodResizeValidator", Validate, |d, _, _| Ok(Arc::new(pod_updates::PodResizeValidator::new(d)))),
    on("MutatingAdmissionPolicy", Admit, |d, c, _| Ok(Arc::new(policies::MutatingPolicies::new(d, c)?)))
        .gated(&["MutatingAdmissionPolicy"]),
    on("MutatingAdmissionWebhook", Admit, |d, c, _| Ok(Arc::new(webhooks::MutatingWebhooks::new(d, c)?))),
    on("ValidatingAdmissionPolicy", Validate, |d, c, _| Ok(Arc::new(policies::ValidatingPolicies::new(d, c)?))),
    on("ValidatingAdmissionWebhook", Validate, |d, c, _| Ok(Arc::new(webhooks::ValidatingWebhooks::new(d, c)?))),
    on("ResourceQuota", Validate, |d, c, _| Ok(Arc::new(quota::ResourceQuota::new(d, c)?))),
    off("AlwaysDeny", Both, |_, _, _| Ok(Arc::new(always::AlwaysDeny))),
];

/// Gates for a part of a plugin, which reads them itself.
const GATES_OF_PARTS: [&str; 6] = [
    "AllowInsecureKubeletCertificateSigningRequests",
    "ManifestBasedAdmissionControlConfig",
    "PodCertificateRequest",
    "PodLevelResources",
    "ServiceAccountNodeAudienceRestriction",
    "WorkloadAwarePreemption",
];

/// Returns the feature gates that change the behaviour of admission.
pub fn feature_gates() -> BTreeSet<&'static str> {
    PLUGINS.iter().flat_map(|e| e.gates).chain(&GATES_OF_PARTS).copied().collect()
}

/// Returns the names of all plugins, in order.
pub fn known_plugins() -> Vec<&'static str> {
    PLUGINS.iter().map(|e| e.name).collect()
}

/// Returns the names of the plugins that are enabled by default.
pub fn default_plugins() -> Vec<&'static str> {
    PLUGINS.iter().filter(|e| e.by_default).map(|e| e.name).collect()
}

/// Builds the chain.
///
/// # Errors
/// The first invalid option.
pub fn build(options: &AdmissionOptions, dependencies: &Dependencies) -> Result<Chain, BuildError> {
    build_of(PLUGINS, options, dependencies)
}

fn build_of(known: &[Entry], options: &AdmissionOptions, d: &Dependencies) -> Result<Chain, BuildError> {
    check(known, options)?;
    let (mut plugins, mut names) = (Vec::new(), Vec::new());
    for entry in known.iter().filter(|entry| is_wanted(entry, options)) {
        let configuration = options.configuration.get(entry.name).unwrap_or(&Value::Null);
        let plugin = (entry.build)(d, configuration, options)
            .map_err(|why| BuildError::Configuration { name: entry.name.to_owned(), why })?;
        names.push(plugin.name());
        if entry.gates.iter().all(|gate| d.gates.enabled(gate)) {
            plugins.push((plugin, entry.passes));
        }
    }
    d.metrics.enabled(&names);
    tracing::info!(plugins = names.join(","), "enabled admission plugins in order");
    Ok(Chain::new(plugins, Arc::clone(&d.metrics)))
}

/// Checks that the options are consistent and that all names exist.
fn check(known: &[Entry], options: &AdmissionOptions) -> Result<(), BuildError> {
    for (i, entry) in known.iter().enumerate() {
        if known.iter().take(i).any(|before| before.name == entry.name) {
            return Err(BuildError::Twice(entry.name));
        }
    }
    let (enable, disable) = (&options.enable, &options.disable);
    let named = |names: &[String]| names.iter().any(|n| !n.is_empty());
    if options.exactly.is_some() && (named(enable) || named(disable)) {
        return Err(BuildError::Exclusive);
    }
    let exactly = options.exactly.iter().flatten().map(|n| ("admission-control", n));
    let enabled = enable.iter().map(|n| ("enable-admission-plugins", n));
    let disabled = disable.iter().map(|n| ("disable-admission-plugins", n));
    let configured = options.configuration.keys().map(|n| ("admission-control-config-file", n));
    for (flag, name) in exactly.chain(enabled).chain(disabled).chain(configured) {
        // An empty value names no plugin.
        if !name.is_empty() && !known.iter().any(|e| e.name == name) {
            return Err(BuildError::Unknown { flag, name: name.clone() });
        }
    }
    let mut both: Vec<&str> =
        enable.iter().filter(|n| !n.is_empty() && disable.contains(n)).map(String::as_str).collect();
    both.sort_unstable();
    both.dedup();
    if both.is_empty() { Ok(()) } else { Err(BuildError::Overlap(both.join(" "))) }
}

fn is_wanted(entry: &Entry, options: &AdmissionOptions) -> bool {
    let among = |names: &[String]| names.iter().any(|n| n == entry.name);
    if let Some(exactly) = &options.exactly {
        return among(exactly);
    }
    let usual = entry.by_default || options.usual.contains(&entry.name);
    among(&options.enable) || (usual && !among(&options.disable))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{dependencies, gated};

    fn names(of: &[&str]) -> Vec<String> {
        of.iter().map(|x| (*x).to_owned()).collect()
    }

    fn wishes(enable: &[&str], disable: &[&str]) -> AdmissionOptions {
        AdmissionOptions { enable: names(enable), disable: names(disable), ..Default::default() }
    }

    fn built(options: &AdmissionOptions) -> Result<Vec<&'static str>, String> {
        build(options, &gated(&[], "GenericWorkload=true")).map(|chain| chain.names()).map_err(|e| e.to_string())
    }

    #[test]
    fn the_wanted_ones_in_their_order() {
        assert_eq!(built(&AdmissionOptions::default()).unwrap(), default_plugins());
        let chosen = built(&wishes(&["AlwaysDeny", "NodeRestriction", ""], &["Priority", ""])).unwrap();
        let at = |n| chosen.iter().position(|x| *x == n);
        assert!(at("ServiceAccount") < at("NodeRestriction") && at("AlwaysDeny") == Some(chosen.len() - 1));
        assert_eq!(at("Priority"), None);
        let usual = AdmissionOptions { usual: vec!["NodeRestriction"], ..Default::default() };
        assert!(built(&usual).unwrap().contains(&"NodeRestriction"));
        let without = AdmissionOptions { usual: vec!["NodeRestriction"], ..wishes(&[], &["NodeRestriction"]) };
        assert_eq!(built(&without).unwrap(), default_plugins(), "what is usual may be disabled");
        let old = |exactly: &[&str]| AdmissionOptions { exactly: Some(names(exactly)), ..without_wishes(&usual) };
        assert_eq!(built(&old(&["ServiceAccount", "AlwaysAdmit"])).unwrap(), ["AlwaysAdmit", "ServiceAccount"]);
        assert_eq!(built(&old(&[""])).unwrap(), Vec::<&str>::new());
    }

    /// Returns the plugins of the default set that are built and admit everything with these gates.
    fn without(gates: &str) -> Vec<&'static str> {
        let chain = build(&AdmissionOptions::default(), &gated(&[], gates)).unwrap().names();
        default_plugins().into_iter().filter(|name| !chain.contains(name)).collect()
    }

    #[test]
    fn gates_switch_plugins() {
        let workloads = ["PodGroupProtection", "PodGroupWorkloadExists", "JobValidation"];
        assert_eq!(without(""), workloads, "as upstream has it");
        assert_eq!(without("GenericWorkload=true"), [""; 0]);
        for (gates, name) in [
            ("PodTopologyLabelsAdmission=false", "PodTopologyLabels"),
            ("MutatingAdmissionPolicy=false", "MutatingAdmissionPolicy"),
            ("AllBeta=false", "NodeDeclaredFeatureValidator"),
        ] {
            assert!(without(gates).contains(&name), "{gates}");
        }
    }

    #[test]
    fn every_gate_is_documented() {
        let page = include_str!("../../../docs/admission.md");
        let (_, table) = page.split_once("| gate |").unwrap();
        let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
        let documented: BTreeSet<&str> = rows.filter_map(|row| row.split('`').nth(1)).collect();
        assert_eq!(documented, feature_gates());
        let known = kelson_meta::gates::FeatureGates::default();
        let (all, state): (BTreeSet<&str>, _) =
            (known.all().map(|(name, ..)| name).collect(), |name: &str| if known.enabled(name) { "on" } else { "off" });
        for gate in feature_gates() {
            assert!(all.contains(gate) && table.contains(&format!("| `{gate}` | {} |", state(gate))), "{gate}");
        }
    }

    #[test]
    fn attestation_is_checked_wherever_bundles_are_served() {
        assert!(!without("").contains(&"ClusterTrustBundleAttest"));
        assert!(!without("ClusterTrustBundle=false").contains(&"ClusterTrustBundleAttest"));
    }

    fn without_wishes(options: &AdmissionOptions) -> AdmissionOptions {
        AdmissionOptions { enable: Vec::new(), disable: Vec::new(), ..options.clone() }
    }

    #[test]
    fn what_stops_the_start() {
        let old = |exactly: &str, enable: &[&str]| AdmissionOptions {
            exactly: Some(names(&[exactly])),
            ..wishes(enable, &[])
        };
        let configured = |plugin: &str, part: Value| AdmissionOptions {
            configuration: Parts::from([(plugin.to_owned(), part)]),
            ..Default::default()
        };
        for (options, want) in [
            (wishes(&["Nope"], &[]), "enable-admission-plugins plugin \"Nope\" is unknown"),
            (wishes(&[], &["Nope"]), "disable-admission-plugins plugin \"Nope\" is unknown"),
            (old("Nope", &[]), "admission-control plugin \"Nope\" is unknown"),
            (configured("Nope", Value::Null), "admission-control-config-file plugin \"Nope\" is unknown"),
            (
                wishes(&["AlwaysDeny"], &["AlwaysDeny"]),
                "[AlwaysDeny] in enable-admission-plugins and disable-admission-plugins overlapped",
            ),
            (
                old("AlwaysAdmit", &["AlwaysDeny"]),
                "admission-control and enable-admission-plugins/disable-admission-plugins flags are mutually exclusive",
            ),
            (
                wishes(&["ImagePolicyWebhook"], &[]),
                "couldn't init admission plugin \"ImagePolicyWebhook\": no config specified",
            ),
            (
                configured("PodSecurity", serde_json::json!({"kind": "Other"})),
                "couldn't init admission plugin \"PodSecurity\": unexpected kind \"Other\", want PodSecurityConfiguration",
            ),
        ] {
            assert_eq!(built(&options).unwrap_err(), want);
        }
        let twice = [PLUGINS, &[off("AlwaysDeny", Both, |_, _, _| Ok(Arc::new(always::AlwaysDeny)))]].concat();
        let fault = build_of(&twice, &AdmissionOptions::default(), &dependencies(&[])).err().unwrap();
        assert_eq!(fault.to_string(), "admission plugin \"AlwaysDeny\" was registered twice");
    }

    /// A section for each plugin that has one, with every field.
    fn parts() -> Vec<(&'static str, Value)> {
        use serde_json::json;
        let head = |group: &str, kind: &str, mut part: Value| {
            part["apiVersion"] = group.into();
            part["kind"] = kind.into();
            part
        };
        let all = ["enforce", "audit", "warn"].map(|mode| [mode.to_owned(), format!("{mode}-version")]).concat();
        let defaults: serde_json::Map<String, Value> = all
            .into_iter()
            .map(|field| (field.clone(), if field.contains("version") { "latest" } else { "baseline" }.into()))
            .collect();
        let security = json!({"defaults": defaults,
            "exemptions": {"usernames": ["u"], "namespaces": ["n"], "runtimeClasses": ["r"]}});
        let limited = json!({"limitedResources": [{"apiGroup": "", "resource": "pods", "matchContains": ["cpu"],
            "matchScopes": [{"scopeName": "PriorityClass", "operator": "In", "values": ["high"]}]}]});
        let toleration = json!([{"key": "k", "operator": "Equal", "value": "v", "effect": "NoExecute",
            "tolerationSeconds": 1}]);
        let limits = json!({"limits": [{"type": "Namespace", "qps": 1, "burst": 2, "cacheSize": 3}]});
        let config = "apiserver.config.k8s.io/v1";
        vec![
            ("PodSecurity", head("pod-security.admission.config.k8s.io/v1", "PodSecurityConfiguration", security)),
            ("ResourceQuota", head(config, "ResourceQuotaConfiguration", limited.clone())),
            ("ResourceQuota", head("resourcequota.admission.k8s.io/v1beta1", "Configuration", limited)),
            (
                "PodTolerationRestriction",
                head(
                    "podtolerationrestriction.admission.k8s.io/v1alpha1",
                    "Configuration",
                    json!({"default": toleration, "whitelist": toleration}),
                ),
            ),
            ("EventRateLimit", head("eventratelimit.admission.k8s.io/v1alpha1", "Configuration", limits)),
            ("MutatingAdmissionWebhook", head(config, "WebhookAdmissionConfiguration", json!({"kubeConfigFile": ""}))),
            (
                "ValidatingAdmissionWebhook",
                head(config, "WebhookAdmissionConfiguration", json!({"kubeConfigFile": ""})),
            ),
            ("ValidatingAdmissionPolicy", head(config, "ValidatingAdmissionPolicyConfiguration", json!({}))),
            ("MutatingAdmissionPolicy", head(config, "MutatingAdmissionPolicyConfiguration", json!({}))),
        ]
    }

    #[test]
    fn a_misspelt_field_at_any_level_of_a_part_stops_the_start() {
        for (name, part) in parts() {
            let build = |part: &Value| {
                let entry = PLUGINS.iter().find(|entry| entry.name == name).expect("a plugin");
                (entry.build)(&dependencies(&[]), part, &AdmissionOptions::default()).map(drop)
            };
            assert_eq!(build(&part), Ok(()), "{name}");
            for (at, misspelt) in kelson_codec::strict::misspelt(&part) {
                let why = build(&misspelt).unwrap_err();
                assert!(why.contains("unknown field") && why.contains("misspelt"), "{name} {at}: {why}");
            }
            for (field, other) in [("apiVersion", "apiserver.config.k8s.io/v9"), ("kind", "Other")] {
                let mut changed = part.clone();
                changed[field] = other.into();
                assert!(build(&changed).is_err(), "{name} of {other}");
            }
        }
        let nameless = serde_json::json!({"limitedResources": [{"matchContains": ["cpu"]}]});
        let entry = PLUGINS.iter().find(|entry| entry.name == "ResourceQuota").expect("a plugin");
        let why = (entry.build)(&dependencies(&[]), &nameless, &AdmissionOptions::default()).err();
        assert_eq!(why.as_deref(), Some("limitedResources[0].resource: Required value"));
    }

    #[test]
    fn every_entry_builds_under_its_own_name() {
        for entry in PLUGINS {
            match (entry.build)(&dependencies(&[]), &Value::Null, &AdmissionOptions::default()) {
                Ok(plugin) => assert_eq!(plugin.name(), entry.name),
                // These two require a configuration.
                Err(why) => assert!(["ImagePolicyWebhook", "EventRateLimit"].contains(&entry.name), "{why}"),
            }
        }
    }
}
