//! Pull secrets, the node's docker configuration, and images that other tenants pulled before (KEP-2535).
use std::fs;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use kelson_blackbox::registry::{PULLER, Registry, TENANT, User, base64};
use kelson_blackbox::{Kubectl, Outcome, Subject, eventually};
use serde_json::json;

use super::world::{Plugins, World, pod, recovers, refused, reported, waiting};

const WITH_SECRET: &str = "  imagePullSecrets: [{name: reg}]\n";

fn docker_secret(k: &Kubectl, name: &str, host: &str, user: User) -> Outcome {
    let (server, username) = (format!("--docker-server={host}"), format!("--docker-username={}", user.name));
    let password = format!("--docker-password={}", user.password);
    k.ok(&["create", "secret", "docker-registry", name, &server, &username, &password])?;
    Ok(())
}

/// All forms of secrets, of the pod and of its service account; and messages about those that do not work.
pub fn pull_secrets(_: &Subject) -> Outcome {
    let registry = Registry::start()?;
    let images: Vec<String> = (0..5).map(|i| registry.add(&format!("app-{i}"))).collect::<Result<_, _>>()?;
    let w = World::start(registry, Plugins::new()?, &[])?;
    let host = w.registry.host.clone();
    let k = w.k.fresh_namespace("secrets")?;
    docker_secret(&k, "reg", &host, PULLER)?;
    k.apply(&pod("of-pod", &images[0], "IfNotPresent", WITH_SECRET))?;
    // The older form, for a path of the registry, together with a missing secret and an invalid one.
    let auth = base64(format!("{}:{}", TENANT.name, TENANT.password).as_bytes());
    let old = json!({format!("http://{host}/v2/"): {"auth": auth}}).to_string();
    let old = json!({"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/dockercfg",
        "metadata": {"name": "old"}, "data": {".dockercfg": base64(old.as_bytes())}});
    ensure!(k.with_input(&["create", "-f", "-"], old.to_string().as_bytes())?.code == 0, "dockercfg secret");
    let bad = PULLER.with_password("Wr0ng-Tr0ut-5Km1");
    w.secret(bad.password);
    w.secret(bad.basic());
    docker_secret(&k, "bad", &host, bad)?;
    k.apply(&pod(
        "old-form",
        &images[1],
        "IfNotPresent",
        "  imagePullSecrets: [{name: bad}, {name: absent}, {name: old}]\n",
    ))?;
    k.apply(&pod("wrong", &images[2], "IfNotPresent", "  imagePullSecrets: [{name: bad}]\n"))?;
    k.apply(&pod("nothing", &images[3], "IfNotPresent", ""))?;
    // Of the service account: admission adds them to the pod.
    k.ok(&["create", "serviceaccount", "puller"])?;
    k.ok(&["patch", "serviceaccount", "puller", "-p", r#"{"imagePullSecrets":[{"name":"reg"}]}"#])?;
    k.apply(&pod("of-account", &images[4], "IfNotPresent", "  serviceAccountName: puller\n"))?;
    for name in ["of-pod", "old-form", "of-account"] {
        recovers(&k, name)?;
    }
    let named = k.ok(&["get", "pod", "of-account", "-o", "jsonpath={.spec.imagePullSecrets[*].name}"])?;
    ensure!(named == "reg", "{named}");
    reported(
        &k,
        "old-form",
        "FailedToRetrieveImagePullSecret",
        &["Unable to retrieve some image pull secrets (absent); attempting to pull the image may not succeed."],
    )?;
    refused(&k, "wrong", &["credentials tried: image pull secret \"bad\""])?;
    refused(&k, "nothing", &[])?;
    // The secret is replaced, nothing is restarted.
    k.ok(&["delete", "secret", "bad"])?;
    docker_secret(&k, "bad", &host, PULLER)?;
    recovers(&k, "wrong")?;
    w.finish()
}

/// An image pulled with one tenant's credentials is not available to the other, also after a restart.
pub fn tenants(_: &Subject) -> Outcome {
    let registry = Registry::start()?;
    let (image, of_node) = (registry.add("private/app")?, registry.add("node/app")?);
    let w = World::start(registry, Plugins::new()?, &[])?;
    let (mine, theirs) = (w.k.fresh_namespace("mine")?, w.k.fresh_namespace("theirs")?);
    docker_secret(&mine, "reg", &w.registry.host, PULLER)?;
    mine.apply(&pod("first", &image, "IfNotPresent", WITH_SECRET))?;
    recovers(&mine, "first")?;
    let never = format!("Container image \"{image}\" is not present with pull policy of Never");
    let denied = |round: &str| -> Outcome {
        let (asks, hopes) = (format!("asks-{round}"), format!("hopes-{round}"));
        theirs.apply(&pod(&asks, &image, "IfNotPresent", ""))?;
        theirs.apply(&pod(&hopes, &image, "Never", ""))?;
        refused(&theirs, &asks, &["failed to pull and unpack image"])?;
        eventually("never pulled", Duration::from_secs(30), || {
            let (reason, message) = waiting(&theirs, &hopes)?;
            ensure!(reason == "ErrImageNeverPull" && message == never, "{reason}: {message}");
            Ok(())
        })?;
        reported(&theirs, &hopes, "ErrImageNeverPull", &[&never])?;
        // The owner needs no pull.
        let again = format!("again-{round}");
        mine.apply(&pod(&again, &image, "Never", WITH_SECRET))?;
        recovers(&mine, &again)?;
        reported(&mine, &again, "Pulled", &["already present on machine and can be accessed by the pod"])
    };
    denied("before")?;
    let records = w.server.dir.join("kubelet/image_manager/pulled");
    let record = one_file(&records)?;
    ensure!(record.contains("\"credentialHash\":") && record.contains("\"namespace\":\"mine\""), "{record}");
    w.server.terminate()?;
    w.server.launch()?;
    ensure!(one_file(&records)? == record, "the record survives");
    denied("after")?;
    // A tenant with access to the registry may use it.
    docker_secret(&theirs, "reg", &w.registry.host, TENANT)?;
    theirs.apply(&pod("with-own", &image, "IfNotPresent", WITH_SECRET))?;
    recovers(&theirs, "with-own")?;
    // The node's own configuration gives access to all tenants.
    let node = json!({"auths": {w.registry.host.clone(): {"auth": PULLER.basic()}}}).to_string();
    fs::write(w.server.dir.join("kubelet/config.json"), node)?;
    theirs.apply(&pod("by-node", &of_node, "IfNotPresent", ""))?;
    recovers(&theirs, "by-node")?;
    fs::remove_file(w.server.dir.join("kubelet/config.json"))?;
    theirs.apply(&pod("by-node-again", &of_node, "Never", ""))?;
    recovers(&theirs, "by-node-again")?;
    let checks = w.metrics()?;
    for result in ["credentialRecordFound", "mustAuthenticate"] {
        let line = format!("kubelet_imagemanager_image_mustpull_checks_total{{result=\"{result}\"}}");
        ensure!(checks.contains(&line), "{line} in\n{checks}");
    }
    w.finish()
}

fn one_file(dir: &std::path::Path) -> anyhow::Result<String> {
    let all: Vec<_> = fs::read_dir(dir)?.collect::<Result<_, _>>()?;
    ensure!(all.len() == 1, "{} records", all.len());
    Ok(fs::read_to_string(all.first().context("a record")?.path())?)
}
