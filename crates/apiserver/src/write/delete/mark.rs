//! Marks a deleted object: deletion timestamp, grace period and finalizers.
use jiff::{SignedDuration, Timestamp};
use kelson_meta::format_seconds;
use kelson_resources::{Deletion, Parts};
use kelson_store::Record;
use serde_json::{Value, json};

use super::options::DeleteOptions;
use crate::catalog::Served;
use crate::catalog::record::parse_parts;
use crate::shared::allocations::is_allocated;

const ORPHAN: &str = "orphan";

const FOREGROUND: &str = "foregroundDeletion";

/// The treatment of a deleted object.
pub(super) enum Grace {
    /// It is removed as soon as it has no finalizers.
    None,
    /// It is marked and may run for this many seconds.
    Seconds(i64),
    /// It was marked before, and the request changes nothing.
    Pending,
}

impl Grace {
    /// Whether nothing delays the removal except finalizers.
    pub fn ends_now(&self) -> bool {
        match self {
            Self::None => true,
            Self::Seconds(seconds) => *seconds == 0,
            Self::Pending => false,
        }
    }
}

/// The parts of an object that decide whether a delete removes it at once.
const DECIDING: Parts = Parts::Only(&[
    (
        "metadata",
        Parts::Only(&[
            ("finalizers", Parts::All),
            ("deletionTimestamp", Parts::All),
            ("deletionGracePeriodSeconds", Parts::All),
        ]),
    ),
    ("spec", Parts::Only(&[("nodeName", Parts::All), ("terminationGracePeriodSeconds", Parts::All)])),
    ("status", Parts::Only(&[("phase", Parts::All)])),
]);

/// Whether a delete removes an object without a change before and without work after, so that its tree is not needed.
pub(super) fn is_removed_at_once(served: &Served, options: &DeleteOptions, record: &Record) -> bool {
    let is_simple = matches!(served.options().deletion, Deletion::Immediate | Deletion::Graceful)
        && !is_allocated(served)
        && served.is_plain(record);
    if !is_simple {
        return false;
    }
    let old = parse_parts(record, DECIDING);
    grace(served, &old, options).ends_now() && finalizers(&old, options, served.options().orphans_dependents).is_empty()
}

pub(super) fn is_deleting(value: &Value) -> bool {
    value["metadata"]["deletionTimestamp"].is_string()
}

pub(super) fn grace(served: &Served, old: &Value, options: &DeleteOptions) -> Grace {
    if served.options().deletion != Deletion::Graceful {
        return Grace::None;
    }
    if is_deleting(old) {
        let existing = old["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap_or(0);
        return match options.grace_period_seconds {
            _ if existing == 0 => Grace::None,
            Some(wanted) if wanted < existing => Grace::Seconds(if wanted < 0 { 1 } else { wanted }),
            _ => Grace::Pending,
        };
    }
    const DEFAULT_GRACE_SECONDS: i64 = 30;
    let spec = &old["spec"];
    let own = spec["terminationGracePeriodSeconds"].as_i64().unwrap_or(DEFAULT_GRACE_SECONDS);
    let period = options.grace_period_seconds.unwrap_or(own);
    let unscheduled = spec["nodeName"].as_str().unwrap_or("").is_empty();
    let finished = matches!(old["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
    Grace::Seconds(match period {
        _ if unscheduled || finished => 0,
        p if p < 0 => 1,
        p => p,
    })
}

pub(super) fn mark_grace(object: &mut Value, seconds: i64, now: Timestamp) {
    let begun_before = is_deleting(object);
    let meta = &mut object["metadata"];
    // A shortened grace period counts from the beginning of the deletion.
    let begun = if begun_before {
        let at: Option<Timestamp> = meta["deletionTimestamp"].as_str().and_then(|s| s.parse().ok());
        let was = meta["deletionGracePeriodSeconds"].as_i64().unwrap_or(0);
        // On overflow it counts from now.
        at.and_then(|at| at.checked_sub(SignedDuration::from_secs(was)).ok()).unwrap_or(now)
    } else {
        bump_generation(meta);
        now
    };
    let ends = begun.checked_add(SignedDuration::from_secs(seconds)).unwrap_or(Timestamp::MAX);
    meta["deletionTimestamp"] = format_seconds(ends).into();
    meta["deletionGracePeriodSeconds"] = seconds.into();
}

pub(super) fn mark(new: &mut Value, now: Timestamp) {
    let meta = &mut new["metadata"];
    if !meta["deletionTimestamp"].is_string() {
        bump_generation(meta);
        meta["deletionTimestamp"] = format_seconds(now).into();
    }
    meta["deletionGracePeriodSeconds"] = 0.into();
}

pub(super) fn bump_generation(meta: &mut Value) {
    if let Some(g) = meta["generation"].as_i64().filter(|g| *g > 0) {
        meta["generation"] = (g + 1).into();
    }
}

pub(super) fn set_finalizers(new: &mut Value, finalizers: &[String]) {
    let Some(meta) = new["metadata"].as_object_mut() else { return };
    if finalizers.is_empty() {
        meta.remove("finalizers");
    } else {
        meta.insert("finalizers".into(), json!(finalizers));
    }
}

/// The finalizers, with those of the garbage collector adjusted to the options.
pub(super) fn finalizers(old: &Value, options: &DeleteOptions, orphans_by_default: bool) -> Vec<String> {
    let list = old["metadata"]["finalizers"].as_array().map_or(&[][..], Vec::as_slice);
    let has = |name: &str| list.iter().any(|f| f == name);
    let policy = options.propagation_policy.as_deref();
    let orphan = match (options.orphan_dependents, policy) {
        (Some(orphan), _) => orphan,
        (None, Some(policy)) => policy == "Orphan",
        (None, None) => has(ORPHAN) || (orphans_by_default && !has(FOREGROUND)),
    };
    let foreground = match (options.orphan_dependents, policy) {
        (Some(_), _) => false,
        (None, Some(policy)) => policy == "Foreground",
        (None, None) => has(FOREGROUND),
    };
    let mut out: Vec<String> = list
        .iter()
        .filter_map(Value::as_str)
        .filter(|f| (*f != ORPHAN || orphan) && (*f != FOREGROUND || foreground))
        .map(str::to_owned)
        .collect();
    for (wanted, name) in [(orphan, ORPHAN), (foreground, FOREGROUND)] {
        if wanted && !out.iter().any(|f| f == name) {
            out.push(name.to_owned());
        }
    }
    out
}

/// Whether an update removed the last finalizer or grace period of a deleted object.
pub fn ends_with_update(served: &Served, new: &Value) -> bool {
    let meta = &new["metadata"];
    let empty = |v: &Value| v.as_array().is_none_or(Vec::is_empty);
    is_deleting(new)
        && empty(&meta["finalizers"])
        && meta["deletionGracePeriodSeconds"].as_i64().unwrap_or(0) == 0
        && (served.options().deletion != Deletion::Namespace || empty(&new["spec"]["finalizers"]))
}

#[cfg(test)]
mod tests {
    use kelson_store::{Body, Key, Precondition, RecordMeta, Store, StoreOptions, Write};

    use super::*;

    fn after(existing: &[&str], orphan: Option<bool>, policy: Option<&str>) -> Vec<String> {
        finalizers_after(false, existing, orphan, policy)
    }

    fn finalizers_after(orphans: bool, existing: &[&str], orphan: Option<bool>, policy: Option<&str>) -> Vec<String> {
        let old = json!({"metadata": {"finalizers": existing}});
        let options = DeleteOptions {
            orphan_dependents: orphan,
            propagation_policy: policy.map(str::to_owned),
            ..DeleteOptions::default()
        };
        finalizers(&old, &options, orphans)
    }

    #[test]
    fn collector_finalizers() {
        assert_eq!(after(&["a/b"], None, None), ["a/b"]);
        assert_eq!(after(&["a/b"], None, Some("Foreground")), ["a/b", FOREGROUND]);
        assert_eq!(after(&[FOREGROUND], None, Some("Orphan")), [ORPHAN]);
        assert_eq!(after(&[FOREGROUND, ORPHAN], None, Some("Background")), Vec::<String>::new());
        assert_eq!(after(&[ORPHAN], None, None), [ORPHAN]);
        assert_eq!(after(&[], Some(true), None), [ORPHAN]);
        assert_eq!(after(&[ORPHAN], Some(false), None), Vec::<String>::new());
        assert_eq!(finalizers_after(true, &[], None, None), [ORPHAN]);
        assert_eq!(finalizers_after(true, &[], None, Some("Background")), Vec::<String>::new());
        assert_eq!(finalizers_after(true, &[], Some(false), None), Vec::<String>::new());
        assert_eq!(finalizers_after(true, &[FOREGROUND], None, None), [FOREGROUND]);
    }

    #[tokio::test]
    async fn what_is_removed_at_once_is_seen_in_a_few_members() {
        let store = Store::in_memory(StoreOptions::default());
        let options = DeleteOptions::default();
        let node = r#""spec":{"nodeName":"n"}"#;
        for (plural, metadata, rest, expected) in [
            ("configmaps", "", r#""data":{"a":"b"}"#, true),
            ("configmaps", r#","finalizers":["a/b"]"#, r#""data":{}"#, false),
            ("pods", "", r#""spec":{}"#, true),
            ("pods", "", node, false),
            ("pods", "", r#""spec":{"nodeName":"n","terminationGracePeriodSeconds":0}"#, true),
            ("pods", "", r#""spec":{"nodeName":"n"},"status":{"phase":"Failed"}"#, true),
            ("pods", r#","deletionTimestamp":"2026-01-01T00:00:00Z","deletionGracePeriodSeconds":30"#, node, false),
            ("services", "", r#""spec":{}"#, false),
            ("namespaces", "", r#""spec":{}"#, false),
        ] {
            let served = crate::catalog::Catalog::builtin().find("", "v1", plural).unwrap();
            let json = format!(r#"{{"metadata":{{"name":"a","resourceVersion":""{metadata}}},{rest}}}"#);
            let write = Write::put(
                Key::new(served.store, "n", "a"),
                Precondition::Any,
                Body::locate(json).unwrap(),
                RecordMeta::default(),
            );
            let record = store.commit(write).await.unwrap().record;
            assert_eq!(is_removed_at_once(&served, &options, &record), expected, "{plural} {metadata} {rest}");
        }
    }
}
