//! Validates the parts of `spec` in the order of upstream's errors.
use kelson_meta::is_dns1123_subdomain;
use kelson_meta::path::{Errors, Path};
use kelson_meta::tree::{flag, items, present, text};
use serde_json::Value;

use super::options::{Options, any_place, schema_of, wants_structural};
use super::schema::DefinitionPlace;
use super::view::Spec;
use super::{conversion, names, schema, versions};

pub(super) fn check(tree: &Value, options: &Options, e: &mut Errors) {
    let spec = Spec::of(tree);
    let p = Path::new("spec");
    group(text(&tree["group"]), &p.child("group"), e);
    let scope = text(&tree["scope"]);
    match scope {
        "" => e.required(&p.child("scope"), ""),
        "Cluster" | "Namespaced" => {}
        _ => e.not_supported(&p.child("scope"), scope, &["Cluster", "Namespaced"]),
    }
    schemas_are_there(&spec, options, &p, e);
    let defaults = |v: &Value| any_place(schema_of(v), &|s| present(&s["default"]));
    if spec.preserves_unknown() && spec.versions.iter().any(defaults) {
        e.invalid(&p.child("preserveUnknownFields"), true, "must be false in order to use defaults in the schema");
    }
    let structural =
        options.structural || !spec.preserves_unknown() || spec.versions.iter().any(|v| wants_structural(schema_of(v)));
    for (i, version) in spec.versions.iter().enumerate() {
        let list = p.child("versions");
        versions::check(&spec, version, structural, options, &list.index(i), e);
    }
    versions::check_all(&spec, &p, e);
    names::check_required(&tree["names"], &p.child("names"), e);
    names::check(&tree["names"], &p.child("names"), e);
    let first = spec.versions.first().map_or("", |v| text(&v["name"]));
    let place = DefinitionPlace {
        structural,
        status: spec.versions.iter().any(|v| present(&v["subresources"]["status"])),
        unchanged: options.unchanged.contains(first),
    };
    schema::check(&spec.schema["openAPIV3Schema"], &place, options, &p.child("validation"), e);
    versions::subresources(spec.subresources, &p.child("subresources"), e);
    versions::columns(spec.columns, &p.child("additionalPrinterColumns"), e);
    if !items(spec.fields).is_empty() {
        if present(spec.schema) {
            versions::selectable(&spec, None, options, &p, e);
        } else {
            e.invalid(&p.child("selectableFields"), "", "may only be set when validations.schema is included");
        }
    }
    let strategy = text(&tree["conversion"]["strategy"]);
    if spec.preserves_unknown() && present(&tree["conversion"]) && strategy != "None" {
        let why = "must be None if spec.preserveUnknownFields is true";
        e.invalid(&p.child("conversion").child("strategy"), strategy, why);
    }
    conversion::check(&tree["conversion"], options, &p.child("conversion"), e);
}

fn group(group: &str, path: &Path<'_>, e: &mut Errors) {
    if group.is_empty() {
        e.required(path, "");
    } else if let Err(why) = is_dns1123_subdomain(group) {
        e.invalid(path, group, why.join(","));
    } else if !group.contains('.') {
        e.invalid(path, group, "should be a domain with at least one dot");
    }
}

fn schemas_are_there(spec: &Spec<'_>, options: &Options, p: &Path<'_>, e: &mut Errors) {
    if present(&spec.schema["openAPIV3Schema"]) {
        return;
    }
    for (i, version) in spec.versions.iter().enumerate() {
        let list = p.child("versions");
        let (version_path, missing) = (list.index(i), !present(schema_of(version)));
        let schema_path = version_path.child("schema");
        let path = schema_path.child("openAPIV3Schema");
        if options.schema && missing {
            e.required(&path, "");
        } else if !options.schema && !spec.preserves_unknown() && missing && flag(&version["served"]) {
            e.required(&path, "because otherwise all fields are pruned");
        }
    }
}
