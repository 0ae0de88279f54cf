//! Starts the background tasks that maintain the node: eviction, plugin registration, image garbage collection, log rotation, and others.
use std::sync::Arc;

use kelson_client::EventType;
use kelson_tasks::{FILES, OnPanic, Tasks};

use crate::config::Config;
use crate::config::thresholds::{EvictionConfig, Signal, Threshold};
use crate::csi::registration::Registration;
use crate::devices::listing::PodResourcesLister;
use crate::devices::registration::Registrar;
use crate::eviction::{self, measure};
use crate::images::gc::ImageCollection;
use crate::logs::links;
use crate::logs::rotate::LogRotation;
use crate::metrics::{self, ClaimUsage, ShutdownMetrics};
use crate::pods::health::HealthNotifier;
use crate::pods::parts::Parts;
use crate::pods::pinning::CpuPinning;
use crate::pods::shares::QosCgroups;
use crate::shutdown::real::{LogindMachine, NodePods};
use crate::shutdown::{Shutdown, kept};
use crate::systemd::bus::Bus;
use crate::volumes::usage::VolumeSpace;
use crate::wiring::{Channels, Dependencies};

/// Starts the background tasks that maintain the node.
pub(crate) fn upkeep(tasks: &Tasks, deps: &Dependencies, parts: &Parts, channels: &Channels) {
    let config = &parts.config;
    let measured = measure::EvictionParts {
        runtime: Arc::clone(&deps.runtime),
        root_dir: config.root_dir.clone(),
        dirs: config.dirs(),
        kept_images: config.kept_images.clone(),
        cgroups: parts.cgroups.clone(),
        known: channels.known.clone(),
        manager: channels.manager.clone(),
        events: parts.effects.events.clone(),
        metrics: Arc::clone(&channels.metrics),
    };
    let (effects, thresholds) = (measure::NodeEffects::new(measured), thresholds(config));
    let pressure = channels.pressure.0.clone();
    tasks.supervise("evictions", move || {
        eviction::EvictionManager::new(thresholds.clone(), effects.clone(), pressure.clone()).run()
    });
    let registration = Registration {
        client: deps.client.clone(),
        node: config.node_name.clone(),
        dir: config.dirs().plugins_registry(),
        drivers: channels.csi.drivers.clone(),
        others: Arc::new(channels.dra.clone()),
        metrics: Arc::clone(&channels.storage),
    };
    tasks.supervise("plugin-registration", move || registration.clone().run());
    claims(tasks, deps, parts, channels);
    growth(tasks, parts, channels);
    usages(tasks, deps, parts, channels);
    let collection = ImageCollection {
        runtime: Arc::clone(&deps.runtime),
        images: parts.images.clone(),
        clock: Arc::clone(&deps.clock),
        kept: config.kept_images.clone(),
        high_percent: config.image_gc_high_percent,
        low_percent: config.image_gc_low_percent,
        age_min: config.image_gc_age_min,
        age_max: config.image_gc_age_max,
        metrics: Arc::clone(&channels.metrics),
        spans: parts.effects.spans.clone(),
    };
    tasks.supervise("image-collection", move || collection.clone().run());
    let rotation = LogRotation {
        runtime: Arc::clone(&deps.runtime),
        clock: Arc::clone(&deps.clock),
        dir: config.pod_logs_dir.clone(),
        bytes_max: config.log_max_bytes,
        files_max: config.log_max_files,
        look_every: config.log_look_every,
        workers: config.log_workers,
    };
    tasks.supervise("log-rotation", move || rotation.clone().run());
    sweep_links(tasks, parts);
    shutdown(tasks, deps, parts, channels);
    shares(tasks, parts, channels);
    pinning(tasks, deps, parts, channels);
    plugins(tasks, parts, channels);
    let (events, host, in_cluster) =
        (parts.effects.events.clone(), parts.host_dns.clone(), !config.cluster_domain.is_empty());
    tasks.spawn("resolv-conf", OnPanic::Contain, async move {
        if let Some(why) = host.fault(in_cluster).await {
            events.node(EventType::Warning, "CheckLimitsForResolvConf", why);
        }
    });
}

/// Removes links to container logs that no longer exist.
fn sweep_links(tasks: &Tasks, parts: &Parts) {
    let Some(dir) = parts.config.container_logs_dir.clone() else { return };
    tasks.spawn("log-links", OnPanic::Contain, async move {
        let _ = FILES.run(move || links::sweep(&dir)).await;
    });
}

/// Starts the task that expands CSI volumes of running pods after their claims grow.
fn growth(tasks: &Tasks, parts: &Parts, channels: &Channels) {
    let (growth, of_pods) = (parts.volumes.growth.clone(), parts.volumes.claims.clone());
    let known = channels.known.clone();
    tasks.supervise("volume-growth", move || {
        let known = known.clone();
        growth.clone().run(of_pods.clone(), Arc::new(move || known.list()))
    });
}

/// Starts the task that measures how full volumes are, and registers the metrics of it.
fn usages(tasks: &Tasks, deps: &Dependencies, parts: &Parts, channels: &Channels) {
    let (usages, clock, every) =
        (parts.volumes.usages.clone(), Arc::clone(&deps.clock), parts.config.volume_stats_every);
    let shown = usages.clone();
    channels.metrics.registry().on_scrape(move |families| {
        let of = |(claim, r): ((String, String), VolumeSpace)| ClaimUsage {
            claim,
            bytes: [r.capacity, r.available, r.used],
            inodes: [r.inodes, r.inodes_free, r.inodes_used],
        };
        let all: Vec<ClaimUsage> = shown.claims().into_iter().map(of).collect();
        metrics::claims_room(families, &all);
    });
    tasks.supervise("volume-usage", move || usages.clone().run(every, Arc::clone(&clock)));
}

/// Starts the task that keeps containers on their assigned CPUs.
fn pinning(tasks: &Tasks, deps: &Dependencies, parts: &Parts, channels: &Channels) {
    let config = &parts.config;
    if channels.placement.gives_cpus() {
        let pinning = CpuPinning {
            placement: channels.placement.clone(),
            runtime: Arc::clone(&deps.runtime),
            every: config.placement.reconcile_every,
        };
        tasks.supervise("cpu-pinning", move || pinning.clone().run());
    }
}

/// Starts the registration of device plugins and the PodResources API.
fn plugins(tasks: &Tasks, parts: &Parts, channels: &Channels) {
    let config = &parts.config;
    let registrar = Registrar::new(channels.devices.clone(), tasks.child("device-plugins"));
    tasks.supervise("device-registration", move || registrar.clone().run());
    let (devices, claims, manager) = (channels.devices.clone(), channels.claims.clone(), channels.manager.clone());
    let news = HealthNotifier { devices, claims, manager };
    tasks.supervise("device-news", move || news.clone().run());
    let known = channels.known.clone();
    let lister = PodResourcesLister {
        socket: config.dirs().pod_resources_socket(),
        pods: Arc::new(move || known.list()),
        devices: channels.devices.clone(),
        placement: channels.placement.clone(),
        claims: channels.claims.clone(),
        tasks: tasks.child("pod-resources"),
    };
    tasks.supervise("pod-resources", move || lister.clone().run());
}

/// Starts the tasks for dynamic resource allocation: removing slices of drivers that are gone, and unpreparing claims of deleted pods.
fn claims(tasks: &Tasks, deps: &Dependencies, parts: &Parts, channels: &Channels) {
    let (drivers, client, node) = (channels.dra.clone(), deps.client.clone(), parts.config.node_name.clone());
    tasks.supervise("device-slices", move || drivers.clone().run(client.clone(), node.clone()));
    let (claims, known) = (channels.claims.clone(), channels.known.clone());
    tasks.supervise("device-claims", move || {
        let known = known.clone();
        claims.clone().run(Arc::new(move |uid| known.list().iter().any(|p| crate::pod::uid(p) == uid)))
    });
}

/// Returns the configured thresholds. If pods are limited to the node's allocatable resources, adds the same memory threshold below that
/// limit, so that the kubelet evicts before the kernel kills (upstream: `addAllocatableThresholds`).
fn thresholds(config: &Config) -> EvictionConfig {
    let mut out = config.eviction.clone();
    out.own_limits &= config.isolates_storage;
    if config.cgroups.as_ref().is_some_and(|c| c.enforced.pods) {
        let of_memory = out.thresholds.iter().filter(|t| t.signal == Signal::MemoryAvailable && t.is_hard());
        let of_pods: Vec<Threshold> =
            of_memory.map(|t| Threshold { signal: Signal::AllocatableMemoryAvailable, ..*t }).collect();
        out.thresholds.extend(of_pods);
    }
    out
}

/// Starts graceful node shutdown, if configured. The metrics of the previous shutdown are published in either case.
fn shutdown(tasks: &Tasks, deps: &Dependencies, parts: &Parts, channels: &Channels) {
    let config = &parts.config;
    let metrics = ShutdownMetrics::new(channels.metrics.registry());
    let (shown, dir) = (metrics.clone(), config.root_dir.clone());
    tasks.spawn("last-shutdown", OnPanic::Contain, async move {
        if let Ok(times) = FILES.run(move || kept::read(&dir)).await {
            shown.show(times.began, times.ended);
        }
    });
    if config.shutdown.is_empty() {
        return;
    }
    let deps = (Arc::clone(&deps.runtime), Arc::clone(&deps.clock));
    let (parts, statuses) = (parts.effects.events.clone(), parts.statuses.clone());
    let (config, known, manager) = (Arc::clone(config), channels.known.clone(), channels.manager.clone());
    let begun = channels.shutdown.0.clone();
    tasks.supervise("shutdown", move || {
        let pods = NodePods {
            known: known.clone(),
            manager: manager.clone(),
            runtime: Arc::clone(&deps.0),
            statuses: statuses.clone(),
            dirs: config.dirs(),
            root_dir: config.root_dir.clone(),
            events: parts.clone(),
            metrics: metrics.clone(),
        };
        let shutdown = Shutdown {
            periods: config.shutdown.clone(),
            pods,
            connect: Box::new(|| LogindMachine::new(Bus::system())),
            clock: Arc::clone(&deps.1),
            begun: begun.clone(),
        };
        shutdown.run()
    });
}

/// Starts the task that updates the QoS cgroups to the pods that run.
fn shares(tasks: &Tasks, parts: &Parts, channels: &Channels) {
    let shares = QosCgroups {
        cgroups: parts.cgroups.clone(),
        config: Arc::clone(&parts.config),
        known: channels.known.clone(),
        events: parts.effects.events.clone(),
    };
    tasks.supervise("cgroup-shares", move || shares.clone().run());
}
