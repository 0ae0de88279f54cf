//! ServiceAccount: sets the service account of every pod, adds a projected volume with its token, and adds its image
//! pull secrets.
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use async_trait::async_trait;
use kelson_auth::Objects;
use kelson_meta::{Status, generate_name};
use serde_json::{Value, json};

use crate::containers::{ContainerKind, containers, containers_mut};
use crate::{AsyncPlugin, Attributes, Dependencies, Notes, Operation, Operations, Plugin};
use kelson_meta::tree::path::{at, list, list_mut, set, text};

const DEFAULT: &str = "default";
const VOLUME_PREFIX: &str = "kube-api-access-";
const MOUNT_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// The requested lifetime of a token in seconds; see `kelson_auth::token::WARN_ONLY_SECONDS`.
const TOKEN_SECONDS: i64 = 3607;
const MIRROR: &str = "kubernetes.io/config.mirror";
const ENFORCE: &str = "kubernetes.io/enforce-mountable-secrets";
/// The time to wait for a namespace's default account, which a controller creates soon after the namespace.
const DEFAULT_WAIT: Duration = Duration::from_millis(1500);
const DEFAULT_POLL: Duration = Duration::from_millis(20);

/// The plugin; see the module.
pub struct ServiceAccount {
    objects: Arc<dyn Objects>,
}

impl ServiceAccount {
    /// Creates the plugin, which reads service accounts through the dependencies.
    pub fn new(d: &Dependencies) -> Self {
        Self { objects: d.objects.clone() }
    }

    fn concerns(a: &Attributes<'_>) -> bool {
        a.is("", "pods") && matches!(a.subresource, "" | "ephemeralcontainers") && a.object.is_some()
    }

    fn account(&self, a: &Attributes<'_>, name: &str) -> Result<Arc<Value>, Status> {
        self.objects.tree("", "serviceaccounts", a.namespace, name).ok_or_else(|| {
            a.forbidden(&format!(
                "error looking up service account {}/{name}: serviceaccount {name:?} not found",
                a.namespace
            ))
        })
    }

    fn admit_now(&self, a: &mut Attributes<'_>) -> Result<(), Status> {
        if !Self::concerns(a) || a.operation != Operation::Create || is_mirror(a.new_object()) {
            return Ok(());
        }
        let name = match text(a.new_object(), &["spec", "serviceAccountName"]) {
            "" => DEFAULT.to_owned(),
            name => name.to_owned(),
        };
        let account = self.account(a, &name)?;
        let Some(pod) = a.object.as_mut() else { return Ok(()) };
        set(pod, &["spec", "serviceAccountName"], name.as_str().into());
        // The old name of the same field; clients read both.
        set(pod, &["spec", "serviceAccount"], name.into());
        if automount(&account, pod) {
            mount_token(pod);
        }
        if list(pod, &["spec", "imagePullSecrets"]).is_empty() {
            let secrets: Vec<Value> =
                list(&account, &["imagePullSecrets"]).iter().map(|s| json!({"name": text(s, &["name"])})).collect();
            if !secrets.is_empty() {
                set(pod, &["spec", "imagePullSecrets"], Value::Array(secrets));
            }
        }
        Ok(())
    }

    fn validate_now(&self, a: &Attributes<'_>) -> Result<(), Status> {
        if !Self::concerns(a) {
            return Ok(());
        }
        let pod = a.new_object();
        let ephemeral = a.operation == Operation::Update && a.subresource == "ephemeralcontainers";
        if !ephemeral && a.operation != Operation::Create {
            return Ok(());
        }
        if !ephemeral && is_mirror(pod) {
            return check_mirror(pod).map_err(|why| a.forbidden(why));
        }
        let name = text(pod, &["spec", "serviceAccountName"]);
        if name.is_empty() {
            let pod_name = text(pod, &["metadata", "name"]);
            return Err(a.forbidden(&format!("no service account specified for pod {}/{pod_name}", a.namespace)));
        }
        let account = self.account(a, name)?;
        let enforced =
            matches!(text(&account, &["metadata", "annotations", ENFORCE]), "1" | "t" | "T" | "true" | "TRUE" | "True");
        if enforced { check_secrets(&account, pod, ephemeral).map_err(|why| a.forbidden(&why)) } else { Ok(()) }
    }
}

fn is_mirror(pod: &Value) -> bool {
    !at(pod, &["metadata", "annotations", MIRROR]).is_null()
}

/// Returns the setting of the pod, else that of the account, else true.
fn automount(account: &Value, pod: &Value) -> bool {
    at(pod, &["spec", "automountServiceAccountToken"])
        .as_bool()
        .or_else(|| at(account, &["automountServiceAccountToken"]).as_bool())
        .unwrap_or(true)
}

fn mount_token(pod: &mut Value) {
    let existing = list(pod, &["spec", "volumes"]).iter().map(|v| text(v, &["name"]));
    let existing = existing.filter(|n| n.starts_with(VOLUME_PREFIX)).map(str::to_owned).next();
    let name = existing.clone().unwrap_or_else(|| generate_name(VOLUME_PREFIX));
    let mut needed = false;
    let Some(spec) = pod.get_mut("spec") else { return };
    containers_mut(spec, |kind, _, container| {
        match kind {
            ContainerKind::Init | ContainerKind::Regular => {}
            // A new pod cannot have ephemeral containers.
            ContainerKind::Ephemeral => return,
        }
        let taken = list(container, &["volumeMounts"]).iter().any(|m| text(m, &["mountPath"]) == MOUNT_PATH);
        if !taken && let Some(mounts) = list_mut(container, &["volumeMounts"]) {
            let mount: [(&str, Value); 3] =
                [("mountPath", MOUNT_PATH.into()), ("name", name.as_str().into()), ("readOnly", true.into())];
            mounts.push(mount.into_iter().collect());
            needed = true;
        }
    });
    if needed
        && existing.is_none()
        && let Some(volumes) = list_mut(spec, &["volumes"])
    {
        let volume: [(&str, Value); 2] = [("name", name.into()), ("projected", TOKEN_VOLUME.clone())];
        volumes.push(volume.into_iter().collect());
    }
}

/// The projected volume: token, root CA, namespace. Cloning the tree is much cheaper than building it, and every pod
/// has one.
static TOKEN_VOLUME: LazyLock<Value> = LazyLock::new(|| {
    json!({"defaultMode": 0o644, "sources": [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": TOKEN_SECONDS}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [
            {"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]}},
    ]})
});

fn check_mirror(pod: &Value) -> Result<(), &'static str> {
    if !text(pod, &["spec", "serviceAccountName"]).is_empty() {
        return Err("a mirror pod may not reference service accounts");
    }
    if references_secret(pod) {
        return Err("a mirror pod may not reference secrets");
    }
    for volume in list(pod, &["spec", "volumes"]) {
        for source in list(volume, &["projected", "sources"]) {
            if !at(source, &["serviceAccountToken"]).is_null() {
                return Err("a mirror pod may not use ServiceAccountToken volume projections");
            }
        }
    }
    Ok(())
}

/// Reports whether a pod refers to a secret in containers, volumes or image pull secrets.
pub(crate) fn references_secret(pod: &Value) -> bool {
    let spec = at(pod, &["spec"]);
    let in_containers = containers(spec).any(|(_, _, c)| {
        list(c, &["env"]).iter().any(|e| !at(e, &["valueFrom", "secretKeyRef"]).is_null())
            || list(c, &["envFrom"]).iter().any(|e| !at(e, &["secretRef"]).is_null())
    });
    let in_volumes = list(spec, &["volumes"]).iter().any(|volume| {
        let source = volume.as_object().into_iter().flatten().any(|(kind, source)| {
            kind == "secret"
                || ["secretRef", "secretName", "nodePublishSecretRef"].iter().any(|f| !at(source, &[f]).is_null())
        });
        source || list(volume, &["projected", "sources"]).iter().any(|s| !at(s, &["secret"]).is_null())
    });
    in_containers || in_volumes || !list(spec, &["imagePullSecrets"]).is_empty()
}

/// Checks that the pod only uses secrets that its account lists, if the account's annotation requires that.
fn check_secrets(account: &Value, pod: &Value, only_ephemeral: bool) -> Result<(), String> {
    let account_name = text(account, &["metadata", "name"]);
    let allowed = |field: &str, secret: &str| list(account, &[field]).iter().any(|s| text(s, &["name"]) == secret);
    let refused = |what: String, secret: &str| {
        format!(
            "{what} secret.secretName=\"{secret}\" is not allowed because service account {account_name} does not \
             reference that secret"
        )
    };
    let spec = at(pod, &["spec"]);
    if !only_ephemeral {
        for volume in list(spec, &["volumes"]) {
            let secret = text(volume, &["secret", "secretName"]);
            if !at(volume, &["secret"]).is_null() && !allowed("secrets", secret) {
                return Err(refused("volume with".into(), secret));
            }
        }
    }
    for (kind, _, container) in containers(spec) {
        if only_ephemeral && kind != ContainerKind::Ephemeral {
            continue;
        }
        let who = format!("{} {}", kind.words(), text(container, &["name"]));
        for env in list(container, &["env"]) {
            let secret = text(env, &["valueFrom", "secretKeyRef", "name"]);
            if !at(env, &["valueFrom", "secretKeyRef"]).is_null() && !allowed("secrets", secret) {
                return Err(refused(format!("{who} with envVar {} referencing", text(env, &["name"])), secret));
            }
        }
        for from in list(container, &["envFrom"]) {
            let secret = text(from, &["secretRef", "name"]);
            if !at(from, &["secretRef"]).is_null() && !allowed("secrets", secret) {
                return Err(refused(format!("{who} with envFrom referencing"), secret));
            }
        }
    }
    if !only_ephemeral {
        for (i, secret) in list(spec, &["imagePullSecrets"]).iter().enumerate() {
            let secret = text(secret, &["name"]);
            if !allowed("imagePullSecrets", secret) {
                return Err(format!(
                    "imagePullSecrets[{i}].name=\"{secret}\" is not allowed because service account {account_name} does \
                     not reference that imagePullSecret"
                ));
            }
        }
    }
    Ok(())
}

impl Plugin for ServiceAccount {
    fn name(&self) -> &'static str {
        "ServiceAccount"
    }
    fn handles(&self, op: Operation) -> bool {
        Operations::WRITE.contains(op)
    }
    fn admit(&self, a: &mut Attributes<'_>, _: &mut Notes) -> Result<(), Status> {
        self.admit_now(a)
    }
    fn validate(&self, a: &Attributes<'_>, _: &mut Notes) -> Result<(), Status> {
        self.validate_now(a)
    }
    /// Only a new pod whose default account does not exist yet has to wait.
    fn as_async(&self, a: &Attributes<'_>) -> Option<&dyn AsyncPlugin> {
        let waits = a.operation == Operation::Create
            && a.is_main("", "pods")
            && matches!(text(a.new_object(), &["spec", "serviceAccountName"]), "" | DEFAULT)
            && !is_mirror(a.new_object())
            && self.objects.tree("", "serviceaccounts", a.namespace, DEFAULT).is_none();
        waits.then_some(self as &dyn AsyncPlugin)
    }
}

#[async_trait]
impl AsyncPlugin for ServiceAccount {
    async fn admit(&self, a: &mut Attributes<'_>, _: &mut Notes) -> Result<(), Status> {
        let end = tokio::time::Instant::now() + DEFAULT_WAIT;
        while self.objects.get_live("", "serviceaccounts", a.namespace, DEFAULT).is_none() {
            if tokio::time::Instant::now() >= end {
                break;
            }
            tokio::time::sleep(DEFAULT_POLL).await;
        }
        self.admit_now(a)
    }
    async fn validate(&self, a: &Attributes<'_>, _: &mut Notes) -> Result<(), Status> {
        self.validate_now(a)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Ask, dependencies, dependencies_of, object, world};

    fn pod() -> Value {
        json!({"metadata": {"name": "p"}, "spec": {"initContainers": [{"name": "i"}], "containers": [{"name": "c"},
            {"name": "own", "volumeMounts": [{"name": "x", "mountPath": MOUNT_PATH}]}]}})
    }

    #[tokio::test]
    async fn token_and_pull_secrets() {
        let d = dependencies(&[("serviceaccounts/a/default", json!({"imagePullSecrets": [{"name": "reg", "x": 1}]}))]);
        let out = object(ServiceAccount::new(&d), Ask::pod(pod())).await.unwrap();
        let spec = &out["spec"];
        assert_eq!((&spec["serviceAccountName"], &spec["serviceAccount"]), (&json!("default"), &json!("default")));
        assert_eq!(spec["imagePullSecrets"], json!([{"name": "reg"}]));
        let name = spec["volumes"][0]["name"].as_str().unwrap();
        assert!(name.starts_with(VOLUME_PREFIX) && name.len() == VOLUME_PREFIX.len() + 5);
        assert_eq!(spec["volumes"][0]["projected"]["defaultMode"], 420);
        let mount = json!({"name": name, "readOnly": true, "mountPath": MOUNT_PATH});
        assert_eq!(spec["containers"][0]["volumeMounts"], json!([mount]));
        assert_eq!(spec["initContainers"][0]["volumeMounts"], json!([mount]));
        assert_eq!(spec["containers"][1]["volumeMounts"].as_array().unwrap().len(), 1);
        // A second round changes nothing.
        let again = object(ServiceAccount::new(&d), Ask::pod(out.clone())).await.unwrap();
        assert_eq!(again, out);
        let mut opted_out = pod();
        opted_out["spec"]["automountServiceAccountToken"] = json!(false);
        let out = object(ServiceAccount::new(&d), Ask::pod(opted_out)).await.unwrap();
        assert!(out["spec"].get("volumes").is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn missing_accounts() {
        let world = world(&[]);
        let d = dependencies_of(world.clone());
        let mut named = pod();
        named["spec"]["serviceAccountName"] = json!("bot");
        assert_eq!(
            object(ServiceAccount::new(&d), Ask::pod(named)).await.unwrap_err(),
            "pods \"p\" is forbidden: error looking up service account a/bot: serviceaccount \"bot\" not found"
        );
        let refused = object(ServiceAccount::new(&d), Ask::pod(pod())).await.unwrap_err();
        assert!(refused.ends_with("service account a/default: serviceaccount \"default\" not found"), "{refused}");
        let later = tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(500)).await;
            world.0.lock().insert("serviceaccounts/a/default".into(), json!({}));
        });
        assert!(object(ServiceAccount::new(&d), Ask::pod(pod())).await.is_ok());
        later.await.unwrap();
    }

    #[tokio::test]
    async fn mirror_pods_and_mountable_secrets() {
        let strict =
            json!({"metadata": {"name": "default", "annotations": {ENFORCE: "true"}}, "secrets": [{"name": "ok"}]});
        let d = dependencies(&[("serviceaccounts/a/default", strict)]);
        let ask = |spec: Value, mirror: bool| {
            let mut p = json!({"metadata": {"name": "p"}, "spec": spec});
            if mirror {
                p["metadata"]["annotations"] = json!({MIRROR: "x"});
            }
            object(ServiceAccount::new(&d), Ask::pod(p))
        };
        let secret = |name: &str| json!({"volumes": [{"name": "v", "secret": {"secretName": name}}]});
        assert!(ask(json!({}), true).await.is_ok());
        assert!(ask(secret("ok"), true).await.unwrap_err().ends_with("a mirror pod may not reference secrets"));
        assert!(
            ask(json!({"serviceAccountName": "x"}), true)
                .await
                .unwrap_err()
                .ends_with("may not reference service accounts")
        );
        assert!(ask(secret("ok"), false).await.is_ok());
        assert_eq!(
            ask(secret("no"), false).await.unwrap_err(),
            "pods \"p\" is forbidden: volume with secret.secretName=\"no\" is not allowed because service account default \
             does not reference that secret"
        );
        let env = json!({"initContainers": [{"name": "i", "env": [{"name": "E", "valueFrom": {"secretKeyRef": {"name": "no"}}}]}]});
        assert!(
            ask(env, false)
                .await
                .unwrap_err()
                .contains("init container i with envVar E referencing secret.secretName=\"no\"")
        );
    }
}
