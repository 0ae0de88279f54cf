//! AppArmor profiles in annotations, the format before 1.30, converted to the fields that replaced them (KEP-24,
//! upstream `pkg/registry/core/pod/strategy.go`).
use serde_json::{Value, json};

use crate::tree::{items, items_mut, present, text};

/// The prefix of the container's name.
const PREFIX: &str = "container.apparmor.security.beta.kubernetes.io/";
const LISTS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];
/// The maximum length of a profile name in the field.
const PROFILE_BYTES_MAX: usize = 4095;

/// Returns the field of an annotation; `None` if a field cannot express it.
fn field(annotation: &str) -> Option<Value> {
    match annotation {
        "unconfined" => Some(json!({"type": "Unconfined"})),
        "runtime/default" => Some(json!({"type": "RuntimeDefault"})),
        other => {
            let profile = other.strip_prefix("localhost/")?;
            let fits = !profile.is_empty() && profile.trim() == profile && profile.len() <= PROFILE_BYTES_MAX;
            fits.then(|| json!({"type": "Localhost", "localhostProfile": profile}))
        }
    }
}

fn annotation<'a>(pod: &'a Value, container: &Value) -> Option<&'a str> {
    pod["metadata"]["annotations"].get(format!("{PREFIX}{}", text(&container["name"])))?.as_str()
}

/// Gives containers without a profile the one of their annotation, unless it is the pod's anyway.
pub fn carry(pod: &mut Value) {
    if text(&pod["spec"]["os"]["name"]) == "windows" || !present(&pod["metadata"]["annotations"]) {
        return;
    }
    let of_pod = pod["spec"]["securityContext"]["appArmorProfile"].clone();
    for list in LISTS {
        let wanted: Vec<Option<Value>> = items(&pod["spec"][list])
            .iter()
            .map(|c| {
                let own = present(&c["securityContext"]["appArmorProfile"]);
                annotation(pod, c).filter(|_| !own).and_then(field).filter(|profile| *profile != of_pod)
            })
            .collect();
        let Some(spec) = pod.get_mut("spec") else { return };
        for (container, profile) in items_mut(spec, list).zip(wanted) {
            if let Some(profile) = profile {
                container["securityContext"]["appArmorProfile"] = profile;
            }
        }
    }
}

/// Returns warnings about annotations that should be fields: those whose container has no profile, or has it from the
/// annotation.
pub fn warnings(at: &str, spec: &Value, metadata: &Value) -> Vec<String> {
    let pod = json!({"metadata": {"annotations": metadata["annotations"]}});
    let containers = LISTS.iter().flat_map(|list| items(&spec[*list]));
    let reported = containers.filter_map(|c| {
        let said = field(annotation(&pod, c)?);
        let own = &c["securityContext"]["appArmorProfile"];
        let from_field = present(own) && said.as_ref() != Some(own);
        let of_pod = said.is_some() && said.as_ref() == Some(&spec["securityContext"]["appArmorProfile"]);
        (!from_field && !of_pod).then(|| {
            let name = text(&c["name"]);
            format!(
                "{at}metadata.annotations[{PREFIX}{name}]: deprecated since v1.30; use the \"appArmorProfile\" field instead"
            )
        })
    });
    reported.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn annotations_become_fields() {
        let check = |said: &str, own: Value, of_pod: Value, expected: Value, warned: bool| {
            let mut pod = json!({"metadata": {"annotations": {format!("{PREFIX}c"): said}},
                "spec": {"containers": [{"name": "c"}, {"name": "other"}]}});
            if !own.is_null() {
                pod["spec"]["containers"][0]["securityContext"]["appArmorProfile"] = own;
            }
            if !of_pod.is_null() {
                pod["spec"]["securityContext"]["appArmorProfile"] = of_pod;
            }
            carry(&mut pod);
            assert_eq!(pod["spec"]["containers"][0]["securityContext"]["appArmorProfile"], expected, "{said}");
            assert!(pod["spec"]["containers"][1].get("securityContext").is_none());
            assert_eq!(!warnings("", &pod["spec"], &pod["metadata"]).is_empty(), warned, "{said}");
        };
        let runtime = json!({"type": "RuntimeDefault"});
        let (none, unconfined) = (Value::Null, json!({"type": "Unconfined"}));
        check("runtime/default", none.clone(), none.clone(), runtime.clone(), true);
        check("unconfined", none.clone(), none.clone(), unconfined.clone(), true);
        let local = json!({"type": "Localhost", "localhostProfile": "p"});
        check("localhost/p", none.clone(), none.clone(), local, true);
        check("localhost/", none.clone(), none.clone(), none.clone(), true);
        check("runtime/default", unconfined.clone(), none.clone(), unconfined, false);
        check("runtime/default", none.clone(), runtime, none, false);
    }
}
