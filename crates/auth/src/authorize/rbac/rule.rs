//! RBAC rules: matching requests, and whether one set of rules covers another (the escalation check).
use serde::{Deserialize, Serialize};

use crate::Attributes;

/// A rule of a role (`rbac.authorization.k8s.io/v1` PolicyRule); empty lists match nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyRule {
    /// Verbs; `*` matches all.
    #[serde(deserialize_with = "nullable")]
    pub verbs: Vec<String>,
    /// API groups; `*` matches all, the empty string is the legacy group.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    pub api_groups: Vec<String>,
    /// Resources: `resource`, `resource/subresource`, `*/subresource` or `*`.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    pub resources: Vec<String>,
    /// Object names that the rule is limited to; empty matches all.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    pub resource_names: Vec<String>,
    /// Non-resource paths; a final `*` matches any rest.
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

/// Reports whether a pattern of `nonResourceURLs` matches a path.
fn url_matches(owner: &str, path: &str) -> bool {
    owner == path || (owner.ends_with('*') && path.starts_with(owner.trim_end_matches('*')))
}

impl PolicyRule {
    /// Reports whether the rule allows the request.
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

    /// Compares resource and subresource joined, since a resource may contain a slash (an audience that is a URL, or
    /// `pods/exec` in a review without a subresource).
    fn matches_resource(&self, resource: &str, subresource: &str) -> bool {
        self.resources.iter().any(|r| {
            r == "*"
                || match subresource {
                    "" => r == resource,
                    _ => {
                        r.strip_prefix(resource).and_then(|rest| rest.strip_prefix('/')) == Some(subresource)
                            || r.strip_prefix("*/") == Some(subresource)
                    }
                }
        })
    }

    /// Splits the rule into rules with at most one group, resource, name, path and verb each, lazily: their number is
    /// the product of the lists' lengths.
    fn break_down(&self) -> impl Iterator<Item = Single<'_>> {
        self.verbs.iter().flat_map(move |verb| {
            let resources = self.api_groups.iter().flat_map(move |group| {
                self.resources.iter().flat_map(move |resource| {
                    let any_name = self.resource_names.is_empty().then_some(None);
                    let names = any_name.into_iter().chain(self.resource_names.iter().map(|name| Some(name.as_str())));
                    names.map(move |name| Single { verb, target: Target::Resource { group, resource, name } })
                })
            });
            resources.chain(self.non_resource_urls.iter().map(move |url| Single { verb, target: Target::Path(url) }))
        })
    }

    /// Returns the number of rules of [`PolicyRule::break_down`].
    fn singles(&self) -> usize {
        let resources = self.api_groups.len().saturating_mul(self.resources.len());
        let resources = resources.saturating_mul(self.resource_names.len().max(1));
        self.verbs.len().saturating_mul(resources.saturating_add(self.non_resource_urls.len()))
    }

    /// Reports whether this rule allows everything that `one` does.
    fn covers_single(&self, one: &Single<'_>) -> bool {
        star_or(&self.verbs, one.verb)
            && match one.target {
                Target::Resource { group, resource, name } => {
                    star_or(&self.api_groups, group)
                        && self.covers_resource(resource)
                        && (self.resource_names.is_empty() || name.is_some_and(|name| has(&self.resource_names, name)))
                }
                Target::Path(path) => self.non_resource_urls.iter().any(|own| url_matches(own, path)),
            }
    }

    /// Reports whether this rule alone allows everything that `wanted` does.
    fn covers_whole(&self, wanted: &Self) -> bool {
        let names = self.resource_names.is_empty()
            || !wanted.resource_names.is_empty() && wanted.resource_names.iter().all(|n| has(&self.resource_names, n));
        wanted.verbs.iter().all(|v| star_or(&self.verbs, v))
            && wanted.api_groups.iter().all(|g| star_or(&self.api_groups, g))
            && wanted.resources.iter().all(|r| self.covers_resource(r))
            && wanted.non_resource_urls.iter().all(|u| self.non_resource_urls.iter().any(|own| url_matches(own, u)))
            && (wanted.resources.is_empty() || names)
    }

    /// Returns the maximum number of comparisons of [`PolicyRule::covers_whole`].
    fn whole_cost(&self, wanted: &Self) -> usize {
        [
            (&self.verbs, &wanted.verbs),
            (&self.api_groups, &wanted.api_groups),
            (&self.resources, &wanted.resources),
            (&self.resource_names, &wanted.resource_names),
            (&self.non_resource_urls, &wanted.non_resource_urls),
        ]
        .into_iter()
        .fold(1, |sum, (own, wanted)| sum.saturating_add(own.len().saturating_mul(wanted.len())))
    }

    /// Returns the maximum number of comparisons of [`PolicyRule::covers_single`].
    fn single_cost(&self) -> usize {
        1 + self.verbs.len()
            + self.api_groups.len()
            + self.resources.len()
            + self.resource_names.len()
            + self.non_resource_urls.len()
    }

    fn covers_resource(&self, wanted: &str) -> bool {
        star_or(&self.resources, wanted)
            || wanted.split_once('/').is_some_and(|(_, sub)| has(&self.resources, &format!("*/{sub}")))
    }

    /// Formats the rule: `{APIGroups:["apps"], Resources:["deployments"], Verbs:["get" "list"]}`.
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

/// A rule with one verb, and one path or one group, resource and name.
struct Single<'a> {
    verb: &'a str,
    target: Target<'a>,
}

#[derive(Clone, Copy)]
enum Target<'a> {
    Resource { group: &'a str, resource: &'a str, name: Option<&'a str> },
    Path(&'a str),
}

impl From<Single<'_>> for PolicyRule {
    fn from(one: Single<'_>) -> Self {
        let list = |text: &str| vec![text.to_owned()];
        let verbs = list(one.verb);
        match one.target {
            Target::Resource { group, resource, name } => Self {
                verbs,
                api_groups: list(group),
                resources: list(resource),
                resource_names: name.map(list).unwrap_or_default(),
                non_resource_urls: vec![],
            },
            Target::Path(path) => Self { verbs, non_resource_urls: list(path), ..Self::default() },
        }
    }
}

/// The maximum number of combinations of verb, group, resource and name that one check evaluates singly; rules covered
/// as a whole by one rule of the owner do not count. The largest default role has about 400.
pub const COMBINATIONS_MAX: usize = 10_000;
/// The maximum number of string comparisons in one check.
const COMPARISONS_MAX: usize = 20_000_000;
/// The maximum number of missing rules in a message; the first one already decides the check.
pub const MISSING_MAX: usize = 500;

/// Why rules do not cover others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Uncovered {
    /// The first missing rules, broken down, at most [`MISSING_MAX`]; and whether there may be more.
    Missing(Vec<PolicyRule>, bool),
    /// The rules have too many combinations to evaluate.
    TooMany,
}

/// Checks that `owner` covers everything in `wanted`. The work is bounded: a rule of a kilobyte can have millions of
/// combinations.
///
/// # Errors
/// See [`Uncovered`].
pub fn covers<'a>(owner: impl Iterator<Item = &'a PolicyRule>, wanted: &[PolicyRule]) -> Result<(), Uncovered> {
    let owner: Vec<&PolicyRule> = owner.collect();
    let (mut combinations, mut comparisons) = (0_usize, 0_usize);
    let single_cost = owner.iter().fold(0_usize, |sum, own| sum.saturating_add(own.single_cost()));
    let mut missing: Vec<PolicyRule> = Vec::new();
    for rule in wanted {
        let whole = owner.iter().fold(0_usize, |sum, own| sum.saturating_add(own.whole_cost(rule)));
        comparisons = comparisons.saturating_add(whole);
        if comparisons > COMPARISONS_MAX {
            return Err(Uncovered::TooMany);
        }
        if owner.iter().any(|own| own.covers_whole(rule)) {
            continue;
        }
        combinations = combinations.saturating_add(rule.singles());
        comparisons = comparisons.saturating_add(rule.singles().saturating_mul(single_cost));
        if combinations > COMBINATIONS_MAX || comparisons > COMPARISONS_MAX {
            return Err(Uncovered::TooMany);
        }
        for one in rule.break_down().filter(|one| !owner.iter().any(|own| own.covers_single(one))) {
            if missing.len() == MISSING_MAX {
                return Err(Uncovered::Missing(missing, true));
            }
            missing.push(one.into());
        }
    }
    if missing.is_empty() { Ok(()) } else { Err(Uncovered::Missing(missing, false)) }
}

/// Formats missing rules as upstream does: verbs of one resource (and name) joined, sorted, one rule per line.
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
    fn resources_with_slashes() {
        let user = UserInfo::new("u", ["g"]);
        let ways = [("pods", ""), ("pods", "exec"), ("pods/exec", ""), ("a/b", "c"), ("a", "b/c"), ("a/b/c", "")];
        for (of_rule, wanted) in [
            ("*", ways.as_slice()),
            ("pods", &[("pods", "")]),
            ("pods/exec", &[("pods", "exec"), ("pods/exec", "")]),
            ("*/exec", &[("pods", "exec")]),
            ("a/b/c", &[("a/b", "c"), ("a", "b/c"), ("a/b/c", "")]),
            ("*/b/c", &[("a", "b/c")]),
            ("*/c", &[("a/b", "c")]),
            ("*/*", &[]),
            ("pods/*", &[]),
            ("/exec", &[]),
            ("pods/", &[]),
            ("", &[]),
        ] {
            let rule = rule(json!({"apiGroups": [""], "resources": [of_rule], "verbs": ["get"]}));
            for (resource, subresource) in ways {
                let asked = Attributes::resource(&user, "get", "", resource, "ns", "x").with_subresource(subresource);
                let found = wanted.contains(&(resource, subresource));
                assert_eq!(rule.allows(&asked), found, "{of_rule:?} for {resource:?} and {subresource:?}");
            }
        }
    }

    #[test]
    fn covering() {
        let own = [
            rule(json!({"apiGroups":["","apps"],"resources":["pods","*/status"],"verbs":["get","list"]})),
            rule(json!({"apiGroups":[""],"resources":["secrets"],"resourceNames":["a","b"],"verbs":["*"]})),
            rule(json!({"nonResourceURLs":["/api/*"],"verbs":["get"]})),
        ];
        let check = |v| match covers(own.iter(), &[rule(v)]) {
            Err(Uncovered::Missing(missing, false)) => Err(describe_missing(&missing)),
            Err(other) => panic!("few combinations are no fault: {other:?}"),
            Ok(()) => Ok(()),
        };
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

    /// Returns `count` different words.
    fn words(prefix: &str, count: usize) -> Vec<String> {
        (0..count).map(|i| format!("{prefix}{i}")).collect()
    }

    /// A rule of a few kilobytes with `n` * `n` * `n` combinations.
    fn cube(n: usize) -> PolicyRule {
        PolicyRule {
            verbs: words("v", n),
            api_groups: words("g", n),
            resources: words("r", n),
            ..PolicyRule::default()
        }
    }

    #[test]
    fn products_are_not_multiplied_out() {
        let all = rule(json!({"apiGroups":["*"],"resources":["*"],"verbs":["*"]}));
        assert_eq!(covers([&all].into_iter(), &[cube(120)]), Ok(()), "one rule covers it as a whole");
        assert_eq!(covers([&cube(120)].into_iter(), &[cube(120)]), Ok(()));
        let some = rule(json!({"apiGroups":["*"],"resources":["*"],"verbs":["get"]}));
        assert_eq!(covers([&some].into_iter(), &[cube(120)]), Err(Uncovered::TooMany));
        let Err(Uncovered::Missing(missing, true)) = covers([&some].into_iter(), &[cube(20)]) else {
            panic!("8,000 are looked at")
        };
        assert_eq!(missing.len(), MISSING_MAX);
        // Many rules on both sides: the limit is on the work, not on the number of combinations.
        let many = vec![rule(json!({"apiGroups":["a"],"resources":["b"],"verbs":["c"]})); 6_000];
        let other = vec![rule(json!({"apiGroups":["x"],"resources":["y"],"verbs":["z"]})); 6_000];
        assert_eq!(covers(many.iter(), &other), Err(Uncovered::TooMany));
    }

    #[test]
    fn what_a_rule_covers_whole_it_covers_singly() {
        let parts = |seed: usize| {
            let pick = |list: &[&str], bits: usize| {
                list.iter().enumerate().filter(|(i, _)| bits >> i & 1 == 1).map(|(_, w)| (*w).to_owned()).collect()
            };
            PolicyRule {
                verbs: pick(&["get", "list", "*"], seed & 7),
                api_groups: pick(&["", "apps", "*"], seed >> 3 & 7),
                resources: pick(&["pods", "pods/log", "*/log", "*"], seed >> 6 & 15),
                resource_names: pick(&["a", "b"], seed >> 10 & 3),
                non_resource_urls: pick(&["/x", "/x/*"], seed >> 12 & 3),
            }
        };
        let rules: Vec<PolicyRule> = (0..1 << 14).step_by(37).map(parts).collect();
        for own in &rules {
            for wanted in rules.iter().step_by(5).filter(|wanted| own.covers_whole(wanted)) {
                assert!(wanted.break_down().all(|one| own.covers_single(&one)), "{own:?} {wanted:?}");
            }
        }
    }
}
