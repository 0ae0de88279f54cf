//! ClusterRoles with an aggregation rule, and the rules they aggregate. A change of a role is evaluated only for the
//! roles that aggregate it, separately from the index that decisions read; the result is a few [`Update`]s. Upstream's
//! `pkg/controller/clusterroleaggregation` writes the same rules into the roles.
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use kelson_meta::LabelSelector;

use super::PolicyRule;

/// The aggregated rules of a role, by the names of their roles.
pub(super) type Parts = BTreeMap<Arc<str>, Arc<[PolicyRule]>>;

/// A ClusterRole as stored.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ClusterRole {
    pub labels: BTreeMap<String, String>,
    pub rules: Arc<[PolicyRule]>,
    /// Present for an aggregating role. Its own rules are ignored then: they are what the aggregation controller wrote
    /// last.
    pub selectors: Option<Vec<LabelSelector>>,
}

/// A change of the rules of an aggregating role.
#[derive(Debug)]
pub(super) enum Update {
    /// The rules of one member changed; `None` removes it.
    Part { gatherer: Arc<str>, member: Arc<str>, rules: Option<Arc<[PolicyRule]>> },
    /// All its rules are replaced.
    Whole { gatherer: Arc<str>, parts: Parts },
}

/// An aggregating role.
#[derive(Debug)]
struct Gatherer {
    labels: BTreeMap<String, String>,
    selectors: Vec<LabelSelector>,
    /// Members with rules, which the selectors match.
    members: BTreeSet<Arc<str>>,
    /// Members that aggregate others, which the selectors match.
    gathers: BTreeSet<Arc<str>>,
}

impl Gatherer {
    fn matches(&self, labels: &BTreeMap<String, String>, looked_at: &mut u64) -> bool {
        *looked_at += 1;
        self.selectors.iter().any(|s| s.matches(labels))
    }
}

/// All ClusterRoles, for aggregation.
#[derive(Debug, Default)]
pub(super) struct Aggregation {
    /// Roles with rules.
    members: HashMap<Arc<str>, (BTreeMap<String, String>, Arc<[PolicyRule]>)>,
    gatherers: BTreeMap<Arc<str>, Gatherer>,
    /// The number of roles visited so far: the cost of changes.
    pub looked_at: u64,
}

impl Aggregation {
    /// Stores a role, or removes it when it is `None`.
    pub fn put(&mut self, name: &str, role: Option<ClusterRole>) -> Vec<Update> {
        let name: Arc<str> = name.into();
        match role {
            Some(ClusterRole { labels, selectors: Some(selectors), .. }) => {
                if self.gatherers.get(&name).is_some_and(|g| g.labels == labels && g.selectors == selectors) {
                    return Vec::new();
                }
                self.put_gatherer(name, Some((labels, selectors)))
            }
            other => {
                let gathered = other.map(|role| (role.labels, role.rules));
                let mut updates = Vec::new();
                if self.gatherers.contains_key(&name) {
                    updates = self.put_gatherer(Arc::clone(&name), None);
                }
                updates.extend(self.put_member(name, gathered));
                updates
            }
        }
    }

    fn put_member(
        &mut self,
        name: Arc<str>,
        role: Option<(BTreeMap<String, String>, Arc<[PolicyRule]>)>,
    ) -> Vec<Update> {
        if self.members.get(&name) == role.as_ref() {
            return Vec::new();
        }
        let (mut left, mut joined) = (Vec::new(), Vec::new());
        for (gatherer, g) in &mut self.gatherers {
            if g.members.remove(&name) {
                left.push(Arc::clone(gatherer));
            }
            if role.as_ref().is_some_and(|(labels, _)| g.matches(labels, &mut self.looked_at)) {
                g.members.insert(Arc::clone(&name));
                joined.push(Arc::clone(gatherer));
            }
        }
        let (left, joined) = (self.gatherers_of(left), self.gatherers_of(joined));
        let part = |gatherer: &Arc<str>, rules: Option<Arc<[PolicyRule]>>| Update::Part {
            gatherer: Arc::clone(gatherer),
            member: Arc::clone(&name),
            rules,
        };
        let mut updates: Vec<Update> = left.difference(&joined).map(|g| part(g, None)).collect();
        match role {
            Some((labels, rules)) => {
                updates.extend(joined.iter().map(|g| part(g, Some(Arc::clone(&rules)))));
                self.members.insert(name, (labels, rules));
            }
            None => {
                self.members.remove(&name);
            }
        }
        updates
    }

    fn put_gatherer(
        &mut self,
        name: Arc<str>,
        role: Option<(BTreeMap<String, String>, Vec<LabelSelector>)>,
    ) -> Vec<Update> {
        // Its rules are now aggregated ones.
        let mut updates = self.put_member(Arc::clone(&name), None);
        let mut concerned = self.gatherers_of(vec![Arc::clone(&name)]);
        self.gatherers.remove(&name);
        let looked_at = &mut self.looked_at;
        for (_, other) in self.gatherers.iter_mut() {
            other.gathers.remove(&name);
            if role.as_ref().is_some_and(|(labels, _)| other.matches(labels, looked_at)) {
                other.gathers.insert(Arc::clone(&name));
            }
        }
        match role {
            Some((labels, selectors)) => {
                let mut new = Gatherer { labels, selectors, members: BTreeSet::new(), gathers: BTreeSet::new() };
                let members = self.members.iter().filter(|(_, (labels, _))| new.matches(labels, looked_at));
                let members: BTreeSet<Arc<str>> = members.map(|(name, _)| Arc::clone(name)).collect();
                let gathers = self.gatherers.iter().filter(|(_, g)| new.matches(&g.labels, looked_at));
                new.gathers = gathers.map(|(name, _)| Arc::clone(name)).collect();
                new.members = members;
                self.gatherers.insert(Arc::clone(&name), new);
                concerned.extend(self.gatherers_of(vec![name]));
            }
            None => {
                concerned.remove(&name);
            }
        }
        for gatherer in concerned {
            let parts = self.parts(&gatherer);
            updates.push(Update::Whole { gatherer, parts });
        }
        updates
    }

    /// Returns these roles and all that aggregate one of them, directly or indirectly.
    fn gatherers_of(&mut self, names: Vec<Arc<str>>) -> BTreeSet<Arc<str>> {
        let mut found: BTreeSet<Arc<str>> = names.iter().cloned().collect();
        let mut next = names;
        while let Some(name) = next.pop() {
            for (gatherer, g) in &self.gatherers {
                self.looked_at += 1;
                if g.gathers.contains(&name) && found.insert(Arc::clone(gatherer)) {
                    next.push(Arc::clone(gatherer));
                }
            }
        }
        found
    }

    /// Returns the rules of all roles that a role aggregates, directly or indirectly. Each role is visited once:
    /// visiting every path between roles could be exponential.
    fn parts(&mut self, gatherer: &Arc<str>) -> Parts {
        let mut seen = BTreeSet::from([Arc::clone(gatherer)]);
        let mut next = vec![Arc::clone(gatherer)];
        let mut parts = Parts::new();
        while let Some(name) = next.pop() {
            let Some(g) = self.gatherers.get(&name) else { continue };
            for member in &g.members {
                self.looked_at += 1;
                if let Some((_, rules)) = self.members.get(member) {
                    parts.insert(Arc::clone(member), Arc::clone(rules));
                }
            }
            next.extend(g.gathers.iter().filter(|other| seen.insert(Arc::clone(other))).cloned());
        }
        parts
    }
}
