//! Credential provider plugins in a running cluster: valid ones, every kind of misbehaviour, service account tokens
//! (KEP-2133, KEP-4412), and configuration changes.
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use kelson_blackbox::registry::{PULLER, Registry};
use kelson_blackbox::{Outcome, Subject, eventually};
use serde_json::{Value, json};

use super::world::{Plugins, World, answer, events, pod, provider, recovers, refused, reported};

/// Must never be shown: what bad plugins print.
const SLIP: &str = "Gn0me-Slip-3Vt8";

/// Name, script, words of the pod's message, words of the pod's event.
fn misbehaviours(host: &str) -> Vec<(&'static str, String, Vec<&'static str>, Vec<&'static str>)> {
    let sound = answer(host, PULLER, "Image");
    let wrong = sound.replace(PULLER.password, SLIP);
    vec![
        ("wrong-password", wrong, vec!["credentials tried: credential provider \"wrong-password\""], vec![]),
        ("missing", sound.clone(), vec!["\"missing\" failed: Start: "], vec!["Start: cannot be started"]),
        (
            "hanging",
            "sleep 1000 & [ -e $SEEN/hanging-child ] || echo $! > $SEEN/hanging-child\nwait".to_owned(),
            vec!["\"hanging\" failed: Timeout: timed out after"],
            vec!["Timeout: timed out after"],
        ),
        (
            "crashing",
            format!("echo 'cannot log in with password={SLIP}' >&2\nkill -SEGV $$"),
            vec!["\"crashing\" failed: Exit: killed by signal 11"],
            vec!["killed by signal 11", "stderr: cannot log in with password=[redacted]"],
        ),
        (
            "flooding",
            format!("exec yes {SLIP}"),
            vec!["\"flooding\" failed: TooLarge: response is larger than 1048576 bytes"],
            vec!["TooLarge"],
        ),
        (
            "forking",
            "for i in 1 2 3; do sleep 1000 & [ -e $SEEN/forking-$i ] || echo $! > $SEEN/forking-$i; done\nexit 7"
                .to_owned(),
            vec!["\"forking\" failed: Exit: exit status 7"],
            vec!["exit status 7"],
        ),
        (
            "other-version",
            wrong_version(&sound),
            vec![
                "\"other-version\" failed: WrongApiVersion: ",
                "actual apiVersion:credentialprovider.kubelet.k8s.io/v1beta1",
            ],
            vec!["WrongApiVersion"],
        ),
        (
            "other-kind",
            sound.replace("CredentialProviderResponse", "CredentialProviderRequest"),
            vec!["\"other-kind\" failed: WrongKind: "],
            vec!["WrongKind"],
        ),
        (
            "nonsense",
            format!("echo {SLIP}; echo {SLIP} >&2"),
            vec!["\"nonsense\" failed: InvalidResponse: "],
            vec!["InvalidResponse"],
        ),
    ]
}

fn wrong_version(answer: &str) -> String {
    answer.replace("kubelet.k8s.io/v1\"", "kubelet.k8s.io/v1beta1\"")
}

/// One pod per failure, all at once; then all plugins are fixed, and every pod runs without a restart.
pub fn misbehaving(_: &Subject) -> Outcome {
    let (registry, plugins) = (Registry::start()?, Plugins::new()?);
    let faults = misbehaviours(&registry.host);
    let mut providers = Vec::new();
    for (name, script, ..) in &faults {
        plugins.put(name, script)?;
        registry.add(&format!("{name}/app"))?;
        providers.push(provider(name, &format!("{}/{name}/", registry.host), ""));
    }
    plugins.put("sound", &answer(&registry.host, PULLER, "Image"))?;
    providers.push(provider("sound", &format!("{}/sound/", registry.host), ""));
    let sound = registry.add("sound/app")?;
    plugins.configure(&providers)?;
    let w = World::start(registry, plugins, &[])?;
    w.secret(SLIP);
    w.plugins.remove("missing")?;
    let k = w.k.fresh_namespace("misbehaving")?;
    k.apply(&pod("sound", &sound, "IfNotPresent", ""))?;
    for (name, ..) in &faults {
        let image = format!("{}/{name}/app:1", w.registry.host);
        k.apply(&pod(name, &image, "IfNotPresent", ""))?;
    }
    recovers(&k, "sound")?;
    reported(&k, "sound", "Pulled", &["Successfully pulled image"])?;
    for (name, _, in_pod, in_event) in &faults {
        refused(&k, name, in_pod)?;
        if !in_event.is_empty() {
            reported(&k, name, "FailedCredentialProvider", in_event)?;
        }
        reported(&k, name, "Failed", &["Failed to pull image"])?;
    }
    children_are_gone(&w)?;
    for (name, ..) in &faults {
        w.plugins.put(name, &answer(&w.registry.host, PULLER, "Image"))?;
    }
    for (name, ..) in &faults {
        recovers(&k, name)?;
    }
    let metrics = w.metrics()?;
    for name in ["missing", "hanging", "crashing", "flooding", "forking", "other-version", "other-kind", "nonsense"] {
        let errors = format!("kubelet_credential_provider_plugin_errors_total{{plugin_name=\"{name}\"}} ");
        ensure!(metrics.contains(&errors), "{errors} in\n{metrics}");
    }
    ensure!(!metrics.contains("errors_total{plugin_name=\"sound\"}"), "{metrics}");
    let slow = "kubelet_credential_provider_plugin_duration_bucket{plugin_name=\"hanging\",le=\"10\"} ";
    let fast = metrics.lines().find_map(|l| l.strip_prefix(slow)).context("durations")?;
    let all = "kubelet_credential_provider_plugin_duration_count{plugin_name=\"hanging\"} ";
    let all = metrics.lines().find_map(|l| l.strip_prefix(all)).context("durations")?;
    ensure!(fast.parse::<f64>()? < all.parse::<f64>()?, "the minute of the hanging plugin is not in the metric");
    ensure!(metrics.contains("kubelet_imagemanager_ondisk_pulledrecords 10\n"), "{metrics}");
    w.finish()
}

/// Checks the children of each plugin's first run: a retry after the back-off may have one that still runs.
fn children_are_gone(w: &World) -> Outcome {
    for name in ["hanging-child", "forking-1", "forking-2", "forking-3"] {
        let pid = fs::read_to_string(w.plugins.seen(name)).context(name)?;
        let stat = Path::new("/proc").join(pid.trim()).join("stat");
        eventually(&format!("the end of {name}"), Duration::from_secs(10), || {
            // A zombie has ended as well; another process reaps it.
            let gone = fs::read_to_string(&stat).map_or(true, |s| s.contains(") Z "));
            ensure!(gone, "{name} ({}) is still there", pid.trim());
            Ok(())
        })?;
    }
    Ok(())
}

/// A provider that needs a token: only once the node may request its audience, and a different one for each account.
pub fn service_account_tokens(_: &Subject) -> Outcome {
    let (registry, plugins) = (Registry::start()?, Plugins::new()?);
    let image = registry.add("team/app")?;
    let attributes = ",\"tokenAttributes\":{\"serviceAccountTokenAudience\":\"registry.example\",\"cacheType\":\"ServiceAccount\",\"requireServiceAccount\":true,\"requiredServiceAccountAnnotationKeys\":[\"registry.example/role\"],\"optionalServiceAccountAnnotationKeys\":[\"registry.example/more\"]}";
    plugins.configure(&[provider("tokens", &registry.host, attributes)])?;
    let script = answer(&registry.host, PULLER, "Registry").replace("cat > /dev/null", "cat > $SEEN/request-$$.json");
    plugins.put("tokens", &script.replace("\"0s\"", "\"1h\""))?;
    let w = World::start(registry, plugins, &[])?;
    let k = w.k.fresh_namespace("tokens")?;
    for account in ["one", "two", "none"] {
        k.ok(&["create", "serviceaccount", account])?;
        if account != "none" {
            k.ok(&["annotate", "serviceaccount", account, &format!("registry.example/role={account}-role")])?;
        }
    }
    let account = |name: &str| format!("  serviceAccountName: {name}\n");
    k.apply(&pod("one", &image, "IfNotPresent", &account("one")))?;
    k.apply(&pod("none", &image, "IfNotPresent", &account("none")))?;
    reported(
        &k,
        "one",
        "FailedCredentialProvider",
        &["Token: failed to get service account token", "registry.example"],
    )?;
    refused(&k, "one", &["\"tokens\" failed: "])?;
    // From now on a node may request tokens for this audience.
    w.k.ok(&["create", "clusterrole", "pull", "--verb=request-serviceaccounts-token-audience", "--resource=registry.example"])
        .or_else(|_| w.k.apply("apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: pull}\nrules: [{verbs: [request-serviceaccounts-token-audience], apiGroups: [''], resources: [registry.example]}]\n"))?;
    w.k.ok(&["create", "clusterrolebinding", "pull", "--clusterrole=pull", "--group=system:nodes"])?;
    recovers(&k, "one")?;
    // Without the annotation the plugin is not used; no error, and no image of another account.
    refused(&k, "none", &[])?;
    ensure!(!events(&k, "none")?.iter().any(|(r, _)| r == "FailedCredentialProvider"), "the plugin is not asked");
    // Another pod of the account needs no new token: the answer is cached, and the record contains the account.
    k.apply(&pod("again", &image, "IfNotPresent", &account("one")))?;
    recovers(&k, "again")?;
    k.apply(&pod("two", &image, "IfNotPresent", &account("two")))?;
    recovers(&k, "two")?;
    let mut seen = Vec::new();
    for entry in fs::read_dir(w.plugins.seen(""))? {
        let request: Value = serde_json::from_slice(&fs::read(entry?.path())?)?;
        ensure!(request["kind"] == "CredentialProviderRequest", "{}", request["kind"]);
        let token = request["serviceAccountToken"].as_str().context("token")?.to_owned();
        w.secret(token.clone());
        w.secret(token.rsplit('.').next().context("signature")?);
        let role = request["serviceAccountAnnotations"]["registry.example/role"].as_str().unwrap_or_default();
        seen.push((role.to_owned(), review(&w, &token)?));
    }
    seen.sort();
    let user = |a: &str| format!("system:serviceaccount:tokens:{a}");
    let want = [("one-role".to_owned(), user("one")), ("two-role".to_owned(), user("two"))];
    ensure!(seen == want, "one run per account, each with its own token: {seen:?}");
    w.finish()
}

/// Returns the user of a token, if it is valid for the registry.
fn review(w: &World, token: &str) -> anyhow::Result<String> {
    let body = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview",
        "spec": {"token": token, "audiences": ["registry.example"]}});
    let out = w.k.with_input(&["create", "-o", "json", "-f", "-"], body.to_string().as_bytes())?;
    let answer: Value = serde_json::from_str(&out.stdout).with_context(|| out.stderr.clone())?;
    ensure!(answer["status"]["authenticated"] == true, "{}", answer["status"]["error"]);
    Ok(answer["status"]["user"]["username"].as_str().unwrap_or_default().to_owned())
}

/// A provider of a new configuration is used immediately; an invalid change is logged and changes nothing.
pub fn configuration_reload(_: &Subject) -> Outcome {
    let (registry, plugins) = (Registry::start()?, Plugins::new()?);
    let (first, second) = (registry.add("first/app")?, registry.add("second/app")?);
    let part = |n: &str| format!("{}/{n}/", registry.host);
    let one = provider("first", &part("first"), "");
    let two = provider("second", &part("second"), "");
    plugins.put("first", &answer(&registry.host, PULLER, "Image"))?;
    plugins.configure(std::slice::from_ref(&one))?;
    let w = World::start(registry, plugins, &[])?;
    let node = w.k.ok(&["get", "nodes", "-o", "jsonpath={.items[0].metadata.name}"])?;
    let events_of_node = w.k.namespaced("default");
    let k = w.k.fresh_namespace("reload")?;
    k.apply(&pod("second", &second, "IfNotPresent", ""))?;
    refused(&k, "second", &[])?;
    // Invalid: the second plugin does not exist yet. The first one still works.
    w.plugins.configure(&[one.clone(), two.clone()])?;
    reported(&events_of_node, &node, "InvalidCredentialProviderConfig", &["providers[1].name", "did not exist"])?;
    k.apply(&pod("first", &first, "IfNotPresent", ""))?;
    recovers(&k, "first")?;
    let metrics = w.metrics()?;
    ensure!(metrics.contains("config_reloads_total{result=\"failure\"} 1\n"), "{metrics}");
    // Once the plugin exists the configuration applies, without another change of it.
    w.plugins.put("second", &answer(&w.registry.host, PULLER, "Image"))?;
    reported(
        &events_of_node,
        &node,
        "CredentialProviderConfigReloaded",
        &["Loaded the credential provider configuration"],
    )?;
    recovers(&k, "second")?;
    ensure!(w.metrics()?.contains("config_reloads_total{result=\"success\"} 1\n"), "{}", w.metrics()?);
    w.plugins.configure_raw("kind: CredentialProviderConfig\nproviders: [{name: 'a/b'}]")?;
    reported(
        &events_of_node,
        &node,
        "InvalidCredentialProviderConfig",
        &["apiVersion", "providers[0].name", "providers[0].matchImages"],
    )?;
    ensure!(w.server.log().contains("keeping the current one"), "the log says it too");
    w.finish()
}
