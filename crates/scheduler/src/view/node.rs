//! The scheduler's form of a node: labels, taints, allocatable resources, and images.
use std::collections::BTreeMap;

use kelson_client::ResourceType;
use kelson_meta::Quantity;
use serde::Deserialize;

use super::raw::{RawMeta, Resources};

/// The effect of a taint (`v1.TaintEffect`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TaintEffect {
    /// New pods are not scheduled here.
    NoSchedule,
    /// New pods are scheduled elsewhere if possible.
    PreferNoSchedule,
    /// Running pods are evicted as well.
    NoExecute,
}

impl TaintEffect {
    /// Parses the name of an effect.
    pub fn parse(s: &str) -> Option<Self> {
        Some(match s {
            "NoSchedule" => Self::NoSchedule,
            "PreferNoSchedule" => Self::PreferNoSchedule,
            "NoExecute" => Self::NoExecute,
            _ => return None,
        })
    }
}

/// A taint of a node (`v1.Taint`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taint {
    pub key: Box<str>,
    pub value: Box<str>,
    pub effect: TaintEffect,
}

impl Taint {
    /// Reports whether new pods must tolerate it (`NoSchedule` or `NoExecute`).
    pub fn keeps_away(&self) -> bool {
        self.effect != TaintEffect::PreferNoSchedule
    }
}

/// Amounts by resource: CPU in millicores, others in whole units (bytes, pieces).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Capacity {
    /// CPU in millicores.
    pub cpu: i64,
    /// Memory in bytes.
    pub memory: i64,
    /// Ephemeral storage in bytes.
    pub ephemeral: i64,
    /// Extended resources, huge pages and the like, sorted by name.
    pub scalars: Vec<(Box<str>, i64)>,
}

impl Capacity {
    /// Reads a list of quantities.
    pub fn of(list: &Resources) -> Self {
        let mut c = Self::default();
        for (name, quantity) in list {
            c.put(name, *quantity);
        }
        c
    }

    fn put(&mut self, name: &str, q: Quantity) {
        match name {
            "cpu" => self.cpu = q.milli_value(),
            "memory" => self.memory = q.value(),
            "ephemeral-storage" => self.ephemeral = q.value(),
            "pods" => {}
            _ => *self.scalar_mut(name) = q.value(),
        }
    }

    /// Returns the amount of a resource by name; CPU in millicores.
    pub fn amount(&self, name: &str) -> i64 {
        match name {
            "cpu" => self.cpu,
            "memory" => self.memory,
            "ephemeral-storage" => self.ephemeral,
            _ => self.scalar(name),
        }
    }

    /// Returns the amount of an extended resource.
    pub fn scalar(&self, name: &str) -> i64 {
        self.scalars.binary_search_by(|(n, _)| (**n).cmp(name)).map_or(0, |i| self.scalars[i].1)
    }

    fn scalar_mut(&mut self, name: &str) -> &mut i64 {
        let i = match self.scalars.binary_search_by(|(n, _)| (**n).cmp(name)) {
            Ok(i) => i,
            Err(i) => {
                self.scalars.insert(i, (name.into(), 0));
                i
            }
        };
        &mut self.scalars[i].1
    }

    /// Adds the other amounts, multiplied by `sign`.
    pub fn add(&mut self, other: &Self, sign: i64) {
        self.cpu += sign * other.cpu;
        self.memory += sign * other.memory;
        self.ephemeral += sign * other.ephemeral;
        for (name, n) in &other.scalars {
            *self.scalar_mut(name) += sign * n;
        }
    }

    /// Raises each amount to the other's, if that is greater.
    pub fn max_with(&mut self, other: &Self) {
        self.cpu = self.cpu.max(other.cpu);
        self.memory = self.memory.max(other.memory);
        self.ephemeral = self.ephemeral.max(other.ephemeral);
        for (name, n) in &other.scalars {
            let mine = self.scalar_mut(name);
            *mine = (*mine).max(*n);
        }
    }

    /// Reports whether all amounts are zero.
    pub fn is_zero(&self) -> bool {
        self.cpu == 0 && self.memory == 0 && self.ephemeral == 0 && self.scalars.iter().all(|(_, n)| *n == 0)
    }
}

/// The fields of `v1.Node` that scheduling reads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    pub name: Box<str>,
    uid: Box<str>,
    resource_version: Box<str>,
    pub labels: BTreeMap<String, String>,
    /// Whether it is cordoned: only pods that tolerate it are bound here.
    pub unschedulable: bool,
    pub taints: Vec<Taint>,
    /// The amounts that pods may request in total.
    pub allocatable: Capacity,
    /// The maximum number of pods.
    pub pods_max: i64,
    /// The images on the node with their sizes in bytes; names as [`normalized_image`] returns them.
    pub images: Vec<(Box<str>, i64)>,
    /// Value of `status.declaredFeatures`.
    pub features: Vec<Box<str>>,
}

impl Node {
    /// Reports whether both versions are equal for scheduling (heartbeats do not count).
    pub fn same_for_scheduling(&self, other: &Self) -> bool {
        self.labels == other.labels
            && self.unschedulable == other.unschedulable
            && self.taints == other.taints
            && self.allocatable == other.allocatable
            && self.pods_max == other.pods_max
            && self.images == other.images
            && self.features == other.features
    }
    /// Returns region and zone, for visiting zones alternately.
    pub fn zone(&self) -> (&str, &str) {
        let label = |k: &str| self.labels.get(k).map_or("", String::as_str);
        (label("topology.kubernetes.io/region"), label("topology.kubernetes.io/zone"))
    }
}

/// Returns an image name, with `:latest` added when it has neither tag nor digest.
pub(crate) fn normalized_image(name: &str) -> std::borrow::Cow<'_, str> {
    // A colon after the last slash starts a tag or is part of a digest; one before it starts a port.
    let tagged = name.rfind(':').map_or(-1, |i| i as i64) > name.rfind('/').map_or(-1, |i| i as i64);
    if tagged { name.into() } else { format!("{name}:latest").into() }
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawNode {
    metadata: RawMeta,
    spec: RawSpec,
    status: RawStatus,
}
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawSpec {
    unschedulable: bool,
    taints: Option<Vec<RawTaint>>,
}
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawTaint {
    key: String,
    value: String,
    effect: String,
}
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawStatus {
    allocatable: Option<Resources>,
    images: Option<Vec<RawImage>>,
    declared_features: Option<Vec<Box<str>>>,
}
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawImage {
    names: Option<Vec<String>>,
    size_bytes: i64,
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let raw = RawNode::deserialize(d)?;
        let allocatable = raw.status.allocatable.unwrap_or_default();
        let taints = raw.spec.taints.unwrap_or_default().into_iter().filter_map(|t| {
            Some(Taint { effect: TaintEffect::parse(&t.effect)?, key: t.key.into(), value: t.value.into() })
        });
        let images = raw.status.images.unwrap_or_default().into_iter().flat_map(|i| {
            let size = i.size_bytes;
            i.names.unwrap_or_default().into_iter().map(move |n| (n.into_boxed_str(), size))
        });
        Ok(Self {
            name: raw.metadata.name.into(),
            uid: raw.metadata.uid.into(),
            resource_version: raw.metadata.resource_version.into(),
            labels: raw.metadata.labels.unwrap_or_default(),
            unschedulable: raw.spec.unschedulable,
            taints: taints.collect(),
            pods_max: allocatable.get("pods").map_or(0, |q| q.value()),
            allocatable: Capacity::of(&allocatable),
            images: images.collect(),
            features: raw.status.declared_features.unwrap_or_default(),
        })
    }
}

impl kelson_client::Object for Node {
    const TYPE: ResourceType = ResourceType::cluster("", "v1", "nodes", "Node");
    fn name(&self) -> &str {
        &self.name
    }
    fn namespace(&self) -> &str {
        ""
    }
    fn uid(&self) -> &str {
        &self.uid
    }
    fn resource_version(&self) -> &str {
        &self.resource_version
    }
}
