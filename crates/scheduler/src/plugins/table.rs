//! The table of plugins: a new plugin is one file in this folder and one row here.
use super::balanced_allocation::NodeResourcesBalancedAllocation;
use super::change::{CHANGES, Change};
use super::dynamic_resources::DynamicResources;
use super::image_locality::ImageLocality;
use super::inter_pod_affinity::InterPodAffinity;
use super::node_affinity::NodeAffinity;
use super::node_declared_features::NodeDeclaredFeatures;
use super::node_ports::NodePorts;
use super::node_resources_fit::NodeResourcesFit;
use super::node_unschedulable::NodeUnschedulable;
use super::node_volume_limits::NodeVolumeLimits;
use super::plugin::{Normalize, Plugin};
use super::pod_topology_spread::PodTopologySpread;
use super::taint_toleration::TaintToleration;
use super::volume_binding::VolumeBinding;
use super::volume_restrictions::VolumeRestrictions;
use crate::cluster::NodeState;
use crate::view::PodSpec;

/// The default profile. Filters run in this order, which is upstream's, and the first rejection ends the evaluation.
pub static DEFAULT: &[&dyn Plugin] = &[
    &NodeUnschedulable,
    &TaintToleration,
    &NodeAffinity::DEFAULT,
    &NodePorts,
    &NodeResourcesFit::DEFAULT,
    &VolumeRestrictions,
    &NodeVolumeLimits,
    &VolumeBinding,
    &PodTopologySpread::DEFAULT,
    &InterPodAffinity::DEFAULT,
    &DynamicResources,
    &NodeResourcesBalancedAllocation::DEFAULT,
    &ImageLocality,
    &NodeDeclaredFeatures,
];

/// The maximum number of plugins in one table: a set of plugins is a 32-bit number.
pub const PLUGINS_MAX: usize = 31;

/// A set of plugins of one table, by their rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PluginSet(u32);

impl PluginSet {
    /// Represents extenders, whose answer may change with any change.
    pub const EXTENDERS: Self = Self(1 << PLUGINS_MAX);

    /// Returns the union of both sets.
    pub fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
    /// Adds the plugin of a row.
    pub fn insert(&mut self, row: usize) {
        self.0 |= 1 << row;
    }
    /// Reports whether the plugin of a row is in the set.
    pub fn has(self, row: usize) -> bool {
        self.0 >> row & 1 == 1
    }
    /// Reports whether the sets have a plugin in common.
    pub fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
    /// Returns the intersection of both sets.
    pub fn common(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
    /// Reports whether the set is empty.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
    /// Returns the rows in order.
    pub fn rows(self) -> impl Iterator<Item = usize> {
        (0..PLUGINS_MAX).filter(move |row| self.has(*row))
    }
}

/// A plugin in a profile.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The plugin with its arguments.
    pub plugin: &'static dyn Plugin,
    /// Whether it may reject nodes.
    pub filters: bool,
    /// The weight of its score; zero means that it does not score.
    pub weight: i64,
}

impl From<&'static dyn Plugin> for Row {
    fn from(plugin: &'static dyn Plugin) -> Self {
        Self { plugin, filters: true, weight: plugin.weight() }
    }
}

/// The plugins of a profile in order, with sets that are computed once.
#[derive(Debug)]
pub struct Table {
    rows: Vec<&'static dyn Plugin>,
    weights: Vec<i64>,
    /// Plugins that may reject nodes.
    filters: PluginSet,
    /// Plugins whose rejection depends on the node itself.
    of_nodes: PluginSet,
    /// Plugins whose rejection depends on the pods of the node.
    of_room: PluginSet,
    /// The plugins whose rejected pods are requeued, by kind of change.
    requeued: Vec<PluginSet>,
    /// Rows whose raw scores need no normalization.
    plain: Vec<usize>,
    /// Rows whose raw scores are normalized over the nodes that fit.
    scaled: Vec<usize>,
}

impl Default for Table {
    fn default() -> Self {
        Self::new(DEFAULT.iter().copied().map(Row::from))
    }
}

impl Table {
    /// Creates a table of these plugins; those beyond [`PLUGINS_MAX`] are left out.
    pub fn new(rows: impl IntoIterator<Item = Row>) -> Self {
        let rows: Vec<Row> = rows.into_iter().take(PLUGINS_MAX).collect();
        let of = |wanted: &dyn Fn(&Row) -> bool| {
            let mut set = PluginSet::default();
            rows.iter().enumerate().filter(|(_, r)| wanted(r)).for_each(|(row, _)| set.insert(row));
            set
        };
        let requeued = |change: &Change| of(&|r| r.filters && r.plugin.requeues_on(*change));
        let requeued = CHANGES.iter().map(requeued).collect();
        let filters = of(&|r| r.filters);
        let of_nodes = of(&|r| r.filters && r.plugin.judges_nodes());
        let of_room = of(&|r| r.filters && r.plugin.counts_room());
        let scoring = |scaled: bool| {
            let wanted = |r: &Row| r.weight > 0 && (r.plugin.normalize() != Normalize::Nothing) == scaled;
            rows.iter().enumerate().filter(|(_, r)| wanted(r)).map(|(row, _)| row).collect()
        };
        Self {
            plain: scoring(false),
            scaled: scoring(true),
            weights: rows.iter().map(|r| r.weight).collect(),
            rows: rows.iter().map(|r| r.plugin).collect(),
            filters,
            of_nodes,
            of_room,
            requeued,
        }
    }

    /// Returns the weight of a row.
    pub fn weight(&self, row: usize) -> i64 {
        self.weights[row]
    }

    /// Reports whether a row may reject nodes.
    pub fn filters(&self, row: usize) -> bool {
        self.filters.has(row)
    }

    /// Returns the plugins whose rejection depends on the node itself.
    pub fn of_nodes(&self) -> PluginSet {
        self.of_nodes
    }

    /// Returns the plugins whose rejection depends on the pods of the node.
    pub fn of_room(&self) -> PluginSet {
        self.of_room
    }

    /// Returns the plugins that may reject nodes, with their rows.
    pub fn filtering(&self) -> impl Iterator<Item = (usize, &'static dyn Plugin)> {
        self.rows.iter().copied().enumerate().filter(|(row, _)| self.filters.has(*row))
    }

    pub fn rows(&self) -> &[&'static dyn Plugin] {
        &self.rows
    }

    /// Returns the rows whose scores need no normalization.
    pub fn plain(&self) -> &[usize] {
        &self.plain
    }

    /// Returns the rows whose scores are normalized over the nodes that fit.
    pub fn scaled(&self) -> &[usize] {
        &self.scaled
    }

    /// Returns the plugins whose rejected pods are requeued by a change.
    pub fn requeued_by(&self, change: Change) -> PluginSet {
        self.requeued[change as usize]
    }

    /// Reports whether the node passes all filters that need only the spec and the node.
    pub fn fits(&self, spec: &PodSpec, node: &NodeState) -> bool {
        self.filtering().all(|(_, p)| p.filter(spec, node).is_none())
    }

    /// Reports whether the node could accept the pod without other pods.
    pub fn may_fit(&self, spec: &PodSpec, node: &NodeState) -> bool {
        !self.filtering().any(|(_, p)| p.never_fits(spec, node))
    }
}
