//! The promised numbers of the keyring: a cached lookup with 10,000 entries, an image against 1,000 patterns, a burst of
//! 50 pods on one registry, 50 registries under a cap of 8. `cargo run --release -p kelson-credentials --example
//! credentials_speed`
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kelson_credentials::config;
use kelson_credentials::events::NoEvents;
use kelson_credentials::pattern::{Pattern, PatternIndex, Target};
use kelson_credentials::plugin::cache::{Answer, Cache};
use kelson_credentials::plugin::protocol::{KeyType, Login};
use kelson_credentials::plugin::{NoServiceAccounts, Options};
use kelson_credentials::{Metrics, PodIdentity, ProcessExecutor, Providers};
use kelson_meta::SystemClock;

const ROUNDS: usize = 100_000;

fn cache() {
    let now = tokio::time::Instant::now();
    let mut cache = Cache::new(now);
    let images: Vec<String> = (0..10_000).map(|i| format!("registry-{}.example.com/team/app-{i}", i % 100)).collect();
    for image in &images {
        let logins = vec![("*.example.com".to_owned(), Login::default())];
        let answer = Arc::new(Answer { key_type: KeyType::Image, cache_duration: None, logins });
        cache.put(now, b"identity of a service account", image, answer, now + Duration::from_secs(3600));
    }
    let began = Instant::now();
    let mut found = 0;
    for i in 0..ROUNDS {
        found +=
            usize::from(cache.get(now, b"identity of a service account", &images[i * 7919 % images.len()]).is_some());
    }
    assert_eq!(found, ROUNDS);
    println!("cached lookup, 10,000 entries: {:?} (goal 2 µs)", began.elapsed() / ROUNDS as u32);
}

fn patterns() {
    for (name, text) in
        [("globs", "*.dkr-{}.ecr.*.amazonaws.com"), ("one suffix", "team-{}-*.dkr.ecr.eu.amazonaws.com")]
    {
        let mut index = PatternIndex::default();
        for i in 0..1000 {
            index.add(Pattern::parse(&text.replace("{}", &i.to_string())).expect("a pattern"), i);
        }
        let image = "team-999-x.dkr.ecr.eu.amazonaws.com/app";
        let began = Instant::now();
        for _ in 0..1000 {
            std::hint::black_box(index.lookup(&Target::parse(image).expect("an image")));
        }
        println!("an image against 1,000 patterns ({name}): {:?} (goal 50 µs)", began.elapsed() / 1000);
    }
}

async fn burst(registries: usize) {
    let dir = tempfile::tempdir().expect("a directory");
    let script = format!(
        "#!/bin/sh\necho x >> {0}/runs\nmkdir {0}/run.$$; ls -d {0}/run.* | wc -l >> {0}/at_once\nsleep 0.2\nrmdir {0}/run.$$\necho '{{\"kind\":\"CredentialProviderResponse\",\"apiVersion\":\"credentialprovider.kubelet.k8s.io/v1\",\"cacheKeyType\":\"Registry\",\"cacheDuration\":\"1h\",\"auth\":{{}}}}'\n",
        dir.path().display()
    );
    let path = dir.path().join("plugin");
    std::fs::write(&path, script).expect("written");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("executable");
    let text = "{apiVersion: kubelet.config.k8s.io/v1, kind: CredentialProviderConfig, providers: [{name: plugin, matchImages: ['*.io'], defaultCacheDuration: 1h, apiVersion: credentialprovider.kubelet.k8s.io/v1}]}";
    let options = Options {
        executor: Arc::new(ProcessExecutor::new(dir.path())),
        accounts: Arc::new(NoServiceAccounts),
        clock: Arc::new(SystemClock),
        events: Arc::new(NoEvents),
        metrics: Arc::new(Metrics::default()),
        processes_max: 8,
    };
    let providers = Arc::new(Providers::new(config::load_text(text.as_bytes()).expect("sound"), options));
    let began = Instant::now();
    let asked: Vec<_> = (0..50)
        .map(|i| {
            let providers = providers.clone();
            tokio::spawn(async move {
                let image = format!("r{}.io/app-{i}", i % registries);
                providers.lookup(&image, &PodIdentity::default()).await.errors.len()
            })
        })
        .collect();
    for a in asked {
        assert_eq!(a.await.expect("no panic"), 0);
    }
    let took = began.elapsed();
    let lines = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap_or_default();
    let most = lines("at_once").lines().filter_map(|l| l.trim().parse::<usize>().ok()).max().unwrap_or(0);
    println!(
        "50 pods on {registries} registries: {took:?}, {} processes, at most {most} at once",
        lines("runs").lines().count()
    );
}

#[tokio::main]
async fn main() {
    cache();
    patterns();
    burst(1).await;
    burst(50).await;
}
