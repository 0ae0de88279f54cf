//! The table against what is known and published.
use kelson_schema::{Kind, ListType, Schema, TypeId, resource};
use serde_json::Value;
use std::path::PathBuf;

fn ty(group: &str, version: &str, kind: &str) -> TypeId {
    Schema::builtin().by_gvk(group, version, kind).expect("built in")
}

fn reference(path: &str) -> Option<Value> {
    let root = std::env::var_os("KELSON_SHARED")
        .map_or_else(|| PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared")), PathBuf::from);
    let bytes = std::fs::read(root.join("reference").join(path)).ok()?;
    serde_json::from_slice(&bytes).ok()
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
    if reference("discovery/apis.json").is_none() {
        println!("SKIPPED: no ../shared");
        return;
    }
    for gv in resource::group_versions() {
        let file = if gv.group.is_empty() {
            "api__v1.json".into()
        } else {
            format!("apis__{}__{}.json", gv.group, gv.version)
        };
        let published = reference(&format!("discovery/{file}")).expect("published");
        let names: Vec<&str> =
            published["resources"].as_array().expect("list").iter().filter_map(|r| r["name"].as_str()).collect();
        let mut ours: Vec<String> = Vec::new();
        for r in gv.resources {
            ours.push(r.plural.into());
            ours.extend(r.subresources.iter().map(|s| format!("{}/{}", r.plural, s.name)));
        }
        ours.sort();
        assert_eq!(ours, names, "{}/{}", gv.group, gv.version);
        // Every kind that is served has a type.
        for r in gv.resources {
            let listed = published["resources"].as_array().expect("list");
            let p = listed.iter().find(|p| p["name"] == r.plural).expect("published");
            assert_eq!((&p["kind"], &p["namespaced"]), (&r.kind.into(), &r.namespaced.into()), "{}", r.plural);
            for (list, ours) in [("shortNames", r.short_names), ("categories", r.categories)] {
                let published: Vec<&str> = p[list].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
                assert_eq!(published, ours, "{list} of {}", r.plural);
            }
            assert!(Schema::builtin().by_gvk(r.group, r.version, r.kind).is_some(), "{}", r.kind);
        }
    }
}
