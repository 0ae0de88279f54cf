//! Matching of requests to flow schemas (upstream `util/flowcontrol/rule.go`), and the flows within a schema.
use kelson_auth::{Attributes, UserInfo, user};

use crate::config::{Distinguisher, FlowSchema, PathRule, ResourceRule, Rules, Subject};

const ALL: &str = "*";

impl FlowSchema {
    /// Returns whether the schema applies to the request. The path of a non-resource request is compared as received.
    pub fn matches(&self, request: &Attributes<'_>) -> bool {
        self.spec.rules.iter().any(|rules| matches(rules, request))
    }

    /// Returns the string that distinguishes the flows of this schema.
    pub(crate) fn distinguisher<'a>(&self, request: &Attributes<'a>) -> &'a str {
        match self.spec.distinguisher_method.as_ref().map(|Distinguisher { kind }| kind.as_str()) {
            Some("ByUser") => &request.user.name,
            Some("ByNamespace") => request.namespace,
            _ => "",
        }
    }
}

fn matches(rules: &Rules, request: &Attributes<'_>) -> bool {
    rules.subjects.iter().any(|subject| is_subject(subject, request.user))
        && match request.is_resource {
            true => rules.resource_rules.iter().any(|rule| of_resource(rule, request)),
            false => rules.non_resource_rules.iter().any(|rule| of_path(rule, request)),
        }
}

fn is_subject(subject: &Subject, who: &UserInfo) -> bool {
    match (subject.kind.as_str(), &subject.user, &subject.group, &subject.service_account) {
        ("User", Some(wanted), ..) => wanted.name == ALL || wanted.name == who.name,
        ("Group", _, Some(wanted), _) => wanted.name == ALL || who.in_group(&wanted.name),
        ("ServiceAccount", .., Some(wanted)) => {
            user::split_service_account(&who.name).is_some_and(|(namespace, name)| {
                namespace == wanted.namespace && (wanted.name == ALL || wanted.name == name)
            })
        }
        _ => false,
    }
}

/// A star matches everything only as the sole entry of the list.
fn has(list: &[String], value: &str) -> bool {
    matches!(list, [one] if one == ALL) || list.iter().any(|v| v == value)
}

fn of_resource(rule: &ResourceRule, request: &Attributes<'_>) -> bool {
    let resource = || match request.subresource {
        "" => has(&rule.resources, request.resource),
        sub => {
            let wanted = |v: &String| v.split_once('/').is_some_and(|(r, s)| r == request.resource && s == sub);
            matches!(rule.resources.as_slice(), [one] if one == ALL) || rule.resources.iter().any(wanted)
        }
    };
    has(&rule.verbs, request.verb)
        && resource()
        && has(&rule.api_groups, request.group)
        && match request.namespace {
            "" => rule.cluster_scope,
            namespace => has(&rule.namespaces, namespace),
        }
}

fn of_path(rule: &PathRule, request: &Attributes<'_>) -> bool {
    has(&rule.verbs, request.verb)
        && rule.urls.iter().any(|url| {
            let below = url.trim_end_matches('*').trim_end_matches('/');
            url == ALL
                || url == request.path
                || request.path.strip_prefix(below).is_some_and(|rest| rest.starts_with('/'))
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn schema(subject: Value, rule: Value) -> FlowSchema {
        let key = if rule.get("nonResourceURLs").is_some() { "nonResourceRules" } else { "resourceRules" };
        let rules = json!([{"subjects": [subject], key: [rule]}]);
        serde_json::from_value(json!({"metadata": {"name": "x"}, "spec": {"rules": rules}})).expect("a schema")
    }

    #[test]
    fn subjects() {
        let rule = json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "namespaces": ["*"]});
        let account = |namespace, name| json!({"kind": "ServiceAccount", "serviceAccount": {"namespace": namespace, "name": name}});
        let group = |name| json!({"kind": "Group", "group": {"name": name}});
        let user = |name| json!({"kind": "User", "user": {"name": name}});
        for (subject, name, matched) in [
            (user("a"), "a", true),
            (user("*"), "b", true),
            (user("a"), "b", false),
            (group("g"), "b", true),
            (group("*"), "b", true),
            (group("h"), "b", false),
            (account("ns", "*"), "system:serviceaccount:ns:x", true),
            (account("ns", "y"), "system:serviceaccount:ns:x", false),
            (account("n", "*"), "system:serviceaccount:ns:x", false),
            (account("ns", "*"), "ns:x", false),
            (json!({"kind": "User"}), "a", false),
        ] {
            let who = UserInfo::new(name, ["g"]);
            let request = Attributes::resource(&who, "get", "", "pods", "default", "p");
            assert_eq!(schema(subject.clone(), rule.clone()).matches(&request), matched, "{subject} {name}");
        }
    }

    #[test]
    fn resources() {
        let who = UserInfo::new("a", ["g"]);
        // The format is VERB GROUP/RESOURCE/SUBRESOURCE NAMESPACE.
        let check = |rule: &Value, asked: &str, matched: bool| {
            let words: Vec<&str> = asked.split(' ').collect();
            let what: Vec<&str> = words[1].split('/').collect();
            let request = Attributes {
                subresource: what.get(2).copied().unwrap_or(""),
                ..Attributes::resource(&who, words[0], what[0], what[1], words[2], "")
            };
            let schema = schema(json!({"kind": "User", "user": {"name": "*"}}), rule.clone());
            assert_eq!(schema.matches(&request), matched, "{rule} {asked}");
        };
        let rule = |verb: &str, group: &str, resource: &str, namespace: &str, cluster: bool| {
            json!({"verbs": [verb], "apiGroups": [group], "resources": [resource], "namespaces": [namespace],
                "clusterScope": cluster})
        };
        check(&rule("*", "*", "*", "*", false), "get apps/deployments/scale x", true);
        check(&rule("*", "*", "*", "*", false), "get /nodes ", false);
        check(&rule("*", "*", "*", "*", true), "get /nodes ", true);
        check(&rule("get", "", "pods", "x", false), "get /pods x", true);
        check(&rule("get", "", "pods", "x", false), "list /pods x", false);
        check(&rule("get", "", "pods", "x", false), "get /pods y", false);
        check(&rule("get", "", "pods", "x", false), "get /pods/log x", false);
        check(&rule("get", "", "pods/log", "x", false), "get /pods/log x", true);
        check(&rule("get", "apps", "pods", "x", false), "get /pods x", false);
        let two = json!({"verbs": ["*", "get"], "apiGroups": [""], "resources": ["pods"], "namespaces": ["*"]});
        check(&two, "list /pods x", false);
    }

    #[test]
    fn paths() {
        let who = UserInfo::new("a", ["g"]);
        for (url, path, matched) in [
            ("*", "/metrics", true),
            ("/healthz", "/healthz", true),
            ("/healthz", "/healthz/ping", true),
            ("/healthz", "/healthzz", false),
            ("/openapi/*", "/openapi/v2", true),
            ("/openapi/*", "/openapi", false),
            ("/openapi/*", "/openapis", false),
        ] {
            let rule = json!({"verbs": ["get"], "nonResourceURLs": [url]});
            let schema = schema(json!({"kind": "Group", "group": {"name": "g"}}), rule);
            let request = Attributes { is_resource: false, path, ..Attributes::resource(&who, "get", "", "", "", "") };
            assert_eq!(schema.matches(&request), matched, "{url} {path}");
        }
    }
}
