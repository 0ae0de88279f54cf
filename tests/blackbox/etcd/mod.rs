//! API servers on a real etcd (Debian's): two of them on one, each part killed; secrets encrypted by a key service; a
//! cluster that moves between upstream's API server and ours.
mod moving;
mod place;

use std::fs;

use anyhow::{Context as _, ensure};
use kelson_blackbox::Needs::{OwnServer, Reference};
use kelson_blackbox::key_service::KeyService;
use kelson_blackbox::{Outcome, Subject, Test};
use serde_json::{Value, json};

use crate::envtest::PATIENCE;
use place::{EtcdFiles, Server};

pub fn tests() -> Vec<Test> {
    vec![
        Test { name: "etcd::two_servers_on_one_and_either_part_killed", needs: OwnServer, run: killed },
        Test { name: "etcd::endpoints_name_the_servers_that_live", needs: OwnServer, run: endpoints },
        Test { name: "etcd::secrets_by_a_key_service", needs: OwnServer, run: key_service },
        Test { name: "etcd::a_cluster_moves_and_returns", needs: Reference, run: moving::there_and_back },
    ]
}

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const WIDGETS: &str = "/apis/example.com/v1/namespaces/default/widgets";

fn map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"of": name}})
}

/// Checks that everything that is listed by both servers is the same.
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
    let place = EtcdFiles::new(scratch.path())?;
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
    // A server is killed: its acknowledged writes remain.
    let last = first.create(MAPS, &map("last"))?;
    drop(first);
    ensure!(second.get(&format!("{MAPS}/last"))? == last, "lost with the server");
    acknowledged.push("last".to_owned());
    // etcd is killed: the server reports that nothing was stored, and recovers by itself.
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

/// Returns the addresses in the endpoints of the `kubernetes` service, and in their slice.
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
    let place = EtcdFiles::new(scratch.path())?;
    let _etcd = place.etcd()?;
    let start = |address: &str| place.server_with(address, &[&format!("--advertise-address={address}")]);
    let first = start("192.0.2.1")?;
    until_named(&first, "the first names itself", &json!(["192.0.2.1"]))?;
    let (second, third) = (start("192.0.2.2")?, start("192.0.2.10")?);
    // Sorted as strings.
    until_named(&first, "all are named", &json!(["192.0.2.1", "192.0.2.10", "192.0.2.2"]))?;
    // A stopped server removes itself, a killed one is found to be dead.
    second.running.stop()?;
    let (now, _) = named(&first)?;
    ensure!(now == json!(["192.0.2.1", "192.0.2.10"]), "{now}");
    drop(third);
    until_named(&first, "the dead one goes", &json!(["192.0.2.1"]))?;
    // Deleted objects are recreated.
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

const SECRETS: &str = "/api/v1/namespaces/default/secrets";

fn key_service(_: &Subject) -> Outcome {
    let scratch = tempfile::tempdir()?;
    let place = EtcdFiles::new(scratch.path())?;
    let _etcd = place.etcd()?;
    let keys = KeyService::start(&scratch.path().join("kms"))?;
    let encryption = scratch.path().join("encryption.json");
    let config = json!({"apiVersion": "apiserver.config.k8s.io/v1", "kind": "EncryptionConfiguration",
        "resources": [{"resources": ["secrets"], "providers": [keys.provider()]}]});
    fs::write(&encryption, config.to_string())?;
    let flag = format!("--encryption-provider-config={}", encryption.display());
    let (first, second) = (place.server_with("first", &[&flag])?, place.server_with("second", &[&flag])?);
    let secret = |name: &str| json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": {"word": "hush-hush"}});
    let before = first.create(SECRETS, &secret("before"))?;
    let stored = |name: &str| place.stored(&format!("/registry/secrets/default/{name}"));
    let sealed = stored("before")?;
    ensure!(sealed.starts_with("k8s:enc:kms:v2:tests:") && !sealed.contains("hush"), "{sealed}");
    ensure!(second.get(&format!("{SECRETS}/before"))? == before, "the other server reads something else");
    // A server started after the key has changed reads data of the old one, and writes with the new one.
    keys.rotate("key-2");
    let third = place.server_with("third", &[&flag])?;
    ensure!(third.get(&format!("{SECRETS}/before"))? == before, "what is of the old key is not read");
    third.create(SECRETS, &secret("after"))?;
    let sealed = stored("after")?;
    ensure!(sealed.contains("key-2") && !sealed.contains("hush"), "{sealed}");
    ensure!(stored("before")?.contains("key-1"), "nobody wrote it anew");
    let word = first.get(&format!("{SECRETS}/after"))?["data"]["word"].take();
    ensure!(word == "aHVzaC1odXNo", "a server that knows of the old key alone reads something else: {word}");
    Ok(())
}
