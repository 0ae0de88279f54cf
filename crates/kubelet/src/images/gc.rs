//! Image garbage collection: removes unused images when their disk fills up (upstream: `pkg/kubelet/images/image_gc_manager.go`).
use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kelson_cri::{CriResult, Runtime, proto as cri};
use kelson_meta::Clock;
use kelson_tasks::FILES;
use tokio::time::Instant;

use super::Images;
use crate::metrics::{ImageRemoval, Metrics};
use crate::node::disk::DiskUsage;
use crate::spans::Spans;

/// Interval at which disk usage is checked.
pub const PERIOD: Duration = Duration::from_secs(300);

/// Number of bytes to free to reduce usage to `low` percent. `None` if usage is below `high` percent.
pub fn to_free(u: DiskUsage, high: u8, low: u8) -> Option<u64> {
    if high >= 100 || u.percent() < u64::from(high) {
        return None;
    }
    let keep_free = u.capacity / 100 * (100 - u64::from(low));
    Some(keep_free.saturating_sub(u.available))
}

/// Returns whether an image is never removed (upstream: images that the runtime has pinned).
pub fn is_kept(image: &cri::Image, names: &[String]) -> bool {
    image.pinned || image.repo_tags.iter().chain(&image.repo_digests).any(|name| names.contains(name))
}

/// Splits off the unused images that were last used more than `max` ago. Like upstream, a kubelet that has just started counts from its
/// start, because it has not seen any use.
fn too_old<'a>(unused: &mut Vec<(Instant, &'a cri::Image)>, max: Duration, now: Instant) -> Vec<&'a cri::Image> {
    let old = unused.extract_if(.., |(used, _)| now.duration_since(*used) > max);
    old.map(|(_, image)| image).collect()
}

/// Configuration and dependencies of image garbage collection.
#[derive(Clone)]
pub struct ImageCollection {
    /// Client of the container runtime (CRI).
    pub runtime: Arc<dyn Runtime>,
    /// Pull records, which are removed with their images.
    pub images: Images,
    /// Clock for timestamps of pull records. The time an image is unused is counted by the monotonic clock.
    pub clock: Arc<dyn Clock>,
    /// Names of images that are never removed.
    pub kept: Vec<String>,
    /// Disk usage in percent above which images are removed; 100 disables the collection.
    pub high_percent: u8,
    /// Disk usage in percent down to which images are removed.
    pub low_percent: u8,
    /// Images that were pulled less than this ago are never removed.
    pub age_min: Duration,
    /// Images unused for longer are removed regardless of disk usage.
    pub age_max: Option<Duration>,
    /// Counts the removals.
    pub metrics: Arc<Metrics>,
    /// Records a span per collection.
    pub spans: Spans,
}

impl ImageCollection {
    /// Checks every [`PERIOD`] until the task is aborted.
    pub async fn run(self) {
        let mut seen: HashMap<String, (Instant, Instant)> = HashMap::new();
        loop {
            tokio::time::sleep(PERIOD).await;
            let span = self.spans.node("Images/GarbageCollect");
            if let Err(e) = span.scope(once(&self, &mut seen)).await {
                span.fail(&e.message);
                tracing::warn!(error = %e, "image garbage collection failed");
            }
        }
    }
}

async fn once(ctx: &ImageCollection, seen: &mut HashMap<String, (Instant, Instant)>) -> CriResult<()> {
    let (listed_at, now) = (ctx.clock.now(), Instant::now());
    let images = ctx.runtime.list_images(None).await?;
    ctx.images.prune(images.iter().map(|i| i.id.clone()).collect(), listed_at).await;
    let containers = ctx.runtime.list_containers(None).await?;
    let used: HashSet<&str> = containers
        .iter()
        .flat_map(|c| [Some(c.image_ref.as_str()), c.image.as_ref().map(|i| i.image.as_str())])
        .flatten()
        .collect();
    seen.retain(|id, _| images.iter().any(|i| i.id == *id));
    let mut unused = Vec::new();
    for i in images.iter().filter(|i| !is_kept(i, &ctx.kept)) {
        let entry = seen.entry(i.id.clone()).or_insert((now, now));
        let names = i.repo_tags.iter().chain(&i.repo_digests).chain([&i.id]);
        if names.into_iter().any(|n| used.contains(n.as_str())) {
            entry.1 = now;
        } else if now.duration_since(entry.0) >= ctx.age_min {
            unused.push((entry.1, i));
        }
    }
    if let Some(max) = ctx.age_max {
        for image in too_old(&mut unused, max, now) {
            tracing::info!(image = image.id, "removing an image that is unused for longer than the maximum age");
            ctx.runtime.remove_image(cri::ImageSpec { image: image.id.clone(), ..Default::default() }).await?;
            ctx.metrics.lives().image_removed(ImageRemoval::Age);
        }
    }
    let fs = ctx.runtime.image_fs_info().await?;
    let at = fs.image_filesystems.first().and_then(|f| f.fs_id.as_ref()).map(|f| f.mountpoint.clone());
    let usage = FILES.run(move || DiskUsage::of(Path::new(&at.unwrap_or_else(|| "/".into())))).await;
    let Ok(Some(usage)) = usage else { return Ok(()) };
    let Some(mut left) = to_free(usage, ctx.high_percent, ctx.low_percent) else {
        return Ok(());
    };
    tracing::info!(bytes = left, "disk usage on image file system is over the high threshold, freeing images");
    unused.sort_by_key(|(last_used, _)| *last_used);
    for (_, image) in unused {
        if left == 0 {
            break;
        }
        let spec = cri::ImageSpec { image: image.id.clone(), ..Default::default() };
        ctx.runtime.remove_image(spec).await?;
        ctx.metrics.lives().image_removed(ImageRemoval::Space);
        left = left.saturating_sub(image.size);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sandboxes_and_archives_keep_their_images() {
        let image = |tag: &str, pinned| cri::Image { repo_tags: vec![tag.to_owned()], pinned, ..Default::default() };
        let kept = ["kelson.local/pause:1".to_owned()];
        assert!(is_kept(&image("kelson.local/pause:1", false), &kept));
        assert!(is_kept(&image("any:1", true), &kept));
        assert!(!is_kept(&image("any:1", false), &kept));
    }

    #[test]
    fn images_over_the_maximum_age_are_removed() {
        let image = |id: &str| cri::Image { id: id.to_owned(), ..Default::default() };
        let (a, b) = (image("a"), image("b"));
        let began = Instant::now();
        let at = |s| began + Duration::from_secs(s);
        let mut unused = vec![(at(100), &a), (at(101), &b)];
        let old = too_old(&mut unused, Duration::from_secs(50), at(151));
        assert_eq!((old, unused), (vec![&a], vec![(at(101), &b)]));
    }

    #[test]
    fn thresholds() {
        let u = |available| DiskUsage { capacity: 1000, available };
        assert_eq!(to_free(u(200), 85, 80), None);
        assert_eq!(to_free(u(100), 85, 80), Some(100));
        assert_eq!(to_free(u(0), 100, 80), None);
    }
}
