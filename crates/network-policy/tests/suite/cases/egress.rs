//! Cases of traffic from pods.

use kelson_net::Protocol::Tcp;
use serde_json::{Value, json};

use super::Step::{Expect, Policy};
use super::{Case, case, egress, from, ingress, ns, pod, to};

pub fn egresses() -> Vec<Case> {
    let to_y_a = || egress("a", to(json!([{"namespaceSelector": ns("y"), "podSelector": pod("a")}])));
    let from_x_a =
        |pod_name: &str| ingress(pod_name, from(json!([{"namespaceSelector": ns("x"), "podSelector": pod("a")}])));
    let both = json!({"podSelector": pod("a"), "policyTypes": ["Egress", "Ingress"],
        "ingress": from(json!([{"podSelector": pod("b")}])), "egress": [{"ports": [{"port": 80}]}]});
    vec![
        case(
            "should deny egress from pods based on PodSelector",
            vec![Policy("x", "deny-egress", egress("a", json!([]))), Expect(Tcp, 80, "x/a > * no")],
        ),
        case(
            "should deny egress from all pods in a namespace",
            vec![Policy("x", "deny-egress", egress("*", json!([]))), Expect(Tcp, 80, "x/* > * no")],
        ),
        case(
            "should work with Ingress, Egress specified together",
            vec![
                Policy("x", "both", both),
                Expect(Tcp, 80, "* > x/a no; x/b > x/a yes"),
                Expect(Tcp, 81, "* > x/a no; x/a > * no; x/b > x/a yes"),
            ],
        ),
        case(
            "should support denying of egress traffic on the client side (even if the server explicitly allows this traffic)",
            vec![
                Policy("x", "to-y-a", to_y_a()),
                Policy("y", "from-x-a-to-a", from_x_a("a")),
                Policy("y", "from-x-a-to-b", from_x_a("b")),
                Expect(Tcp, 80, "x/a > * no; * > y/a no; x/a > y/a yes; * > y/b no"),
            ],
        ),
        case(
            "should enforce egress policy allowing traffic to a server in a different namespace based on PodSelector and NamespaceSelector",
            vec![Policy("x", "to-y-a", to_y_a()), Expect(Tcp, 80, "x/a > * no; x/a > y/a yes")],
        ),
        case(
            "should enforce policies to check ingress and egress policies can be controlled independently based on PodSelector",
            vec![
                Policy("x", "allow-egress", egress("a", json!([{}]))),
                Expect(Tcp, 80, ""),
                Policy("x", "deny-ingress", ingress("a", json!([]))),
                Expect(Tcp, 80, "* > x/a no"),
            ],
        ),
    ]
}

/// Addresses: x/b is 10.42.0.2, y/b 10.42.0.5.
pub fn blocks() -> Vec<Case> {
    let block = |block: Value| egress("a", to(json!([{"ipBlock": block}])));
    let around_b = json!({"cidr": "10.42.0.0/24", "except": ["10.42.0.2/32"]});
    let allow = |spec: Value| Policy("x", "cidr", spec);
    vec![
        case(
            "should allow egress access to server in CIDR block",
            vec![allow(block(json!({"cidr": "10.42.0.5/32"}))), Expect(Tcp, 80, "x/a > * no; x/a > y/b yes")],
        ),
        case(
            "should enforce except clause while egress access to server in CIDR block",
            vec![allow(block(around_b.clone())), Expect(Tcp, 80, "x/a > x/b no")],
        ),
        case(
            "should ensure an IP overlapping both IPBlock.CIDR and IPBlock.Except is allowed",
            vec![
                allow(block(around_b.clone())),
                Expect(Tcp, 80, "x/a > x/b no"),
                allow(block(json!({"cidr": "10.42.0.2/32"}))),
                Expect(Tcp, 80, "x/a > * no; x/a > x/b yes"),
                Policy("x", "around", block(around_b)),
                Expect(Tcp, 80, ""),
            ],
        ),
    ]
}
