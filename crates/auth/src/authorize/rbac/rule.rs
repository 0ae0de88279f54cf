//! One RBAC rule: what it matches, and whether one set of rules covers another (the escalation check).
use serde::{Deserialize, Serialize};

use crate::Attributes;

/// `rbac.authorization.k8s.io/v1` PolicyRule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyRule {
    /// Verbs; `*` for all.
    #[serde(deserialize_with = "nullable")]
    pub verbs: Vec<String>,
    /// API groups; `*` for all, the empty string for the legacy one.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    pub api_groups: Vec<String>,
    /// `resource`, `resource/subresource`, `*/subresource` or `*`.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    pub resources: Vec<String>,
    /// Names the rule is limited to; none means all.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    pub resource_names: Vec<String>,
    /// Paths that are no resources; a final `*` matches any rest.
    #[serde(rename = "nonResourceURLs", deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    pub non_resource_urls: Vec<String>,
}

/// Go clients write absent lists as `null`.
fn nullable<'de, D: serde::Deserializer<'de>>(d: D) -> Result<Vec<String>, D::Error> {
    Ok(Option::<Vec<String>>::deserialize(d)?.unwrap_or_default())
}

fn has(set: &[String], wanted: &str) -> bool {
    set.iter().any(|x| x == wanted)
}

fn star_or(set: &[String], wanted: &str) -> bool {
    set.iter().any(|x| x == "*" || x == wanted)
}

/// `owner` is a pattern of `nonResourceURLs`.
fn url_matches(owner: &str, path: &str) -> bool {
    owner == path || (owner.ends_with('*') && path.starts_with(owner.trim_end_matches('*')))
}

impl PolicyRule {
    /// Whether the rule allows the request.
    pub fn allows(&self, a: &Attributes<'_>) -> bool {
        if !star_or(&self.verbs, a.verb) {
            return false;
        }
        if !a.is_resource {
            return self.non_resource_urls.iter().any(|u| u == "*" || url_matches(u, a.path));
        }
        star_or(&self.api_groups, a.group)
            && self.matches_resource(a.resource, a.subresource)
            && (self.resource_names.is_empty() || has(&self.resource_names, a.name))
    }

    fn matches_resource(&self, resource: &str, subresource: &str) -> bool {
        self.resources.iter().any(|r| {
            if r == "*" {
                return true;
            }
            match r.split_once('/') {
                None => subresource.is_empty() && r == resource,
                Some((base, sub)) => !subresource.is_empty() && sub == subresource && (base == "*" || base == resource),
            }
        })
    }

    /// Into rules with at most one group, resource, name, path and verb each.
    fn break_down(&self) -> Vec<Self> {
        let mut out = Vec::new();
        for verb in &self.verbs {
            let verbs = vec![verb.clone()];
            for group in &self.api_groups {
                for resource in &self.resources {
                    let one = |names: Vec<String>| Self {
                        verbs: verbs.clone(),
                        api_groups: vec![group.clone()],
                        resources: vec![resource.clone()],
                        resource_names: names,
                        non_resource_urls: vec![],
                    };
                    if self.resource_names.is_empty() {
                        out.push(one(vec![]));
                    }
                    out.extend(self.resource_names.iter().map(|n| one(vec![n.clone()])));
                }
            }
            out.extend(self.non_resource_urls.iter().map(|url| Self {
                verbs: verbs.clone(),
                non_resource_urls: vec![url.clone()],
                ..Self::default()
            }));
        }
        out
    }

    /// Whether this rule allows all that `one` (a broken-down rule) does.
    fn covers_one(&self, one: &Self) -> bool {
        one.verbs.iter().all(|v| star_or(&self.verbs, v))
            && one.api_groups.iter().all(|g| star_or(&self.api_groups, g))
            && one.resources.iter().all(|r| self.covers_resource(r))
            && one.non_resource_urls.iter().all(|u| self.non_resource_urls.iter().any(|o| url_matches(o, u)))
            && if one.resource_names.is_empty() {
                self.resource_names.is_empty()
            } else {
                self.resource_names.is_empty() || one.resource_names.iter().all(|n| has(&self.resource_names, n))
            }
    }

    fn covers_resource(&self, wanted: &str) -> bool {
        star_or(&self.resources, wanted)
            || wanted.split_once('/').is_some_and(|(_, sub)| has(&self.resources, &format!("*/{sub}")))
    }

    /// `{APIGroups:["apps"], Resources:["deployments"], Verbs:["get" "list"]}`
    fn compact(&self) -> String {
        let part = |label: &str, set: &[String]| {
            let quoted: Vec<String> = set.iter().map(|s| format!("{s:?}")).collect();
            (!set.is_empty()).then(|| format!("{label}:[{}]", quoted.join(" ")))
        };
        let parts: Vec<String> = [
            part("APIGroups", &self.api_groups),
            part("Resources", &self.resources),
            part("NonResourceURLs", &self.non_resource_urls),
            part("ResourceNames", &self.resource_names),
            part("Verbs", &self.verbs),
        ]
        .into_iter()
        .flatten()
        .collect();
        format!("{{{}}}", parts.join(", "))
    }
}

/// Whether `owner` covers everything in `wanted`; the uncovered rest, broken down.
pub fn covers<'a>(
    owner: impl Iterator<Item = &'a PolicyRule> + Clone,
    wanted: &[PolicyRule],
) -> Result<(), Vec<PolicyRule>> {
    let missing: Vec<PolicyRule> = wanted
        .iter()
        .flat_map(PolicyRule::break_down)
        .filter(|one| !owner.clone().any(|rule| rule.covers_one(one)))
        .collect();
    if missing.is_empty() { Ok(()) } else { Err(missing) }
}

/// The missing rules as upstream lists them: verbs of one resource (and name) joined, sorted, one per line.
pub fn describe_missing(missing: &[PolicyRule]) -> String {
    let mut compact: Vec<PolicyRule> = Vec::new();
    for rule in missing {
        let same = compact.iter_mut().find(|c| {
            rule.non_resource_urls.is_empty()
                && c.non_resource_urls.is_empty()
                && c.api_groups == rule.api_groups
                && c.resources == rule.resources
                && c.resource_names == rule.resource_names
        });
        match same {
            Some(c) => c.verbs.extend(rule.verbs.iter().cloned()),
            None => compact.push(rule.clone()),
        }
    }
    let mut lines: Vec<String> = compact.iter().map(PolicyRule::compact).collect();
    lines.sort();
    lines.dedup();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::UserInfo;
    use serde_json::json;

    fn rule(v: serde_json::Value) -> PolicyRule {
        serde_json::from_value(v).unwrap()
    }

    #[test]
    fn matching() {
        let user = UserInfo::new("u", ["g"]);
        let pods =
            rule(json!({"apiGroups":[""],"resources":["pods","*/scale","services/proxy"],"verbs":["get","list"]}));
        let named = rule(json!({"apiGroups":["*"],"resources":["secrets"],"resourceNames":["a"],"verbs":["*"]}));
        let all = rule(json!({"apiGroups":["*"],"resources":["*"],"verbs":["*"]}));
        let urls = rule(json!({"nonResourceURLs":["/api/*","/healthz","/x*"],"verbs":["get"]}));
        let any_url = rule(json!({"nonResourceURLs":["*"],"verbs":["*"]}));
        let r = |verb, group, resource, sub, name| {
            Attributes::resource(&user, verb, group, resource, "ns", name).with_subresource(sub)
        };
        let p = |verb, path| Attributes::path(&user, verb, path);
        for (rule, attributes, want) in [
            (&pods, r("get", "", "pods", "", "x"), true),
            (&pods, r("create", "", "pods", "", "x"), false),
            (&pods, r("get", "apps", "pods", "", "x"), false),
            (&pods, r("get", "", "pods", "log", "x"), false),
            (&pods, r("get", "", "deployments", "scale", "x"), true),
            (&pods, r("get", "", "services", "proxy", "x"), true),
            (&pods, r("get", "", "services", "", "x"), false),
            (&pods, p("get", "/api"), false),
            (&named, r("delete", "any", "secrets", "", "a"), true),
            (&named, r("delete", "any", "secrets", "", "b"), false),
            (&named, r("list", "", "secrets", "", ""), false),
            (&all, r("anything", "g", "pods", "exec", ""), true),
            (&all, p("get", "/x"), false),
            (&urls, p("get", "/api/v1"), true),
            (&urls, p("get", "/api"), false),
            (&urls, p("get", "/healthz"), true),
            (&urls, p("get", "/healthz/x"), false),
            (&urls, p("get", "/xyz"), true),
            (&urls, p("post", "/healthz"), false),
            (&any_url, p("post", "/y"), true),
            (&any_url, r("get", "", "pods", "", ""), false),
        ] {
            assert_eq!(rule.allows(&attributes), want, "{rule:?} {attributes:?}");
        }
    }

    #[test]
    fn covering() {
        let own = [
            rule(json!({"apiGroups":["","apps"],"resources":["pods","*/status"],"verbs":["get","list"]})),
            rule(json!({"apiGroups":[""],"resources":["secrets"],"resourceNames":["a","b"],"verbs":["*"]})),
            rule(json!({"nonResourceURLs":["/api/*"],"verbs":["get"]})),
        ];
        let check = |v| covers(own.iter(), &[rule(v)]).map_err(|m| describe_missing(&m));
        assert_eq!(check(json!({"apiGroups":["apps"],"resources":["pods","x/status"],"verbs":["list"]})), Ok(()));
        assert_eq!(
            check(json!({"apiGroups":[""],"resources":["secrets"],"resourceNames":["b"],"verbs":["get","*"]})),
            Ok(())
        );
        assert_eq!(check(json!({"nonResourceURLs":["/api/v1","/api/*"],"verbs":["get"]})), Ok(()));
        assert_eq!(
            check(json!({"apiGroups":["","batch"],"resources":["pods"],"verbs":["get","list","watch"]})).unwrap_err(),
            "{APIGroups:[\"\"], Resources:[\"pods\"], Verbs:[\"watch\"]}\n\
             {APIGroups:[\"batch\"], Resources:[\"pods\"], Verbs:[\"get\" \"list\" \"watch\"]}"
        );
        assert_eq!(
            check(json!({"apiGroups":[""],"resources":["secrets"],"verbs":["get"]})).unwrap_err(),
            "{APIGroups:[\"\"], Resources:[\"secrets\"], Verbs:[\"get\"]}"
        );
        assert!(check(json!({"nonResourceURLs":["*"],"verbs":["get"]})).is_err());
        assert!(check(json!({"apiGroups":["*"],"resources":["pods"],"verbs":["get"]})).is_err());
    }
}
