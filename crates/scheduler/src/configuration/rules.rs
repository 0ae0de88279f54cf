//! Rules that a configuration adds to every pod of a profile: node affinity (`NodeAffinityArgs`), and default spreading
//! constraints (`PodTopologySpreadArgs`).
use kelson_meta::{LabelSelector, NodeSelector, NodeSelectorTerm};
use serde::Deserialize;
use serde_json::Value;

use super::reader::{Reader, join};
use crate::plugins::node_affinity::NodeAffinity;
use crate::plugins::pod_topology_spread::PodTopologySpread;
use crate::view::SpreadConstraint;

const OPERATORS: &[&str] = &["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"];
/// The only field that `matchFields` supports.
const NAME_FIELD: &str = "metadata.name";

/// Reads `addedAffinity` of `NodeAffinityArgs`.
pub(super) fn affinity(r: &mut Reader, at: &str, value: &Value) -> NodeAffinity {
    let (required, preferred) =
        ("requiredDuringSchedulingIgnoredDuringExecution", "preferredDuringSchedulingIgnoredDuringExecution");
    r.fields(at, value, &[required, preferred]);
    let (at_required, at_preferred) = (join(at, required), join(at, preferred));
    let selector = &value[required];
    r.fields(&at_required, selector, &["nodeSelectorTerms"]);
    let at_terms = join(&at_required, "nodeSelectorTerms");
    let terms = r.list(&at_terms, &selector["nodeSelectorTerms"]);
    let terms: Vec<_> = terms.iter().enumerate().map(|(i, t)| term(r, &format!("{at_terms}[{i}]"), t)).collect();
    let required = (!selector.is_null()).then(|| &*Box::leak(Box::new(NodeSelector(terms))));
    let mut weighted = Vec::new();
    for (i, entry) in r.list(&at_preferred, &value[preferred]).iter().enumerate() {
        let at = format!("{at_preferred}[{i}]");
        r.fields(&at, entry, &["weight", "preference"]);
        let weight = r.number(&join(&at, "weight"), &entry["weight"], (1, 100)).unwrap_or(0);
        weighted.push((weight, term(r, &join(&at, "preference"), &entry["preference"])));
    }
    NodeAffinity { required, preferred: Vec::leak(weighted) }
}

/// Reads a node selector term and validates it.
fn term(r: &mut Reader, at: &str, value: &Value) -> NodeSelectorTerm {
    r.fields(at, value, &["matchExpressions", "matchFields"]);
    for field in ["matchExpressions", "matchFields"] {
        let at = join(at, field);
        for (i, one) in r.list(&at, &value[field]).iter().enumerate() {
            requirement(r, &format!("{at}[{i}]"), one, field == "matchFields");
        }
    }
    NodeSelectorTerm::deserialize(value).unwrap_or_default()
}

fn requirement(r: &mut Reader, at: &str, value: &Value, of_fields: bool) {
    r.fields(at, value, &["key", "operator", "values"]);
    let key = r.text(&join(at, "key"), &value["key"]).unwrap_or_default();
    let operator = r.text(&join(at, "operator"), &value["operator"]).unwrap_or_default();
    let at_values = join(at, "values");
    let values = r.list(&at_values, &value["values"]);
    if key.is_empty() || (of_fields && key != NAME_FIELD) {
        r.fault(&join(at, "key"), &format!("Invalid value: {key:?}: not a valid selector key"));
    }
    if !OPERATORS.contains(&operator) || (of_fields && !matches!(operator, "In" | "NotIn")) {
        r.fault(&join(at, "operator"), &format!("Invalid value: {operator:?}: not a valid selector operator"));
    }
    let whole = |v: &Value| v.as_str().is_some_and(|v| v.parse::<i64>().is_ok());
    match operator {
        _ if of_fields && values.len() != 1 => r.fault(&at_values, "Required value: must have one element"),
        "In" | "NotIn" if values.is_empty() => {
            r.fault(&at_values, "Required value: for 'in', 'notin' operators, values set can't be empty");
        }
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            r.fault(&at_values, "Invalid value: values set must be empty for exists and does not exist");
        }
        "Gt" | "Lt" if values.len() != 1 || !values.iter().all(whole) => {
            r.fault(&at_values, "Invalid value: for 'Gt', 'Lt' operators, the value must be an integer");
        }
        _ => {}
    }
}

/// Reads `defaultConstraints` and `defaultingType`.
pub(super) fn spread(r: &mut Reader, at: &str, args: &Value) -> PodTopologySpread {
    let at_type = join(at, "defaultingType");
    let at = join(at, "defaultConstraints");
    let mut all: Vec<SpreadConstraint> = Vec::new();
    for (i, value) in r.list(&at, &args["defaultConstraints"]).iter().enumerate() {
        let at = format!("{at}[{i}]");
        let one = constraint(r, &at, value);
        if all.iter().any(|c| c.topology_key == one.topology_key && c.hard == one.hard) {
            let when = value["whenUnsatisfiable"].as_str().unwrap_or_default();
            r.fault(&at, &format!("Duplicate value: \"{{{}, {when}}}\"", one.topology_key));
        }
        all.push(one);
    }
    match r.text(&at_type, &args["defaultingType"]) {
        Some("List") => return PodTopologySpread { defaults: Some(Vec::leak(all)) },
        None | Some("System") if all.is_empty() => {}
        None | Some("System") => {
            r.fault(&at_type, "Invalid value: \"System\": when .defaultConstraints are not empty");
        }
        Some(other) => {
            r.fault(&at_type, &format!("Unsupported value: {other:?}: supported values: \"List\", \"System\""));
        }
    }
    PodTopologySpread::DEFAULT
}

fn constraint(r: &mut Reader, at: &str, value: &Value) -> SpreadConstraint {
    let (policies, known) = (
        ["nodeAffinityPolicy", "nodeTaintsPolicy"],
        ["maxSkew", "topologyKey", "whenUnsatisfiable", "labelSelector", "minDomains", "matchLabelKeys"],
    );
    let known: Vec<&str> = known.into_iter().chain(policies).collect();
    r.fields(at, value, &known);
    let max_skew = value["maxSkew"].as_i64().unwrap_or(0);
    if max_skew <= 0 {
        r.fault(&join(at, "maxSkew"), &format!("Invalid value: {max_skew}: not in valid range (0, inf)"));
    }
    let topology_key = r.text(&join(at, "topologyKey"), &value["topologyKey"]).unwrap_or_default();
    if topology_key.is_empty() {
        r.fault(&join(at, "topologyKey"), "Required value: can not be empty");
    }
    let when = r.text(&join(at, "whenUnsatisfiable"), &value["whenUnsatisfiable"]).unwrap_or_default();
    match when {
        "DoNotSchedule" | "ScheduleAnyway" => {}
        "" => r.fault(&join(at, "whenUnsatisfiable"), "Required value: can not be empty"),
        other => {
            let supported = "supported values: \"DoNotSchedule\", \"ScheduleAnyway\"";
            r.fault(&join(at, "whenUnsatisfiable"), &format!("Unsupported value: {other:?}: {supported}"));
        }
    }
    if !value["labelSelector"].is_null() {
        let why = "Forbidden: constraint must not define a selector, as they deduced for each pod";
        r.fault(&join(at, "labelSelector"), why);
    }
    let min_domains = r.number(&join(at, "minDomains"), &value["minDomains"], (1, i64::from(i32::MAX)));
    SpreadConstraint {
        max_skew,
        topology_key: topology_key.into(),
        hard: when == "DoNotSchedule",
        selector: LabelSelector::default(),
        min_domains: min_domains.and_then(|n| usize::try_from(n).ok()).unwrap_or(1),
        honor_affinity: value["nodeAffinityPolicy"] != "Ignore",
        honor_taints: value["nodeTaintsPolicy"] == "Honor",
    }
}
