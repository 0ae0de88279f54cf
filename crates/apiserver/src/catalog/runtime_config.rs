//! `--runtime-config`: which built-in group versions and resources are served. By default, stable versions are served, betas and alphas
//! are not: clients use what discovery offers, and a chart that finds a beta of a group expects all its kinds. The rules are those of
//! upstream's `k8s.io/apiserver/pkg/server/resourceconfig`.
use std::collections::BTreeMap;

use kelson_meta::gates::FeatureGates;
use kelson_schema::{lifecycle, resource};

/// Keys for all versions of one maturity. Later rows override earlier ones.
const MATURITIES: [(&str, fn(&str) -> bool); 4] = [
    ("api/all", |_| true),
    ("api/ga", is_stable),
    ("api/beta", |v| is_of(v, "beta")),
    ("api/alpha", |v| is_of(v, "alpha")),
];
/// Resources that are served while a feature gate is on, regardless of the configuration: group, version, plural name, gate.
const GATED: [(&str, &str, &str, &str); 6] = [
    ("certificates.k8s.io", "v1alpha1", "clustertrustbundles", "ClusterTrustBundle"),
    ("certificates.k8s.io", "v1beta1", "clustertrustbundles", "ClusterTrustBundle"),
    ("certificates.k8s.io", "v1beta1", "podcertificaterequests", "PodCertificateRequest"),
    ("scheduling.k8s.io", "v1alpha2", "podgroups", "GenericWorkload"),
    ("scheduling.k8s.io", "v1alpha2", "workloads", "GenericWorkload"),
    ("storagemigration.k8s.io", "v1beta1", "storageversionmigrations", "StorageVersionMigrator"),
];

/// The feature gates of resources.
pub fn gates() -> impl Iterator<Item = &'static str> {
    GATED.iter().map(|row| row.3)
}

/// Whether the feature gate of a resource is on; `true` for a resource without gate.
pub fn is_enabled(gates: &FeatureGates, group: &str, version: &str, plural: &str) -> bool {
    let row = GATED.iter().find(|row| (row.0, row.1, row.2) == (group, version, plural));
    row.is_none_or(|row| gates.enabled(row.3))
}

/// A key that upstream still accepts and ignores.
const LEGACY: &str = "api/legacy";
/// The key of the core group's version has no group.
const CORE: &str = "v1";

/// The selection of built-in resources that are served.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeConfig {
    /// Settings of maturities, by index in [`MATURITIES`].
    maturities: [Option<bool>; MATURITIES.len()],
    /// Settings of group versions.
    versions: BTreeMap<(String, String), bool>,
    /// Settings of resources.
    resources: BTreeMap<(String, String, String), bool>,
}

impl RuntimeConfig {
    /// Every built-in resource, as `api/all=true` asks for.
    pub fn all() -> Self {
        Self { maturities: [Some(true), None, None, None], ..Self::default() }
    }

    /// Parses the flag's values: `KEY=VALUE` separated by commas. The key of a group version or resource without value means true.
    ///
    /// # Errors
    /// With upstream's messages: an invalid key, an unknown group or version, a value that is not a boolean, and `api/all=false` alone.
    pub fn parse<S: AsRef<str>>(values: &[S]) -> Result<Self, String> {
        let pairs = values.iter().flat_map(|v| v.as_ref().split(',')).map(str::trim).filter(|pair| !pair.is_empty());
        let pairs = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        let pairs: BTreeMap<&str, &str> = pairs.map(|(key, value)| (key.trim(), value.trim())).collect();
        if pairs.len() == 1 && pairs.get("api/all") == Some(&"false") {
            return Err("invalid runtime-config with only api/all=false".to_owned());
        }
        let mut out = Self::default();
        let mut unknown = Vec::new();
        for (key, value) in pairs.into_iter().filter(|(key, _)| *key != LEGACY) {
            if let Some(at) = MATURITIES.iter().position(|(word, _)| *word == key) {
                out.maturities[at] = Some(match value {
                    "true" => true,
                    "false" => false,
                    _ => return Err(format!("invalid value {key}={value}")),
                });
                continue;
            }
            let parts: Vec<&str> = key.split('/').collect();
            let (group, version, resource) = match parts[..] {
                [CORE] => ("", CORE, None),
                [group, version] => (group, version, None),
                [group, version, resource] => (group, version, Some(resource)),
                _ => return Err(format!("runtime-config invalid key {key}")),
            };
            if !resource::group_versions().iter().any(|known| known.group == group) {
                unknown.push(format!("{group}/{version}"));
                continue;
            }
            out.set(key, (group, version, resource), value)?;
        }
        if unknown.is_empty() { Ok(out) } else { Err(format!("unknown api groups {}", unknown.join(","))) }
    }

    fn set(&mut self, key: &str, of: (&str, &str, Option<&str>), value: &str) -> Result<(), String> {
        let (group, version, resource) = of;
        // A version whose last kind was removed is still accepted and has no effect.
        let is_served = resource::group_versions().iter().any(|known| known.group == group && known.version == version);
        if !is_served && !lifecycle::is_known_version(group, version) {
            let shown = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
            return Err(format!("group version {shown} that has not been registered"));
        }
        let on = match value {
            "" | "1" | "t" | "T" | "true" | "TRUE" | "True" => true,
            "0" | "f" | "F" | "false" | "FALSE" | "False" => false,
            _ => {
                let why = format!("strconv.ParseBool: parsing {value:?}: invalid syntax");
                return Err(format!("invalid value of {key}: {value}, err: {why}"));
            }
        };
        let version_of = (group.to_owned(), version.to_owned());
        match resource {
            None => drop(self.versions.insert(version_of, on)),
            Some(resource) if resource.to_lowercase() != resource => {
                return Err(format!(
                    "invalid key {key}: group/version/resource and resource is always lowercase plural, not {resource:?}"
                ));
            }
            Some(resource) => drop(self.resources.insert((version_of.0, version_of.1, resource.to_owned()), on)),
        }
        Ok(())
    }

    /// Whether a resource is served: by its own setting, else by that of its version, else by that of its maturity.
    pub fn serves(&self, group: &str, version: &str, plural: &str) -> bool {
        let resource = (group.to_owned(), version.to_owned(), plural.to_owned());
        let said = self.resources.get(&resource).copied();
        let said = said.or_else(|| self.versions.get(&(resource.0, resource.1)).copied());
        let of_all = || {
            let mut rows = MATURITIES.iter().zip(self.maturities).rev();
            rows.find_map(|((_, is), on)| on.filter(|_| is(version)))
        };
        said.or_else(of_all).unwrap_or_else(|| is_stable(version))
    }
}

fn is_stable(version: &str) -> bool {
    version.strip_prefix('v').is_some_and(is_number)
}

/// Whether it is a version such as `v1beta2`.
fn is_of(version: &str, maturity: &str) -> bool {
    let parts = version.strip_prefix('v').and_then(|v| v.split_once(maturity));
    parts.is_some_and(|(major, minor)| is_number(major) && is_number(minor))
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether resources are served: of a stable, a beta and an alpha version, and two of one version.
    fn served(values: &[&str]) -> [bool; 5] {
        let config = RuntimeConfig::parse(values).unwrap();
        [
            ("apps", "v1", "deployments"),
            ("networking.k8s.io", "v1beta1", "ipaddresses"),
            ("resource.k8s.io", "v1alpha3", "devicetaintrules"),
            ("", "v1", "pods"),
            ("", "v1", "nodes"),
        ]
        .map(|(group, version, plural)| config.serves(group, version, plural))
    }

    #[test]
    fn the_most_specific_setting_wins() {
        let rows: [(&[&str], [bool; 5]); 10] = [
            (&[], [true, false, false, true, true]),
            (&["api/all=true"], [true; 5]),
            (&["api/beta=true"], [true, true, false, true, true]),
            (&["api/alpha=true", "api/beta=false"], [true, false, true, true, true]),
            (&["api/alpha=false,api/all=true"], [true, true, false, true, true]),
            (&["api/all=false,v1=true"], [false, false, false, true, true]),
            (&["networking.k8s.io/v1beta1"], [true, true, false, true, true]),
            (&["apps/v1=F", "resource.k8s.io/v1alpha3=1"], [false, false, true, true, true]),
            (&["v1=false, /v1/nodes=true"], [true, false, false, false, true]),
            (&["api/legacy=true,api/ga=false", "apps/v1/deployments=true"], [true, false, false, false, false]),
        ];
        for (values, want) in rows {
            assert_eq!(served(values), want, "{values:?}");
        }
        assert_eq!(RuntimeConfig::parse(&["api/all=true"]), Ok(RuntimeConfig::all()));
    }

    #[test]
    fn a_gated_resource_is_served_while_its_gate_is_on() {
        for (group, version, plural, gate) in GATED {
            assert!(resource::resource(group, version, plural).is_some(), "{plural}");
            let on = FeatureGates::parse(["AllAlpha=true,AllBeta=true"]).unwrap();
            assert!(is_enabled(&on, group, version, plural), "{gate}");
            assert!(!is_enabled(&FeatureGates::default(), group, version, plural), "{gate}");
        }
        assert!(is_enabled(&FeatureGates::default(), "", "v1", "pods"));
    }

    #[test]
    fn errors_have_upstreams_messages() {
        let rows = [
            ("api/all=false", "invalid runtime-config with only api/all=false"),
            ("api/beta=1", "invalid value api/beta=1"),
            ("api/beta", "invalid value api/beta="),
            ("foo/v1=true,bar/v2=true", "unknown api groups bar/v2,foo/v1"),
            ("apps/v9=true", "group version apps/v9 that has not been registered"),
            ("novalue", "runtime-config invalid key novalue"),
            ("a/b/c/d=true", "runtime-config invalid key a/b/c/d"),
            (
                "apps/v1=maybe",
                "invalid value of apps/v1: maybe, err: strconv.ParseBool: parsing \"maybe\": invalid syntax",
            ),
            (
                "apps/v1/Deployments=false",
                "invalid key apps/v1/Deployments: group/version/resource and resource is always lowercase plural, not \
                 \"Deployments\"",
            ),
        ];
        for (value, want) in rows {
            assert_eq!(RuntimeConfig::parse(&[value]), Err(want.to_owned()), "{value}");
        }
    }

    #[test]
    fn removed_versions_are_accepted() {
        for gone in ["authentication.k8s.io/v1beta1=true", "authentication.k8s.io/v1beta1/selfsubjectreviews=true"] {
            assert!(RuntimeConfig::parse(&[gone]).is_ok(), "{gone}");
        }
        assert!(RuntimeConfig::parse(&["authentication.k8s.io/v9=true"]).is_err());
    }
}
