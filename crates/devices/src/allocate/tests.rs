//! Allocation tests: slices, existing allocations and claims as input; devices or an error message as output.
use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use super::{AllocationError, Allocator, ClaimRequest, Classes};
use crate::{Allocation, ClaimSpec, DevicesInUse, Host, Inventory, ResourceSliceView, Selectors};

/// Slices of a driver. Each slice is a complete pool.
struct World {
    inventory: Inventory,
    taken: DevicesInUse,
    classes: Classes,
}

fn class(name: &str, spec: &Value) -> (Box<str>, Arc<crate::DeviceClassView>) {
    let class = json!({"metadata": {"name": name}, "spec": spec});
    (name.into(), Arc::new(serde_json::from_value(class).unwrap()))
}

fn world(slices: &[Value]) -> World {
    let mut inventory = Inventory::default();
    for slice in slices {
        let slice: ResourceSliceView = serde_json::from_value(slice.clone()).unwrap();
        let name = slice.metadata.name.clone();
        inventory.put(&name, Some(Arc::new(slice)));
    }
    let big = json!({"selectors": [{"cel": {"expression": "device.attributes['d.example.com'].size >= 2"}}],
        "config": [{"opaque": {"driver": "d.example.com", "parameters": {"of": "class"}}}]});
    let broken = json!({"selectors": [{"cel": {"expression": "device.attributes['d.example.com'].nothing"}}]});
    let classes = [class("any", &json!({})), class("big", &big), class("broken", &broken)];
    World { inventory, taken: DevicesInUse::default(), classes: classes.into_iter().collect() }
}

/// Creates a slice on node `n` in a separate pool, with the changes in `over`.
fn slice(name: &str, devices: Value, over: Value) -> Value {
    let mut spec = json!({"driver": "d.example.com", "nodeName": "n", "devices": devices,
        "pool": {"name": name, "generation": 1, "resourceSliceCount": 1}});
    for (key, value) in over.as_object().unwrap() {
        match value {
            Value::Null => drop(spec.as_object_mut().unwrap().remove(key)),
            value => spec[key] = value.clone(),
        }
    }
    json!({"metadata": {"name": name}, "spec": spec})
}

fn device(name: &str, over: Value) -> Value {
    let mut device = json!({"name": name});
    device.as_object_mut().unwrap().extend(over.as_object().unwrap().clone());
    device
}

fn sized(name: &str, size: i64) -> Value {
    device(name, json!({"attributes": {"size": {"int": size}, "model": {"string": format!("m{size}")}}}))
}

/// Creates a claim with these requests and the fields in `over`.
fn claim(requests: Value, over: Value) -> ClaimSpec {
    let mut devices = json!({"requests": requests});
    devices.as_object_mut().unwrap().extend(over.as_object().unwrap().clone());
    serde_json::from_value(json!({"devices": devices})).unwrap()
}

fn exactly(name: &str, class: &str, over: Value) -> Value {
    let mut asked = json!({"deviceClassName": class, "allocationMode": "ExactCount", "count": 1});
    asked.as_object_mut().unwrap().extend(over.as_object().unwrap().clone());
    json!({"name": name, "exactly": asked})
}

fn solve(world: &World, claims: &[ClaimSpec]) -> Result<Option<Vec<Value>>, AllocationError> {
    let (labels, selectors) = (BTreeMap::from([("zone".to_owned(), "z1".to_owned())]), Selectors::default());
    let wishes: Vec<ClaimRequest<'_>> = claims.iter().map(|spec| ClaimRequest { claim: "default/c", spec }).collect();
    let allocator =
        Allocator { inventory: &world.inventory, taken: &world.taken, classes: &world.classes, selectors: &selectors };
    let mut ids = 0;
    let solution = allocator.allocate(Host { name: "n", labels: &labels }, &wishes)?;
    Ok(solution.map(|s| {
        s.results(|| {
            ids += 1;
            format!("share-{ids}")
        })
    }))
}

/// Returns `REQUEST=DEVICE` of all claims, or the error message.
fn said(world: &World, claims: &[ClaimSpec]) -> String {
    let one = |r: &Value| format!("{}={}", r["request"].as_str().unwrap(), r["device"].as_str().unwrap());
    match solve(world, claims) {
        Ok(Some(results)) => {
            let all = results.iter().flat_map(|r| r["devices"]["results"].as_array().unwrap());
            all.map(one).collect::<Vec<_>>().join(" ")
        }
        Ok(None) => "none".into(),
        Err(AllocationError::Node(why)) => why,
        Err(AllocationError::Claim(why)) => why.to_string(),
        Err(AllocationError::Late) => "late".into(),
    }
}

fn check(slices: &[Value], claims: &[ClaimSpec], expected: &str) {
    assert_eq!(said(&world(slices), claims), expected, "{claims:?}");
}

#[test]
fn requests_get_devices_in_order() {
    let slices = [slice("p", json!([sized("a", 1), sized("b", 2), sized("c", 3)]), json!({}))];
    let one = |class: &str, over: Value| claim(json!([exactly("r", class, over)]), json!({}));
    check(&slices, &[one("any", json!({}))], "r=a");
    check(&slices, &[one("big", json!({}))], "r=b");
    check(&slices, &[one("any", json!({"count": 2}))], "r=a r=b");
    check(&slices, &[one("any", json!({"count": 4}))], "none");
    check(&slices, &[one("big", json!({"allocationMode": "All"}))], "r=b r=c");
    let selector = json!({"selectors": [{"cel": {"expression": "device.attributes['d.example.com'].size == 3"}}]});
    check(&slices, &[one("any", selector.clone())], "r=c");
    // The first request must leave enough devices for the second, within one claim and in two claims.
    let two = json!([exactly("r", "big", json!({"count": 2})), exactly("s", "any", json!({}))]);
    check(&slices, &[claim(two, json!({}))], "r=b r=c s=a");
    check(&slices, &[one("any", json!({"count": 2})), one("big", json!({}))], "r=a r=b r=c");
    check(&slices, &[one("any", json!({})), one("any", json!({"count": 3}))], "none");
    let only_c = claim(json!([exactly("r", "any", json!({})), exactly("s", "any", selector)]), json!({}));
    check(&slices, &[one("big", json!({"count": 1})), only_c], "r=b r=a s=c");
}

#[test]
fn what_is_wrong_is_said() {
    let slices = [slice("p", json!([sized("a", 1)]), json!({}))];
    let one = |asked: Value| [claim(json!([asked]), json!({}))];
    let attribute = "claim default/c, request r: ";
    for (asked, expected) in [
        (exactly("r", "none", json!({})), "could not retrieve device class none"),
        (exactly("r", "any", json!({"count": 33})), "number of requested devices 33 exceeds the claim limit of 32"),
        (exactly("r", "broken", json!({})), "class broken: selector #0: CEL runtime error: no such key: nothing"),
        (exactly("r", "any", json!({"allocationMode": "Some"})), "unsupported count mode Some"),
        (exactly("r", "any", json!({"selectors": [{}]})), "CEL expression empty (unsupported selector type?)"),
        (json!({"name": "r"}), "missing device class name (unsupported request type?)"),
    ] {
        let got = said(&world(&slices), &one(asked));
        assert!(got.contains(expected), "{attribute}{got}");
    }
    let strange = claim(json!([exactly("r", "any", json!({}))]), json!({"constraints": [{"requests": ["r"]}]}));
    check(&slices, &[strange], "claim default/c, constraint #0: empty constraint (unsupported constraint type?)");
}

#[test]
fn slices_are_of_nodes_and_generations() {
    let one = [claim(json!([exactly("r", "any", json!({}))]), json!({}))];
    let all = [claim(json!([exactly("r", "any", json!({"allocationMode": "All"}))]), json!({}))];
    let of = |over: Value| slice("p", json!([device("a", json!({}))]), over);
    let zone = |z: &str| json!({"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [z]}]}]});
    for (over, expected) in [
        (json!({"nodeName": "other"}), "none"),
        (json!({"nodeName": null, "allNodes": true}), "r=a"),
        (json!({"nodeName": null, "nodeSelector": zone("z1")}), "r=a"),
        (json!({"nodeName": null, "nodeSelector": zone("z2")}), "none"),
        (json!({"nodeName": null}), "none"),
        (json!({"pool": {"name": "p", "generation": 1, "resourceSliceCount": 2}}), "none"),
    ] {
        check(&[of(over)], &one, expected);
    }
    let incomplete = of(json!({"pool": {"name": "p", "generation": 1, "resourceSliceCount": 2}}));
    let why = "claim default/c, request r: asks for all devices, but resource pool d.example.com/p is currently being updated";
    check(&[incomplete], &all, why);
    let pool =
        |generation: i64, count: i64| json!({"name": "p", "generation": generation, "resourceSliceCount": count});
    let named = |name: &str, device_name: &str, over: Value| slice(name, json!([device(device_name, json!({}))]), over);
    // A slice of an older generation is outdated, even if the newer slice is for another node.
    check(
        &[named("x", "old", json!({"pool": pool(1, 1)})), named("y", "new", json!({"pool": pool(2, 1)}))],
        &one,
        "r=new",
    );
    let elsewhere = named("y", "new", json!({"pool": pool(2, 2), "nodeName": "other"}));
    check(&[named("x", "old", json!({"pool": pool(1, 2)})), elsewhere], &one, "none");
    // The other slices of the pool may be for another node.
    let rest = named("y", "b", json!({"pool": pool(1, 2), "nodeName": "other"}));
    check(&[named("x", "a", json!({"pool": pool(1, 2)})), rest], &one, "r=a");
    let twice = [named("x", "a", json!({"pool": pool(1, 2)})), named("y", "a", json!({"pool": pool(1, 2)}))];
    check(&twice, &one, "invalid resource pools were encountered");
    let each = slice(
        "p",
        json!([device("a", json!({"nodeName": "other"})), device("b", json!({"allNodes": true}))]),
        json!({"nodeName": null, "perDeviceNodeSelection": true}),
    );
    check(&[each], &all, "r=b");
}

#[test]
fn alternatives_are_tried_in_order() {
    let slices = [slice("p", json!([sized("a", 1), sized("b", 2)]), json!({}))];
    let sub = |name: &str, class: &str, count: i64| json!({"name": name, "deviceClassName": class, "allocationMode": "ExactCount", "count": count});
    let list = |subs: Value| claim(json!([{"name": "r", "firstAvailable": subs}]), json!({}));
    check(&slices, &[list(json!([sub("two", "big", 2), sub("one", "big", 1)]))], "r/one=b");
    check(&slices, &[list(json!([sub("two", "any", 2), sub("one", "big", 1)]))], "r/two=a r/two=b");
    check(&slices, &[list(json!([sub("three", "any", 3)]))], "none");
    // The needs of a later request take precedence over the preference of an earlier one.
    let both = claim(
        json!([{"name": "r", "firstAvailable": [sub("two", "any", 2), sub("one", "any", 1)]},
        exactly("s", "big", json!({}))]),
        json!({}),
    );
    check(&slices, &[both], "r/one=a s=b");
    // The first alternative exceeds the maximum of a claim, so the next one is used.
    let many: Vec<Value> = (0..40).map(|i| sized(&format!("d{i:02}"), 1)).collect();
    let many = [slice("p", json!(many), json!({}))];
    let seventeen = list(json!([sub("x", "any", 17), sub("y", "any", 1)])).devices.requests;
    let twice = json!([{"name": "r", "firstAvailable": [sub("x", "any", 17), sub("y", "any", 1)]},
        {"name": "s", "firstAvailable": [sub("x", "any", 17), sub("y", "any", 1)]}]);
    let got = said(&world(&many), &[claim(twice, json!({}))]);
    assert_eq!((got.matches("r/x=").count(), got.matches("s/y=").count()), (17, 1), "{got} {seventeen:?}");
}

#[test]
fn constraints_hold() {
    let slices = [slice("p", json!([sized("a", 1), sized("b", 2), device("c", json!({})), sized("e", 2)]), json!({}))];
    let two = |constraint: Value| {
        [claim(json!([exactly("r", "any", json!({"count": 2}))]), json!({"constraints": [constraint]}))]
    };
    check(&slices, &two(json!({"matchAttribute": "d.example.com/model"})), "r=b r=e");
    check(&slices, &two(json!({"distinctAttribute": "d.example.com/model"})), "r=a r=b");
    check(&slices, &two(json!({"requests": ["other"], "matchAttribute": "d.example.com/model"})), "r=a r=b");
    check(&slices, &two(json!({"matchAttribute": "x.example.com/model"})), "none");
    let all = claim(
        json!([exactly("r", "any", json!({"allocationMode": "All"}))]),
        json!({"constraints": [{"matchAttribute": "d.example.com/model"}]}),
    );
    let why = "claim default/c, request r: cannot add device d.example.com/p/b because a claim constraint would not be satisfied";
    check(&slices, &[all], why);
}

#[test]
fn taints_admins_and_what_is_taken() {
    let taint = json!([{"key": "k", "value": "v", "effect": "NoSchedule"}]);
    let slices = [slice("p", json!([device("a", json!({"taints": taint})), device("b", json!({}))]), json!({}))];
    let one = |over: Value| claim(json!([exactly("r", "any", over)]), json!({}));
    check(&slices, &[one(json!({}))], "r=b");
    check(&slices, &[one(json!({"tolerations": [{"key": "k", "operator": "Exists"}]}))], "r=a");
    let harmless = json!([{"key": "k", "effect": "None"}]);
    check(&[slice("p", json!([device("a", json!({"taints": harmless}))]), json!({}))], &[one(json!({}))], "r=a");
    let mut all = world(&slices);
    let allocation: Allocation = serde_json::from_value(json!({"devices": {"results": [
        {"request": "r", "driver": "d.example.com", "pool": "p", "device": "b"}]}}))
    .unwrap();
    all.taken.add(&allocation);
    assert_eq!(said(&all, &[one(json!({}))]), "none");
    assert_eq!(said(&all, &[one(json!({"adminAccess": true}))]), "r=b", "who looks after devices shares them");
    let twice = claim(json!([exactly("r", "any", json!({"adminAccess": true, "count": 2}))]), json!({}));
    assert_eq!(said(&all, &[twice]), "none", "but each of them once");
    // A pool with devices that need preparation comes last.
    let prepared = slice(
        "a-first",
        json!([device("x", json!({"bindingConditions": ["C"], "bindingFailureConditions": ["F"]}))]),
        json!({}),
    );
    check(&[prepared, slice("p", json!([device("b", json!({}))]), json!({}))], &[one(json!({}))], "r=b");
}

#[test]
fn partitions_share_counters() {
    let part = |name: &str, memory: &str| {
        device(name, json!({"consumesCounters": [{"counterSet": "gpu", "counters": {"memory": {"value": memory}}}]}))
    };
    let two = json!({"pool": {"name": "p", "generation": 1, "resourceSliceCount": 2}});
    let mut counters = slice("c", json!([]), two.clone());
    counters["spec"]["sharedCounters"] = json!([{"name": "gpu", "counters": {"memory": {"value": "40Gi"}}}]);
    let parts = slice("p", json!([part("whole", "40Gi"), part("half-1", "20Gi"), part("half-2", "20Gi")]), two.clone());
    let slices = [counters.clone(), parts];
    let some = |count: i64| [claim(json!([exactly("r", "any", json!({"count": count}))]), json!({}))];
    check(&slices, &some(1), "r=whole");
    check(&slices, &some(2), "r=half-1 r=half-2");
    check(&slices, &some(3), "none");
    let mut all = world(&slices);
    let allocation: Allocation = serde_json::from_value(json!({"devices": {"results": [
        {"request": "r", "driver": "d.example.com", "pool": "p", "device": "half-2"}]}}))
    .unwrap();
    all.taken.add(&allocation);
    assert_eq!(said(&all, &some(1)), "r=half-1");
    assert_eq!(said(&all, &some(2)), "none");
    let unknown =
        slice("p", json!([device("a", json!({"consumesCounters": [{"counterSet": "no", "counters": {}}]}))]), two);
    check(&[counters, unknown], &some(1), "invalid resource pools were encountered");
}

#[test]
fn shares_of_one_device() {
    let shared = device("s", json!({"allowMultipleAllocations": true, "capacity": {"memory": {"value": "10Gi"}}}));
    let slices = [slice("p", json!([shared]), json!({}))];
    let part = |amount: &str| {
        claim(json!([exactly("r", "any", json!({"capacity": {"requests": {"memory": amount}}}))]), json!({}))
    };
    let results = solve(&world(&slices), &[part("4Gi"), part("6Gi")]).unwrap().expect("both fit");
    let of = |i: usize| {
        let r = &results[i]["devices"]["results"][0];
        (r["device"].clone(), r["shareID"].clone(), r["consumedCapacity"]["memory"].clone())
    };
    assert_eq!(of(0), (json!("s"), json!("share-1"), json!("4Gi")));
    assert_eq!(of(1), (json!("s"), json!("share-2"), json!("6Gi")));
    check(&slices, &[part("4Gi"), part("7Gi")], "none");
    let mut all = world(&slices);
    all.taken.add(&serde_json::from_value(results[0].clone()).unwrap());
    assert_eq!(said(&all, &[part("6Gi")]), "r=s");
    assert_eq!(said(&all, &[part("7Gi")]), "none");
}

#[test]
fn what_is_written_into_a_claim() {
    let config = json!([{"requests": ["r"], "opaque": {"driver": "d.example.com", "parameters": {"of": "claim"}}},
        {"requests": ["other"], "opaque": {"driver": "d.example.com", "parameters": {}}}]);
    let slices = [slice("p", json!([sized("b", 2)]), json!({}))];
    let toleration = json!({"key": "k", "operator": "Exists", "tolerationSeconds": 5});
    let asked = claim(json!([exactly("r", "big", json!({"tolerations": [toleration]}))]), json!({"config": config}));
    let result = solve(&world(&slices), std::slice::from_ref(&asked)).unwrap().expect("a device");
    let here =
        json!({"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}]});
    assert_eq!(
        result,
        [json!({
            "devices": {
                "results": [{"request": "r", "driver": "d.example.com", "pool": "p", "device": "b", "tolerations": [toleration]}],
                "config": [
                    {"source": "FromClass", "requests": ["r"], "opaque": {"driver": "d.example.com", "parameters": {"of": "class"}}},
                    {"source": "FromClaim", "requests": ["r"], "opaque": {"driver": "d.example.com", "parameters": {"of": "claim"}}},
                ],
            },
            "nodeSelector": here,
        })]
    );
    let plain = [claim(json!([exactly("r", "any", json!({}))]), json!({}))];
    let everywhere = [slice("p", json!([device("a", json!({}))]), json!({"nodeName": null, "allNodes": true}))];
    let result = solve(&world(&everywhere), &plain).unwrap().expect("a device");
    assert_eq!(result[0].get("nodeSelector"), None);
    let bound =
        [slice("p", json!([device("a", json!({"bindsToNode": true}))]), json!({"nodeName": null, "allNodes": true}))];
    assert_eq!(solve(&world(&bound), &plain).unwrap().expect("a device")[0]["nodeSelector"], here);
    let term = json!({"matchExpressions": [{"key": "zone", "operator": "Exists"}]});
    let zoned = [slice(
        "p",
        json!([device("a", json!({}))]),
        json!({"nodeName": null, "nodeSelector": {"nodeSelectorTerms": [term]}}),
    )];
    let result = solve(&world(&zoned), &plain).unwrap().expect("a device");
    assert_eq!(result[0]["nodeSelector"], json!({"nodeSelectorTerms": [term]}));
}

#[test]
fn a_search_without_end_is_ended() {
    // Each claim wants two different models, but only one model exists. The search tries every pair for each claim.
    let devices: Vec<Value> = (0..60).map(|i| sized(&format!("d{i:02}"), 1)).collect();
    let slices = [slice("p", json!(devices), json!({}))];
    let same = claim(json!([exactly("r", "any", json!({"count": 8})), exactly("s", "big", json!({}))]), json!({}));
    assert_eq!(said(&world(&slices), &[same]), "late");
}
