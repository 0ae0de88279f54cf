//! The decision of a policy for one request (upstream `audit/policy/checker.go`).
use kelson_auth::Attributes;

use crate::event::{Level, Stage};
use crate::policy::{Policy, Resources, Rule, Stages};

/// The audit decision for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decision {
    /// The level for the request.
    pub level: Level,
    /// Whether `managedFields` are removed from objects.
    pub omit_managed_fields: bool,
    pub(crate) omit_stages: Stages,
}

impl Decision {
    /// Returns whether an event of the stage is written.
    pub fn reports(&self, stage: Stage) -> bool {
        self.level > Level::None && !self.omit_stages.contains(stage)
    }
}

impl Policy {
    /// Decides by the first matching rule. Without one, nothing is logged. Rules match the authenticated user, before
    /// impersonation.
    pub fn decide(&self, request: &Attributes<'_>) -> Decision {
        match self.rules.iter().find(|rule| matches(rule, request)) {
            Some(rule) => Decision {
                level: rule.level,
                omit_managed_fields: rule.omit_managed_fields,
                omit_stages: rule.omit_stages.and(self.omit_stages),
            },
            None => Decision {
                level: Level::None,
                omit_managed_fields: self.omit_managed_fields,
                omit_stages: self.omit_stages,
            },
        }
    }
}

fn has(list: &[String], value: &str) -> bool {
    list.iter().any(|v| v == value)
}

fn matches(rule: &Rule, request: &Attributes<'_>) -> bool {
    let user = request.user;
    if !rule.users.is_empty() && !has(&rule.users, &user.name) {
        return false;
    }
    if !rule.user_groups.is_empty() && !user.groups.iter().any(|g| has(&rule.user_groups, g)) {
        return false;
    }
    if !rule.verbs.is_empty() && !has(&rule.verbs, request.verb) {
        return false;
    }
    if !rule.namespaces.is_empty() || !rule.resources.is_empty() {
        return request.is_resource
            && (rule.namespaces.is_empty() || has(&rule.namespaces, request.namespace))
            && (rule.resources.is_empty() || rule.resources.iter().any(|r| of_resources(r, request)));
    }
    rule.non_resource_urls.is_empty()
        || !request.is_resource && rule.non_resource_urls.iter().any(|url| of_path(url, request.path))
}

fn of_path(wanted: &str, path: &str) -> bool {
    wanted == "*" || wanted == path || wanted.ends_with('*') && path.starts_with(wanted.trim_end_matches('*'))
}

fn of_resources(wanted: &Resources, request: &Attributes<'_>) -> bool {
    if wanted.group != request.group && wanted.group != "*" {
        return false;
    }
    if wanted.resources.is_empty() {
        return true;
    }
    if !wanted.resource_names.is_empty() && !has(&wanted.resource_names, request.name) {
        return false;
    }
    wanted.resources.iter().any(|wanted| of_resource(wanted, request.resource, request.subresource))
}

/// Matches a resource pattern: `*` is everything, `pods` is pods without subresources, `pods/*` is all subresources of
/// pods, and `*/status` is the status of all resources.
fn of_resource(wanted: &str, resource: &str, subresource: &str) -> bool {
    if wanted == "*" {
        return true;
    }
    match wanted.split_once('/') {
        None => subresource.is_empty() && wanted == resource,
        Some(("*", sub)) if sub == subresource && !subresource.is_empty() => true,
        Some((of, "*")) => of == resource,
        Some((of, sub)) => of == resource && sub == subresource,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kelson_auth::UserInfo;

    /// Checks the level of a request. `rules` is the content of a YAML list, or several separated by `;`.
    fn check(rules: &str, user: &str, asked: &str, level: Level) {
        let rules: String = rules.split(';').map(|r| format!("- {{{r}}}\n")).collect();
        let text = format!("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n{rules}");
        let policy = Policy::parse(text.as_bytes()).expect("a policy");
        let (name, group) = user.split_once('@').unwrap_or((user, ""));
        let user = UserInfo::new(name, [group]);
        // The format is VERB GROUP/RESOURCE/SUBRESOURCE NAMESPACE/NAME, or VERB PATH.
        let words: Vec<&str> = asked.split(' ').collect();
        let request = match words.as_slice() {
            [verb, path] => {
                Attributes { is_resource: false, path, ..Attributes::resource(&user, verb, "", "", "", "") }
            }
            [verb, what, place] => {
                let mut parts = what.splitn(3, '/');
                let (group, resource) = (parts.next().unwrap_or(""), parts.next().unwrap_or(""));
                let (namespace, name) = place.split_once('/').expect("a place");
                let subresource = parts.next().unwrap_or("");
                Attributes { subresource, ..Attributes::resource(&user, verb, group, resource, namespace, name) }
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(policy.decide(&request).level, level, "{rules} for {asked}");
    }

    #[test]
    fn what_matches() {
        use Level::{Metadata, None, Request};
        for (rules, user, asked, level) in [
            ("level: Metadata", "a", "get /healthz", Metadata),
            ("level: Metadata", "a", "get /pods/log x/y", Metadata),
            ("level: None, users: [a]; level: Metadata", "a", "get /healthz", None),
            ("level: None, users: [a]; level: Metadata", "b", "get /healthz", Metadata),
            ("level: Metadata, userGroups: [g, h]", "a@h", "get /healthz", Metadata),
            ("level: Metadata, userGroups: [g, h]", "g@x", "get /healthz", None),
            ("level: Metadata, verbs: [list]", "a", "get /pods x/y", None),
            ("level: Metadata, nonResourceURLs: ['/version', '/logs*']", "a", "get /logs/x", Metadata),
            ("level: Metadata, nonResourceURLs: ['/version', '/logs*']", "a", "get /version/x", None),
            ("level: Metadata, nonResourceURLs: ['*']", "a", "get /pods x/y", None),
            ("level: Metadata, namespaces: [x]", "a", "get /pods x/y", Metadata),
            ("level: Metadata, namespaces: [x]", "a", "get /healthz", None),
            ("level: Metadata, namespaces: ['']", "a", "get /nodes /n", Metadata),
            ("level: Metadata, resources: [{group: apps}]", "a", "get apps/deployments/scale x/y", Metadata),
            ("level: Metadata, resources: [{group: apps}]", "a", "get /pods x/y", None),
            ("level: Metadata, resources: [{group: '*'}]", "a", "get apps/deployments x/y", Metadata),
            ("level: Metadata, resources: [{resources: [pods]}]", "a", "get /pods x/y", Metadata),
            ("level: Metadata, resources: [{resources: [pods]}]", "a", "get /pods/log x/y", None),
            ("level: Metadata, resources: [{resources: [pods/log]}]", "a", "get /pods/log x/y", Metadata),
            ("level: Metadata, resources: [{resources: [pods/log]}]", "a", "get /pods x/y", None),
            ("level: Metadata, resources: [{resources: [pods/*]}]", "a", "get /pods/log x/y", Metadata),
            ("level: Metadata, resources: [{resources: [pods/*]}]", "a", "get /pods x/y", Metadata),
            ("level: Metadata, resources: [{resources: ['*/status']}]", "a", "get /nodes/status /n", Metadata),
            ("level: Metadata, resources: [{resources: ['*/status']}]", "a", "get /nodes /n", None),
            ("level: Metadata, resources: [{resources: ['*']}]", "a", "get /nodes/status /n", Metadata),
            ("level: Request, resources: [{resources: [pods], resourceNames: [p]}]", "a", "get /pods x/p", Request),
            ("level: Request, resources: [{resources: [pods], resourceNames: [p]}]", "a", "get /pods x/q", None),
        ] {
            check(rules, user, asked, level);
        }
    }

    #[test]
    fn stages_of_the_policy_and_of_the_rule_are_left_out() {
        let text = "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\n\
                    rules: [{level: Metadata, omitStages: [Panic]}]";
        let policy = Policy::parse(text.as_bytes()).expect("a policy");
        let user = UserInfo::anonymous();
        let decision = policy.decide(&Attributes::resource(&user, "get", "", "pods", "", ""));
        let reported = Stage::ALL.map(|stage| decision.reports(stage));
        assert_eq!(reported, [false, true, true, false]);
    }
}
