//! Names of the kind and its resource, and the approval of names in community groups.
use kelson_meta::is_dns1035_label;
use kelson_meta::path::{Errors, Path};
use kelson_meta::tree::{items, text};
use serde_json::Value;

const REQUIRED: [&str; 4] = ["plural", "singular", "kind", "listKind"];
const APPROVAL: &str = "api-approved.kubernetes.io";

/// Validates names that a `spec` must have, and a status need not.
pub(super) fn check_required(names: &Value, path: &Path<'_>, e: &mut Errors) {
    for key in REQUIRED {
        if text(&names[key]).is_empty() {
            e.required(&path.child(key), "");
        }
    }
}

pub(super) fn check(names: &Value, path: &Path<'_>, e: &mut Errors) {
    for key in ["plural", "singular"] {
        let name = text(&names[key]);
        if !name.is_empty() {
            label(name, &path.child(key), e);
        }
    }
    for key in ["kind", "listKind"] {
        let name = text(&names[key]);
        if let (false, Err(why)) = (name.is_empty(), is_dns1035_label(&name.to_lowercase())) {
            let why = format!("may have mixed case, but should otherwise match: {}", why.join(","));
            e.invalid(&path.child(key), name, why);
        }
    }
    each(&names["shortNames"], &path.child("shortNames"), e);
    let (kind, list) = (text(&names["kind"]), text(&names["listKind"]));
    if !kind.is_empty() && kind == list {
        e.invalid(&path.child("listKind"), list, "kind and listKind may not be the same");
    }
    each(&names["categories"], &path.child("categories"), e);
}

fn each(names: &Value, path: &Path<'_>, e: &mut Errors) {
    for (i, name) in items(names).iter().enumerate() {
        label(text(name), &path.index(i), e);
    }
}

#[derive(PartialEq, Eq)]
enum Approval {
    Missing,
    Bypassed,
    Approved,
    Invalid,
}

fn approval_of(definition: &Value) -> Approval {
    let said = text(&definition["metadata"]["annotations"][APPROVAL]);
    let url = said.split_once("://").is_some_and(|(scheme, rest)| {
        let host = rest.split(['/', '?']).next().unwrap_or_default();
        !scheme.is_empty()
            && scheme.bytes().all(|c| c.is_ascii_alphanumeric())
            && !host.is_empty()
            && !host.contains(' ')
    });
    match () {
        () if said.is_empty() => Approval::Missing,
        () if said.starts_with("unapproved") => Approval::Bypassed,
        () if url => Approval::Approved,
        () => Approval::Invalid,
    }
}

/// Validates the approval: groups of the Kubernetes community are only for definitions that it approved (KEP-1111).
pub(super) fn approval(new: &Value, old: Option<&Value>, e: &mut Errors) {
    let group = text(&new["spec"]["group"]);
    let protected = ["k8s.io", "kubernetes.io"]
        .iter()
        .any(|domain| group.strip_suffix(domain).is_some_and(|rest| rest.is_empty() || rest.ends_with('.')));
    let state = approval_of(new);
    if !protected || old.is_some_and(|old| approval_of(old) == state) {
        return;
    }
    let metadata = Path::new("metadata");
    let annotations = metadata.child("annotations");
    let path = annotations.key(APPROVAL);
    let see = "see https://github.com/kubernetes/enhancements/pull/1111";
    let must = format!("protected groups must have approval annotation {APPROVAL:?}");
    match state {
        Approval::Missing => e.required(&path, &format!("{must}, {see}")),
        Approval::Invalid => {
            let why = format!("{must} with either a URL or a reason starting with \"unapproved\", {see}");
            e.invalid(&path, text(&new["metadata"]["annotations"][APPROVAL]), why);
        }
        Approval::Bypassed | Approval::Approved => {}
    }
}

/// Validates a DNS label of the older kind. All reasons are in one error.
pub(super) fn label(name: &str, path: &Path<'_>, e: &mut Errors) {
    if let Err(why) = is_dns1035_label(name) {
        e.invalid(path, name, why.join(","));
    }
}
