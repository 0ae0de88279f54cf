//! The cases of upstream's end-to-end tests of network policies, by their names, with the expected results.

mod egress;

use kelson_net::Protocol::{self, Sctp, Tcp, Udp};
use serde_json::{Value, json};

/// Changes and expectations, in order.
pub struct Case {
    pub name: &'static str,
    pub steps: Vec<Step>,
}

/// A step of a case.
pub enum Step {
    /// Writes a policy: namespace, name and spec.
    Policy(&'static str, &'static str, Value),
    /// Deletes a policy: namespace and name.
    Remove(&'static str, &'static str),
    /// Adds labels to a pod: namespace, name and labels.
    Pod(&'static str, &'static str, Value),
    /// Adds labels to a namespace: name and labels.
    Namespace(&'static str, Value),
    /// Checks which pods reach each other by a protocol and port. All do, except the pairs of the rules.
    Expect(Protocol, u16, &'static str),
}

use Step::{Expect, Namespace, Pod, Policy, Remove};

/// A pod selector by the label `pod`, or for every pod.
fn pod(name: &str) -> Value {
    if name == "*" { json!({}) } else { json!({"matchLabels": {"pod": name}}) }
}

fn ns(name: &str) -> Value {
    json!({"matchLabels": {"ns": name}})
}

fn expression(key: &str, operator: &str, values: &[&str]) -> Value {
    json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]})
}

fn ingress(select: &str, rules: Value) -> Value {
    json!({"podSelector": pod(select), "policyTypes": ["Ingress"], "ingress": rules})
}

fn egress(select: &str, rules: Value) -> Value {
    json!({"podSelector": pod(select), "policyTypes": ["Egress"], "egress": rules})
}

fn port(protocol: &str, port: impl Into<Value>) -> Value {
    json!({"protocol": protocol, "port": port.into()})
}

/// A rule for peers of ingress.
fn from(peers: Value) -> Value {
    json!([{"from": peers}])
}

/// A rule for peers of egress.
fn to(peers: Value) -> Value {
    json!([{"to": peers}])
}

fn case(name: &'static str, steps: Vec<Step>) -> Case {
    Case { name, steps }
}

/// Returns all cases of the suite.
pub fn cases() -> Vec<Case> {
    [defaults(), peers(), ports(), updates(), egress::egresses(), egress::blocks(), protocols(), names()]
        .into_iter()
        .flatten()
        .collect()
}

fn defaults() -> Vec<Case> {
    let deny = || json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"]});
    vec![
        case(
            "should support a 'default-deny-ingress' policy",
            vec![Policy("x", "deny-ingress", ingress("*", json!([]))), Expect(Tcp, 80, "* > x/* no")],
        ),
        case(
            "should support a 'default-deny-all' policy",
            vec![Policy("x", "deny-all", deny()), Expect(Tcp, 80, "* > x/* no; x/* > * no")],
        ),
        case(
            "should support allow-all policy",
            vec![Policy("x", "allow-all", ingress("*", json!([{}]))), Expect(Tcp, 80, ""), Expect(Tcp, 81, "")],
        ),
        case(
            "should enforce policy to allow ingress traffic for a target",
            vec![
                Policy("x", "deny-all", ingress("*", json!([]))),
                Policy(
                    "x",
                    "allow-all-to-a",
                    ingress("a", from(json!([{"podSelector": {}, "namespaceSelector": {}}]))),
                ),
                Expect(Tcp, 80, "* > x/* no; * > x/a yes"),
            ],
        ),
        case(
            "should stop enforcing policies after they are deleted",
            vec![
                Policy("x", "deny-all", deny()),
                Expect(Tcp, 80, "* > x/* no; x/* > * no"),
                Remove("x", "deny-all"),
                Expect(Tcp, 80, ""),
            ],
        ),
        case(
            "should deny ingress from pods on other namespaces",
            vec![
                Policy("x", "deny-empty-policy", ingress("*", from(json!([{"podSelector": {"matchLabels": {}}}])))),
                Expect(Tcp, 80, "y/* > x/* no; z/* > x/* no"),
            ],
        ),
    ]
}

fn peers() -> Vec<Case> {
    let not_x = || expression("ns", "NotIn", &["x"]);
    let b = || json!({"podSelector": pod("b")});
    let allow = |peers: Value| Policy("x", "allow", ingress("a", from(peers)));
    vec![
        case(
            "should enforce policy to allow traffic from pods within server namespace based on PodSelector",
            vec![allow(json!([b()])), Expect(Tcp, 80, "* > x/a no; x/b > x/a yes")],
        ),
        case(
            "should enforce policy to allow ingress traffic from pods in all namespaces",
            vec![allow(json!([{"namespaceSelector": {"matchLabels": {}}}])), Expect(Tcp, 80, "")],
        ),
        case(
            "should enforce policy to allow traffic only from a different namespace, based on NamespaceSelector",
            vec![allow(json!([{"namespaceSelector": ns("y")}])), Expect(Tcp, 80, "x/* > x/a no; z/* > x/a no")],
        ),
        case(
            "should enforce policy based on PodSelector with MatchExpressions",
            vec![
                allow(json!([{"podSelector": expression("pod", "In", &["b"])}])),
                Expect(Tcp, 80, "* > x/a no; x/b > x/a yes"),
            ],
        ),
        case(
            "should enforce policy based on NamespaceSelector with MatchExpressions",
            vec![
                allow(json!([{"namespaceSelector": expression("ns", "In", &["y"])}])),
                Expect(Tcp, 80, "x/* > x/a no; z/* > x/a no"),
            ],
        ),
        case(
            "should enforce policy based on PodSelector or NamespaceSelector",
            vec![allow(json!([{"namespaceSelector": not_x()}, b()])), Expect(Tcp, 80, "x/c > x/a no")],
        ),
        case(
            "should enforce policy based on PodSelector and NamespaceSelector",
            vec![
                allow(json!([{"namespaceSelector": not_x(), "podSelector": pod("b")}])),
                Expect(Tcp, 80, "* > x/a no; y/b > x/a yes; z/b > x/a yes"),
            ],
        ),
        case(
            "should enforce policy based on Multiple PodSelectors and NamespaceSelectors",
            vec![
                allow(json!([{"namespaceSelector": not_x(), "podSelector": expression("pod", "In", &["b", "c"])}])),
                Expect(Tcp, 80, "x/* > x/a no; y/a > x/a no; z/a > x/a no"),
            ],
        ),
        case(
            "should enforce policy based on any PodSelectors",
            vec![
                allow(json!([b(), {"podSelector": pod("c")}])),
                Expect(Tcp, 80, "* > x/a no; x/b > x/a yes; x/c > x/a yes"),
            ],
        ),
        case(
            "should enforce policy to allow traffic only from a pod in a different namespace based on PodSelector and NamespaceSelector",
            vec![
                allow(json!([{"namespaceSelector": ns("y"), "podSelector": pod("a")}])),
                Expect(Tcp, 80, "* > x/a no; y/a > x/a yes"),
            ],
        ),
    ]
}

fn ports() -> Vec<Case> {
    let of_y = |port: Value| ingress("a", json!([{"from": [{"namespaceSelector": ns("y")}], "ports": [port]}]));
    vec![
        case(
            "should enforce policy based on Ports",
            vec![
                Policy("x", "allow-81", of_y(port("TCP", 81))),
                Expect(Tcp, 81, "x/* > x/a no; z/* > x/a no"),
                Expect(Tcp, 80, "* > x/a no"),
            ],
        ),
        case(
            "should enforce multiple, stacked policies with overlapping podSelectors",
            vec![
                Policy("x", "allow-81", of_y(port("TCP", 81))),
                Expect(Tcp, 81, "x/* > x/a no; z/* > x/a no"),
                Expect(Tcp, 80, "* > x/a no"),
                Policy("x", "allow-80", of_y(port("TCP", 80))),
                Expect(Tcp, 80, "x/* > x/a no; z/* > x/a no"),
            ],
        ),
        case(
            "should allow ingress access on one named port",
            vec![
                Policy("x", "allow-all", ingress("*", json!([{"ports": [{"port": "serve-81-tcp"}]}]))),
                Expect(Tcp, 81, ""),
                Expect(Tcp, 80, "* > x/* no"),
            ],
        ),
        case(
            "should allow ingress access from namespace on one named port",
            vec![
                Policy("x", "allow-80", of_y(port("TCP", "serve-80-tcp"))),
                Expect(Tcp, 80, "x/* > x/a no; z/* > x/a no"),
                Expect(Tcp, 81, "* > x/a no"),
            ],
        ),
        case(
            "should allow egress access on one named port",
            vec![
                Policy("x", "allow-egress", egress("*", json!([{"ports": [{"port": "serve-80-tcp"}]}]))),
                Expect(Tcp, 80, ""),
                Expect(Tcp, 81, "x/* > * no"),
            ],
        ),
        case(
            "should support creating NetworkPolicy API with endport field",
            vec![
                Policy("x", "range", ingress("*", json!([{"ports": [{"port": 70, "endPort": 80}]}]))),
                Policy(
                    "y",
                    "range",
                    egress("a", json!([{"ports": [{"port": 81, "endPort": 65535, "protocol": "UDP"}]}])),
                ),
                Expect(Tcp, 80, "y/a > * no"),
                Expect(Tcp, 81, "* > x/* no; y/a > * no"),
                Expect(Udp, 81, "* > x/* no"),
            ],
        ),
    ]
}

fn updates() -> Vec<Case> {
    vec![
        case(
            "should enforce multiple ingress policies with ingress allow-all policy taking precedence",
            vec![
                Policy("x", "port-80", ingress("*", json!([{"ports": [{"port": 80}]}]))),
                Expect(Tcp, 81, "* > x/* no"),
                Policy("x", "all", ingress("*", json!([{}]))),
                Expect(Tcp, 81, ""),
            ],
        ),
        case(
            "should enforce multiple egress policies with egress allow-all policy taking precedence",
            vec![
                Policy("x", "port-80", egress("*", json!([{"ports": [{"port": 80}]}]))),
                Expect(Tcp, 81, "x/* > * no"),
                Policy("x", "all", egress("*", json!([{}]))),
                Expect(Tcp, 81, ""),
            ],
        ),
        case(
            "should enforce updated policy",
            vec![
                Policy("x", "mutates", ingress("*", json!([{}]))),
                Expect(Tcp, 81, ""),
                Policy("x", "mutates", ingress("*", json!([]))),
                Expect(Tcp, 81, "* > x/* no"),
            ],
        ),
        case(
            "should allow ingress access from updated namespace",
            vec![
                Policy(
                    "x",
                    "by-label",
                    ingress("a", from(json!([{"namespaceSelector": {"matchLabels": {"ns2": "updated"}}}]))),
                ),
                Expect(Tcp, 80, "* > x/a no"),
                Namespace("y", json!({"ns2": "updated"})),
                Expect(Tcp, 80, "* > x/a no; y/* > x/a yes"),
                Namespace("y", json!({})),
                Expect(Tcp, 80, "* > x/a no"),
            ],
        ),
        case(
            "should allow ingress access from updated pod",
            vec![
                Policy(
                    "x",
                    "by-label",
                    ingress("a", from(json!([{"podSelector": {"matchLabels": {"pod": "b", "pod2": "updated"}}}]))),
                ),
                Expect(Tcp, 80, "* > x/a no"),
                Pod("x", "b", json!({"pod2": "updated"})),
                Expect(Tcp, 80, "* > x/a no; x/b > x/a yes"),
            ],
        ),
        case(
            "should deny ingress access to updated pod",
            vec![
                Policy(
                    "x",
                    "isolates",
                    json!({"podSelector": {"matchLabels": {"target": "isolated"}}, "policyTypes": ["Ingress"]}),
                ),
                Expect(Tcp, 80, ""),
                Pod("x", "a", json!({"target": "isolated"})),
                Expect(Tcp, 80, "* > x/a no"),
            ],
        ),
    ]
}

fn protocols() -> Vec<Case> {
    let by = |protocol: &str, number: u16| ingress("a", json!([{"ports": [port(protocol, number)]}]));
    let y_on_81 = |protocol: &str| {
        let rule = json!({"from": [{"namespaceSelector": ns("y")}], "ports": [port(protocol, 81)]});
        Policy("x", "y-on-81", ingress("a", json!([rule])))
    };
    let of_y_a =
        || Policy("x", "y-a", ingress("a", from(json!([{"namespaceSelector": ns("y"), "podSelector": pod("a")}]))));
    let deny = || Policy("x", "deny", ingress("*", json!([])));
    vec![
        case(
            "should enforce ingress policy allowing any port traffic to a server on a specific protocol",
            vec![
                Policy("x", "by-protocol", ingress("a", json!([{"ports": [{"protocol": "TCP"}]}]))),
                Expect(Tcp, 80, ""),
                Expect(Udp, 80, "* > x/a no"),
            ],
        ),
        case(
            "should not mistakenly treat 'protocol: SCTP' as 'protocol: TCP', even if the plugin doesn't support SCTP",
            vec![
                deny(),
                Policy("x", "sctp", by("SCTP", 81)),
                Expect(Tcp, 81, "* > x/* no"),
                Expect(Sctp, 81, "* > x/* no; * > x/a yes"),
            ],
        ),
        case(
            "should properly isolate pods that are selected by a policy allowing SCTP, even if the plugin doesn't support SCTP",
            vec![Policy("x", "sctp", by("SCTP", 80)), Expect(Tcp, 81, "* > x/a no")],
        ),
        case(
            "should not allow access by TCP when a policy specifies only UDP",
            vec![Policy("x", "udp", by("UDP", 81)), Expect(Tcp, 81, "* > x/a no"), Expect(Udp, 81, "")],
        ),
        case("UDP: should support a 'default-deny-ingress' policy", vec![deny(), Expect(Udp, 80, "* > x/* no")]),
        case(
            "UDP: should enforce policy based on Ports",
            vec![y_on_81("UDP"), Expect(Udp, 81, "x/* > x/a no; z/* > x/a no")],
        ),
        case(
            "UDP: should enforce policy to allow traffic only from a pod in a different namespace",
            vec![of_y_a(), Expect(Udp, 80, "* > x/a no; y/a > x/a yes")],
        ),
        case("SCTP: should support a 'default-deny-ingress' policy", vec![deny(), Expect(Sctp, 80, "* > x/* no")]),
        case(
            "SCTP: should enforce policy based on Ports",
            vec![y_on_81("SCTP"), Expect(Sctp, 81, "x/* > x/a no; z/* > x/a no"), Expect(Sctp, 80, "* > x/a no")],
        ),
        case(
            "SCTP: should enforce policy to allow traffic only from a pod in a different namespace",
            vec![of_y_a(), Expect(Sctp, 80, "* > x/a no; y/a > x/a yes")],
        ),
    ]
}

fn names() -> Vec<Case> {
    let name = "kubernetes.io/metadata.name";
    vec![
        case(
            "should enforce policy to allow traffic based on NamespaceSelector with MatchLabels using default ns label",
            vec![
                Policy(
                    "x",
                    "by-name",
                    ingress("a", from(json!([{"namespaceSelector": {"matchLabels": {name: "y"}}}]))),
                ),
                Expect(Tcp, 80, "x/* > x/a no; z/* > x/a no"),
            ],
        ),
        case(
            "should enforce policy based on NamespaceSelector with MatchExpressions using default ns label",
            vec![
                Policy(
                    "x",
                    "by-name",
                    egress("a", to(json!([{"namespaceSelector": expression(name, "NotIn", &["y"])}]))),
                ),
                Expect(Tcp, 80, "x/a > y/* no"),
            ],
        ),
    ]
}
