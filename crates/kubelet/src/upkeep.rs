//! What keeps the node in order beside its pods: evictions, plugins that register, image collection, log rotation.
use std::sync::Arc;

use kelson_client::EventType;
use kelson_tasks::{OnPanic, Tasks};

use crate::csi::registration::Registration;
use crate::devices::listing::PodResourcesLister;
use crate::devices::registration::Registrar;
use crate::eviction::{self, measure};
use crate::images::gc::ImageCollection;
use crate::logs::rotate::LogRotation;
use crate::pods::parts::Parts;
use crate::wiring::{Channels, Dependencies};

/// What keeps the node in order: evictions, image collection, log rotation.
pub(crate) fn upkeep(tasks: &Tasks, deps: &Dependencies, parts: &Parts, channels: &Channels) {
    let config = &parts.config;
    let measured = measure::Measured {
        runtime: Arc::clone(&deps.runtime),
        root_dir: config.root_dir.clone(),
        dirs: config.dirs(),
        kept_images: config.kept_images.clone(),
        cgroups: parts.cgroups.clone(),
        known: channels.known.clone(),
        manager: channels.manager.clone(),
        tell: parts.effects.tell.clone(),
        metrics: Arc::clone(&channels.metrics),
    };
    let (effects, thresholds) = (measure::Real::new(measured), config.eviction.clone());
    let (clock, pressure) = (Arc::clone(&deps.clock), channels.pressure.0.clone());
    tasks.supervise("evictions", move || {
        let (effects, clock) = (effects.clone(), Arc::clone(&clock));
        eviction::Manager::new(thresholds.clone(), effects, clock, pressure.clone()).run()
    });
    let registration = Registration {
        client: deps.client.clone(),
        node: config.node_name.clone(),
        dir: config.dirs().plugins_registry(),
        drivers: channels.csi.drivers.clone(),
    };
    tasks.supervise("plugin-registration", move || registration.clone().run());
    let collection = ImageCollection {
        runtime: Arc::clone(&deps.runtime),
        images: parts.images.clone(),
        clock: Arc::clone(&deps.clock),
        kept: config.kept_images.clone(),
        high_percent: config.image_gc_high_percent,
        low_percent: config.image_gc_low_percent,
    };
    tasks.supervise("image-collection", move || collection.clone().run());
    let rotation = LogRotation {
        runtime: Arc::clone(&deps.runtime),
        clock: Arc::clone(&deps.clock),
        dir: config.pod_logs_dir.clone(),
        bytes_max: config.log_max_bytes,
        files_max: config.log_max_files,
    };
    tasks.supervise("log-rotation", move || rotation.clone().run());
    let registrar = Registrar::new(channels.devices.clone(), tasks.child("device-plugins"));
    tasks.supervise("device-registration", move || registrar.clone().run());
    let known = channels.known.clone();
    let lister = PodResourcesLister {
        socket: config.dirs().pod_resources_socket(),
        pods: Arc::new(move || known.list()),
        devices: channels.devices.clone(),
        tasks: tasks.child("pod-resources"),
    };
    tasks.supervise("pod-resources", move || lister.clone().run());
    let (tell, host, in_cluster) =
        (parts.effects.tell.clone(), parts.host_dns.clone(), !config.cluster_domain.is_empty());
    tasks.spawn("resolv-conf", OnPanic::Contain, async move {
        if let Some(why) = host.fault(in_cluster).await {
            tell.node(EventType::Warning, "CheckLimitsForResolvConf", why);
        }
    });
}
