//! ValidatingAdmissionPolicy and MutatingAdmissionPolicy: typical rules of policy engines as policies, and parameters,
//! several actions and mutations.
use std::time::Duration;

use anyhow::ensure;
use kelson_blackbox::{Kubectl, Outcome, Subject, eventually};
use serde_json::{Value, json};

use super::{creating, said};

const VERSION: &str = "admissionregistration.k8s.io/v1";

fn rules(group: &str, resources: &[&str], operations: &[&str]) -> Value {
    json!({"resourceRules": [{"operations": operations, "apiGroups": [group], "apiVersions": ["*"], "resources": resources}]})
}

/// A policy and its binding to namespaces with the label `policies: <of>`; removed when dropped, since they apply to
/// all namespaces.
struct Policies {
    kubectl: Kubectl,
    of: String,
}

impl Policies {
    fn new(s: &Subject, of: &str) -> anyhow::Result<(Self, Kubectl)> {
        let k = s.kubectl.fresh_namespace(of)?;
        k.ok(&["label", "namespace", of, &format!("policies={of}")])?;
        eventually("the default service account", Duration::from_secs(60), || {
            k.ok(&["get", "serviceaccount", "default"])
        })?;
        Ok((Self { kubectl: s.kubectl.clone(), of: of.to_owned() }, k))
    }

    /// Creates a policy; `kind` is `Validating` or `Mutating`.
    fn add(&self, kind: &str, name: &str, spec: &Value, mut binding: Value) -> Outcome {
        let labels = json!({"of": self.of});
        binding["policyName"] = name.into();
        binding["matchResources"] = json!({"namespaceSelector": {"matchLabels": {"policies": self.of}}});
        let object = |kind: String, spec: &Value| json!({"apiVersion": VERSION, "kind": kind, "metadata": {"name": name, "labels": labels}, "spec": spec});
        let both =
            [object(format!("{kind}AdmissionPolicy"), spec), object(format!("{kind}AdmissionPolicyBinding"), &binding)];
        let list = json!({"apiVersion": "v1", "kind": "List", "items": both});
        self.kubectl.apply(&list.to_string()).map(drop)
    }

    fn deny(&self, name: &str, spec: &Value) -> Outcome {
        self.add("Validating", name, spec, json!({"validationActions": ["Deny"]}))
    }
}

impl Drop for Policies {
    fn drop(&mut self) {
        let kinds = "validatingadmissionpolicies,validatingadmissionpolicybindings,mutatingadmissionpolicies,\
                     mutatingadmissionpolicybindings";
        // Leftovers of a failed test only apply to its own namespace.
        let _ = self.kubectl.run(&["delete", kinds, "-l", &format!("of={}", self.of), "--ignore-not-found"]);
    }
}

fn pod(name: &str, change: impl FnOnce(&mut Value)) -> Value {
    let container =
        json!({"name": "c", "image": "registry.example.com/a:1", "resources": {"limits": {"memory": "64Mi"}}});
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "labels": {"app.kubernetes.io/name": "a"}}, "spec": {"containers": [container]}});
    change(&mut pod);
    pod
}

fn denied(resource: &str, name: &str, policy: &str, message: &str) -> String {
    format!(
        "The {resource} {name:?} is invalid: : ValidatingAdmissionPolicy '{policy}' with binding '{policy}' denied request: {message}"
    )
}

/// Waits until a policy rejects what it must, with dry runs.
fn holds(k: &Kubectl, object: &Value, want: &str) -> Outcome {
    eventually("the policy holds", Duration::from_secs(60), || {
        let reported = said(k, &["create", "--dry-run=server", "-f", "-"], object)?;
        ensure!(reported == want, "{reported}\nexpected was {want}");
        Ok(())
    })
}

/// All containers of a pod, the usual beginning of policies for pods.
const CONTAINERS: &str =
    "object.spec.containers + object.spec.?initContainers.orValue([]) + object.spec.?ephemeralContainers.orValue([])";

/// Policies from the library of a policy engine.
pub fn of_an_engine(s: &Subject) -> Outcome {
    let (policies, k) = Policies::new(s, "adm-engine")?;
    let on_pods = || rules("", &["pods"], &["CREATE", "UPDATE"]);
    let containers = json!([{"name": "containers", "expression": CONTAINERS}]);
    let of_pods = |validation: Value| {
        json!({"matchConstraints": on_pods(), "variables": containers, "validations": [validation],
            "matchConditions": [{"name": "not-of-the-system", "expression": "!('system:masters-only' in request.userInfo.groups)"}]})
    };
    policies.deny(
        "require-labels",
        &of_pods(json!({
        "expression": "'app.kubernetes.io/name' in object.metadata.?labels.orValue({})",
        "message": "the label app.kubernetes.io/name is required"})),
    )?;
    policies.deny("disallow-latest-tag", &of_pods(json!({
        "expression": "variables.containers.all(c, c.image.contains(':') && !c.image.endsWith(':latest'))",
        "messageExpression": "'a tag other than latest is required: ' + variables.containers.filter(c, !c.image.contains(':') || \
            c.image.endsWith(':latest')).map(c, c.name).join(', ')"})))?;
    policies.deny("require-memory-limits", &of_pods(json!({
        "expression": "variables.containers.all(c, has(c.resources) && has(c.resources.limits) && 'memory' in c.resources.limits && \
            quantity(c.resources.limits['memory']).isLessThan(quantity('1Gi')))"})))?;
    policies.deny(
        "disallow-host-path",
        &of_pods(json!({
        "expression": "!has(object.spec.volumes) || object.spec.volumes.all(v, !has(v.hostPath))",
        "message": "volumes of the host are not for pods"})),
    )?;
    policies.deny("disallow-capabilities", &of_pods(json!({
        "expression": "variables.containers.all(c, !has(c.securityContext) || !has(c.securityContext.capabilities) || \
            !has(c.securityContext.capabilities.add) || c.securityContext.capabilities.add.all(x, x in ['NET_BIND_SERVICE']))",
        "message": "of capabilities only NET_BIND_SERVICE may be added"})))?;
    policies.deny("block-deletes", &json!({"matchConstraints": rules("", &["configmaps"], &["DELETE"]), "validations": [
        {"expression": "!('keep' in oldObject.metadata.?labels.orValue({}))", "message": "this one is kept", "reason": "Forbidden"}]}))?;
    policies.deny("limit-replicas", &json!({"matchConstraints": rules("apps", &["deployments", "deployments/scale"],
        &["CREATE", "UPDATE"]), "validations": [{"expression": "object.spec.replicas <= 3", "message": "three replicas at most"}]}))?;
    let unlabelled = pod("p", |p| p["metadata"]["labels"] = json!({}));
    let latest = |p: &mut Value| {
        p["spec"]["initContainers"] = json!([{"name": "i", "image": "registry.example.com/a:latest",
        "resources": {"limits": {"memory": "1Mi"}}}])
    };
    let hostile = |p: &mut Value| p["spec"]["volumes"] = json!([{"name": "v", "hostPath": {"path": "/"}}]);
    let capable = |p: &mut Value| {
        p["spec"]["containers"][0]["securityContext"] =
            json!({"capabilities": {"add": ["NET_BIND_SERVICE", "SYS_ADMIN"]}});
    };
    for (object, policy, message) in [
        (unlabelled, "require-labels", "the label app.kubernetes.io/name is required"),
        (pod("p", latest), "disallow-latest-tag", "a tag other than latest is required: i"),
        (pod("p", hostile), "disallow-host-path", "volumes of the host are not for pods"),
        (pod("p", capable), "disallow-capabilities", "of capabilities only NET_BIND_SERVICE may be added"),
        (
            pod("p", |p| p["spec"]["containers"][0]["resources"]["limits"]["memory"] = json!("2Gi")),
            "require-memory-limits",
            "failed expression: variables.containers.all(c, has(c.resources) && has(c.resources.limits) && 'memory' in \
             c.resources.limits && quantity(c.resources.limits['memory']).isLessThan(quantity('1Gi')))",
        ),
    ] {
        holds(&k, &object, &denied("pods", "p", policy, message))?;
    }
    creating(&k, &pod("good", |_| {}), "pod/good created")?;
    let elsewhere = s.kubectl.namespaced("default");
    let reported = said(
        &elsewhere,
        &["create", "--dry-run=server", "-f", "-"],
        &pod("good", |p| p["metadata"]["labels"] = json!({})),
    )?;
    ensure!(reported == "pod/good created (server dry run)", "other namespaces are not bound: {reported}");
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m", "labels": {"keep": ""}}});
    creating(&k, &map, "configmap/m created")?;
    let want = "Error from server (Forbidden): configmaps \"m\" is forbidden: ValidatingAdmissionPolicy 'block-deletes' with binding \
                'block-deletes' denied request: this one is kept";
    eventually("deletes are judged", Duration::from_secs(60), || {
        let reported = k.fails(&["delete", "configmap", "m", "--dry-run=server"])?.stderr;
        ensure!(reported.trim() == want, "{reported}");
        Ok(())
    })?;
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": pod("t", |_| {})["spec"]});
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": {"replicas": 0,
        "selector": {"matchLabels": {"a": "b"}}, "template": template}});
    creating(&k, &deployment, "deployment.apps/d created")?;
    let reported = k.fails(&["scale", "deployment", "d", "--replicas=4"])?.stderr;
    ensure!(reported.contains("denied request: three replicas at most"), "{reported}");
    Ok(())
}

/// Parameters that change, several actions at once, audit annotations, and results of type checking.
pub fn with_parameters(s: &Subject) -> Outcome {
    let (policies, k) = Policies::new(s, "adm-params")?;
    let spec = json!({"matchConstraints": rules("", &["configmaps"], &["CREATE"]), "failurePolicy": "Fail",
        "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
        "matchConditions": [{"name": "named", "expression": "object.metadata.name.startsWith('judged')"}],
        "variables": [{"name": "max", "expression": "int(params.data['max'])"}],
        "validations": [{"expression": "size(object.?data.orValue({})) <= variables.max",
            "messageExpression": "'at most ' + string(variables.max) + ' keys, not ' + string(size(object.data))", "reason": "Forbidden"}],
        "auditAnnotations": [{"key": "keys", "valueExpression": "string(size(object.?data.orValue({})))"}]});
    let parameters = |action| {
        json!({"validationActions": action,
        "paramRef": {"name": "limits", "namespace": "adm-params", "parameterNotFoundAction": "Deny"}})
    };
    policies.add("Validating", "few-keys", &spec, parameters(json!(["Deny", "Audit"])))?;
    let map = |name: &str, keys: usize| {
        let data: serde_json::Map<String, Value> = (0..keys).map(|i| (format!("k{i}"), json!("v"))).collect();
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data})
    };
    let refused = |message: &str| {
        format!(
            "Error from server (Forbidden): error when creating \"STDIN\": configmaps \"judged\" is forbidden: \
             ValidatingAdmissionPolicy 'few-keys' with binding 'few-keys' denied request: {message}"
        )
    };
    let none = "failed to configure binding: no params found for policy binding with `Deny` parameterNotFoundAction";
    eventually("without parameters nothing passes", Duration::from_secs(60), || {
        let reported = said(&k, &["create", "--dry-run=server", "-f", "-"], &map("judged", 1))?;
        ensure!(reported.contains(none), "{reported}");
        Ok(())
    })?;
    let other = said(&k, &["create", "--dry-run=server", "-f", "-"], &map("other", 5))?;
    ensure!(other.contains(none), "conditions come after parameters: {other}");
    // The ConfigMap with the parameters is checked too until it exists.
    let lenient = json!({"validationActions": ["Deny"], "paramRef": {"name": "limits", "namespace": "adm-params",
        "parameterNotFoundAction": "Allow"}});
    policies.add("Validating", "few-keys", &spec, lenient)?;
    eventually("without parameters everything passes", Duration::from_secs(60), || {
        k.run(&["delete", "configmap", "limits", "--ignore-not-found"])?;
        k.ok(&["create", "configmap", "limits", "--from-literal=max=1"])
    })?;
    policies.add("Validating", "few-keys", &spec, parameters(json!(["Deny", "Audit"])))?;
    holds(&k, &map("judged", 2), &refused("at most 1 keys, not 2"))?;
    creating(&k, &map("other", 5), "configmap/other created")?;
    k.ok(&["patch", "configmap", "limits", "-p", r#"{"data":{"max":"2"}}"#])?;
    holds(&k, &map("judged", 3), &refused("at most 2 keys, not 3"))?;
    policies.add("Validating", "few-keys", &spec, parameters(json!(["Warn"])))?;
    let want = "Warning: Validation failed for ValidatingAdmissionPolicy 'few-keys' with binding 'few-keys': at most 2 keys, not 3\n\
                configmap/judged created (server dry run)";
    holds(&k, &map("judged", 3), want)?;
    k.ok(&["patch", "configmap", "limits", "-p", r#"{"data":{"max":"many"}}"#])?;
    eventually("what cannot be evaluated is a failure", Duration::from_secs(60), || {
        let reported = said(&k, &["create", "--dry-run=server", "-f", "-"], &map("judged", 1))?;
        ensure!(
            reported.contains(
                "expression 'size(object.?data.orValue({})) <= variables.max' resulted in error: composited variable \
            \"max\" fails to evaluate"
            ),
            "{reported}"
        );
        Ok(())
    })?;
    let of_one = json!({"resourceRules": [{"operations": ["CREATE"], "apiGroups": ["apps"], "apiVersions": ["v1"], "resources": ["deployments"]}]});
    let wrong = json!({"matchConstraints": of_one, "validations": [
        {"expression": "object.spec.replicaz > 1"}]});
    policies.deny("mistyped", &wrong)?;
    let warning = eventually("types are checked", Duration::from_secs(60), || {
        let policy = s.kubectl.json(&["get", "validatingadmissionpolicy", "mistyped"])?;
        let warnings = &policy["status"]["typeChecking"]["expressionWarnings"];
        ensure!(warnings.is_array(), "{}", policy["status"]);
        Ok(warnings[0].clone())
    })?;
    let reported = warning["warning"].as_str().unwrap_or_default();
    ensure!(warning["fieldRef"] == "spec.validations[0].expression", "{warning}");
    ensure!(
        reported.starts_with("apps/v1, Kind=Deployment: ERROR: <input>:1:12: undefined field 'replicaz'"),
        "{reported}"
    );
    let broken = json!({"apiVersion": VERSION, "kind": "ValidatingAdmissionPolicy", "metadata": {"name": "broken"}, "spec": {
        "matchConstraints": rules("", &["pods"], &["CREATE"]), "validations": [{"expression": "object.x ++"}]}});
    let reported = said(&k, &["create", "-f", "-"], &broken)?;
    let start = "The ValidatingAdmissionPolicy \"broken\" is invalid: spec.validations[0].expression: Invalid value: \"object.x ++\": \
                 compilation failed: ERROR: <input>:1:";
    ensure!(reported.starts_with(start), "{reported}");
    Ok(())
}

/// A sidecar by apply configuration, a label by JSON patch, one after the other, and not a second time.
pub fn that_mutate(s: &Subject) -> Outcome {
    let (policies, k) = Policies::new(s, "adm-mutate")?;
    let sidecar = "Object{spec: Object.spec{initContainers: [Object.spec.initContainers{name: 'proxy', image: \
                   'registry.example.com/proxy:1', restartPolicy: 'Always'}]}}";
    let spec = |condition: &str, mutation: Value| {
        json!({"matchConstraints": rules("", &["pods"], &["CREATE"]), "failurePolicy": "Fail", "reinvocationPolicy": "IfNeeded",
            "matchConditions": [{"name": "c", "expression": condition}], "mutations": [mutation]})
    };
    let absent = "!object.spec.?initContainers.orValue([]).exists(c, c.name == 'proxy')";
    policies.add(
        "Mutating",
        "add-proxy",
        &spec(
            absent,
            json!({"patchType": "ApplyConfiguration",
        "applyConfiguration": {"expression": sidecar}}),
        ),
        json!({}),
    )?;
    let patch = "[JSONPatch{op: 'add', path: '/metadata/labels/' + jsonpatch.escapeKey('mesh.example.com/proxied'), value: \
                 string(size(object.spec.?initContainers.orValue([])))}]";
    policies.add(
        "Mutating",
        "note-proxy",
        &spec("true", json!({"patchType": "JSONPatch", "jsonPatch": {"expression": patch}})),
        json!({}),
    )?;
    let made = eventually("the policies hold", Duration::from_secs(60), || {
        let out = k.with_input(
            &["create", "--dry-run=server", "-o", "json", "-f", "-"],
            pod("p", |_| {}).to_string().as_bytes(),
        )?;
        let made: Value = serde_json::from_str(&out.stdout)?;
        ensure!(made["metadata"]["labels"]["mesh.example.com/proxied"] == "1", "{}", made["metadata"]);
        Ok(made)
    })?;
    let proxies = made["spec"]["initContainers"].as_array().map_or(0, Vec::len);
    let proxy = &made["spec"]["initContainers"][0];
    ensure!(proxies == 1 && proxy["restartPolicy"] == "Always", "{}", made["spec"]);
    ensure!(proxy["imagePullPolicy"] == "IfNotPresent", "what is added has defaults, too: {proxy}");
    policies.add(
        "Mutating",
        "note-proxy",
        &spec(
            "true",
            json!({"patchType": "JSONPatch", "jsonPatch":
        {"expression": "[JSONPatch{op: 'remove', path: '/spec/nothing'}]"}}),
        ),
        json!({}),
    )?;
    eventually("a patch that does not fit is a failure", Duration::from_secs(60), || {
        let reported = said(&k, &["create", "--dry-run=server", "-f", "-"], &pod("p", |_| {}))?;
        ensure!(reported.contains("policy 'note-proxy' with binding 'note-proxy' denied request: "), "{reported}");
        Ok(())
    })
}
