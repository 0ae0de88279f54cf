//! Tests of nftables transactions without `nft`.
use super::*;

#[test]
fn keys_are_as_wide_as_their_types() {
    let key = |specification: &str, text: &str| SetType::parse(specification).and_then(|set| set.key(text));
    assert_eq!(key("type ipv4_addr", "10.43.0.9"), Some(vec![10, 43, 0, 9]));
    assert_eq!(key("type ipv4_addr;", "10.43.0.9"), Some(vec![10, 43, 0, 9]));
    assert_eq!(key("type inet_service", "53"), Some(vec![0, 53]));
    let services = "type ipv4_addr . inet_proto . inet_service : verdict";
    let expected = vec![10, 43, 0, 9, 17, 0, 0, 0, 0, 53, 0, 0];
    assert_eq!(key(services, "10.43.0.9 . udp . 53"), Some(expected));
    let endpoints = "typeof ip daddr . meta l4proto . th dport . numgen random mod 2 : ip daddr . th dport";
    let expected = [&[10, 43, 0, 9, 17, 0, 0, 0, 0, 53, 0, 0][..], &3u32.to_ne_bytes()].concat();
    assert_eq!(key(endpoints, "10.43.0.9 . udp . 53 . 3"), Some(expected));
    let data = SetType::parse(endpoints).and_then(|set| match set.data("10.42.0.1 . 8053") {
        Some(Data::Value(value)) => Some(value),
        _ => None,
    });
    assert_eq!(data, Some(vec![10, 42, 0, 1, 0x1f, 0x75, 0, 0]));
    assert_eq!(key("type ipv6_addr", "fd43::9").map(|key| key.len()), Some(16));
    for (specification, text) in [
        ("type ipv4_addr", "fd43::9"),
        ("type ipv4_addr", "10.43.0.0/16"),
        ("type ipv4_addr", "10.43.0.9 . udp"),
        ("type ipv4_addr; flags interval;", "10.43.0.9"),
        ("type ipv4_addr; size 65536; flags dynamic,timeout; timeout 10s;", "10.43.0.9"),
        ("type ipv4_addr : mark", "10.43.0.9"),
        ("type inet_proto . inet_service", "icmp . 80"),
        ("type mark", "1"),
        ("typeof ip saddr", "10.43.0.9"),
        ("typeof numgen inc mod 2", "1"),
    ] {
        assert_eq!(key(specification, text), None, "{specification} {text}");
    }
}

#[test]
fn what_is_not_known_is_left_to_nft() {
    let chain = Subject::Chain("c");
    let encoded = |table: &str, subject: Subject<'_>, after: &str| {
        let change = SubjectChange { subject, before: None, after: Some(after) };
        encode(table, |set| (set == "m").then_some("type ipv4_addr : verdict"), &[change]).is_some()
    };
    for rules in [
        "meta l4proto tcp dnat ip to 10.42.0.1:8080",
        "  meta l4proto udp numgen random mod 3 0 dnat ip to 10.42.0.1:53\n  meta l4proto udp dnat ip to 10.42.0.2:53",
        "jump mark-for-masquerade\ngoto service-x",
        "drop",
        "",
    ] {
        assert!(encoded("ip t", chain, rules), "{rules}");
    }
    for rules in [
        "ip saddr @clients goto x",
        "meta l4proto tcp dnat ip to 10.42.0.1",
        "meta l4proto tcp dnat ip6 to [fd42::1]:80",
        "meta l4proto tcp dnat ip to [fd42::1]:80",
        "meta l4proto tcp",
        "numgen random mod 3 1 goto x",
        "update @clients { ip saddr }",
        "counter name x return",
        "drop\nreject",
    ] {
        assert!(!encoded("ip t", chain, rules), "{rules}");
    }
    assert!(!encoded("inet t", chain, "drop"));
    let element = |set| Subject::Element(set, "10.0.0.1");
    assert!(encoded("ip t", element("m"), "goto c"));
    assert!(!encoded("ip t", element("m"), "reject"));
    assert!(!encoded("ip t", element("unknown"), "goto c"));
    assert!(!encoded("ip t", Subject::Other, ""));
}

#[test]
fn a_batch_is_a_row_of_whole_messages() {
    let (chain, element) = (Subject::Chain("c"), Subject::Element("m", "10.0.0.1"));
    let changes = [
        SubjectChange { subject: chain, before: Some("drop"), after: Some("goto a\ngoto b") },
        SubjectChange { subject: element, before: Some("goto a"), after: Some("goto c") },
    ];
    let batch = encode("ip t", |_| Some("type ipv4_addr : verdict"), &changes).unwrap();
    let (mut rest, mut kinds) = (batch.bytes.as_slice(), Vec::new());
    while let Some((kind, sequence, _, next)) = answer(rest) {
        assert_eq!(sequence as usize, kinds.len());
        kinds.push(kind & 0xff);
        rest = next;
    }
    assert!(rest.is_empty());
    let (begin, end) = (wire::BATCH_BEGIN, wire::BATCH_END);
    let inside = [wire::DEL_ELEMENTS, wire::DEL_RULE, wire::NEW_RULE, wire::NEW_RULE, wire::NEW_ELEMENTS];
    assert_eq!(kinds, [&[begin][..], &inside, &[end]].concat());
    assert_eq!(batch.messages as usize, kinds.len());
}
