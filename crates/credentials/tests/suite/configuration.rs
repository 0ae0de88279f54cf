//! The configuration file: every fault at once and by path, directories, executables, and reloading.
#![allow(clippy::unwrap_used)]
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kelson_credentials::config::{self, ApiVersion, CacheType, Config};
use kelson_credentials::events::{Events, NoEvents};
use kelson_credentials::plugin::{NoServiceAccounts, Options, PROCESSES_MAX, PluginError};
use kelson_credentials::{Metrics, PodIdentity, ProcessExecutor, Providers};
use kelson_meta::SystemClock;
use parking_lot::Mutex;

const GOOD: &str = "apiVersion: kubelet.config.k8s.io/v1
kind: CredentialProviderConfig
providers:
- name: ecr
  matchImages: ['*.dkr.ecr.*.amazonaws.com', 'r.io:5000/team']
  defaultCacheDuration: 12h
  apiVersion: credentialprovider.kubelet.k8s.io/v1
  args: [get, --key=hunter2]
  env:
  - {name: AWS_PROFILE, value: hunter2}
  tokenAttributes:
    serviceAccountTokenAudience: aud
    cacheType: ServiceAccount
    requireServiceAccount: true
    requiredServiceAccountAnnotationKeys: [example.com/Role]
    optionalServiceAccountAnnotationKeys: [example.com/extra]
";

fn faults(text: &str) -> Vec<String> {
    let e = config::load_text(text.as_bytes()).expect_err(text);
    e.0.iter().map(ToString::to_string).collect()
}

#[test]
fn a_sound_file() {
    let c = config::load_text(GOOD.as_bytes()).unwrap();
    let p = &c.providers[0];
    assert_eq!(
        (p.name.as_str(), p.default_cache_duration, p.api_version),
        ("ecr", Duration::from_secs(43_200), ApiVersion::V1)
    );
    assert_eq!((p.match_images.len(), p.args[1].reveal(), p.env[0].0.as_str()), (2, "--key=hunter2", "AWS_PROFILE"));
    let t = p.token_attributes.as_ref().unwrap();
    assert_eq!(
        (t.audience.as_str(), t.cache_type, t.require_service_account),
        ("aud", CacheType::ServiceAccount, true)
    );
    assert_eq!(
        (t.required_annotation_keys[0].as_str(), t.optional_annotation_keys[0].as_str()),
        ("example.com/Role", "example.com/extra")
    );
    assert!(c.hash.starts_with("sha256:") && c.hash.len() == 71);
    assert!(!format!("{c:?}").contains("hunter2"));
    for v in ["v1alpha1", "v1beta1", "v1"] {
        let json = format!(
            "{{\"apiVersion\":\"kubelet.config.k8s.io/{v}\",\"kind\":\"CredentialProviderConfig\",\"providers\":[{{\"name\":\"p\",\"matchImages\":[\"r.io\"],\"defaultCacheDuration\":\"0s\",\"apiVersion\":\"credentialprovider.kubelet.k8s.io/{v}\"}}]}}"
        );
        assert_eq!(config::load_text(json.as_bytes()).unwrap().providers[0].default_cache_duration, Duration::ZERO);
    }
}

#[test]
fn every_fault_at_once_by_path() {
    let text = "apiVersion: kubelet.config.k8s.io/v1
kind: CredentialProviderConfig
extra: 1
providers:
- name: a/b c
  matchImages: [r.io, 'bad host', 7]
  defaultCacheDuration: -1s
  apiVersion: credentialprovider.kubelet.k8s.io/v2
  args: [1]
  env: [{name: A=B, value: 'x', more: y}, {value: 3}]
- matchImages: []
- name: ..
  apiVersion: credentialprovider.kubelet.k8s.io/v1beta1
  matchImages: [r.io]
  defaultCacheDuration: ten
  tokenAttributes:
    cacheType: Pod
    requireServiceAccount: false
    requiredServiceAccountAnnotationKeys: [a/b, a/b, 'not ok']
    optionalServiceAccountAnnotationKeys: [a/b]
- name: ..
- 5
";
    let found = faults(text);
    for want in [
        "extra: Forbidden: unknown field",
        "providers[0].name: Invalid value: \"a/b c\": provider name cannot contain '/'",
        "providers[0].name: Invalid value: \"a/b c\": provider name cannot contain spaces",
        "providers[0].matchImages[1]: Invalid value: \"bad host\": match image is invalid: parse \"https://bad host\": invalid character \" \" in host name",
        "providers[0].matchImages[2]: Invalid value: must be a string, not a number",
        "providers[0].defaultCacheDuration: Invalid value: \"-1s\": must be greater than or equal to 0",
        "providers[0].apiVersion: Unsupported value: \"credentialprovider.kubelet.k8s.io/v2\": supported values: \"credentialprovider.kubelet.k8s.io/v1\", \"credentialprovider.kubelet.k8s.io/v1alpha1\", \"credentialprovider.kubelet.k8s.io/v1beta1\"",
        "providers[0].args[0]: Invalid value: must be a string, not a number",
        "providers[0].env[0].name: Invalid value: \"A=B\": must not contain '=' or zero bytes",
        "providers[0].env[0].more: Forbidden: unknown field",
        "providers[0].env[1].name: Required value",
        "providers[1].name: Required value",
        "providers[1].matchImages: Required value: at least 1 item in matchImages is required",
        "providers[1].defaultCacheDuration: Required value",
        "providers[1].apiVersion: Required value",
        "providers[2].name: Invalid value: \"..\": provider name cannot be '..'",
        "providers[2].tokenAttributes.serviceAccountTokenAudience: Required value",
        "providers[2].tokenAttributes: Forbidden: tokenAttributes is only supported for credentialprovider.kubelet.k8s.io/v1 API version",
        "providers[2].tokenAttributes.requiredServiceAccountAnnotationKeys: Forbidden: requireServiceAccount cannot be false when requiredServiceAccountAnnotationKeys is set",
        "providers[2].tokenAttributes.requiredServiceAccountAnnotationKeys[1]: Duplicate value: \"a/b\"",
        "providers[2].tokenAttributes: Invalid value: [\"a/b\"]: annotation keys cannot be both required and optional",
        "providers[2].tokenAttributes.cacheType: Unsupported value: \"Pod\": supported values: \"ServiceAccount\", \"Token\"",
        "providers[3].name: Duplicate value: \"..\"",
        "providers[4]: Invalid value: must be an object, not a number",
    ] {
        assert!(found.iter().any(|f| f == want), "missing {want:?} in\n{}", found.join("\n"));
    }
    assert!(found.iter().any(|f| f.starts_with("providers[2].defaultCacheDuration: Invalid value: \"ten\"")));
    assert!(found.iter().any(|f| f.starts_with(
        "providers[2].tokenAttributes.requiredServiceAccountAnnotationKeys[2]: Invalid value: \"not ok\""
    )));
}

#[test]
fn documents_of_another_kind() {
    assert_eq!(
        faults("{}"),
        [
            "apiVersion: Required value",
            "kind: Required value",
            "providers: Required value: at least 1 item in plugins is required"
        ]
    );
    assert!(faults("a: [")[0].starts_with("error decoding config: "));
    let old = GOOD.replace("k8s.io/v1\nkind", "k8s.io/v1beta1\nkind");
    assert_eq!(faults(&old), ["providers[0].tokenAttributes: Forbidden: unknown field"]);
    assert!(
        faults(&GOOD.replace("CredentialProviderConfig", "KubeletConfiguration"))[0]
            .starts_with("kind: Unsupported value")
    );
}

fn plugin(dir: &Path, name: &str, mode: u32) {
    fs::write(dir.join(name), "#!/bin/sh\n").unwrap();
    fs::set_permissions(dir.join(name), fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn executables_and_directories() {
    let dir = tempfile::tempdir().unwrap();
    let (file, bin) = (dir.path().join("c.yaml"), dir.path().join("bin"));
    let text = |e: config::ConfigError| e.to_string();
    let both = text(config::load(&file, &bin).unwrap_err());
    assert!(
        both.contains("unable to access path")
            && both.contains(&format!("plugin binary directory {} did not exist", bin.display()))
    );
    fs::create_dir(&bin).unwrap();
    fs::write(&file, GOOD).unwrap();
    let missing = text(config::load(&file, &bin).unwrap_err());
    assert_eq!(
        missing,
        format!(
            "failed to validate credential provider config: providers[0].name: Invalid value: \"ecr\": plugin binary executable {} did not exist",
            bin.join("ecr").display()
        )
    );
    // A provider with another fault counts too: the index is that of the file.
    let both = GOOD.replace("name: ecr", "name: a/b");
    let second = GOOD.split_once("providers:").unwrap().1;
    fs::write(&file, format!("{both}{second}")).unwrap();
    let found = text(config::load(&file, &bin).unwrap_err());
    assert!(found.contains("providers[1].name: Invalid value: \"ecr\": plugin binary"), "{found}");
    fs::write(&file, GOOD).unwrap();
    plugin(&bin, "ecr", 0o644);
    assert!(text(config::load(&file, &bin).unwrap_err()).contains("permission denied"));
    plugin(&bin, "ecr", 0o755);
    assert_eq!(config::load(&file, &bin).unwrap().providers.len(), 1);

    let many = dir.path().join("many");
    fs::create_dir(&many).unwrap();
    assert!(text(config::load(&many, &bin).unwrap_err()).contains("no configuration files found in directory"));
    fs::write(many.join("b.yaml"), GOOD.replace("name: ecr", "name: second")).unwrap();
    fs::write(many.join("a.yml"), GOOD).unwrap();
    fs::write(many.join("ignored.txt"), "x").unwrap();
    plugin(&bin, "second", 0o755);
    let names = |c: Config| c.providers.into_iter().map(|p| p.name).collect::<Vec<_>>();
    assert_eq!(names(config::load(&many, &bin).unwrap()), ["ecr", "second"]);
    fs::write(many.join("c.json"), GOOD).unwrap();
    let twice = text(config::load(&many, &bin).unwrap_err());
    assert!(
        twice.contains(&format!("{}: providers[0].name: Duplicate value: \"ecr\"", many.join("c.json").display())),
        "{twice}"
    );
}

#[derive(Default)]
struct RecordedMessages(Mutex<Vec<String>>);

impl Events for RecordedMessages {
    fn plugin_failed(&self, _: &PodIdentity, _: &PluginError) {}
    fn config_rejected(&self, message: &str) {
        self.0.lock().push(format!("rejected: {message}"));
    }
    fn config_reloaded(&self, hash: &str) {
        self.0.lock().push(format!("reloaded: {hash}"));
    }
}

fn options(events: Arc<dyn Events>, metrics: Arc<Metrics>, bin: &Path) -> Options {
    Options {
        executor: Arc::new(ProcessExecutor::new(bin)),
        accounts: Arc::new(NoServiceAccounts),
        clock: Arc::new(SystemClock),
        events,
        metrics,
        processes_max: PROCESSES_MAX,
    }
}

#[tokio::test]
async fn a_broken_change_keeps_the_last_good() {
    let dir = tempfile::tempdir().unwrap();
    let (file, bin) = (dir.path().join("c.yaml"), dir.path().join("bin"));
    fs::create_dir(&bin).unwrap();
    plugin(&bin, "ecr", 0o755);
    fs::write(&file, GOOD).unwrap();
    let (reported, metrics) = (Arc::new(RecordedMessages::default()), Arc::new(Metrics::default()));
    let config = config::load(&file, &bin).unwrap();
    let hash = config.hash.clone();
    let providers = Providers::new(config, options(reported.clone(), metrics.clone(), &bin));
    assert_eq!(providers.matching("r.io:5000/team/app"), ["ecr"]);
    assert_eq!(providers.reload(&file, &bin), Ok(false));
    fs::write(&file, GOOD.replace("12h", "never")).unwrap();
    assert!(providers.reload(&file, &bin).is_err() && providers.reload(&file, &bin).is_err());
    assert_eq!(providers.matching("r.io:5000/team/app"), ["ecr"]);
    assert_eq!(reported.0.lock().len(), 1, "told once");
    assert_eq!(metrics.reloads(), (1, 0));
    fs::write(&file, GOOD.replace("r.io:5000/team", "other.io")).unwrap();
    assert_eq!(providers.reload(&file, &bin), Ok(true));
    assert!(providers.matching("r.io:5000/team/app").is_empty());
    assert_eq!(providers.matching("other.io/x"), ["ecr"]);
    let text = metrics.registry().text();
    assert!(
        !text.contains(&hash)
            && text.contains("kubelet_credential_provider_config_reloads_total{result=\"success\"} 1")
    );
}

#[tokio::test]
async fn changes_are_noticed_through_replaced_links() {
    let dir = tempfile::tempdir().unwrap();
    let bin = dir.path().join("bin");
    fs::create_dir(&bin).unwrap();
    plugin(&bin, "ecr", 0o755);
    for (d, registry) in [("one", "one.io"), ("two", "two.io"), ("three", "three.io")] {
        fs::create_dir(dir.path().join(d)).unwrap();
        fs::write(dir.path().join(d).join("c.yaml"), GOOD.replace("r.io:5000/team", registry)).unwrap();
    }
    let data = dir.path().join("data");
    std::os::unix::fs::symlink("one", &data).unwrap();
    let file = data.join("c.yaml");
    let link = dir.path().join("config.yaml");
    std::os::unix::fs::symlink("data/c.yaml", &link).unwrap();
    let config = config::load(&file, &bin).unwrap();
    let providers = Arc::new(Providers::new(config, options(Arc::new(NoEvents), Arc::default(), &bin)));
    let follower = tokio::spawn(providers.clone().follow(link, bin));
    let until = |registry: &'static str| {
        let providers = providers.clone();
        async move {
            let wait = async {
                while providers.matching(&format!("{registry}/x")).is_empty() {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            tokio::time::timeout(Duration::from_secs(30), wait).await.expect(registry);
        }
    };
    until("one.io").await;
    for (d, registry) in [("two", "two.io"), ("three", "three.io")] {
        // As a mounted volume is updated: the link is replaced in one step.
        std::os::unix::fs::symlink(d, dir.path().join("new")).unwrap();
        fs::rename(dir.path().join("new"), &data).unwrap();
        until(registry).await;
    }
    follower.abort();
}
