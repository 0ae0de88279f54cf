//! Messages of built-in plugins, exactly as clients see them.
use std::time::Duration;

use anyhow::ensure;
use kelson_blackbox::{Kubectl, Outcome, Subject, eventually};
use serde_json::{Value, json};

use super::{creating, forbidden, said};

fn pod(name: &str, change: impl FnOnce(&mut Value)) -> Value {
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"containers": [{"name": "c", "image": "registry.example.com/a:1"}]}});
    change(&mut pod["spec"]);
    pod
}

/// Creates a namespace in which pods can be created: waits for its service account.
fn namespace(s: &Subject, name: &str) -> anyhow::Result<Kubectl> {
    let k = s.kubectl.fresh_namespace(name)?;
    eventually("the default service account", Duration::from_secs(60), || k.ok(&["get", "serviceaccount", "default"]))?;
    Ok(k)
}

/// Plugins of the default chain that need no configuration.
pub fn what_plugins_say(s: &Subject) -> Outcome {
    let k = namespace(s, "adm-plugins")?;
    let cases = [
        (
            pod("p", |p| p["priorityClassName"] = json!("none")),
            "pods \"p\" is forbidden: no PriorityClass with name none was found",
        ),
        (
            pod("p", |p| p["priority"] = json!(7)),
            "pods \"p\" is forbidden: the integer value of priority (7) must not be provided in pod spec; priority admission \
             controller computed 0 from the given PriorityClass name",
        ),
        (
            pod("p", |p| p["runtimeClassName"] = json!("none")),
            "pods \"p\" is forbidden: pod rejected: RuntimeClass \"none\" not found",
        ),
        (
            pod("p", |p| p["serviceAccountName"] = json!("none")),
            "pods \"p\" is forbidden: error looking up service account adm-plugins/none: serviceaccount \"none\" not found",
        ),
    ];
    for (object, want) in cases {
        creating(&k, &object, &forbidden(want))?;
    }
    let class = |name: &str| {
        json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": 5,
            "globalDefault": true})
    };
    creating(&k, &class("adm-first"), "priorityclass.scheduling.k8s.io/adm-first created")?;
    let second = said(&k, &["create", "-f", "-"], &class("adm-second"))?;
    k.ok(&["delete", "priorityclass", "adm-first"])?;
    let want = "priorityclasses.scheduling.k8s.io \"adm-second\" is forbidden: PriorityClass adm-first is already marked as \
                default. Only one default can exist";
    ensure!(second == forbidden(want), "{second}");
    let gone = said(&k.namespaced("adm-nowhere"), &["create", "-f", "-"], &pod("p", |_| {}))?;
    ensure!(
        gone == "Error from server (NotFound): error when creating \"STDIN\": namespaces \"adm-nowhere\" not found",
        "{gone}"
    );
    let kept = s.kubectl.fails(&["delete", "namespace", "default"])?.stderr;
    let want = "Error from server (Forbidden): namespaces \"default\" is forbidden: this namespace may not be deleted";
    ensure!(kept.trim() == want, "{kept}");
    let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "c"},
        "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "none", "resources": {"requests": {"storage": "1Gi"}}}});
    creating(&k, &claim, "persistentvolumeclaim/c created")?;
    let protected = k.ok(&["get", "pvc", "c", "-o", "jsonpath={.metadata.finalizers}"])?;
    ensure!(protected == "[\"kubernetes.io/pvc-protection\"]", "{protected}");
    creating(&k, &pod("defaulted", |_| {}), "pod/defaulted created")?;
    let tolerations = k.ok(&[
        "get",
        "pod",
        "defaulted",
        "-o",
        "jsonpath={range .spec.tolerations[*]}{.key}={.tolerationSeconds} {end}",
    ])?;
    ensure!(
        tolerations.trim() == "node.kubernetes.io/not-ready=300 node.kubernetes.io/unreachable=300",
        "{tolerations}"
    );
    Ok(())
}

/// LimitRange: defaults, and every violated limit at once.
pub fn limits(s: &Subject) -> Outcome {
    let k = namespace(s, "adm-limits")?;
    let range = json!({"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "r"}, "spec": {"limits": [
        {"type": "Container", "default": {"cpu": "500m"}, "defaultRequest": {"cpu": "100m"}, "max": {"cpu": "1", "memory": "1Gi"},
            "min": {"cpu": "50m"}, "maxLimitRequestRatio": {"cpu": "5"}},
        {"type": "Pod", "max": {"cpu": "2"}},
        {"type": "PersistentVolumeClaim", "max": {"storage": "2Gi"}}]}});
    k.apply(&range.to_string())?;
    let with = |name: &str, resources: Value| pod(name, |p| p["containers"][0]["resources"] = resources);
    // The plugin may see the range a moment later.
    let many = with("p", json!({"limits": {"cpu": "3", "memory": "2Gi"}, "requests": {"cpu": "10m"}}));
    let want = forbidden(
        "pods \"p\" is forbidden: [minimum cpu usage per Container is 50m, but request is 10m, maximum cpu usage per Container is 1, \
         but limit is 3, maximum memory usage per Container is 1Gi, but limit is 2Gi, cpu max limit to request ratio per \
         Container is 5, but provided ratio is 300.000000, maximum cpu usage per Pod is 2, but limit is 3]",
    );
    let sorted = |text: &str| {
        // The order of a range's resources is not defined.
        let mut parts: Vec<String> = text.replace('[', ", ").replace(']', "").split(", ").map(str::to_owned).collect();
        parts.sort_unstable();
        parts
    };
    eventually("the range holds", Duration::from_secs(30), || {
        let reported = said(&k, &["create", "--dry-run=server", "-f", "-"], &many)?;
        ensure!(sorted(&reported) == sorted(&want), "{reported}\nexpected was {want}");
        Ok(())
    })?;
    creating(
        &k,
        &with("m", json!({"limits": {"memory": "2Gi"}})),
        &forbidden("pods \"m\" is forbidden: maximum memory usage per Container is 1Gi, but limit is 2Gi"),
    )?;
    creating(&k, &with("ok", json!({"limits": {"memory": "1Gi"}})), "pod/ok created")?;
    let made = k.json(&["get", "pod", "ok"])?;
    let resources = &made["spec"]["containers"][0]["resources"];
    ensure!(
        *resources == json!({"limits": {"cpu": "500m", "memory": "1Gi"}, "requests": {"cpu": "100m", "memory": "1Gi"}}),
        "{resources}"
    );
    let note = &made["metadata"]["annotations"]["kubernetes.io/limit-ranger"];
    ensure!(*note == "LimitRanger plugin set: cpu request for container c; cpu limit for container c", "{note}");
    let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "c"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "3Gi"}}}});
    let want = "persistentvolumeclaims \"c\" is forbidden: maximum storage usage per PersistentVolumeClaim is 2Gi, but request is 3Gi";
    creating(&k, &claim, &forbidden(want))
}

/// ResourceQuota: counts, scopes, required fields, and released usage.
pub fn quotas(s: &Subject) -> Outcome {
    let k = namespace(s, "adm-quotas")?;
    let quota = |name: &str, spec: Value| {
        json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": name}, "spec": spec}).to_string()
    };
    k.apply(&quota("secrets", json!({"hard": {"count/secrets": "2"}})))?;
    k.apply(&quota("compute", json!({"hard": {"pods": "2", "requests.cpu": "1"}})))?;
    k.apply(&quota("idle", json!({"hard": {"pods": "1"}, "scopes": ["BestEffort"]})))?;
    eventually("the quotas are counted", Duration::from_secs(60), || {
        for (name, hard) in [("secrets", "count/secrets"), ("compute", "requests.cpu"), ("idle", "pods")] {
            let used = k.json(&["get", "resourcequota", name])?["status"]["used"][hard].clone();
            ensure!(used == "0", "{name}: {used}");
        }
        Ok(())
    })?;
    let secret = |name: &str| json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}});
    creating(&k, &secret("a"), "secret/a created")?;
    creating(&k, &secret("b"), "secret/b created")?;
    let full = "secrets \"c\" is forbidden: exceeded quota: secrets, requested: count/secrets=1, used: count/secrets=2, limited: \
                count/secrets=2";
    creating(&k, &secret("c"), &forbidden(full))?;
    k.ok(&["delete", "secret", "a"])?;
    eventually("there is room again", Duration::from_secs(60), || creating(&k, &secret("c"), "secret/c created"))?;
    let cpu =
        |name: &str, cpu: &str| pod(name, |p| p["containers"][0]["resources"] = json!({"requests": {"cpu": cpu}}));
    let missing = "pods \"p\" is forbidden: failed quota: compute: must specify requests.cpu for: c";
    creating(&k, &pod("p", |_| {}), &forbidden(missing))?;
    let large = "pods \"p\" is forbidden: exceeded quota: compute, requested: requests.cpu=2, used: requests.cpu=0, limited: requests.cpu=1";
    creating(&k, &cpu("p", "2"), &forbidden(large))?;
    creating(&k, &cpu("p", "400m"), "pod/p created")?;
    creating(&k, &cpu("q", "400m"), "pod/q created")?;
    let both = "pods \"r\" is forbidden: exceeded quota: compute, requested: pods=1,requests.cpu=400m, used: pods=2,requests.cpu=800m, \
                limited: pods=2,requests.cpu=1";
    creating(&k, &cpu("r", "400m"), &forbidden(both))
}

/// ResourceQuota: device claims also count by the names of extended resources, together with requests of pods.
pub fn extended_quotas(s: &Subject) -> Outcome {
    let k = namespace(s, "adm-extended")?;
    let class = json!({"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "adm-gpu"},
        "spec": {"extendedResourceName": "adm.example.com/gpu"}});
    k.apply(&class.to_string())?;
    let named = "requests.adm.example.com/gpu";
    let implicit = "requests.deviceclass.resource.kubernetes.io/adm-gpu";
    let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"},
        "spec": {"hard": {named: "3", implicit: "9"}}});
    k.apply(&quota.to_string())?;
    let used = |what: &str, of_name: &str, of_class: &str| {
        eventually(what, Duration::from_secs(60), || {
            let used = k.json(&["get", "resourcequota", "q"])?["status"]["used"].clone();
            ensure!(used == json!({named: of_name, implicit: of_class}), "{used}");
            Ok(())
        })
    };
    used("counted", "0", "0")?;
    let claim = |name: &str, count: u64| {
        json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name}, "spec": {"devices":
            {"requests": [{"name": "r", "exactly": {"deviceClassName": "adm-gpu", "count": count}}]}}})
    };
    creating(&k, &claim("a", 2), "resourceclaim.resource.k8s.io/a created")?;
    let asked = json!({"adm.example.com/gpu": "1"});
    let asking = pod("p", |p| p["containers"][0]["resources"] = json!({"requests": asked, "limits": asked}));
    creating(&k, &asking, "pod/p created")?;
    used("the pod's and the claim's", "3", "2")?;
    let full = format!("exceeded quota: q, requested: {named}=1, used: {named}=3, limited: {named}=3");
    creating(&k, &claim("b", 1), &forbidden(&format!("resourceclaims.resource.k8s.io \"b\" is forbidden: {full}")))?;
    k.ok(&["delete", "pod", "p", "--force"])?;
    used("the claim's alone", "2", "2")?;
    creating(&k, &claim("b", 1), "resourceclaim.resource.k8s.io/b created")?;
    used("both claims'", "3", "3")?;
    let half = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "h"},
        "spec": {"hard": {"adm.example.com/gpu": "500m", named: "500m"}}});
    let why = "spec.hard[adm.example.com/gpu]: Invalid value: \"500m\": must be an integer";
    let said = said(&k, &["create", "-f", "-"], &half)?;
    ensure!(said == format!("The ResourceQuota \"h\" is invalid: {why}"), "{said}");
    k.ok(&["delete", "deviceclass", "adm-gpu"]).map(drop)
}

/// PodSecurity: rejections, warnings for pods and for objects with pod templates, for labels, and about existing pods.
pub fn pod_security(s: &Subject) -> Outcome {
    let k = namespace(s, "adm-security")?;
    let label = |label: &str| k.run(&["label", "namespace", "adm-security", "--overwrite", label]);
    creating(&k, &pod("old", |p| p["hostNetwork"] = json!(true)), "pod/old created")?;
    let warned = label("pod-security.kubernetes.io/enforce=baseline")?.stderr;
    let want = "Warning: existing pods in namespace \"adm-security\" violate the new PodSecurity enforce level \"baseline:latest\"\n\
                Warning: old: host namespaces";
    ensure!(warned.trim() == want, "{warned}");
    let host = pod("p", |p| (p["hostNetwork"], p["hostPID"]) = (json!(true), json!(true)));
    let why = "violates PodSecurity \"baseline:latest\": host namespaces (hostNetwork=true, hostPID=true)";
    creating(&k, &host, &forbidden(&format!("pods \"p\" is forbidden: {why}")))?;
    label("pod-security.kubernetes.io/warn=restricted")?;
    label("pod-security.kubernetes.io/warn-version=v1.30")?;
    let why = "allowPrivilegeEscalation != false (container \"c\" must set securityContext.allowPrivilegeEscalation=false), unrestricted \
               capabilities (container \"c\" must set securityContext.capabilities.drop=[\"ALL\"]), runAsNonRoot != true (pod or \
               container \"c\" must set securityContext.runAsNonRoot=true), seccompProfile (pod or container \"c\" must set \
               securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\")";
    let warning = format!("Warning: would violate PodSecurity \"restricted:v1.30\": {why}");
    creating(&k, &pod("p", |_| {}), &format!("{warning}\npod/p created"))?;
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": {"replicas": 0,
        "selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {"labels": {"a": "b"}}, "spec": host["spec"]}}});
    let reported = said(&k, &["create", "-f", "-"], &deployment)?;
    let hosts = "Warning: would violate PodSecurity \"restricted:v1.30\": host namespaces (hostNetwork=true, hostPID=true), allowPriv";
    ensure!(reported.starts_with(hosts) && reported.ends_with("\ndeployment.apps/d created"), "{reported}");
    let container = json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}});
    let good = pod("good", |p| {
        p["securityContext"] = json!({"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}});
        p["containers"][0]["securityContext"] = container;
    });
    creating(&k, &good, "pod/good created")?;
    let bad = label("pod-security.kubernetes.io/enforce=strict")?.stderr;
    let want = "The Namespace \"adm-security\" is invalid: metadata.labels[pod-security.kubernetes.io/enforce]: Invalid value: \
                \"strict\": must be one of privileged, baseline, restricted";
    ensure!(bad.trim() == want, "{bad}");
    Ok(())
}

/// NodeRestriction, as a compromised kubelet would meet it.
pub fn nodes(s: &Subject) -> Outcome {
    let k = namespace(s, "adm-nodes")?;
    let node = |name: &str, labels: Value| json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}});
    let create = ["--as=system:node:adm-n1", "--as-group=system:nodes", "create", "-f", "-"];
    for (object, want) in [
        (
            node("adm-n2", json!({})),
            "nodes \"adm-n2\" is forbidden: node \"adm-n1\" is not allowed to modify node \"adm-n2\"",
        ),
        (
            node("adm-n1", json!({"node-restriction.kubernetes.io/a": "b", "kubernetes.io/os": "linux"})),
            "nodes \"adm-n1\" is forbidden: node \"adm-n1\" is not allowed to set the following labels: \
             node-restriction.kubernetes.io/a",
        ),
        (
            pod("p", |p| p["nodeName"] = json!("adm-n1")),
            "pods \"p\" is forbidden: pod does not have \"kubernetes.io/config.mirror\" annotation, node \"adm-n1\" can only create \
             mirror pods",
        ),
    ] {
        let reported = said(&k, &create, &object)?;
        ensure!(reported == forbidden(want), "{reported}\nexpected was {want}");
    }
    creating_as(&k, &create, &node("adm-n1", json!({"kubernetes.io/os": "linux"})), "node/adm-n1 created")?;
    let patch = |patch: Value| {
        let as_node = ["--as=system:node:adm-n1", "--as-group=system:nodes", "patch", "node", "adm-n1", "-p"];
        k.run(&[&as_node[..], &[&patch.to_string()]].concat())
    };
    // CVE-2025-5187: a node that adds an owner to itself is deleted with that owner.
    let owner = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "u"}]);
    let owned = patch(json!({"metadata": {"ownerReferences": owner}}))?;
    let tainted = patch(json!({"spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}}))?;
    k.ok(&["delete", "node", "adm-n1"])?;
    let start =
        "Error from server (Forbidden): nodes \"adm-n1\" is forbidden: node \"adm-n1\" is not allowed to modify";
    ensure!(owned.stderr.trim() == format!("{start} ownerReferences"), "{}", owned.stderr);
    ensure!(tainted.stderr.trim() == format!("{start} taints"), "{}", tainted.stderr);
    Ok(())
}

fn creating_as(k: &Kubectl, args: &[&str], object: &Value, want: &str) -> Outcome {
    let reported = said(k, args, object)?;
    ensure!(reported == want, "{reported}\nexpected was {want}");
    Ok(())
}
