//! The status of a definition before it is stored: names and conditions. Upstream's controllers write it later; here a definition works
//! as soon as the client is answered. Upstream: `controller/{status,establish,apiapproval}`.
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::custom::conditions::{self, APPROVAL_CONFORMANT, Condition, ESTABLISHED, NAMES_ACCEPTED, condition};
use crate::custom::definition::{APPROVAL, Definition};
use crate::custom::names::{self, TakenNames};

/// Updates the status of a definition. `taken` are the names of the other definitions in its group.
pub fn complete(object: &mut Value, taken: &TakenNames, now: Timestamp) {
    // A definition that cannot be decoded was never validated and is left as it is.
    let Ok(definition) = kelson_meta::from_tree::<Definition>(object) else { return };
    let mut status = definition.status.clone();
    let has_condition = status.conditions.iter().any(|c| c.kind == NAMES_ACCEPTED);
    if !has_condition || definition.spec.names != status.accepted_names {
        let (granted, accepted) = names::grant(&definition, taken);
        status.accepted_names = granted;
        conditions::set(&mut status.conditions, accepted, now);
    }
    let accepted = status.conditions.iter().any(|c| c.kind == NAMES_ACCEPTED && c.status == "True");
    let established = match has_usable_bundle(&definition) {
        true => names::established(&definition, accepted),
        false if definition.has(ESTABLISHED) => None,
        false => Some(condition(ESTABLISHED, false, "InvalidCABundle", "The conversion webhook CABundle is invalid")),
    };
    for wanted in established.into_iter().chain(approval(&definition)) {
        if !status.conditions.iter().any(|have| is_same(have, &wanted)) {
            conditions::set(&mut status.conditions, wanted, now);
        }
    }
    if status == definition.status && object["status"]["conditions"].is_array() {
        return;
    }
    let Some(place) = object.as_object_mut() else { return };
    let place = place.entry("status").or_insert_with(|| json!({}));
    place["acceptedNames"] = json!(status.accepted_names);
    place["conditions"] = json!(status.conditions);
}

fn is_same(a: &Condition, b: &Condition) -> bool {
    (&a.kind, &a.status, &a.reason, &a.message) == (&b.kind, &b.status, &b.reason, &b.message)
}

/// Whether the conversion webhook's CA bundle, if there is one, can be parsed.
fn has_usable_bundle(definition: &Definition) -> bool {
    use base64::Engine as _;
    let webhook = definition.spec.conversion.as_ref().and_then(|c| c.webhook.as_ref());
    let Some(bundle) = webhook.and_then(|w| w.client_config["caBundle"].as_str()) else { return true };
    let Ok(pem) = base64::engine::general_purpose::STANDARD.decode(bundle) else { return false };
    if pem.trim_ascii().is_empty() {
        return true;
    }
    let text = String::from_utf8_lossy(&pem);
    kelson_pki::ClientChains::new(&[text.as_ref()]).is_ok()
}

/// The approval condition of definitions in protected Kubernetes groups.
fn approval(definition: &Definition) -> Option<Condition> {
    let group = definition.spec.group.as_str();
    let protected = ["k8s.io", "kubernetes.io"];
    if !protected.iter().any(|p| group.strip_suffix(p).is_some_and(|head| head.is_empty() || head.ends_with('.'))) {
        return None;
    }
    let see = "see https://github.com/kubernetes/enhancements/pull/1111";
    let policy = |status, reason, message: String| Some(condition(APPROVAL_CONFORMANT, status, reason, message));
    match definition.metadata.annotations.get(APPROVAL).map_or("", String::as_str) {
        "" => policy(
            false,
            "MissingAnnotation",
            format!("protected groups must have approval annotation {APPROVAL:?}, {see}"),
        ),
        text if text.starts_with("unapproved") => {
            policy(false, "UnapprovedAnnotation", format!("not approved: {text:?}"))
        }
        url if is_url(url) => policy(true, "ApprovedAnnotation", format!("approved in {url}")),
        _ => policy(
            false,
            "InvalidAnnotation",
            format!(
                "protected groups must have approval annotation {APPROVAL:?} with either a URL or a reason starting with \
                 \"unapproved\", {see}"
            ),
        ),
    }
}

fn is_url(text: &str) -> bool {
    text.parse::<http::Uri>().is_ok_and(|uri| uri.scheme().is_some() && uri.host().is_some_and(|h| !h.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn definition(group: &str) -> Value {
        json!({
            "metadata": {"name": format!("as.{group}")},
            "spec": {"group": group, "names": {"plural": "as", "singular": "a", "kind": "A", "listKind": "AList"}},
            "status": {"storedVersions": ["v1"]},
        })
    }

    fn conditions_of(object: &Value) -> Vec<String> {
        let text = |c: &Value, k: &str| c[k].as_str().unwrap_or("").to_owned();
        let conditions = object["status"]["conditions"].as_array().expect("conditions");
        conditions.iter().map(|c| format!("{}={} {}", text(c, "type"), text(c, "status"), text(c, "reason"))).collect()
    }

    #[test]
    fn a_new_definition_is_established_at_once() {
        let mut object = definition("example.com");
        complete(&mut object, &TakenNames::default(), Timestamp::UNIX_EPOCH);
        assert_eq!(conditions_of(&object), ["NamesAccepted=True NoConflicts", "Established=True InitialNamesAccepted"]);
        assert_eq!(object["status"]["acceptedNames"], object["spec"]["names"]);
        assert_eq!(object["status"]["storedVersions"], json!(["v1"]));
        let before = object.clone();
        complete(&mut object, &TakenNames::default(), Timestamp::MAX);
        assert_eq!(object, before);
    }

    #[test]
    fn protected_groups_require_an_approval() {
        let check = |annotation: Option<&str>, expected: &str| {
            let mut object = definition("a.k8s.io");
            if let Some(text) = annotation {
                object["metadata"]["annotations"] = json!({APPROVAL: text});
            }
            complete(&mut object, &TakenNames::default(), Timestamp::UNIX_EPOCH);
            assert_eq!(conditions_of(&object)[2], format!("KubernetesAPIApprovalPolicyConformant={expected}"));
        };
        check(None, "False MissingAnnotation");
        check(Some("unapproved, a trial"), "False UnapprovedAnnotation");
        check(Some("https://example.com/pull/1"), "True ApprovedAnnotation");
        check(Some("someone said so"), "False InvalidAnnotation");
        let mut open = definition("notk8s.io");
        complete(&mut open, &TakenNames::default(), Timestamp::UNIX_EPOCH);
        assert_eq!(conditions_of(&open).len(), 2);
    }
}
