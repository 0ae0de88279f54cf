//! Tests of device assignment.
use std::sync::LazyLock;

use super::*;
use crate::devices::messages::{NumaNode, Topology};

const GPU: &str = "example.com/gpu";

fn at(second: u64) -> Instant {
    static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);
    *BEGAN + Duration::from_secs(second)
}

fn devices(text: &str) -> Vec<Device> {
    let device = |word: &str| {
        let (id, part) = word.trim_end_matches('!').split_once('@').unwrap_or((word.trim_end_matches('!'), ""));
        let topology = part.parse().ok().map(|id| Topology { nodes: vec![NumaNode { id }] });
        let health = if word.ends_with('!') { "Unhealthy" } else { "Healthy" };
        Device { id: id.to_owned(), health: health.to_owned(), topology }
    };
    text.split_whitespace().map(device).collect()
}

fn table(text: &str) -> Table {
    let mut table = Table::default();
    table.registered(GPU, PluginOptions::default()).expect("room");
    assert!(table.listed(GPU, devices(text)));
    table
}

fn whose(pod: &str, container: &str) -> DeviceHolder {
    DeviceHolder { pod: pod.to_owned(), container: container.to_owned(), resource: GPU.to_owned() }
}

fn ask(wanted: usize, own: &BTreeSet<String>) -> DeviceRequest<'_> {
    DeviceRequest { wanted, own, near: None }
}

fn give(table: &mut Table, pod: &str, wanted: usize, preferred: &[&str]) -> Result<String, String> {
    let preferred: Vec<String> = preferred.iter().map(|p| (*p).to_owned()).collect();
    let ask = DeviceRequest { wanted, own: &BTreeSet::new(), near: None };
    table.give(&whose(pod, "c"), &ask, &preferred).map(|ids| ids.join(" "))
}

#[test]
fn no_device_is_given_twice() {
    let mut t = table("a b c! d");
    assert_eq!(give(&mut t, "p", 2, &["d", "c", "nothing"]).as_deref(), Ok("d a"), "what works and is preferred first");
    assert_eq!(
        give(&mut t, "q", 2, &["a"]),
        Err("requested number of devices unavailable for example.com/gpu. Requested: 2, Available: 1".into())
    );
    assert_eq!(give(&mut t, "q", 1, &["a"]).as_deref(), Ok("b"));
    assert_eq!(give(&mut t, "p", 2, &[]).as_deref(), Ok(""), "it has them");
    assert!(give(&mut t, "p", 1, &[]).is_err_and(|e| e.ends_with("\"example.com/gpu\" from 2 to 1")));
    // The plugin rejected the request, so nothing stays assigned.
    t.settled(&whose("q", "c"), None);
    assert!(t.take_back(|pod| pod == "q") && !t.take_back(|_| true));
    assert_eq!(give(&mut t, "r", 3, &[]).as_deref(), Ok("a b d"));
}

#[test]
fn a_container_reuses_devices_of_earlier_init_containers() {
    let mut t = table("a b c");
    assert_eq!(t.give(&whose("p", "init"), &ask(2, &BTreeSet::new()), &[]).expect("free"), ["a", "b"]);
    let own = t.held(&whose("p", "init"));
    assert_eq!(t.give(&whose("p", "c"), &ask(3, &own), &["c".to_owned()]).expect("enough"), ["a", "b", "c"]);
    assert!(t.offer(&whose("q", "c"), &ask(1, &BTreeSet::new()), false).is_err());
}

#[test]
fn the_inventory_follows_the_plugin() {
    let mut t = table("a b c!");
    let amount = |capacity, allocatable| DeviceCount { capacity, allocatable };
    assert_eq!(t.amounts(at(0))[GPU], amount(3, 2));
    assert!(!t.listed(GPU, devices("a b c!")) && t.listed(GPU, devices("a b")));
    assert!(!t.listed("example.com/unheard", devices("a")));
    t.gone(GPU, at(100));
    t.gone(GPU, at(200));
    assert_eq!(t.amounts(at(399))[GPU], amount(2, 0));
    assert_eq!(t.amounts(at(400))[GPU], amount(0, 0), "five minutes after it went");
    let none = "no healthy devices present; cannot allocate unhealthy devices example.com/gpu";
    assert_eq!(give(&mut t, "p", 1, &[]), Err(none.into()));
    t.registered(GPU, PluginOptions::default()).expect("room");
    t.listed(GPU, devices("a"));
    assert_eq!(t.amounts(at(500))[GPU], amount(1, 1));
}

#[test]
fn assignments_survive_a_restart() {
    let mut t = table("a@1 b");
    give(&mut t, "p", 2, &[]).expect("enough");
    assert!(t.lasting().1.is_empty(), "nothing lasts before the plugin has answered");
    t.settled(&whose("p", "c"), Some(ContainerAllocation::default()));
    let (resources, held) = t.lasting();
    let near = |of: &[(i64, &str)]| -> BTreeMap<i64, BTreeSet<String>> {
        of.iter().map(|(part, id)| (*part, BTreeSet::from([(*id).to_owned()]))).collect()
    };
    assert_eq!(held[0].1.near, near(&[(-1, "b"), (1, "a")]));

    let mut next = Table::remembered(resources, held.into_iter().collect(), at(0));
    assert_eq!(next.amounts(at(1))[GPU], DeviceCount::default(), "till the plugin registers again");
    let has = |t: &Table, starts_anew| t.offer(&whose("p", "c"), &ask(2, &BTreeSet::new()), starts_anew);
    assert_eq!(has(&next, false), Ok(DeviceOffer::Has), "a container that runs needs nothing");
    assert_eq!(has(&next, true), Err("cannot allocate unregistered device example.com/gpu".into()));
    next.registered(GPU, PluginOptions::default()).expect("room");
    next.listed(GPU, devices("a b!"));
    let ill = "previously allocated devices are no longer healthy; cannot allocate unhealthy devices example.com/gpu";
    assert_eq!(has(&next, true), Err(ill.into()));
    next.listed(GPU, devices("a b c"));
    assert_eq!(has(&next, true), Ok(DeviceOffer::Has));
    assert_eq!(
        next.offer(&whose("q", "c"), &ask(1, &BTreeSet::new()), false)
            .map(|o| matches!(o, DeviceOffer::From(c) if c.free == ["c"])),
        Ok(true)
    );
}

#[test]
fn near_devices_are_assigned_first() {
    let mut t = table("a b@0 c@1 d@1");
    let none = BTreeSet::new();
    let near =
        |nodes: &[u32], wanted| DeviceRequest { wanted, own: &none, near: Some(NodeMask::of(nodes.iter().copied())) };
    let mut give =
        |pod: &str, ask: DeviceRequest<'_>| t.give(&whose(pod, "c"), &ask, &["a".to_owned()]).map(|ids| ids.join(" "));
    assert_eq!(give("p", near(&[1], 1)).as_deref(), Ok("c"), "near, though another is preferred");
    assert_eq!(give("q", near(&[1], 2)).as_deref(), Ok("d a"), "then what is preferred");
    assert_eq!(give("r", near(&[1], 1)).as_deref(), Ok("b"));
}

#[test]
fn hints_list_numa_nodes_of_devices() {
    let none = BTreeSet::new();
    let text = |t: &Table, pod: &str, container: Option<&str>, wanted: usize, own: &BTreeSet<String>| {
        let ask = DeviceRequest { wanted, own, near: None };
        let hint = |h: NumaHint| format!("{:?}{}", h.nodes.unwrap_or_default(), if h.preferred { "!" } else { "" });
        let hints = t.hints((pod, container), GPU, &ask, &[0, 1]);
        hints.map(|all| all.into_iter().map(hint).collect::<Vec<_>>().join(" "))
    };
    let mut t = table("a@0 b@1 c@1");
    assert_eq!(text(&table("a b"), "p", None, 1, &none), None, "no device has a NUMA node");
    assert_eq!(text(&t, "p", Some("c"), 1, &none).as_deref(), Some("[0]! [1]! [0, 1]"));
    assert_eq!(text(&t, "p", Some("c"), 2, &none).as_deref(), Some("[1]! [0, 1]"));
    assert_eq!(text(&t, "p", Some("c"), 3, &none).as_deref(), Some("[0, 1]!"));
    assert_eq!(text(&t, "p", Some("c"), 4, &none).as_deref(), Some(""), "so many there are not");
    let own = BTreeSet::from(["a".to_owned()]);
    give(&mut t, "p", 1, &[]).expect("free");
    assert_eq!(text(&t, "p", Some("c"), 1, &none).as_deref(), Some("[0]! [0, 1]"), "what it has");
    assert_eq!(text(&t, "p", Some("c"), 2, &none).as_deref(), Some(""), "it asks for more than it has");
    assert_eq!(text(&t, "p", Some("next"), 2, &own).as_deref(), Some("[0, 1]"), "with what its step had");
    assert_eq!(text(&t, "q", Some("c"), 2, &none).as_deref(), Some("[1]! [0, 1]"));
}

#[test]
fn health_of_a_containers_devices() {
    let mut t = table("a b! c");
    give(&mut t, "p", 2, &["a", "c"]).expect("two work");
    let of = |t: &Table| -> Vec<String> {
        let all = t.health("p", "c").into_iter().flat_map(|(_, devices)| devices);
        all.map(|(id, health)| format!("{id} {}", health.as_str())).collect()
    };
    assert_eq!(of(&t), ["a Healthy", "c Healthy"]);
    t.listed(GPU, devices("a! b"));
    assert_eq!(of(&t), ["a Unhealthy", "c Unhealthy"], "one is ill, and one is no longer there");
    t.gone(GPU, at(1));
    assert_eq!(of(&t), ["a Unknown", "c Unknown"]);
    t.registered(GPU, PluginOptions::default()).expect("again");
    t.listed(GPU, devices("a b c"));
    assert_eq!((of(&t), t.holders()), (vec!["a Healthy".into(), "c Healthy".into()], BTreeSet::from(["p".to_owned()])));
    assert!(t.health("p", "other").is_empty());
    let next = Table::remembered([GPU.to_owned()], t.lasting().1.into_iter().collect(), at(2));
    assert!(of(&next).is_empty(), "its plugin was not asked yet how the container gets them");
}
