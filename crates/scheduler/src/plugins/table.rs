//! The table of plugins: a new plugin is one file beside this one and one row here.
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

/// The default profile. Filters run in this order, which is the reference's, and the first refusal stands.
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

/// Plugins that one table may hold: a set of them is one number.
pub const PLUGINS_MAX: usize = 31;

/// A set of plugins of one table, by their rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PluginSet(u32);

impl PluginSet {
    /// Not a plugin, but extenders, whose word may change with anything.
    pub const EXTENDERS: Self = Self(1 << PLUGINS_MAX);

    /// The plugins that either has.
    pub fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
    /// Adds the plugin of a row.
    pub fn insert(&mut self, row: usize) {
        self.0 |= 1 << row;
    }
    /// Whether the plugin of a row is in it.
    pub fn has(self, row: usize) -> bool {
        self.0 >> row & 1 == 1
    }
    /// Whether both have a plugin in common.
    pub fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
    /// The plugins that both have.
    pub fn common(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
    /// Whether none is in it.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
    /// Its rows, in order.
    pub fn rows(self) -> impl Iterator<Item = usize> {
        (0..PLUGINS_MAX).filter(move |row| self.has(*row))
    }
}

/// A plugin as a profile has it.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The plugin.
    pub plugin: &'static dyn Plugin,
    /// Whether it may refuse nodes.
    pub filters: bool,
    /// How much its score counts; zero: not at all.
    pub weight: i64,
}

impl From<&'static dyn Plugin> for Row {
    fn from(plugin: &'static dyn Plugin) -> Self {
        Self { plugin, filters: true, weight: plugin.weight() }
    }
}

/// The plugins that decide, in their order, and what can be said of them once for all.
#[derive(Debug)]
pub struct Table {
    rows: Vec<&'static dyn Plugin>,
    weights: Vec<i64>,
    /// Those that may refuse nodes.
    filters: PluginSet,
    /// Those of them that judge nodes by what they are.
    of_nodes: PluginSet,
    /// Those of them that judge nodes by the pods there.
    of_room: PluginSet,
    /// By kind of change: those whose refused pods are tried again after it.
    requeued: Vec<PluginSet>,
    /// Rows whose raw scores count as they are.
    plain: Vec<usize>,
    /// Rows whose raw scores are compared over the nodes that fit.
    scaled: Vec<usize>,
}

impl Default for Table {
    fn default() -> Self {
        Self::new(DEFAULT.iter().copied().map(Row::from))
    }
}

impl Table {
    /// A table of these plugins; those beyond [`PLUGINS_MAX`] are left out.
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

    /// How much the score of a row counts.
    pub fn weight(&self, row: usize) -> i64 {
        self.weights[row]
    }

    /// Whether a row may refuse nodes.
    pub fn filters(&self, row: usize) -> bool {
        self.filters.has(row)
    }

    /// The plugins that refuse nodes for what they are.
    pub fn of_nodes(&self) -> PluginSet {
        self.of_nodes
    }

    /// The plugins that refuse nodes for the pods there.
    pub fn of_room(&self) -> PluginSet {
        self.of_room
    }

    /// The plugins that may refuse nodes, with their rows.
    pub fn filtering(&self) -> impl Iterator<Item = (usize, &'static dyn Plugin)> {
        self.rows.iter().copied().enumerate().filter(|(row, _)| self.filters.has(*row))
    }

    pub fn rows(&self) -> &[&'static dyn Plugin] {
        &self.rows
    }

    /// Rows of scoring plugins whose scores count as they are.
    pub fn plain(&self) -> &[usize] {
        &self.plain
    }

    /// Rows of scoring plugins whose scores are compared over the nodes that fit.
    pub fn scaled(&self) -> &[usize] {
        &self.scaled
    }

    /// The plugins whose refused pods are tried again after a change.
    pub fn requeued_by(&self, change: Change) -> PluginSet {
        self.requeued[change as usize]
    }

    /// Whether the node, as it is, passes all filters that need only the spec and the node.
    pub fn fits(&self, spec: &PodSpec, node: &NodeState) -> bool {
        self.filtering().all(|(_, p)| p.filter(spec, node).is_none())
    }

    /// Whether the node could take the pod once pods have left it.
    pub fn may_fit(&self, spec: &PodSpec, node: &NodeState) -> bool {
        !self.filtering().any(|(_, p)| p.never_fits(spec, node))
    }
}
