//! Requests by which a user of one namespace once stopped, overloaded or bypassed the whole server: each is answered,
//! with an error if it requests something forbidden, and the server continues.
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, ensure};
use kelson_blackbox::{Kubectl, Needs::Api, Outcome, Subject, Test};
use serde_json::{Value, json};

pub fn tests() -> Vec<Test> {
    vec![
        Test { name: "hostile_requests::documents_that_grow", needs: Api, run: documents },
        Test { name: "hostile_requests::rights_that_were_not_granted", needs: Api, run: rights },
        Test { name: "hostile_requests::numbers_beyond_all_time", needs: Api, run: numbers },
    ]
}

/// An account with all permissions in one namespace, and how it sends requests.
struct Account {
    k: Kubectl,
    server: String,
    token: String,
    dir: tempfile::TempDir,
}

impl Account {
    fn new(s: &Subject, name: &str) -> anyhow::Result<Self> {
        let k = s.kubectl.fresh_namespace(name)?;
        k.ok(&["create", "serviceaccount", "tenant"])?;
        let namespace = k.ok(&["get", "sa", "tenant", "-o", "jsonpath={.metadata.namespace}"])?;
        let account = format!("--serviceaccount={}:tenant", namespace.trim());
        k.ok(&["create", "rolebinding", "tenant", "--clusterrole=admin", &account])?;
        let server = k.ok(&["config", "view", "--raw", "--minify", "-o", "jsonpath={.clusters[0].cluster.server}"])?;
        let token = k.ok(&["create", "token", "tenant"])?.trim().to_owned();
        Ok(Self { k, server: server.trim().to_owned(), token, dir: tempfile::tempdir()? })
    }

    fn namespace(&self) -> anyhow::Result<String> {
        self.k.ok(&["get", "sa", "tenant", "-o", "jsonpath={.metadata.namespace}"])
    }

    /// Returns status code and body of the answer, which comes within half a minute.
    fn ask(
        &self,
        method: &str,
        path: &str,
        headers: &[OsString],
        body: Option<&[u8]>,
    ) -> anyhow::Result<(u16, String)> {
        let mut curl = Command::new("curl");
        curl.args(["-sk", "--path-as-is", "-m", "30", "-w", "\n%{http_code}", "-X", method]);
        curl.arg("-H").arg(format!("Authorization: Bearer {}", self.token));
        for header in headers {
            curl.arg("-H").arg(header);
        }
        if let Some(body) = body {
            let file = self.dir.path().join("body");
            std::fs::write(&file, body)?;
            curl.arg("--data-binary").arg(format!("@{}", Path::new(&file).display()));
        }
        let out = curl.arg(format!("{}{path}", self.server)).output()?;
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        let (text, code) = text.rsplit_once('\n').context("no status code")?;
        Ok((code.parse()?, text.to_owned()))
    }

    fn send(&self, method: &str, path: &str, media: &str, body: &[u8]) -> anyhow::Result<(u16, String)> {
        self.ask(method, path, &[format!("Content-Type: {media}").into()], Some(body))
    }
}

/// Checks that the request is rejected as the client's error.
fn refused(what: &str, (code, text): &(u16, String)) -> Outcome {
    let reported = &text[..text.floor_char_boundary(600)];
    ensure!((400..500).contains(code), "{what}: {code} {reported}");
    let status: Value = serde_json::from_str(text).with_context(|| format!("{what}: {reported}"))?;
    ensure!(status["kind"] == "Status" && status["status"] == "Failure", "{what}: {reported}");
    Ok(())
}

fn documents(s: &Subject) -> Outcome {
    let account = Account::new(s, "grow")?;
    let namespace = account.namespace()?;
    let reviews = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    // A thousand times half a megabyte.
    let aliases = format!("a: &a \"{}\"\nb: [{}]\n", "x".repeat(500_000), "*a, ".repeat(1_000));
    refused("aliases", &account.send("POST", reviews, "application/yaml", aliases.as_bytes())?)?;
    let anchors: String = (0..100).map(|i| format!("&a{i} [{}", "x,".repeat(800))).collect();
    let anchors = format!("a: {anchors}{}\n", "]".repeat(100));
    refused("anchors", &account.send("POST", reviews, "application/yaml", anchors.as_bytes())?)?;
    let nested = format!("{{\"a\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
    refused("nesting", &account.send("POST", reviews, "application/json", nested.as_bytes())?)?;

    account.k.ok(&["create", "configmap", "victim", "--from-literal=a=b"])?;
    let victim = format!("/api/v1/namespaces/{namespace}/configmaps/victim");
    // Each iteration of three makes the whole object one level deeper.
    let wrap = [
        json!({"op": "add", "path": "/b", "value": {}}),
        json!({"op": "move", "from": "/metadata", "path": "/b/metadata"}),
        json!({"op": "move", "from": "/b", "path": "/metadata"}),
    ];
    let wraps: Vec<&Value> = wrap.iter().cycle().take(3_000).collect();
    let wraps = serde_json::to_vec(&wraps)?;
    refused("wraps", &account.send("PATCH", &victim, "application/json-patch+json", &wraps)?)?;
    let copies = vec![json!({"op": "copy", "from": "/data", "path": "/data/c"}); 40];
    let copies = serde_json::to_vec(&copies)?;
    refused("copies", &account.send("PATCH", &victim, "application/json-patch+json", &copies)?)?;
    // Quadratic merges took half a minute for a tenth of this.
    let names: Vec<String> = (0..150_000).map(|i| format!("a.b/{i}")).collect();
    let finalizers = json!({"metadata": {"finalizers": names, "$deleteFromPrimitiveList/finalizers": names}});
    let finalizers = serde_json::to_vec(&finalizers)?;
    let (code, text) = account.send("PATCH", &victim, "application/strategic-merge-patch+json", &finalizers)?;
    ensure!(code < 500, "{code} {text}");
    account.k.ok(&["get", "configmap", "victim"])?;
    s.kubectl.ok(&["get", "--raw", "/readyz"])?;
    Ok(())
}

fn rights(s: &Subject) -> Outcome {
    let account = Account::new(s, "rights")?;
    let namespace = account.namespace()?;
    let words = |prefix: &str| (0..60).map(|i| format!("{prefix}{i}")).collect::<Vec<_>>();
    let rule = json!({"verbs": words("v"), "apiGroups": words("g"), "resources": words("r")});
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "cube"}, "rules": [rule]});
    let roles = format!("/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/roles");
    refused("a product of rules", &account.send("POST", &roles, "application/json", role.to_string().as_bytes())?)?;

    // An unreadable header does not count as absent: the request would run as its sender.
    let header = |name: &str, value: &[u8]| OsString::from_vec([name.as_bytes(), b": ", value].concat());
    let maps = format!("/api/v1/namespaces/{namespace}/configmaps");
    let (code, text) = account.ask("GET", &maps, &[], None)?;
    ensure!(code == 200, "{code} {text}");
    refused("nobody's name", &account.ask("GET", &maps, &[header("Impersonate-User", b"J\xfcrgen")], None)?)?;
    let group = [header("Impersonate-User", b"x"), header("Impersonate-Group", b"\xff\xfe")];
    refused("nobody's group", &account.ask("GET", &maps, &group, None)?)?;

    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}}).to_string();
    let path = format!("{maps}?fieldManager={}", "m".repeat(129));
    refused("a long manager", &account.send("POST", &path, "application/json", map.as_bytes())?)?;

    // Read permissions do not allow commands, whatever the path's spelling.
    let reader = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": format!("reader-{namespace}")},
        "rules": [{"apiGroups": [""], "resources": ["nodes", "nodes/proxy"], "verbs": ["list", "watch"]}]});
    s.kubectl.apply(&reader.to_string())?;
    let name = format!("reader-{namespace}");
    let (role, who) = (format!("--clusterrole={name}"), format!("--serviceaccount={namespace}:tenant"));
    s.kubectl.ok(&["create", "clusterrolebinding", &name, &role, &who])?;
    let run = "proxy/run/ns/pod/c?cmd=id";
    let attempts = [
        format!("/api/v1/watch/nodes/n/{run}"),
        format!("/api/v1//watch/nodes/n/{run}"),
        format!("/api/v1/nodes/n/{run}"),
        format!("/api/v1/nodes/n//{run}"),
        "/api/v1/nodes/n/proxy/%72un/ns/pod/c?cmd=id".to_owned(),
    ];
    for path in attempts {
        let (code, text) = account.ask("POST", &path, &[], Some(b""))?;
        ensure!((300..500).contains(&code), "{path}: {code} {text}");
    }
    s.kubectl.ok(&["delete", "clusterrolebinding", &name])?;
    s.kubectl.ok(&["delete", "clusterrole", &name])?;

    // Unknown resources create no time series.
    let (code, _) = account.ask("GET", "/api/v1/namespaces/x/evilresource%22%7D%0Aevil/y", &[], None)?;
    ensure!((400..500).contains(&code), "{code}");
    let metrics = s.kubectl.ok(&["get", "--raw", "/metrics"])?;
    ensure!(!metrics.contains("evilresource"), "a client's word is a label");
    Ok(())
}

fn numbers(s: &Subject) -> Outcome {
    let account = Account::new(s, "numbers")?;
    let namespace = account.namespace()?;
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "eternal"}, "spec": {
        "nodeName": "no-such-node", "terminationGracePeriodSeconds": i64::MAX, "automountServiceAccountToken": false,
        "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute",
            "tolerationSeconds": i64::MAX}],
        "containers": [{"name": "c", "image": "x"}]}});
    let pods = format!("/api/v1/namespaces/{namespace}/pods");
    let (code, text) = account.send("POST", &pods, "application/json", pod.to_string().as_bytes())?;
    if code == 422 {
        return Ok(());
    }
    ensure!(code == 201, "{code} {text}");
    let (code, text) = account.send("DELETE", &format!("{pods}/eternal"), "application/json", b"{}")?;
    ensure!(code < 500, "{code} {text}");
    let now = json!({"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}).to_string();
    let (code, text) = account.send("DELETE", &format!("{pods}/eternal"), "application/json", now.as_bytes())?;
    ensure!(code == 200 || code == 404, "{code} {text}");
    let (code, text) = account.ask("GET", &format!("{pods}/eternal"), &[], None)?;
    ensure!(code == 404, "{code} {text}");
    Ok(())
}
