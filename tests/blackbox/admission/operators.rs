//! Operators that depend on webhooks, in pods: one like cert-manager (its webhook, and its CA injector) and a mesh like
//! Istio (a sidecar and an init container in every pod, its bundle patched while running). The image is made from this
//! test program; the test is the issuer, which writes certificates into Secrets and replaces them.
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use kelson_blackbox::issuer::{Issued, issue};
use kelson_blackbox::operator::INJECT_FROM;
use kelson_blackbox::registry::{archive, base64, make_with, program};
use kelson_blackbox::{Kubectl, Outcome, Subject, binary, eventually};
use serde_json::{Value, json};

use super::{creating, said};
use crate::pods::{IMAGE, ready};

const OPERATOR: &str = "kelson.local/test/operator:1";
const WITHIN: Duration = Duration::from_secs(90);

/// An operator's namespace with its injector and its server, which is `webhook.<namespace>.svc`.
struct Operator {
    kubectl: Kubectl,
    namespace: &'static str,
    /// Objects outside of its namespace, with their kinds.
    outside: Vec<(&'static str, String)>,
}

impl Operator {
    fn install(s: &Subject, namespace: &'static str) -> anyhow::Result<Self> {
        load(s)?;
        s.kubectl.ok(&["create", "namespace", namespace])?;
        let operator = Self {
            kubectl: s.kubectl.clone(),
            namespace,
            outside: vec![("clusterrole", namespace.to_owned()), ("clusterrolebinding", namespace.to_owned())],
        };
        operator.issue()?;
        let rule = |group: &str, resources: &[&str], verbs: &[&str]| json!({"apiGroups": [group], "resources": resources, "verbs": verbs});
        let configurations = ["mutatingwebhookconfigurations", "validatingwebhookconfigurations"];
        let objects = json!([
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "operator"}},
            {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": namespace}, "rules": [
                rule("", &["secrets"], &["get"]),
                rule("admissionregistration.k8s.io", &configurations, &["list", "patch"]),
                rule("apiextensions.k8s.io", &["customresourcedefinitions"], &["list", "patch"])]},
            {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": namespace},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": namespace},
                "subjects": [{"kind": "ServiceAccount", "name": "operator", "namespace": namespace}]},
            {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "webhook"},
                "spec": {"selector": {"app": "webhook"}, "ports": [{"port": 443, "targetPort": "https"}]}},
            deployment("webhook", json!({"args": ["operator", "serve", format!("{namespace}/ca")],
                "ports": [{"name": "https", "containerPort": 8443}], "readinessProbe": {"tcpSocket": {"port": "https"}, "periodSeconds": 1}})),
            deployment("injector", json!({"args": ["operator", "inject"]})),
        ]);
        operator.here().apply(&json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string())?;
        Ok(operator)
    }

    fn here(&self) -> Kubectl {
        self.kubectl.namespaced(self.namespace)
    }

    /// Issues a certificate of a new CA into the Secret.
    fn issue(&self) -> anyhow::Result<Issued> {
        let issued = issue(&[&format!("webhook.{}.svc", self.namespace)])?;
        let data = json!({"ca.crt": issued.authority, "tls.crt": issued.certificate, "tls.key": issued.key});
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "ca"}, "stringData": data});
        self.here().apply(&secret.to_string())?;
        Ok(issued)
    }

    fn client_config(&self, path: &str) -> Value {
        json!({"service": {"namespace": self.namespace, "name": "webhook", "path": path}})
    }

    /// Applies a cluster-scoped object that requests the CA.
    fn wants_authority(&mut self, kind: &'static str, mut object: Value) -> Outcome {
        object["metadata"]["annotations"][INJECT_FROM] = format!("{}/ca", self.namespace).into();
        self.outside.push((kind, object["metadata"]["name"].as_str().unwrap_or_default().to_owned()));
        self.kubectl.apply(&object.to_string()).map(drop)
    }

    /// Waits until the CA was injected.
    fn injected(&self, issued: &Issued, kind: &str, name: &str, place: &str) -> Outcome {
        let bundle = base64(issued.authority.as_bytes());
        eventually("the authority is injected", WITHIN, || {
            let object = self.kubectl.json(&["get", kind, name])?;
            let found = object.pointer(place).and_then(Value::as_str);
            let logs =
                || self.here().run(&["logs", "deployment/injector"]).map(|o| o.stdout + &o.stderr).unwrap_or_default();
            ensure!(found == Some(&bundle), "{kind}/{name} has another; the injector says:\n{}", logs());
            Ok(())
        })
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        // Leftovers of a failed test; a second error would hide the first.
        for (kind, name) in self.outside.iter().rev() {
            let _ = self.kubectl.run(&["delete", kind, name, "--ignore-not-found", "--wait=false"]);
        }
        let _ = self.kubectl.run(&["delete", "namespace", self.namespace, "--wait=false"]);
    }
}

fn deployment(name: &str, more: Value) -> Value {
    let mut container =
        json!({"name": "operator", "image": OPERATOR, "imagePullPolicy": "Never", "command": ["/operator"]});
    if let (Some(container), Value::Object(more)) = (container.as_object_mut(), more) {
        container.extend(more);
    }
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": {
        "selector": {"matchLabels": {"app": name}}, "template": {"metadata": {"labels": {"app": name}}, "spec": {
            "serviceAccountName": "operator", "terminationGracePeriodSeconds": 1, "containers": [container]}}}})
}

/// Builds the operator's image and loads it into the node.
fn load(s: &Subject) -> Outcome {
    let server = s.server.as_ref().context("a server of ours")?;
    let dir = tempfile::tempdir()?;
    let stripped = dir.path().join("operator");
    let strip = Command::new("strip").arg("-o").arg(&stripped).arg(std::env::current_exe()?).status();
    // Smaller if binutils are installed.
    let own = if strip.is_ok_and(|s| s.success()) { stripped } else { std::env::current_exe()? };
    let tar = dir.path().join("operator.tar");
    archive(&make_with("operator", &["sh"], &program(&own, "/operator")?)?, OPERATOR, &tar)?;
    eventually("the image is loaded", WITHIN, || {
        let out =
            Command::new(binary()).args(["image", "import"]).arg(&tar).arg("--data-dir").arg(&server.dir).output()?;
        ensure!(
            out.status.success(),
            "{}{}",
            String::from_utf8_lossy(&out.stdout),
            String::from_utf8_lossy(&out.stderr)
        );
        Ok(())
    })
}

/// The kind of the first operator; the two versions differ in the position of the issuer.
fn definition(conversion: &Value) -> Value {
    let version = |name: &str, storage: bool, issuer: &str| {
        let text = json!({"type": "string"});
        let spec = json!({"type": "object", "properties": {issuer: text, "rotation": text, "requestor": text}});
        json!({"name": name, "served": true, "storage": storage, "schema": {"openAPIV3Schema": {"type": "object",
            "properties": {"spec": spec}}}})
    };
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "certificates.operator.example.com"}, "spec": {"group": "operator.example.com", "scope": "Namespaced",
            "names": {"plural": "certificates", "singular": "certificate", "kind": "Certificate", "listKind": "CertificateList"},
            "versions": [version("v1", true, "issuer"), version("v1alpha1", false, "issuerName")],
            "conversion": {"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"], "clientConfig": conversion}}}})
}

fn certificate(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "operator.example.com/v1", "kind": "Certificate", "metadata": {"name": name}, "spec": spec})
}

/// As cert-manager does: defaults and validation by webhooks of a service, conversion by the same server, and every CA
/// bundle set by an injector, again when the CA changes.
pub fn certificates(s: &Subject) -> Outcome {
    let mut operator = Operator::install(s, "adm-certs")?;
    let first = operator.issue()?;
    operator.wants_authority("crd", definition(&operator.client_config("/convert")))?;
    let configuration = |kind: &str, path: &str| {
        json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": "adm-certs"}, "webhooks": [{
            "name": "webhook.operator.example.com", "sideEffects": "None", "admissionReviewVersions": ["v1"], "failurePolicy": "Fail",
            "timeoutSeconds": 10, "matchPolicy": "Equivalent", "clientConfig": operator.client_config(path), "rules": [{
                "operations": ["CREATE", "UPDATE"], "apiGroups": ["operator.example.com"], "apiVersions": ["v1"],
                "resources": ["certificates"]}]}]})
    };
    let mutating = configuration("MutatingWebhookConfiguration", "/default-certificate");
    let validating = configuration("ValidatingWebhookConfiguration", "/judge-certificate");
    operator.wants_authority("mutatingwebhookconfiguration", mutating)?;
    operator.wants_authority("validatingwebhookconfiguration", validating)?;
    let here = operator.here();
    here.ok(&["rollout", "status", "deployment/webhook", "--timeout=120s"])?;
    let bundle = "/webhooks/0/clientConfig/caBundle";
    let everywhere = |operator: &Operator, issued: &Issued| {
        operator.injected(issued, "mutatingwebhookconfiguration", "adm-certs", bundle)?;
        operator.injected(issued, "validatingwebhookconfiguration", "adm-certs", bundle)?;
        let place = "/spec/conversion/webhook/clientConfig/caBundle";
        operator.injected(issued, "crd", "certificates.operator.example.com", place)
    };
    everywhere(&operator, &first)?;
    let made = "Warning: spec.rotation defaults to Always\ncertificate.operator.example.com/web created";
    eventually("the operator serves", WITHIN, || {
        creating(&here, &certificate("web", json!({"issuer": "ours"})), made)
    })?;
    let spec = here.json(&["get", "certificates.v1.operator.example.com", "web"])?["spec"].clone();
    ensure!(
        spec == json!({"issuer": "ours", "rotation": "Always", "requestor": "kubernetes-admin"})
            || spec["requestor"].is_string() && spec["rotation"] == "Always",
        "{spec}"
    );
    let old = here.json(&["get", "certificates.v1alpha1.operator.example.com", "web"])?["spec"].clone();
    ensure!(old["issuerName"] == "ours" && old["issuer"].is_null(), "converted: {old}");
    let refused = said(&here, &["create", "-f", "-"], &certificate("none", json!({})))?;
    ensure!(
        refused.contains(
            "admission webhook \"webhook.operator.example.com\" denied the request: spec.issuer: Required value"
        ),
        "{refused}"
    );
    // The other version is validated by the same webhooks, in the version that they know.
    let mut alpha = certificate("alpha", json!({"issuerName": "ours"}));
    alpha["apiVersion"] = "operator.example.com/v1alpha1".into();
    let reported = said(&here, &["create", "-f", "-"], &alpha)?;
    ensure!(reported.ends_with("certificate.operator.example.com/alpha created"), "{reported}");
    let second = operator.issue()?;
    everywhere(&operator, &second)?;
    eventually("the operator serves under its new authority", WITHIN, || {
        let out = said(
            &here,
            &["create", "--dry-run=server", "-f", "-"],
            &certificate("rotated", json!({"issuer": "ours"})),
        )?;
        ensure!(out.ends_with("certificate.operator.example.com/rotated created (server dry run)"), "{out}");
        here.json(&["get", "certificates.v1alpha1.operator.example.com", "web"]).map(drop)
    })?;
    // While it is down matching requests fail, and others continue to work.
    here.ok(&["scale", "deployment", "webhook", "--replicas=0"])?;
    eventually("nobody is there", WITHIN, || {
        let out =
            said(&here, &["create", "--dry-run=server", "-f", "-"], &certificate("lost", json!({"issuer": "ours"})))?;
        ensure!(out.contains("failed calling webhook \"webhook.operator.example.com\""), "{out}");
        Ok(())
    })?;
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "unjudged"}});
    creating(&here, &map, "configmap/unjudged created")
}

/// As Istio does: pods of labelled namespaces get a container that prepares their network and a proxy, and run with
/// both; the bundle is patched while running.
pub fn sidecars(s: &Subject) -> Outcome {
    let mut operator = Operator::install(s, "adm-mesh")?;
    let first = operator.issue()?;
    let hook = json!({"name": "sidecars.mesh.example.com", "sideEffects": "None", "admissionReviewVersions": ["v1beta1", "v1"],
        "clientConfig": operator.client_config("/inject-sidecar"), "failurePolicy": "Fail", "reinvocationPolicy": "IfNeeded",
        "namespaceSelector": {"matchLabels": {"mesh-injection": "enabled"}},
        "objectSelector": {"matchExpressions": [{"key": "sidecar.mesh.example.com/inject", "operator": "NotIn", "values": ["false"]}]},
        "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "scope": "*"}]});
    let kind = "mutatingwebhookconfiguration";
    let configuration = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": "adm-mesh"}, "webhooks": [hook]});
    operator.wants_authority(kind, configuration)?;
    operator.here().ok(&["rollout", "status", "deployment/webhook", "--timeout=120s"])?;
    operator.injected(&first, kind, "adm-mesh", "/webhooks/0/clientConfig/caBundle")?;
    let k = s.kubectl.fresh_namespace("adm-meshed")?;
    k.ok(&["label", "namespace", "adm-meshed", "mesh-injection=enabled"])?;
    let pod = |name: &str, labels: Value| {
        let container = json!({"name": "app", "image": IMAGE, "command": ["sleep", "6000"], "resources": {}});
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels},
            "spec": {"terminationGracePeriodSeconds": 1, "containers": [container]}})
    };
    eventually("the mesh serves", WITHIN, || creating(&k, &pod("meshed", json!({})), "pod/meshed created"))?;
    ready(&k, "meshed")?;
    let made = k.json(&["get", "pod", "meshed"])?;
    let names = |list: &Value| list.as_array().into_iter().flatten().map(|c| c["name"].clone()).collect::<Vec<_>>();
    ensure!(names(&made["spec"]["containers"]) == ["app", "mesh-proxy"], "{}", made["spec"]);
    ensure!(names(&made["spec"]["initContainers"]) == ["mesh-init"], "{}", made["spec"]);
    let state = &made["status"]["initContainerStatuses"][0]["state"];
    ensure!(state["terminated"]["exitCode"] == 0, "{state}");
    let seen = k.ok(&["exec", "meshed", "-c", "app", "--", "wget", "-qO-", "http://127.0.0.1:15021/"])?;
    ensure!(seen.trim() == "redirected", "the proxy serves what the init container prepared: {seen}");
    creating(&k, &pod("out", json!({"sidecar.mesh.example.com/inject": "false"})), "pod/out created")?;
    ensure!(names(&k.json(&["get", "pod", "out"])?["spec"]["containers"]) == ["app"], "left out by its label");
    let second = operator.issue()?;
    operator.injected(&second, kind, "adm-mesh", "/webhooks/0/clientConfig/caBundle")?;
    eventually("the mesh serves under its new authority", WITHIN, || {
        creating(&k, &pod("rotated", json!({})), "pod/rotated created")
    })?;
    ensure!(names(&k.json(&["get", "pod", "rotated"])?["spec"]["containers"]).len() == 2, "injected again");
    Ok(())
}
