//! ImageLocality: prefers nodes that already have the pod's images, in proportion to the images' sizes.
use super::plugin::{PerNode, Plugin, Prepared, SCORE_MAX};
use crate::cluster::{Cluster, ImageSummary, NodeState};
use crate::view::PodSpec;

/// The sum of image sizes below which the score is zero, in bytes.
const IMAGE_MIN: i64 = 23 << 20;
/// The size per container above which the score does not grow, in bytes.
const IMAGE_MAX: i64 = 1000 << 20;

/// The plugin; see the module.
#[derive(Debug)]
pub struct ImageLocality;

impl Plugin for ImageLocality {
    fn name(&self) -> &'static str {
        "ImageLocality"
    }

    fn prepare(&self, spec: &PodSpec, cluster: &mut Cluster) -> Prepared {
        Prepared::PerNode(Box::new(Images { epoch: cluster.images_epoch(), summaries: summaries(spec, cluster) }))
    }

    fn weight(&self) -> i64 {
        1
    }
}

/// The number of nodes that have each of a pod's images.
#[derive(Debug)]
struct Images {
    epoch: u64,
    summaries: Vec<Option<ImageSummary>>,
}

fn summaries(spec: &PodSpec, cluster: &Cluster) -> Vec<Option<ImageSummary>> {
    spec.images.iter().map(|i| cluster.image(i)).collect()
}

impl PerNode for Images {
    fn refresh(&mut self, spec: &PodSpec, cluster: &Cluster) -> bool {
        if self.epoch == cluster.images_epoch() {
            return false;
        }
        self.epoch = cluster.images_epoch();
        let now = summaries(spec, cluster);
        let changed = now != self.summaries;
        self.summaries = now;
        changed
    }

    fn score(&self, spec: &PodSpec, cluster: &Cluster, state: &NodeState) -> i64 {
        let nodes = cluster.nodes().len();
        if self.summaries.iter().all(Option::is_none) || nodes == 0 {
            return 0;
        }
        let known = spec.images.iter().zip(&self.summaries).filter_map(|(name, s)| Some((name, (*s)?)));
        let sum: i64 = known
            .filter_map(|(name, s)| {
                let (_, size) = state.node.images.iter().find(|(n, _)| n == name)?;
                // Weighted by the share of nodes that have it, so that an image on few nodes does not attract all pods
                // to them.
                Some((*size as f64 * (s.nodes as f64 / nodes as f64)) as i64)
            })
            .sum();
        let max = IMAGE_MAX * spec.containers;
        SCORE_MAX * (sum.clamp(IMAGE_MIN, max.max(IMAGE_MIN)) - IMAGE_MIN) / (max - IMAGE_MIN).max(1)
    }
}
