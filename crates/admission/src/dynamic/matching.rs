//! Which requests match a webhook or a policy: rules, selectors, and equivalent resources (upstream
//! `plugin/webhook/predicates`, `plugin/policy/matching`).
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use kelson_auth::Objects;
use kelson_meta::tree::path::{at, list, strings, text};
use kelson_meta::{GroupResource, Gvk, Gvr, LabelSelector, LabelSelectorSpec, Status};
use serde_json::Value;

use crate::{Attributes, OldObject, Operation, Operations, Versions};

pub(super) const GROUP: &str = "admissionregistration.k8s.io";
/// The kinds that configure webhooks.
const WEBHOOKS: [&str; 2] = ["ValidatingWebhookConfiguration", "MutatingWebhookConfiguration"];
/// The kinds that configure policies.
const POLICIES: [&str; 4] = [
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
    "MutatingAdmissionPolicy",
    "MutatingAdmissionPolicyBinding",
];

/// Reports whether no webhook applies: requests for admission configuration objects are exempt, so that a broken one
/// can always be repaired.
pub fn is_exempt_from_webhooks(a: &Attributes<'_>) -> bool {
    is_exempt_from_policies(a) || (a.kind.group == GROUP && WEBHOOKS.contains(&a.kind.kind.as_str()))
}

/// Reports whether no policy applies: requests for policies and their bindings are exempt. Policies do apply to webhook
/// configurations.
pub fn is_exempt_from_policies(a: &Attributes<'_>) -> bool {
    a.kind.group == GROUP && POLICIES.contains(&a.kind.kind.as_str())
}

/// An entry of `rules`, `resourceRules` or `excludeResourceRules`.
#[derive(Debug)]
struct Rule {
    operations: Operations,
    groups: Vec<String>,
    versions: Vec<String>,
    /// Resource and subresource, either of which may be `*`.
    resources: Vec<(String, String)>,
    scope: Scope,
    /// Names of objects; empty means all. Only policies have them.
    names: Vec<String>,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum Scope {
    #[default]
    All,
    Cluster,
    Namespaced,
}

/// The matching criteria of a webhook, policy or binding.
#[derive(Debug)]
pub struct Criteria {
    rules: Vec<Rule>,
    excluded: Vec<Rule>,
    namespaces: Result<LabelSelector, String>,
    objects: Result<LabelSelector, String>,
    equivalent: bool,
    /// Whether every request matches if there are no rules.
    all_without_rules: bool,
}

/// A match: the resource and kind in which the webhook or policy gets the object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Match<'a> {
    /// The request's resource, or an equivalent one that a rule names.
    pub resource: Cow<'a, Gvr>,
    /// The kind of that resource.
    pub kind: Cow<'a, Gvk>,
}

impl<'a> Match<'a> {
    /// The match for the request's own resource and kind.
    pub fn own(a: &Attributes<'a>) -> Self {
        Self { resource: Cow::Borrowed(a.resource), kind: Cow::Borrowed(a.kind) }
    }
}

fn texts(value: &Value, field: &str) -> Vec<String> {
    list(value, &[field]).iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// Reads the operations of a rule; `*` means all.
fn operations(names: &[String]) -> Operations {
    let all = [Operation::Create, Operation::Update, Operation::Delete, Operation::Connect];
    let named = all.into_iter().filter(|op| holds(names, op.as_str()));
    named.fold(Operations::NONE, |set, op| set.or(Operations::of(op)))
}

/// Splits `resource` or `resource/subresource`.
fn resource(pattern: &str) -> (String, String) {
    let (resource, subresource) = pattern.split_once('/').unwrap_or((pattern, ""));
    (resource.to_owned(), subresource.to_owned())
}

fn rules(value: &Value, field: &str) -> Vec<Rule> {
    let rule = |r: &Value| Rule {
        operations: operations(&texts(r, "operations")),
        groups: texts(r, "apiGroups"),
        versions: texts(r, "apiVersions"),
        resources: texts(r, "resources").iter().map(|pattern| resource(pattern)).collect(),
        scope: match text(r, &["scope"]) {
            "Cluster" => Scope::Cluster,
            "Namespaced" => Scope::Namespaced,
            _ => Scope::All,
        },
        names: texts(r, "resourceNames"),
    };
    list(value, &[field]).iter().map(rule).collect()
}

fn selector(value: &Value, field: &str) -> Result<LabelSelector, String> {
    let spec = at(value, &[field]);
    if spec.is_null() {
        return Ok(LabelSelector::everything());
    }
    let spec: LabelSelectorSpec = serde_json::from_value(spec.clone()).map_err(|e| e.to_string())?;
    spec.selector().map_err(|e| e.to_string())
}

impl Criteria {
    /// Reads the criteria of a webhook, or a policy's `matchConstraints` or `matchResources`.
    pub fn parse(value: &Value) -> Self {
        let own = if at(value, &["rules"]).is_null() { "resourceRules" } else { "rules" };
        Self {
            rules: rules(value, own),
            excluded: rules(value, "excludeResourceRules"),
            namespaces: selector(value, "namespaceSelector"),
            objects: selector(value, "objectSelector"),
            equivalent: text(value, &["matchPolicy"]) != "Exact",
            all_without_rules: false,
        }
    }

    /// Reads `matchResources` of a policy's binding, which narrow the policy's criteria.
    pub fn of_binding(value: &Value) -> Self {
        Self { all_without_rules: true, ..Self::parse(value) }
    }

    /// Reports whether some rule may match the request, without looking anything up.
    pub fn may_concern(&self, a: &Attributes<'_>) -> bool {
        self.rules.iter().any(|r| r.could_mean(a))
    }

    /// Returns the form in which the object is needed; `None` when the request does not match.
    ///
    /// # Errors
    /// 404 for a namespace that does not exist, 500 for an invalid selector; both only when a rule matches.
    pub fn matches<'a>(
        &self,
        a: &Attributes<'a>,
        objects: &dyn Objects,
        versions: &dyn Versions,
    ) -> Result<Option<Match<'a>>, Status> {
        // Most rules are for entirely different resources.
        if !self.takes_all() && !self.may_concern(a) {
            return Ok(None);
        }
        // An error counts only if the rules match the request.
        let by_namespace = self.in_namespace(a, objects);
        if matches!(by_namespace, Ok(false)) {
            return Ok(None);
        }
        let by_object = self.has_labels(a);
        if matches!(by_object, Ok(false)) {
            return Ok(None);
        }
        if self.excluded.iter().any(|r| r.matches(a, a.resource)) {
            return Ok(None);
        }
        let Some(found) = self.by_rules(a, versions) else { return Ok(None) };
        by_namespace?;
        by_object?;
        Ok(Some(found))
    }

    /// Reports whether no rule restricts the requests.
    fn takes_all(&self) -> bool {
        self.all_without_rules && self.rules.is_empty()
    }

    /// Returns the plural names of the resources it may match; `None` means all.
    fn resources(&self) -> Option<BTreeSet<&str>> {
        let named: BTreeSet<&str> =
            self.rules.iter().flat_map(|r| &r.resources).map(|(resource, _)| resource.as_str()).collect();
        (!self.takes_all() && !named.contains("*")).then_some(named)
    }

    fn by_rules<'a>(&self, a: &Attributes<'a>, versions: &dyn Versions) -> Option<Match<'a>> {
        if self.takes_all() || self.rules.iter().any(|r| r.matches(a, a.resource)) {
            return Some(Match::own(a));
        }
        if !self.equivalent {
            return None;
        }
        let equivalents = versions.equivalents(a.resource, a.subresource);
        if equivalents.iter().any(|(resource, _)| self.excluded.iter().any(|r| r.matches(a, resource))) {
            return None;
        }
        self.rules.iter().find_map(|rule| {
            let found = equivalents.iter().find(|(resource, _)| rule.matches(a, resource));
            found.map(|(resource, kind)| Match {
                resource: Cow::Owned(resource.clone()),
                kind: Cow::Owned(kind.clone()),
            })
        })
    }

    fn in_namespace(&self, a: &Attributes<'_>, objects: &dyn Objects) -> Result<bool, Status> {
        let is_namespace = a.resource.resource == "namespaces";
        if a.namespace.is_empty() && !is_namespace {
            return Ok(true);
        }
        let selector = self.namespaces.as_ref().map_err(Status::internal)?;
        if selector.is_everything() {
            return Ok(true);
        }
        if is_namespace && a.subresource.is_empty() && matches!(a.operation, Operation::Create | Operation::Update) {
            return Ok(selected(selector, a.new_object()));
        }
        let namespace = objects.tree("", "namespaces", "", a.namespace);
        let namespace =
            namespace.ok_or_else(|| Status::not_found(&GroupResource::new("", "namespaces"), a.namespace))?;
        Ok(selected(selector, &namespace))
    }

    fn has_labels(&self, a: &Attributes<'_>) -> Result<bool, Status> {
        let selector = self.objects.as_ref().map_err(Status::internal)?;
        let has = |object: Option<&Value>| object.is_some_and(|o| selected(selector, o));
        Ok(selector.is_everything() || has(a.object.as_ref()) || has(a.old_object.map(OldObject::get)))
    }
}

fn selected(selector: &LabelSelector, object: &Value) -> bool {
    let labels: Vec<(&str, &str)> = strings(object, &["metadata", "labels"]).collect();
    selector.matches_with(|key| labels.iter().find(|(k, _)| *k == key).map(|(_, v)| *v))
}

/// Reports whether a list contains `wanted` or `*`.
fn holds(items: &[String], wanted: &str) -> bool {
    items.iter().any(|i| i == "*" || i == wanted)
}

impl Rule {
    /// Reports whether the rule matches the request if it were for `resource`.
    fn matches(&self, a: &Attributes<'_>, resource: &Gvr) -> bool {
        self.fits(a, resource)
            && holds(&self.groups, &resource.group)
            && holds(&self.versions, &resource.version)
            && self.resource(&resource.resource, a.subresource)
    }

    fn fits(&self, a: &Attributes<'_>, resource: &Gvr) -> bool {
        let cluster = resource.resource == "namespaces" && resource.group.is_empty() || a.namespace.is_empty();
        let scope = match self.scope {
            Scope::All => true,
            Scope::Cluster => cluster,
            Scope::Namespaced => !cluster,
        };
        scope
            && self.operations.contains(a.operation)
            && (self.names.is_empty() || self.names.iter().any(|n| n == a.object_name()))
    }

    /// Reports whether the rule may match the request as an equivalent resource: everything except group and version
    /// matches.
    fn could_mean(&self, a: &Attributes<'_>) -> bool {
        self.fits(a, a.resource) && self.resource(&a.resource.resource, a.subresource)
    }

    fn resource(&self, resource: &str, subresource: &str) -> bool {
        let is = |pattern: &str, name: &str| pattern == "*" || pattern == name;
        self.resources.iter().any(|(r, s)| is(r, resource) && is(s, subresource))
    }
}

/// An index of criteria by the plural name of a resource, which is the same in all of its versions and groups.
#[derive(Debug, Default)]
pub struct ByResource {
    /// By plural name: the criteria that name it and those for all resources, in their order.
    named: BTreeMap<String, Vec<usize>>,
    /// The criteria for all resources.
    others: Vec<usize>,
}

impl ByResource {
    /// Creates the index; a criterion is identified by its position.
    pub fn new<'c>(all: impl IntoIterator<Item = &'c Criteria> + Clone) -> Self {
        let names = || all.clone().into_iter().map(Criteria::resources).enumerate();
        let mut named: BTreeMap<String, Vec<usize>> =
            names().filter_map(|(_, names)| names).flatten().map(|name| (name.to_owned(), Vec::new())).collect();
        let mut others = Vec::new();
        for (place, names) in names() {
            match names {
                Some(names) => {
                    for name in names {
                        named.entry(name.to_owned()).or_default().push(place);
                    }
                }
                None => {
                    named.values_mut().for_each(|places| places.push(place));
                    others.push(place);
                }
            }
        }
        Self { named, others }
    }
    /// Returns the positions of those that may match requests for a resource, in their order.
    pub fn of(&self, plural: &str) -> &[usize] {
        self.named.get(plural).unwrap_or(&self.others)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Ask, dependencies};
    use serde_json::json;

    /// `matched(criteria, ask)` returns the version of the resource that matched.
    fn matched(criteria: Value, ask: Ask<'_>) -> Result<Option<String>, String> {
        let d = dependencies(&[
            ("namespaces//a", json!({"metadata": {"name": "a", "labels": {"env": "test"}}})),
            ("namespaces//b", json!({"metadata": {"name": "b"}})),
        ]);
        let criteria = Criteria::parse(&criteria);
        ask.with(|a| {
            let found = criteria.matches(a, d.objects.as_ref(), d.versions.as_ref()).map_err(|s| s.message)?;
            Ok(found.map(|m| format!("{}/{}", m.resource.group, m.resource.version)))
        })
    }

    fn rule(change: impl Fn(&mut Value)) -> Value {
        let mut rule = json!({"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"]});
        change(&mut rule);
        json!({"rules": [rule]})
    }

    #[test]
    fn rules() {
        let pod = || Ask::pod(json!({"metadata": {"name": "p"}}));
        let namespace = || Ask::create("/namespaces", json!({"metadata": {"name": "a"}})).named("a", "a");
        let node = || Ask::create("/nodes", json!({})).named("", "n");
        let exec = || Ask::new(Operation::Connect, "/pods/exec", json!({})).named("a", "p");
        for (field, value, ask, want) in [
            ("operations", json!(["CREATE"]), pod(), true),
            ("operations", json!(["UPDATE", "DELETE"]), pod(), false),
            ("operations", json!(["CONNECT"]), exec(), false), // `*` is no subresource
            ("apiGroups", json!([""]), pod(), true),
            ("apiGroups", json!(["apps"]), pod(), false),
            ("apiVersions", json!(["v1"]), pod(), true),
            ("apiVersions", json!(["v2"]), pod(), false),
            ("resources", json!(["pods"]), pod(), true),
            ("resources", json!(["pods"]), exec(), false),
            ("resources", json!(["pods/*"]), exec(), true),
            ("resources", json!(["pods/*"]), pod(), true),
            ("resources", json!(["*/exec"]), exec(), true),
            ("resources", json!(["pods/log"]), exec(), false),
            ("resources", json!(["*/*"]), exec(), true),
            ("scope", json!("Namespaced"), pod(), true),
            ("scope", json!("Cluster"), pod(), false),
            ("scope", json!("Cluster"), node(), true),
            ("scope", json!("Namespaced"), node(), false),
            ("scope", json!("Cluster"), namespace(), true),
            ("scope", json!("Namespaced"), namespace(), false),
            ("resourceNames", json!(["p"]), pod(), true),
            ("resourceNames", json!(["q"]), pod(), false),
        ] {
            let criteria = rule(|r| r[field] = value.clone());
            assert_eq!(matched(criteria, ask).unwrap().is_some(), want, "{field} {value}");
        }
        assert_eq!(matched(json!({}), pod()).unwrap(), None, "no rule, no request");
        let mut excluded = rule(|_| {});
        excluded["excludeResourceRules"] = rule(|r| r["resources"] = json!(["pods"]))["rules"].clone();
        assert_eq!(matched(excluded, pod()).unwrap(), None);
    }

    #[test]
    fn selectors() {
        let with = |field: &str, value: Value| {
            let mut criteria = rule(|_| {});
            criteria[field] = value;
            criteria
        };
        let pod = |namespace| Ask::pod(json!({"metadata": {"labels": {"app": "x"}}})).named(namespace, "p");
        let env = || json!({"matchLabels": {"env": "test"}});
        assert!(matched(with("namespaceSelector", env()), pod("a")).unwrap().is_some());
        assert!(matched(with("namespaceSelector", env()), pod("b")).unwrap().is_none());
        assert_eq!(matched(with("namespaceSelector", env()), pod("c")).unwrap_err(), "namespaces \"c\" not found");
        let mut other = with("namespaceSelector", env());
        other["rules"][0]["resources"] = json!(["nodes"]);
        assert_eq!(matched(other, pod("c")).unwrap(), None, "not its business");
        let node = Ask::create("/nodes", json!({})).named("", "n");
        assert!(matched(with("namespaceSelector", env()), node).unwrap().is_some(), "in no namespace");
        let own = Ask::create("/namespaces", json!({"metadata": {"labels": {"env": "test"}}})).named("c", "c");
        assert!(
            matched(with("namespaceSelector", env()), own).unwrap().is_some(),
            "a new namespace has its own labels"
        );
        let app = |v: &str| json!({"matchExpressions": [{"key": "app", "operator": "In", "values": [v]}]});
        assert!(matched(with("objectSelector", app("x")), pod("a")).unwrap().is_some());
        assert!(matched(with("objectSelector", app("y")), pod("a")).unwrap().is_none());
        let (old, new) = (json!({"metadata": {"labels": {"app": "y"}}}), json!({}));
        assert!(matched(with("objectSelector", app("y")), Ask::update("/pods", old, new)).unwrap().is_some());
    }

    #[test]
    fn other_names_of_the_same_objects() {
        let ask = || Ask::create("apps/deployments", json!({}));
        let old = |policy: &str| {
            let mut criteria = rule(|r| {
                r["apiGroups"] = json!(["apps"]);
                r["apiVersions"] = json!(["v1beta1"]);
                r["resources"] = json!(["deployments"]);
            });
            criteria["matchPolicy"] = policy.into();
            criteria
        };
        assert_eq!(matched(old("Equivalent"), ask()).unwrap().as_deref(), Some("apps/v1beta1"));
        assert_eq!(matched(old("Exact"), ask()).unwrap(), None);
    }

    #[test]
    fn those_of_a_resource_are_found_in_their_order() {
        let of = |resources: Value| Criteria::parse(&rule(|r| r["resources"] = resources.clone()));
        let all: Vec<Criteria> = [json!(["pods"]), json!(["*"]), json!(["nodes", "pods/exec"]), json!(["*/scale"])]
            .into_iter()
            .map(of)
            .chain([Criteria::parse(&json!({})), Criteria::of_binding(&json!({}))])
            .collect();
        let found = ByResource::new(&all);
        for (plural, want) in [
            ("pods", vec![0, 1, 2, 3, 5]),
            ("nodes", vec![1, 2, 3, 5]),
            ("secrets", vec![1, 3, 5]),
            ("", vec![1, 3, 5]),
        ] {
            assert_eq!(found.of(plural), want, "{plural}");
        }
        assert!(ByResource::new(&[]).of("pods").is_empty());
    }
}
