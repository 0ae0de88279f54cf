//! The next step of a rolling update. Pure. Upstream `update.go`.
use std::collections::BTreeMap;
use std::sync::Arc;

use super::manage::PodCriteria;
use super::placement::Fit;
use crate::views::{DaemonSetStrategy, PodView};

/// A node that has pods of the set or should have one.
#[derive(Clone, Debug)]
pub struct NodePods {
    /// Whether the node exists.
    pub exists: bool,
    /// The eligibility of the node; a deleted node is not eligible.
    pub fit: Fit,
    /// The set's pods for it.
    pub pods: Vec<Arc<PodView>>,
}

/// The limits of a rolling update, resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The number of nodes that may be without an available pod.
    pub unavailable: usize,
    /// The number of nodes that may run a new pod in addition to an available old one.
    pub surge: usize,
}

impl Limits {
    /// Resolves a strategy for this number of desired nodes, rounding up. If both are 0, one node may be unavailable,
    /// since the update could not progress otherwise.
    pub fn of(strategy: &DaemonSetStrategy, desired: usize) -> Self {
        let desired = i32::try_from(desired).unwrap_or(i32::MAX);
        let rolling = strategy.rolling_update.as_ref().filter(|_| strategy.r#type == "RollingUpdate");
        let part = |v: Option<&crate::views::IntOrString>| {
            v.map_or(0, |v| usize::try_from(v.scaled(desired, true)).unwrap_or(0))
        };
        let mut limits = Self {
            unavailable: part(rolling.and_then(|r| r.max_unavailable.as_ref())),
            surge: part(rolling.and_then(|r| r.max_surge.as_ref())),
        };
        if desired > 0 && limits.unavailable == 0 && limits.surge == 0 {
            limits.unavailable = 1;
        }
        limits
    }
}

/// The next step of an update.
#[derive(Clone, Debug, Default)]
pub struct Move {
    /// Old pods to delete.
    pub delete: Vec<Arc<PodView>>,
    /// Nodes that get a new pod in addition to the old one.
    pub create: Vec<String>,
}

/// The new and the old pod of a node, or `None` if there is more than one of either.
type Pair = Option<(Option<Arc<PodView>>, Option<Arc<PodView>>)>;

fn pair(pods: &[Arc<PodView>], criteria: &PodCriteria) -> Pair {
    let (mut new, mut old) = (None, None);
    for pod in pods.iter().filter(|p| !p.metadata.is_deleting()) {
        let slot = if criteria.is_updated(pod) { &mut new } else { &mut old };
        if slot.replace(Arc::clone(pod)).is_some() {
            return None;
        }
    }
    Some((new, old))
}

/// Returns the next step. Nodes with surplus pods are skipped until the other part of the sync deletes these.
pub fn next(nodes: &BTreeMap<String, NodePods>, limits: Limits, criteria: &PodCriteria) -> Move {
    if limits.surge == 0 { replace(nodes, limits.unavailable, criteria) } else { surge(nodes, limits.surge, criteria) }
}

/// Deletes as many old pods as may be unavailable. The other part of the sync creates the new ones.
fn replace(nodes: &BTreeMap<String, NodePods>, limit: usize, criteria: &PodCriteria) -> Move {
    let (mut missing, mut at_once, mut candidates) = (0_usize, Vec::new(), Vec::new());
    for node in nodes.values() {
        match pair(&node.pods, criteria) {
            Some((Some(new), None)) => missing += usize::from(!criteria.is_available(&new)),
            Some((None, Some(old))) if criteria.is_available(&old) => candidates.push(old),
            // The pod is not available, so its deletion reduces no availability.
            Some((None, Some(old))) => {
                at_once.push(old);
                missing += 1;
            }
            Some(_) | None => missing += 1,
        }
    }
    at_once.extend(candidates.into_iter().take(limit.saturating_sub(missing)));
    Move { delete: at_once, create: Vec::new() }
}

/// Creates new pods in addition to old ones, and deletes an old pod once the new one is available.
fn surge(nodes: &BTreeMap<String, NodePods>, limit: usize, criteria: &PodCriteria) -> Move {
    let mut out = Move::default();
    let (mut unfit, mut candidates) = (Vec::new(), Vec::new());
    let (mut surging, mut available) = (0_usize, 0_usize);
    for (name, node) in nodes {
        let Some((new, old)) = pair(&node.pods, criteria) else {
            surging += 1;
            continue;
        };
        available += usize::from(old.as_ref().or(new.as_ref()).is_some_and(|p| criteria.is_available(p)));
        match (new, old) {
            (_, None) => {}
            (None, Some(old)) => match (criteria.is_available(&old), node.fit.run) {
                (false, false) => out.delete.push(old),
                (false, true) => out.create.push(name.clone()),
                (true, false) => unfit.push(old),
                (true, true) => candidates.push(name.clone()),
            },
            (Some(new), Some(_)) if !criteria.is_available(&new) => surging += 1,
            (Some(_), Some(old)) => out.delete.push(old),
        }
    }
    // Pods on nodes that are no longer eligible are kept until enough others are available, since surge never reduces
    // availability.
    let desired = nodes.values().filter(|n| n.fit.run).count();
    out.delete.extend(unfit.into_iter().take(available.saturating_sub(desired)));
    out.create.extend(candidates.into_iter().take(limit.saturating_sub(surging)));
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::manage::tests::{criteria, pod};
    use super::*;

    /// `NODE:POD,POD` separated by spaces; a node that begins with `x` is unfit.
    fn nodes(text: &str) -> BTreeMap<String, NodePods> {
        text.split_whitespace()
            .map(|n| {
                let (name, pods) = n.split_once(':').unwrap();
                let fit = !name.starts_with('x');
                let pods = pods.split(',').filter(|p| !p.is_empty()).map(pod).collect();
                (name.to_owned(), NodePods { exists: true, fit: Fit { run: fit, stay: fit }, pods })
            })
            .collect()
    }

    #[test]
    fn steps() {
        let none = Limits { unavailable: 1, surge: 0 };
        let two = Limits { unavailable: 2, surge: 0 };
        let surge = Limits { unavailable: 0, surge: 1 };
        // Limits, nodes, and: pods deleted, nodes that get a pod.
        let rows = [
            (none, "a:p.ready b:q.ready c:r.ready", "p", ""),
            (two, "a:p.ready b:q.ready c:r.ready", "p q", ""),
            (none, "a:p.new b:q.ready", "", ""),
            (none, "a:p.new.ready b:q.ready", "q", ""),
            (none, "a: b:q.ready", "", ""),
            (none, "a:p.going b:q.ready", "", ""),
            (none, "a:p b:q c:r.ready", "p q", ""),
            (none, "a:p.ready,q.ready b:r.ready", "", ""),
            (two, "a:p b:q.ready c:r.ready", "p q", ""),
            (surge, "a:p.ready b:q.ready", "", "a"),
            (surge, "a:p.ready,n.new b:q.ready", "", ""),
            (surge, "a:p.ready,n.new.ready b:q.ready", "p", "b"),
            (surge, "a:p b:q.ready", "", "a b"),
            (surge, "xa:p b:q.new.ready", "p", ""),
            (surge, "xa:p.ready b:q.new", "", ""),
            (surge, "xa:p.ready b:q.new.ready", "p", ""),
            (surge, "a:p.new.ready b:q.new", "", ""),
        ];
        for (limits, text, delete, create) in rows {
            let got = next(&nodes(text), limits, &criteria(limits.surge > 0));
            let deleted: Vec<_> = got.delete.iter().map(|p| p.metadata.name.as_str()).collect();
            assert_eq!((deleted.join(" "), got.create.join(" ")), (delete.into(), create.into()), "{limits:?} {text}");
        }
    }

    #[test]
    fn limits() {
        let rows = [
            (json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}}), 5, (1, 0)),
            (json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "30%", "maxSurge": 0}}), 5, (2, 0)),
            (json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": "1%"}}), 5, (0, 1)),
            (json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 0}}), 5, (1, 0)),
            (json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 0}}), 0, (0, 0)),
            (json!({"type": "OnDelete"}), 1, (1, 0)),
        ];
        for (strategy, desired, (unavailable, surge)) in rows {
            let parsed: DaemonSetStrategy = serde_json::from_value(strategy.clone()).unwrap();
            assert_eq!(Limits::of(&parsed, desired), Limits { unavailable, surge }, "{strategy} {desired}");
        }
    }
}
