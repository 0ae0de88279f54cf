//! Updates of a pod through `resize` (KEP-1287): CPU and memory of its containers and of the pod.
use serde_json::{Value, json};

use super::qos::qos_class;
use super::update::keep_all_but;
use super::validate::{self, MIRROR};
use crate::path::{Errors, Path};
use crate::tree::{empty, entries, items, items_mut, len, present, remove, restore, same, set, text};

const LISTS: [&str; 2] = ["containers", "initContainers"];
const RESIZABLE: &str = "only cpu and memory resources are mutable";

/// Takes only resources and resize policies from the request.
pub fn prepare(new: &mut Value, old: &Value) {
    let asked = new["spec"].clone();
    let count = |s: &Value, list: &str| len(&s[list]);
    if LISTS.iter().any(|list| count(&asked, list) != count(&old["spec"], list)) {
        // Left for validation to reject.
        return;
    }
    keep_all_but(new, old);
    let Some(spec) = new.get_mut("spec") else { return };
    for list in LISTS {
        let named = |s: &Value| items(&s[list]).iter().map(|c| text(&c["name"]).to_owned()).collect::<Vec<_>>();
        if named(&asked) != named(spec) {
            restore(spec, &asked, list);
            continue;
        }
        for (c, from) in items_mut(spec, list).zip(items(&asked[list])) {
            for f in ["resources", "resizePolicy"] {
                restore(c, from, f);
            }
        }
    }
    restore(spec, &asked, "resources");
}

/// Validates a resize.
pub fn check(new: &Value, old: &Value, e: &mut Errors) {
    if old["metadata"]["annotations"].get(MIRROR).is_some() {
        return e.forbidden(&Path::new("[]"), "static pods cannot be resized");
    }
    if text(&old["spec"]["os"]["name"]) == "windows" {
        return e.forbidden(&Path::new("[]"), "windows pods cannot be resized");
    }
    let before = e.len();
    validate::pod_and_spec(new, e);
    let is_faulty = e.len() > before;
    let p = Path::new("spec");
    let was = match text(&old["status"]["qosClass"]) {
        "" => qos_class(&old["spec"]),
        q => q,
    };
    if was != qos_class(&new["spec"]) {
        e.invalid(&p, &new["status"]["qosClass"], "Pod QOS Class may not change as a result of resizing");
    }
    let running = items(&old["status"]["containerStatuses"]).iter().find(|c| present(&c["state"]["running"]));
    if running.is_some_and(|c| !present(&c["resources"])) {
        e.forbidden(&p, "Pod running on node without support for resize");
    }
    let mut munged = new["spec"].clone();
    let of_pod = |s: &Value| len(&s["resources"]["requests"]) + len(&s["resources"]["limits"]) > 0;
    if of_pod(&old["spec"]) || of_pod(&new["spec"]) {
        pod_level(&mut munged, &old["spec"], &p, e);
    }
    if !same_containers(&new["spec"], &old["spec"], &p, e) {
        return;
    }
    for list in LISTS {
        let at = p.child(list);
        for (i, (c, was)) in items(&new["spec"][list]).iter().zip(items(&old["spec"][list])).enumerate() {
            let at = at.index(i);
            removed(&c["resources"], &was["resources"], "resource", &at.child("resources"), e);
        }
    }
    for list in LISTS {
        let at = p.child(list);
        for (i, (c, was)) in items_mut(&mut munged, list).zip(items(&old["spec"][list])).enumerate() {
            let modified = !same(c, was);
            keep_cpu_and_memory(c, was);
            if is_faulty {
                keep_claims(c, was);
            }
            let init = list == "initContainers";
            if !same(c, was) && init {
                let why = "only cpu and memory resources for init or sidecar containers are mutable";
                e.forbidden(&at.index(i), why);
            } else if !same(c, was) {
                e.forbidden(&p, RESIZABLE);
            }
            let restarts = |r: &Value| text(&r["restartPolicy"]) == "RestartContainer";
            if init
                && modified
                && text(&c["restartPolicy"]) != "Always"
                && items(&c["resizePolicy"]).iter().any(restarts)
            {
                let why = "non-sidecar init containers with a resize policy of RestartContainer cannot be resized";
                e.forbidden(&at.index(i), why);
            }
        }
    }
    if e.is_empty() && !same(&munged, &old["spec"]) {
        e.forbidden(&p, RESIZABLE);
    }
}

/// Checks that the containers are the same, in the same order.
fn same_containers(new: &Value, old: &Value, p: &Path<'_>, e: &mut Errors) -> bool {
    let before = e.len();
    for list in LISTS {
        let at = p.child(list);
        let (n, o) = (items(&new[list]), items(&old[list]));
        if n.len() != o.len() {
            e.forbidden(&at, format!("{list} may not be added or removed on resize"));
            continue;
        }
        for (i, _) in n.iter().zip(o).enumerate().filter(|(_, (n, o))| n["name"] != o["name"]) {
            e.forbidden(&at.index(i).child("name"), format!("{list} may not be renamed or reordered on resize"));
        }
    }
    e.len() == before
}

fn pod_level(munged: &mut Value, old: &Value, p: &Path<'_>, e: &mut Errors) {
    let at = p.child("resources");
    if present(&old["resources"]) {
        if !present(&munged["resources"]) {
            return e.forbidden(&at, "pod-level resources cannot be removed");
        }
        removed(&munged["resources"], &old["resources"], "pod-level resource", &at, e);
    }
    keep_cpu_and_memory(munged, old);
    let r = &munged["resources"];
    if !present(&old["resources"]) && ["requests", "limits", "claims"].iter().all(|f| empty(&r[*f])) {
        remove(munged, "resources");
    }
    if !same(&munged["resources"], &old["resources"]) {
        e.forbidden(p, "only cpu and memory resources are mutable at pod-level");
    }
}

fn removed(new: &Value, old: &Value, what: &str, p: &Path<'_>, e: &mut Errors) {
    for list in ["requests", "limits"] {
        if entries(&old[list]).any(|(k, _)| new[list].get(k).is_none()) {
            e.forbidden(&p.child(list), format!("{what} {list} cannot be removed"));
        }
    }
}

/// Takes the claims from the old container: their faults are reported already, so that they changed is not reported as well.
fn keep_claims(c: &mut Value, old: &Value) {
    if let Some(r) = crate::tree::object_mut(c, "resources") {
        restore(r, &old["resources"], "claims");
    }
}

/// Takes CPU and memory from the old container or pod, so that only other differences remain.
fn keep_cpu_and_memory(c: &mut Value, old: &Value) {
    for list in ["requests", "limits"] {
        let was = &old["resources"][list];
        if !present(&c["resources"][list]) && present(was) && present(&c["resources"]) {
            crate::tree::path::set(c, &["resources", list], json!({}));
        }
        for k in ["cpu", "memory"] {
            let Some(l) = crate::tree::at_mut(c, &["resources", list]) else { continue };
            match was.get(k) {
                Some(v) => set(l, k, v.clone()),
                None => remove(l, k),
            }
        }
        if let Some(r) = crate::tree::object_mut(c, "resources") {
            crate::tree::drop_if_empty(r, list);
        }
    }
}
