//! The table against what is known and published.
use kelson_schema::{Kind, ListType, Schema, TypeId, resource};
use serde_json::Value;

fn ty(group: &str, version: &str, kind: &str) -> TypeId {
    Schema::builtin().by_gvk(group, version, kind).expect("built in")
}

/// The published facts that `cargo xtask facts` wrote down, a line each.
fn facts(file: &str) -> Vec<Value> {
    let path = format!("{}/../../facts/{file}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    text.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect()
}

#[test]
fn well_known_facts() {
    let pod = ty("", "v1", "Pod");
    assert_eq!((pod.name(), pod.openapi_name().as_str()), ("Pod", "io.k8s.api.core.v1.Pod"));
    assert_eq!(pod.proto_name().as_deref(), Some("k8s.io.api.core.v1.Pod"));
    let Kind::Struct(spec) = pod.field_by_json("spec").expect("spec").ty().kind() else { panic!("struct") };
    let containers = spec.field_by_json("containers").expect("containers");
    assert_eq!(
        (containers.number(), containers.list_type(), containers.patch_merge_key()),
        (2, Some(ListType::Map), "name")
    );
    assert!(containers.patch_strategy().merge && containers.map_keys().eq(["name"]));
    let volumes = spec.field_by_json("volumes").expect("volumes").patch_strategy();
    assert!(volumes.merge && volumes.retain_keys);
    // Inlined structs are seen through.
    let Kind::List(volume) = spec.field_by_json("volumes").expect("volumes").ty().kind() else { panic!("list") };
    let Kind::Struct(volume) = volume.kind() else { panic!("struct") };
    let at = volume.position("emptyDir").expect("inlined");
    assert_eq!(volume.declaring_type(at).name(), "VolumeSource");
    assert_eq!(ty("apps", "v1", "Status").name(), "Status");
    assert!(Schema::builtin().by_gvk("", "v1", "Nothing").is_none());
}

#[test]
fn every_json_name_is_found_and_fits_the_decoders_bit_set() {
    for ty in Schema::builtin().types() {
        assert!(ty.json_fields().len() <= 128, "{ty:?}");
        for (at, field) in ty.json_fields().enumerate() {
            assert_eq!(ty.position(field.json()), Some(at), "{ty:?}.{}", field.json());
        }
        let numbers: Vec<u32> = ty.fields().map(|f| f.number()).filter(|n| *n > 0).collect();
        assert!(numbers.is_sorted(), "{ty:?}");
        assert!(ty.fields().filter(|f| f.number() > 0).all(|f| ty.field_by_number(f.number()) == Some(f)), "{ty:?}");
    }
}

#[test]
fn published_discovery_is_reproduced() {
    let facts = facts("discovery.jsonl");
    let mut compared = 0;
    for gv in resource::group_versions() {
        let name = if gv.group.is_empty() { gv.version.to_owned() } else { format!("{}/{}", gv.group, gv.version) };
        let of = facts.iter().filter(|f| f["list"] == name.as_str());
        let published: Vec<&str> = of.filter_map(|f| f["resource"]["name"].as_str()).collect();
        compared += published.len();
        let mut ours: Vec<String> = Vec::new();
        for r in gv.resources {
            ours.push(r.plural.into());
            ours.extend(r.subresources.iter().map(|s| format!("{}/{}", r.plural, s.name)));
        }
        ours.sort();
        assert_eq!(ours, published, "{name}");
        // Every kind that is served has a type.
        for r in gv.resources {
            assert!(Schema::builtin().by_gvk(r.group, r.version, r.kind).is_some(), "{}", r.kind);
        }
    }
    assert_eq!(compared, facts.iter().filter(|f| f["list"].is_string()).count(), "every published resource is served");
}
