//! The documented limits of credential providers, measured with real plugin processes; a part of `make bench`. Prints
//! one row per limit and fails if one is exceeded.
use std::fmt::Write as _;
use std::fs;
use std::hint::black_box;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures::FutureExt as _;
use kelson_credentials::config::{self, Config, ProviderConfig};
use kelson_credentials::events::NoEvents;
use kelson_credentials::pattern::{Pattern, PatternIndex, Target};
use kelson_credentials::plugin::exec::Executor;
use kelson_credentials::plugin::protocol::{Request, Response};
use kelson_credentials::plugin::{NoServiceAccounts, Options, PROCESSES_MAX, PluginFault};
use kelson_credentials::{Metrics, PodIdentity, ProcessExecutor, Providers};
use kelson_meta::SystemClock;

use crate::block_on;

/// Starts real processes and counts them while they run.
struct Counting {
    real: ProcessExecutor,
    now: AtomicUsize,
    most: AtomicUsize,
    all: AtomicUsize,
}

#[async_trait]
impl Executor for Counting {
    async fn run(&self, provider: &ProviderConfig, request: &Request) -> Result<Response, PluginFault> {
        self.all.fetch_add(1, Ordering::SeqCst);
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        let result = self.real.run(provider, request).await;
        self.now.fetch_sub(1, Ordering::SeqCst);
        result
    }
}

fn providers(config: Config, bin_dir: &Path) -> (Arc<Providers>, Arc<Counting>) {
    let counting = Arc::new(Counting {
        real: ProcessExecutor::new(bin_dir),
        now: AtomicUsize::new(0),
        most: AtomicUsize::new(0),
        all: AtomicUsize::new(0),
    });
    let options = Options {
        executor: counting.clone(),
        accounts: Arc::new(NoServiceAccounts),
        clock: Arc::new(SystemClock),
        events: Arc::new(NoEvents),
        metrics: Arc::new(Metrics::default()),
        processes_max: PROCESSES_MAX,
    };
    (Arc::new(Providers::new(config, options)), counting)
}

/// Writes a plugin that takes `seconds` and answers for `key_type`.
fn plugin(dir: &Path, seconds: &str, key_type: &str) -> anyhow::Result<Config> {
    let script = format!(
        "#!/bin/sh\nsleep {seconds}\nexec echo '{{\"kind\":\"CredentialProviderResponse\",\"apiVersion\":\"credentialprovider.kubelet.k8s.io/v1\",\"cacheKeyType\":\"{key_type}\",\"cacheDuration\":\"1h\",\"auth\":{{\"*.example.com\":{{\"username\":\"u\",\"password\":\"p\"}}}}}}'\n"
    );
    let path = dir.join("plugin");
    fs::write(&path, script)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    let text = "{apiVersion: kubelet.config.k8s.io/v1, kind: CredentialProviderConfig, providers: [{name: plugin, matchImages: ['*.example.com'], defaultCacheDuration: 1h, apiVersion: credentialprovider.kubelet.k8s.io/v1}]}";
    Ok(config::load_text(text.as_bytes())?)
}

fn pod(n: usize) -> PodIdentity {
    let n = n.to_string();
    PodIdentity { namespace: "ns".into(), name: format!("pod-{n}"), uid: n, service_account: "default".into() }
}

/// Looks up all images concurrently; returns the time until the last one has an answer.
async fn burst(providers: &Arc<Providers>, images: Vec<String>) -> anyhow::Result<Duration> {
    let began = Instant::now();
    let asked: Vec<_> = images
        .into_iter()
        .enumerate()
        .map(|(i, image)| {
            let providers = providers.clone();
            tokio::spawn(async move { providers.lookup(&image, &pod(i)).await.answers.len() })
        })
        .collect();
    for a in asked {
        if a.await? != 1 {
            anyhow::bail!("a pod got no credentials");
        }
    }
    Ok(began.elapsed())
}

struct Rows {
    fine: bool,
}

impl Rows {
    fn add(&mut self, what: &str, found: &str, goal: &str, fine: bool) {
        self.fine &= fine;
        println!("{what:<62} {found:>22}   goal {goal}{}", if fine { "" } else { "   NOT HELD" });
    }
}

async fn bursts(rows: &mut Rows, dir: &Path) -> anyhow::Result<()> {
    let (p, counted) = providers(plugin(dir, "0.2", "Registry")?, dir);
    let took = burst(&p, (0..50).map(|i| format!("r.example.com/app-{i}")).collect()).await?;
    let runs = counted.all.load(Ordering::SeqCst);
    let found = format!("{runs} process, {} ms", took.as_millis());
    let fine = runs == 1 && took <= Duration::from_millis(250);
    rows.add("50 pods, one registry, a plugin of 200 ms", &found, "1 process, 250 ms", fine);
    for key_type in ["Registry", "Image"] {
        let (p, counted) = providers(plugin(dir, "0.05", key_type)?, dir);
        let took = burst(&p, (0..50).map(|i| format!("r{i}.example.com/app")).collect()).await?;
        let most = counted.most.load(Ordering::SeqCst);
        let found = format!("{most} at once, {} ms", took.as_millis());
        let what = format!("50 registries, answers per {}, cap of {PROCESSES_MAX}", key_type.to_lowercase());
        rows.add(&what, &found, "8 at once", most <= PROCESSES_MAX);
    }
    Ok(())
}

/// The number of calls timed together: few enough that most rounds are not interrupted by other processes.
const CALLS: u32 = 200;
/// The number of rounds; the fastest is used, since other processes only add time.
const ROUNDS: u32 = 500;

/// Returns the time of one `work`.
fn per_call(mut work: impl FnMut(u32)) -> Duration {
    let mut round = |n: u32| {
        let began = Instant::now();
        (n * CALLS..(n + 1) * CALLS).for_each(&mut work);
        began.elapsed() / CALLS
    };
    (0..ROUNDS).map(&mut round).min().unwrap_or_default()
}

async fn cached(rows: &mut Rows, dir: &Path) -> anyhow::Result<()> {
    // The entries are added through an executor that answers immediately.
    struct AtOnce;
    #[async_trait]
    impl Executor for AtOnce {
        async fn run(&self, _: &ProviderConfig, request: &Request) -> Result<Response, PluginFault> {
            let login = kelson_credentials::plugin::protocol::Login { username: "u".into(), password: "p".into() };
            Ok(Response {
                key_type: kelson_credentials::plugin::protocol::KeyType::Image,
                cache_duration: None,
                auth: [(request.image.clone(), login)].into(),
            })
        }
    }
    const ENTRIES: usize = 10_000;
    let options = Options {
        executor: Arc::new(AtOnce),
        accounts: Arc::new(NoServiceAccounts),
        clock: Arc::new(SystemClock),
        events: Arc::new(NoEvents),
        metrics: Arc::new(Metrics::default()),
        processes_max: PROCESSES_MAX,
    };
    let providers = Providers::new(plugin(dir, "0", "Image")?, options);
    let images: Vec<String> = (0..ENTRIES).map(|i| format!("r{}.example.com/team/app-{i}", i % 100)).collect();
    let pod = pod(0);
    for image in &images {
        providers.lookup(image, &pod).await;
    }
    let mut all_cached = true;
    let took = per_call(|i| {
        // Far apart, so that CPU caches help no more than in practice.
        let image = &images[(i as usize).wrapping_mul(7919) % ENTRIES];
        // A cached answer is returned without waiting.
        let found = providers.lookup(image, &pod).now_or_never();
        all_cached &= found.as_ref().is_some_and(|f| f.answers.first().is_some_and(|a| a.cached));
        black_box(found);
    });
    let found = format!("{} ns{}", took.as_nanos(), if all_cached { "" } else { ", not cached" });
    rows.add("a cached lookup, 10,000 entries", &found, "2,000 ns", all_cached && took < Duration::from_micros(2));
    Ok(())
}

fn matching(rows: &mut Rows) -> anyhow::Result<()> {
    let sets: [(&str, fn(usize) -> String, &str); 5] = [
        ("all literal", |i| format!("r{i}.example.com/team"), "r999.example.com/team/app"),
        (
            "one glob each, other domains",
            |i| format!("*.dkr.ecr.region-{i}.example.com"),
            "1.dkr.ecr.region-999.example.com/app",
        ),
        ("one domain, globs that differ in their text", |i| format!("*-{i}.example.com"), "team-999.example.com/app"),
        (
            "one domain, text on both sides of the glob",
            |i| format!("a{i}*z{i}.*.example.com"),
            "a999-z999.b.example.com/app",
        ),
        ("one glob, paths that differ", |i| format!("*.example.com/team-{i}/"), "r.example.com/team-999/app"),
    ];
    for (name, pattern, image) in sets {
        let mut index = PatternIndex::default();
        for i in 0..1000 {
            index.add(Pattern::parse(&pattern(i))?, i);
        }
        let found = Target::parse(image).map(|t| index.lookup(&t))?;
        let took = per_call(|_| {
            if let Ok(t) = Target::parse(black_box(image)) {
                black_box(index.lookup(&t));
            }
        });
        let mut what = String::from("matching 1,000 patterns: ");
        write!(what, "{name}")?;
        let fine = found == [999] && took < Duration::from_micros(50);
        rows.add(&what, &format!("{:.2} µs", took.as_nanos() as f64 / 1000.0), "50 µs", fine);
    }
    Ok(())
}

async fn all() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let mut rows = Rows { fine: true };
    bursts(&mut rows, dir.path()).await?;
    cached(&mut rows, dir.path()).await?;
    matching(&mut rows)?;
    anyhow::ensure!(rows.fine, "a promise is not held");
    Ok(())
}

/// Measures the documented limits.
pub fn run(_: &[String]) -> anyhow::Result<()> {
    block_on(2, all())
}
