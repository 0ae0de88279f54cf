//! Fields of disabled features: they are dropped from new objects, and kept in objects that have them. Upstream has a
//! function for each feature (`dropDisabledFields`); here it is a table.
mod fields;
mod path;

use std::collections::BTreeMap;

use kelson_meta::gates::FeatureGates;
use serde_json::Value;

use fields::PARTS;
use path::GatedPath;

/// The fields of a kind for one feature.
#[derive(Debug)]
struct Off {
    fields: Vec<GatedPath>,
    used: Vec<GatedPath>,
}

/// The fields that are dropped from objects of each kind with a set of feature gates.
#[derive(Debug, Default)]
pub struct GatedFields(BTreeMap<(&'static str, &'static str), Vec<Off>>);

impl GatedFields {
    /// Returns the gates of fields; one may be repeated.
    pub fn gates() -> impl Iterator<Item = &'static str> {
        PARTS.iter().flat_map(|(.., rows)| *rows).flat_map(|row| row.gates).copied()
    }

    /// Returns the fields of disabled features.
    pub fn of(gates: &FeatureGates) -> Self {
        let mut kinds: BTreeMap<_, Vec<Off>> = BTreeMap::new();
        for &(group, plural, prefix, rows) in PARTS {
            for row in rows.iter().filter(|row| !row.gates.iter().all(|gate| gates.enabled(gate))) {
                let places = |texts: &[&'static str]| {
                    texts.iter().flat_map(|&text| GatedPath::parse(prefix, text)).collect::<Vec<_>>()
                };
                let off = Off { fields: places(row.fields), used: places(row.used) };
                kinds.entry((group, plural)).or_default().push(off);
            }
        }
        Self(kinds)
    }

    /// Drops the fields from an object in its stored form, unless the previous object `old` uses the same feature.
    pub fn drop_from(&self, group: &str, plural: &str, object: &mut Value, old: Option<&Value>) {
        for off in self.0.get(&(group, plural)).into_iter().flatten() {
            if old.is_some_and(|old| off.used.iter().any(|place| place.is_in(old))) {
                continue;
            }
            off.fields.iter().for_each(|place| place.remove_from(object));
        }
    }
}

#[cfg(test)]
mod tests {
    use kelson_schema::Shape;
    use serde_json::json;

    use super::*;

    fn gates(values: &[&str]) -> GatedFields {
        GatedFields::of(&FeatureGates::parse(values.iter().copied()).expect("gates"))
    }

    #[test]
    fn every_row_names_fields_and_gates_that_there_are() {
        let known: Vec<_> = FeatureGates::default().all().map(|(name, ..)| name).collect();
        let mut unknown = Vec::new();
        for &(group, plural, prefix, rows) in PARTS {
            let stored = crate::storage_gvk(group, plural).expect("a resource");
            let shape = Shape::of_kind(&stored.group, &stored.version, &stored.kind);
            for row in rows {
                unknown.extend(row.gates.iter().filter(|gate| !known.contains(*gate)).map(|gate| (*gate).to_owned()));
                for text in row.fields.iter().copied().chain(row.used.iter().copied()) {
                    let places = GatedPath::parse(prefix, text);
                    let odd = places.iter().filter(|place| !place.is_of(&shape) && places.len() == 1);
                    unknown.extend(odd.map(|place| format!("{group} {plural} {place:?}")));
                }
            }
        }
        assert_eq!(unknown, [""; 0]);
    }

    #[test]
    fn what_is_off_is_dropped_and_what_was_there_is_kept() {
        let pod = |signal: bool| {
            let lifecycle = if signal { json!({"stopSignal": "SIGUSR1"}) } else { json!({}) };
            let container = json!({"name": "a", "image": "b", "lifecycle": lifecycle});
            json!({"spec": {
                "schedulingGroup": {"podGroupName": "g"}, "hostnameOverride": "h",
                "containers": [container], "initContainers": [{"name": "i", "lifecycle": {
                    "stopSignal": "SIGUSR1", "preStop": {"sleep": {"seconds": 1}}}}],
            }})
        };
        let mut new = pod(true);
        gates(&[]).drop_from("", "pods", &mut new, None);
        let left = json!({"spec": {
            "hostnameOverride": "h", "containers": [{"name": "a", "image": "b"}],
            "initContainers": [{"name": "i", "lifecycle": {"preStop": {"sleep": {"seconds": 1}}}}],
        }});
        assert_eq!(new, left, "what is on stays, and so does what else is in a container's life");

        // One feature is in use, the other is not: each is checked separately.
        let mut old = pod(true);
        old["spec"].as_object_mut().expect("spec").remove("schedulingGroup");
        let mut new = pod(true);
        gates(&[]).drop_from("", "pods", &mut new, Some(&old));
        assert_eq!(new["spec"]["containers"], pod(true)["spec"]["containers"]);
        assert!(new["spec"].get("schedulingGroup").is_none());

        let mut new = pod(true);
        gates(&["ContainerStopSignals=true,GenericWorkload=true"]).drop_from("", "pods", &mut new, None);
        assert_eq!(new, pod(true));
        gates(&["HostnameOverride=false"]).drop_from("", "pods", &mut new, None);
        assert!(new["spec"].get("hostnameOverride").is_none());
        gates(&[]).drop_from("other.example.com", "pods", &mut new, None);
        assert_eq!(new["spec"]["initContainers"].as_array().map(Vec::len), Some(1));
    }

    #[test]
    fn conditions_of_places_are_kept_to() {
        let spec = json!({
            "initContainers": [{"restartPolicy": "Always"}, {"restartPolicy": "Never", "restartPolicyRules": [{}]}],
            "containers": [{"restartPolicy": "Never"}],
        });
        let mut job = json!({"spec": {"template": {"spec": spec}}});
        let off = gates(&["ContainerRestartRules=false,RestartAllContainersOnContainerExits=false"]);
        off.drop_from("batch", "jobs", &mut job, None);
        let left = json!({"initContainers": [{"restartPolicy": "Always"}, {}], "containers": [{}]});
        assert_eq!(job["spec"]["template"]["spec"], left);

        let claim = |reference: Value| json!({"spec": {"dataSourceRef": reference}});
        let mut near = claim(json!({"kind": "K", "name": "n"}));
        let mut far = claim(json!({"kind": "K", "name": "n", "namespace": "other"}));
        let mut kept = far.clone();
        let defaults = gates(&[]);
        defaults.drop_from("", "persistentvolumeclaims", &mut near, None);
        defaults.drop_from("", "persistentvolumeclaims", &mut kept, Some(&near));
        defaults.drop_from("", "persistentvolumeclaims", &mut far, None);
        assert_eq!(near, claim(json!({"kind": "K", "name": "n"})));
        assert_eq!(kept["spec"]["dataSourceRef"]["namespace"], "other");
        assert_eq!(far, json!({"spec": {}}));

        let mut slice = json!({"spec": {"devices": [{"attributes": {"a": {"ints": [1]}, "b": {"int": 1}}}]}});
        defaults.drop_from("resource.k8s.io", "resourceslices", &mut slice, None);
        assert_eq!(slice, json!({"spec": {"devices": [{"attributes": {"a": {}, "b": {"int": 1}}}]}}));
    }
}
