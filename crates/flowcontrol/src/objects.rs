//! The objects that every cluster has: two mandatory levels and two mandatory schemas, whose specs are always restored,
//! and suggested ones, which are maintained until a user changes them (upstream `apis/flowcontrol/bootstrap`,
//! `registry/flowcontrol/ensurer`).
use serde_json::{Map, Value, json};

/// The API group of these objects.
pub const GROUP: &str = "flowcontrol.apiserver.k8s.io";
/// The annotation that says whether this server maintains the object.
const AUTO_UPDATE: &str = "apf.kubernetes.io/autoupdate-spec";

/// An object that the server creates and maintains.
#[derive(Debug, Clone, PartialEq)]
pub struct DesiredObject {
    /// The resource: `prioritylevelconfigurations` or `flowschemas`.
    pub resource: &'static str,
    /// The object at its creation, without fields that the server sets.
    pub object: Value,
    mandatory: bool,
}

impl DesiredObject {
    /// Returns the name of the object.
    pub fn name(&self) -> &str {
        self.object["metadata"]["name"].as_str().unwrap_or("")
    }

    /// Returns the object that should replace the stored one, or `None` where that is correct or maintained by a user.
    pub fn revise(&self, stored: &Value) -> Option<Value> {
        let said = stored["metadata"]["annotations"][AUTO_UPDATE].as_str().and_then(parse_bool);
        // A spec of generation 1 has not been changed by a user.
        let keeps = self.mandatory || said.unwrap_or(stored["metadata"]["generation"] == 1);
        let spec = keeps && pruned(&stored["spec"]) != pruned(&self.object["spec"]);
        if said == Some(keeps) && !spec {
            return None;
        }
        let mut revised = stored.clone();
        if spec {
            revised["spec"] = self.object["spec"].clone();
        }
        if revised["metadata"]["annotations"].is_null() {
            revised["metadata"]["annotations"] = json!({});
        }
        revised["metadata"]["annotations"][AUTO_UPDATE] = keeps.to_string().into();
        Some(revised)
    }
}

/// Returns whether a superfluous object was maintained by this server, which therefore removes it.
pub fn is_kept(stored: &Value) -> bool {
    stored["metadata"]["annotations"][AUTO_UPDATE].as_str().and_then(parse_bool) == Some(true)
}

/// Parses a boolean as Go's `strconv.ParseBool` does.
fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Some(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Some(false),
        _ => None,
    }
}

/// Removes empty values, so that an omitted field equals one that was set to its empty default.
fn pruned(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields = fields.iter().map(|(k, v)| (k.clone(), pruned(v)));
            fields.filter(|(_, v)| !is_nothing(v)).collect::<Map<_, _>>().into()
        }
        Value::Array(items) => items.iter().map(pruned).collect(),
        other => other.clone(),
    }
}

fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(b) => !b,
        Value::String(s) => s.is_empty(),
        Value::Array(a) => a.is_empty(),
        Value::Object(o) => o.is_empty(),
        Value::Number(_) => false,
    }
}

/// Returns all objects. Levels come before the schemas that refer to them.
pub fn wanted() -> Vec<DesiredObject> {
    levels().into_iter().chain(schemas()).collect()
}

fn level(mandatory: bool, name: &str, spec: Value) -> DesiredObject {
    let object = object("PriorityLevelConfiguration", name, spec);
    DesiredObject { resource: "prioritylevelconfigurations", object, mandatory }
}

fn object(kind: &str, name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": format!("{GROUP}/v1"),
        "kind": kind,
        "metadata": {"name": name, "annotations": {AUTO_UPDATE: "true"}},
        "spec": spec,
    })
}

fn levels() -> Vec<DesiredObject> {
    let limited = |shares: u32, lendable: u32, response: Value| {
        json!({"type": "Limited", "limited": {
            "nominalConcurrencyShares": shares, "lendablePercent": lendable, "limitResponse": response}})
    };
    let queue = |name, shares, lendable, queues: u32, hand: u32| {
        let queuing = json!({"queues": queues, "handSize": hand, "queueLengthLimit": 50});
        level(false, name, limited(shares, lendable, json!({"type": "Queue", "queuing": queuing})))
    };
    let exempt = json!({"type": "Exempt", "exempt": {"nominalConcurrencyShares": 0, "lendablePercent": 0}});
    vec![
        level(true, "exempt", exempt),
        level(true, "catch-all", limited(5, 0, json!({"type": "Reject"}))),
        queue("system", 30, 33, 64, 6),
        queue("node-high", 40, 25, 64, 6),
        queue("leader-election", 10, 0, 16, 4),
        queue("workload-high", 40, 50, 128, 6),
        queue("workload-low", 100, 90, 128, 6),
        queue("global-default", 20, 50, 128, 6),
    ]
}

/// The fields of a schema: name, level, precedence, distinguisher, subjects, resources and paths.
type Row<'a> = (&'a str, &'a str, u32, &'a str, Value, Value, Value);

fn schema(
    mandatory: bool,
    (name, level, precedence, distinguisher, subjects, resources, paths): Row<'_>,
) -> DesiredObject {
    let mut rules = json!({"subjects": subjects});
    if !is_nothing(&resources) {
        rules["resourceRules"] = resources;
    }
    if !is_nothing(&paths) {
        rules["nonResourceRules"] = paths;
    }
    let mut spec = json!({
        "priorityLevelConfiguration": {"name": level},
        "matchingPrecedence": precedence,
        "rules": [rules],
    });
    if !distinguisher.is_empty() {
        spec["distinguisherMethod"] = json!({"type": distinguisher});
    }
    DesiredObject { resource: "flowschemas", object: object("FlowSchema", name, spec), mandatory }
}

fn schemas() -> Vec<DesiredObject> {
    let group = |name: &str| json!({"kind": "Group", "group": {"name": name}});
    let user = |name: &str| json!({"kind": "User", "user": {"name": name}});
    let accounts = || json!({"kind": "ServiceAccount", "serviceAccount": {"namespace": "kube-system", "name": "*"}});
    let resources = |verbs: &[&str], group: &str, resources: &[&str], cluster: bool| {
        let mut rule = json!({"verbs": verbs, "apiGroups": [group], "resources": resources, "namespaces": ["*"]});
        if cluster {
            rule["clusterScope"] = true.into();
        }
        rule
    };
    let leases = |verbs: &[&str]| resources(verbs, "coordination.k8s.io", &["leases"], false);
    let everybody = || json!([group("system:unauthenticated"), group("system:authenticated")]);
    let all = || json!([resources(&["*"], "*", &["*"], true)]);
    let paths = || json!([{"verbs": ["*"], "nonResourceURLs": ["*"]}]);
    let probes = json!([{"verbs": ["get"], "nonResourceURLs": ["/healthz", "/readyz", "/livez"]}]);
    let (manager, scheduler) = ("system:kube-controller-manager", "system:kube-scheduler");
    let electors = json!([user(manager), user(scheduler), accounts()]);
    let elections = json!([leases(&["get", "create", "update"])]);
    let nodes = || json!([group("system:nodes")]);
    let of_nodes = json!([resources(&["*"], "", &["nodes", "nodes/status"], true), leases(&["*"])]);
    let (by_user, by_namespace, none) = ("ByUser", "ByNamespace", Value::Null);
    let suggested: [Row<'_>; 9] = [
        ("probes", "exempt", 2, "", everybody(), none.clone(), probes),
        ("system-leader-election", "leader-election", 100, by_user, electors, elections, none.clone()),
        ("system-node-high", "node-high", 400, by_user, nodes(), of_nodes, none),
        ("system-nodes", "system", 500, by_user, nodes(), all(), paths()),
        ("kube-controller-manager", "workload-high", 800, by_namespace, json!([user(manager)]), all(), paths()),
        ("kube-scheduler", "workload-high", 800, by_namespace, json!([user(scheduler)]), all(), paths()),
        ("kube-system-service-accounts", "workload-high", 900, by_namespace, json!([accounts()]), all(), paths()),
        ("service-accounts", "workload-low", 9000, by_user, json!([group("system:serviceaccounts")]), all(), paths()),
        ("global-default", "global-default", 9900, by_user, everybody(), all(), paths()),
    ];
    let masters = json!([group("system:masters")]);
    let mut rows = vec![
        schema(true, ("exempt", "exempt", 1, "", masters, all(), paths())),
        schema(true, ("catch-all", "catch-all", 10_000, by_user, everybody(), all(), paths())),
    ];
    rows.extend(suggested.into_iter().map(|row| schema(false, row)));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{FlowSchema, PriorityLevelConfiguration};

    #[test]
    fn all_of_them_can_be_used() {
        let wanted = wanted();
        let (schemas, levels): (Vec<_>, Vec<_>) = wanted.iter().partition(|w| w.resource == "flowschemas");
        assert_eq!((levels.len(), schemas.len()), (8, 11));
        for w in &levels {
            let level: PriorityLevelConfiguration = serde_json::from_value(w.object.clone()).unwrap();
            assert!(level.judge().is_some(), "{}", w.object);
        }
        for w in schemas {
            let schema: FlowSchema = serde_json::from_value(w.object.clone()).unwrap();
            assert!(levels.iter().any(|l| l.name() == schema.spec.priority_level_configuration.name), "{}", w.object);
        }
    }

    #[test]
    fn changed_objects_stay() {
        let all = wanted();
        let find = |name: &str| all.iter().find(|w| w.name() == name && w.resource != "flowschemas").unwrap();
        let (system, exempt) = (find("system"), find("exempt"));
        let part = |w: &DesiredObject| if w.name() == "exempt" { "exempt" } else { "limited" };
        let with = |w: &DesiredObject, generation: u32, annotation: Option<&str>, shares: u32| {
            let mut stored = w.object.clone();
            stored["metadata"]["generation"] = generation.into();
            stored["metadata"]["annotations"] = annotation.map_or(json!({}), |a| json!({AUTO_UPDATE: a}));
            stored["spec"][part(w)]["nominalConcurrencyShares"] = shares.into();
            stored["spec"][part(w)]["borrowingLimitPercent"] = Value::Null;
            stored
        };
        // For a stored object: the expected shares and annotation.
        for (wanted, stored, expected) in [
            (system, with(system, 3, Some("true"), 30), None),
            (system, with(system, 3, Some("true"), 31), Some((30, "true"))),
            (system, with(system, 3, Some("false"), 31), None),
            (system, with(system, 3, None, 31), Some((31, "false"))),
            (system, with(system, 1, None, 31), Some((30, "true"))),
            (exempt, with(exempt, 3, Some("false"), 7), Some((0, "true"))),
        ] {
            let got = wanted.revise(&stored).map(|revised| {
                let shares = revised["spec"][part(wanted)]["nominalConcurrencyShares"].as_i64().unwrap();
                (shares, revised["metadata"]["annotations"][AUTO_UPDATE].as_str().unwrap().to_owned())
            });
            assert_eq!(got, expected.map(|(n, a)| (n, a.to_owned())), "{stored}");
        }
        assert!(is_kept(&system.object) && !is_kept(&json!({"metadata": {}})));
    }
}
