//! API servers on a real etcd (Debian's): two of them on one, either of the parts killed without a word.
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use kelson_blackbox::{Needs::OwnServer, Outcome, Subject, Test, binary, free_port, sh};
use serde_json::{Value, json};

use crate::envtest::{PATIENCE, Running, ask};

pub fn tests() -> Vec<Test> {
    vec![
        Test { name: "etcd::two_servers_on_one_and_either_part_killed", needs: OwnServer, run: killed },
        Test { name: "etcd::endpoints_name_the_servers_that_live", needs: OwnServer, run: endpoints },
    ]
}

/// One etcd and the files of its servers.
struct Place {
    dir: PathBuf,
    client: u16,
    peer: u16,
}

impl Place {
    fn new(dir: &Path) -> anyhow::Result<Self> {
        fs::write(dir.join("tokens.csv"), "t0k3n,admin,1,\"system:masters\"\n")?;
        sh(&format!("openssl genrsa -out {0}/sa.key 2048 2>/dev/null && chmod 600 {0}/tokens.csv", dir.display()))?;
        Ok(Self { dir: dir.to_owned(), client: free_port()?, peer: free_port()? })
    }

    fn etcd(&self) -> anyhow::Result<Running> {
        let (client, peer) = (format!("http://127.0.0.1:{}", self.client), format!("http://127.0.0.1:{}", self.peer));
        let flags = [
            format!("--data-dir={}", self.dir.join("etcd").display()),
            format!("--listen-client-urls={client}"),
            format!("--advertise-client-urls={client}"),
            format!("--listen-peer-urls={peer}"),
            format!("--initial-advertise-peer-urls={peer}"),
            format!("--initial-cluster=default={peer}"),
        ];
        let mut etcd = Running::start(Path::new("etcd"), &flags, self.dir.join("etcd.log"))?;
        let health = format!("{client}/health");
        etcd.until("etcd is healthy", || ask(&[&health]).is_ok_and(|(code, _)| code == 200))?;
        Ok(etcd)
    }

    fn server(&self, name: &str) -> anyhow::Result<Server> {
        self.server_with(name, &[])
    }

    fn server_with(&self, name: &str, more: &[&str]) -> anyhow::Result<Server> {
        let (dir, port) = (self.dir.display(), free_port()?);
        let mut flags = vec![
            "kube-apiserver".to_owned(),
            format!("--etcd-servers=http://127.0.0.1:{}", self.client),
            "--bind-address=127.0.0.1".to_owned(),
            format!("--secure-port={port}"),
            format!("--cert-dir={dir}/{name}"),
            format!("--token-auth-file={dir}/tokens.csv"),
            "--authorization-mode=RBAC".to_owned(),
            "--disable-admission-plugins=ServiceAccount".to_owned(),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            format!("--service-account-key-file={dir}/sa.key"),
            format!("--service-account-signing-key-file={dir}/sa.key"),
        ];
        flags.extend(more.iter().map(|flag| (*flag).to_owned()));
        let running = Running::start(&binary(), &flags, self.dir.join(format!("{name}.log")))?;
        let mut server = Server { running, port };
        server.until_ready()?;
        Ok(server)
    }
}

/// One API server.
struct Server {
    running: Running,
    port: u16,
}

impl Server {
    fn call(&self, method: &str, path: &str, body: &Value) -> anyhow::Result<(u16, Value)> {
        let (url, body) = (format!("https://127.0.0.1:{}{path}", self.port), body.to_string());
        let mut args = vec!["-X", method, "-H", "Authorization: Bearer t0k3n", &url];
        if body != "null" {
            args.extend(["-H", "Content-Type: application/json", "-d", &body]);
        }
        let (code, text) = ask(&args)?;
        Ok((code, serde_json::from_str(&text).unwrap_or(Value::String(text))))
    }

    fn get(&self, path: &str) -> anyhow::Result<Value> {
        let (code, object) = self.call("GET", path, &Value::Null)?;
        ensure!(code == 200, "GET {path}: {code} {object}");
        Ok(object)
    }

    fn create(&self, path: &str, object: &Value) -> anyhow::Result<Value> {
        let (code, made) = self.call("POST", path, object)?;
        ensure!(code == 201, "POST {path}: {code} {made}");
        Ok(made)
    }

    fn is_ready(&self) -> bool {
        self.call("GET", "/readyz", &Value::Null).is_ok_and(|(code, _)| code == 200)
    }

    fn until_ready(&mut self) -> Outcome {
        let port = self.port;
        let url = format!("https://127.0.0.1:{port}/readyz");
        let ready = || ask(&["-H", "Authorization: Bearer t0k3n", &url]).is_ok_and(|(code, _)| code == 200);
        self.running.until("the API is ready", ready)
    }
}

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const WIDGETS: &str = "/apis/example.com/v1/namespaces/default/widgets";

fn map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"of": name}})
}

/// Everything that is listed, by all who serve it, is the same.
fn same(one: &Server, other: &Server) -> Outcome {
    for path in ["/api/v1/configmaps", "/api/v1/namespaces", "/apis/rbac.authorization.k8s.io/v1/clusterroles", WIDGETS]
    {
        let (ours, theirs) = (one.get(path)?["items"].take(), other.get(path)?["items"].take());
        ensure!(ours == theirs, "{path} differs: {ours} {theirs}");
    }
    Ok(())
}

fn killed(_: &Subject) -> Outcome {
    let scratch = tempfile::tempdir()?;
    let place = Place::new(scratch.path())?;
    let etcd = place.etcd()?;
    let (first, mut second) = (place.server("first")?, place.server("second")?);
    let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced", "names": {"plural": "widgets", "kind": "Widget"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema":
                {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]}});
    first.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &definition)?;
    let widget =
        json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": {"n": 1.5}});
    let serves = |server: &Server| server.call("GET", WIDGETS, &Value::Null).is_ok_and(|(code, _)| code == 200);
    kelson_blackbox::eventually("the other serves what this one was told", PATIENCE, || {
        ensure!(serves(&second), "not yet");
        Ok(())
    })?;
    second.create(WIDGETS, &widget)?;
    let mut acknowledged = Vec::new();
    for n in 0..20 {
        let (writer, reader) = if n % 2 == 0 { (&first, &second) } else { (&second, &first) };
        let name = format!("m{n}");
        let made = writer.create(MAPS, &map(&name))?;
        ensure!(reader.get(&format!("{MAPS}/{name}"))? == made, "{name} is not what its writer was told");
        acknowledged.push(name);
    }
    same(&first, &second)?;
    // A server goes: what it acknowledged does not.
    let last = first.create(MAPS, &map("last"))?;
    drop(first);
    ensure!(second.get(&format!("{MAPS}/last"))? == last, "lost with the server");
    acknowledged.push("last".to_owned());
    // Etcd goes: the server says so, and that nothing was stored; it comes back by itself.
    drop(etcd);
    kelson_blackbox::eventually("not ready", PATIENCE, || {
        ensure!(!second.is_ready(), "ready without etcd");
        Ok(())
    })?;
    let (code, refused) = second.call("POST", MAPS, &map("refused"))?;
    ensure!(code >= 500, "{code} {refused}");
    let _etcd = place.etcd()?;
    second.until_ready()?;
    for name in &acknowledged {
        second.get(&format!("{MAPS}/{name}")).with_context(|| format!("{name} was acknowledged"))?;
    }
    second.create(MAPS, &map("after"))?;
    same(&place.server("third")?, &second)
}

/// The addresses in the endpoints of the `kubernetes` service, and in their slice.
fn named(server: &Server) -> anyhow::Result<(Value, Value)> {
    let endpoints = server.get("/api/v1/namespaces/default/endpoints/kubernetes")?;
    let slice = server.get("/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes")?;
    let listed =
        |list: &Value, of: fn(&Value) -> &Value| list.as_array().into_iter().flatten().map(of).cloned().collect();
    Ok((
        listed(&endpoints["subsets"][0]["addresses"], |address| &address["ip"]),
        listed(&slice["endpoints"], |endpoint| &endpoint["addresses"][0]),
    ))
}

fn until_named(server: &Server, what: &str, wanted: &Value) -> Outcome {
    kelson_blackbox::eventually(what, PATIENCE, || {
        let (endpoints, slice) = named(server)?;
        ensure!(endpoints == *wanted && slice == *wanted, "{endpoints} {slice}, not {wanted}");
        Ok(())
    })
}

fn endpoints(_: &Subject) -> Outcome {
    let scratch = tempfile::tempdir()?;
    let place = Place::new(scratch.path())?;
    let _etcd = place.etcd()?;
    let start = |address: &str| place.server_with(address, &[&format!("--advertise-address={address}")]);
    let first = start("192.0.2.1")?;
    until_named(&first, "the first names itself", &json!(["192.0.2.1"]))?;
    let (second, third) = (start("192.0.2.2")?, start("192.0.2.10")?);
    // In the order of the text.
    until_named(&first, "all are named", &json!(["192.0.2.1", "192.0.2.10", "192.0.2.2"]))?;
    // One that is told to end takes itself out, one that is killed is found to be dead.
    second.running.stop()?;
    let (now, _) = named(&first)?;
    ensure!(now == json!(["192.0.2.1", "192.0.2.10"]), "{now}");
    drop(third);
    until_named(&first, "the dead one goes", &json!(["192.0.2.1"]))?;
    // What somebody deletes comes back.
    for path in ["/api/v1/namespaces/default/services/kubernetes", "/api/v1/namespaces/default/endpoints/kubernetes"] {
        let (code, answer) = first.call("DELETE", path, &Value::Null)?;
        ensure!(code == 200, "{path}: {code} {answer}");
        kelson_blackbox::eventually(path, PATIENCE, || first.get(path).map(drop))?;
    }
    let left_alone =
        place.server_with("fourth", &["--advertise-address=192.0.2.4", "--endpoint-reconciler-type=none"])?;
    ensure!(named(&left_alone)?.0 == json!(["192.0.2.1"]), "a server was named that wants nothing of it");
    Ok(())
}
