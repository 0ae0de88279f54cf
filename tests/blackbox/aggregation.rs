//! Aggregated APIs: another server serves a group version. Identity of the requester, discovery, streams, and the
//! messages of an APIService about an unreachable server.
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use kelson_blackbox::extension::{ExtensionServer, FrontProxy, GROUP, PATH};
use kelson_blackbox::registry::base64;
use kelson_blackbox::{Kubectl, Needs::Api, Outcome, Raw, Subject, Test, eventually, free_port, issuer, lines_of};
use serde_json::{Value, json};

/// Availability is checked every half minute at the latest, and less often after failures.
const LIMIT: Duration = Duration::from_secs(120);
const NAME: &str = "v1.flavours.example.com";

pub fn tests() -> Vec<Test> {
    vec![
        Test { name: "aggregation::another_server_answers", needs: Api, run: another_server_answers },
        Test { name: "aggregation::why_it_cannot_be_reached", needs: Api, run: why_it_cannot_be_reached },
    ]
}

/// An APIService and a namespace; the former is removed when dropped.
struct Registration {
    kubectl: Kubectl,
    namespace: &'static str,
    bundle: String,
}

impl Registration {
    /// Starts a server for a service of a new namespace.
    fn new(s: &Subject, namespace: &'static str) -> anyhow::Result<(Self, ExtensionServer)> {
        s.kubectl.fresh_namespace(namespace)?;
        let map = s.kubectl.json(&["get", "configmap", "-n", "kube-system", "extension-apiserver-authentication"])?;
        let issued = issuer::issue(&[&format!("flavours.{namespace}.svc")])?;
        let server = ExtensionServer::start(&issued, FrontProxy::read(&map["data"])?)?;
        let bundle = base64(issued.authority.as_bytes());
        Ok((Self { kubectl: s.kubectl.clone(), namespace, bundle }, server))
    }

    /// Registers one of the service's ports.
    fn register(&self, port: u16, tls: &Value) -> Outcome {
        let mut spec = json!({"group": GROUP, "version": "v1", "groupPriorityMinimum": 100, "versionPriority": 100,
            "service": {"name": "flavours", "namespace": self.namespace, "port": port}});
        if let (Some(spec), Value::Object(tls)) = (spec.as_object_mut(), tls.clone()) {
            spec.extend(tls);
        }
        let service = json!({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
            "metadata": {"name": NAME}, "spec": spec});
        self.kubectl.run(&["delete", "apiservice", NAME, "--ignore-not-found"])?;
        let made = self.kubectl.with_input(&["create", "-f", "-"], service.to_string().as_bytes())?;
        ensure!(made.code == 0, "{}", made.stderr);
        Ok(())
    }

    /// Creates the service again with this specification.
    fn serve_by(&self, spec: Value) -> Outcome {
        let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "flavours"}, "spec": spec});
        let k = self.kubectl.namespaced(self.namespace);
        k.run(&["delete", "service", "flavours", "--ignore-not-found"])?;
        k.apply(&service.to_string()).map(drop)
    }

    fn trusted(&self) -> Value {
        json!({"caBundle": self.bundle})
    }

    /// Waits until the condition has this reason, and returns its message.
    fn wait_for(&self, reason: &str) -> anyhow::Result<String> {
        eventually(&format!("the APIService says {reason}"), LIMIT, || {
            let service = self.kubectl.json(&["get", "apiservice", NAME])?;
            let conditions = service["status"]["conditions"].as_array().context("no condition yet")?;
            let found = conditions.iter().find(|c| c["type"] == "Available").context("no such condition")?;
            ensure!(found["reason"] == reason, "{found}");
            let want = if reason == "Passed" { "True" } else { "False" };
            ensure!(found["status"] == want, "{found}");
            Ok(found["message"].as_str().unwrap_or_default().to_owned())
        })
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let _ = self.kubectl.run(&["delete", "apiservice", NAME, "--ignore-not-found"]);
        let _ = self.kubectl.run(&["delete", "clusterrole,clusterrolebinding", "flavour-eaters", "--ignore-not-found"]);
    }
}

/// Makes an external name resolve to this machine.
fn outside() -> Value {
    json!({"type": "ExternalName", "externalName": "127.0.0.1"})
}

fn another_server_answers(s: &Subject) -> Outcome {
    let (registration, server) = Registration::new(s, "aggregated")?;
    registration.serve_by(outside())?;
    registration.register(server.port, &registration.trusted())?;
    ensure!(registration.wait_for("Passed")? == "all checks passed");
    who_asks(s)?;
    published(s)?;
    streams(s, &server)?;
    let k = &s.kubectl;
    let made = json!({"apiVersion": format!("{GROUP}/v1"), "kind": "Flavour", "metadata": {"name": "sour"}});
    let raw = Raw::open(k)?;
    let answer = raw.json("POST", &format!("{PATH}/flavours"), &made)?;
    ensure!(answer.code == 201 && answer.json()["status"]["tasted"] == true, "{}", answer.json());
    let answer = raw.send("GET", &format!("{PATH}/flavours/none"), &[], b"")?;
    ensure!(
        answer.code == 404 && answer.message() == format!("no flavour at {PATH}/flavours/none"),
        "{}",
        answer.json()
    );
    drop(registration);
    eventually("the group is gone", LIMIT, || {
        let answer = raw.send("GET", &format!("{PATH}/flavours"), &[], b"")?;
        ensure!(answer.code == 404, "{}", answer.code);
        let groups = raw.send("GET", "/apis", &[], b"")?.json();
        ensure!(!groups.to_string().contains(GROUP), "{groups}");
        Ok(())
    })
}

/// The user is sent in headers without the client's credentials; authorization happens before.
fn who_asks(s: &Subject) -> Outcome {
    let path = format!("{PATH}/flavours/whoami");
    let raw = Raw::open(&s.kubectl)?;
    let jane = ["Impersonate-User: jane", "Impersonate-Group: cooks", "Impersonate-Extra-Example.com%2fScope: taste"];
    let refused = raw.send("GET", &path, &jane, b"")?;
    let want = format!(
        "flavours.{GROUP} \"whoami\" is forbidden: User \"jane\" cannot get resource \"flavours\" in API group \"{GROUP}\" at the cluster scope"
    );
    ensure!(refused.code == 403 && refused.message() == want, "{}", refused.json());
    let resource = format!("--resource=flavours.{GROUP}");
    s.kubectl.ok(&["create", "clusterrole", "flavour-eaters", "--verb=get,list,watch", &resource])?;
    s.kubectl.ok(&[
        "create",
        "clusterrolebinding",
        "flavour-eaters",
        "--clusterrole=flavour-eaters",
        "--group=cooks",
    ])?;
    let reported = eventually("jane may ask", LIMIT, || {
        let forged = ["X-Remote-User: admin", "X-Remote-Group: system:masters"];
        let answer = raw.send("GET", &path, &[&jane[..], &forged].concat(), b"")?;
        ensure!(answer.code == 200, "{}", answer.json());
        Ok(answer.json()["spec"].clone())
    })?;
    ensure!(reported["user"] == json!(["jane"]), "{reported}");
    ensure!(reported["groups"] == json!(["cooks", "system:authenticated"]), "{reported}");
    ensure!(reported["extra"] == json!({"example.com%2fscope": ["taste"]}), "{reported}");
    let headers: Vec<&str> = reported["headers"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    ensure!(!headers.contains(&"authorization"), "{headers:?}");
    Ok(())
}

/// Discovery in both forms, and OpenAPI in both, contain what the server publishes.
fn published(s: &Subject) -> Outcome {
    let k = &s.kubectl;
    eventually("kubectl knows the kind", LIMIT, || {
        let listed = k.ok(&["get", "fl"])?;
        ensure!(listed.contains("plain"), "{listed}");
        let reported = k.ok(&["explain", "flavours.spec"])?;
        ensure!(reported.contains("Whether it is sweet."), "{reported}");
        Ok(())
    })?;
    let raw = Raw::open(k)?;
    let accept = "Accept: application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    let groups = raw.send("GET", "/apis", &[accept], b"")?.json();
    let group = groups["items"].as_array().into_iter().flatten().find(|g| g["metadata"]["name"] == GROUP);
    let version = group.context("the group is not in discovery")?["versions"][0].clone();
    ensure!(version["version"] == "v1" && version["freshness"] == "Current", "{version}");
    let resource = &version["resources"][0];
    ensure!(
        resource["resource"] == "flavours"
            && resource["singularResource"] == "flavour"
            && resource["scope"] == "Cluster",
        "{resource}"
    );
    ensure!(resource["responseKind"] == json!({"group": "", "version": "", "kind": "Flavour"}), "{resource}");
    let plain = raw.send("GET", &format!("/apis/{GROUP}"), &[], b"")?.json();
    ensure!(
        plain["kind"] == "APIGroup" && plain["preferredVersion"]["groupVersion"] == format!("{GROUP}/v1"),
        "{plain}"
    );
    let index = raw.send("GET", "/openapi/v3", &[], b"")?.json();
    ensure!(index["paths"].get(&PATH[1..]).is_some(), "{index}");
    eventually("the whole document has the definition", LIMIT, || {
        let whole = raw.send("GET", "/openapi/v2", &[], b"")?.json();
        ensure!(whole["definitions"]["com.example.flavours.v1.Flavour"]["type"] == "object", "no definition");
        ensure!(whole["paths"].get(format!("{PATH}/flavours")).is_some(), "no path");
        ensure!(whole["definitions"].get("io.k8s.api.core.v1.Pod").is_some(), "the server's own are gone");
        Ok(())
    })
}

/// Watch events are sent immediately, and an upgraded connection is forwarded in both directions.
fn streams(s: &Subject, server: &ExtensionServer) -> Outcome {
    let mut child = s.kubectl.spawn(&["get", "--raw", &format!("{PATH}/flavours?watch=true")])?;
    let lines = lines_of(&mut child)?;
    let next = || lines.recv_timeout(Duration::from_secs(30)).context("nothing is told");
    let reported: Outcome = (|| {
        ensure!(next()?.contains("\"plain\""));
        server.add("bitter");
        ensure!(next()?.contains("\"bitter\""));
        Ok(())
    })();
    let _ = child.kill();
    let _ = child.wait();
    reported?;

    let raw = Raw::open(&s.kubectl)?;
    let address = raw.url().trim_start_matches("http://").to_owned();
    let mut stream = TcpStream::connect(&address)?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    write!(
        stream,
        "GET {PATH}/flavours/plain HTTP/1.1\r\nHost: {address}\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n"
    )?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    ensure!(line.starts_with("HTTP/1.1 101 "), "{line}");
    while line.trim() != "" {
        line.clear();
        reader.read_line(&mut line)?;
    }
    for word in ["sweet", "salty"] {
        writeln!(stream, "{word}")?;
        line.clear();
        reader.read_line(&mut line)?;
        ensure!(line.trim() == word, "{line}");
    }
    Ok(())
}

fn why_it_cannot_be_reached(s: &Subject) -> Outcome {
    let (registration, server) = Registration::new(s, "unreachable")?;
    let says = |reason: &str, want: &str| -> Outcome {
        let message = registration.wait_for(reason)?;
        ensure!(message == want, "{reason}: {message}\nexpected was {want}");
        Ok(())
    };
    registration.register(443, &registration.trusted())?;
    says("ServiceNotFound", "service/flavours in \"unreachable\" is not present")?;
    let raw = Raw::open(&s.kubectl)?;
    let refused = raw.send("GET", &format!("{PATH}/flavours"), &[], b"")?;
    ensure!(refused.code == 503 && refused.body == b"service unavailable\n", "{} {:?}", refused.code, refused.body);

    registration.serve_by(json!({"ports": [{"name": "other", "port": 80}]}))?;
    says("ServicePortError", "service/flavours in \"unreachable\" is not listening on port 443")?;
    registration.serve_by(json!({"ports": [{"name": "https", "port": 443}]}))?;
    says("EndpointsNotFound", "cannot find endpointslices for service/flavours in \"unreachable\"")?;
    let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": "flavours-own", "labels": {"kubernetes.io/service-name": "flavours"}},
        "addressType": "IPv4", "ports": [{"name": "https", "port": 443}],
        "endpoints": [{"addresses": ["192.0.2.99"], "conditions": {"ready": false}}]});
    s.kubectl.namespaced("unreachable").apply(&slice.to_string())?;
    let none = "endpointslices for service/flavours in \"unreachable\" have no addresses with port name \"https\"";
    says("MissingEndpoints", none)?;
    by_name(&registration, &server)?;
    discovery_says_stale(&raw)
}

/// Errors of the server itself.
fn by_name(registration: &Registration, server: &ExtensionServer) -> Outcome {
    let checked = |port: u16, tls: &Value, end: &str| -> Outcome {
        registration.serve_by(outside())?;
        registration.register(port, tls)?;
        let url = format!("https://127.0.0.1:{port}{PATH}");
        let want = format!("failing or missing response from {url}: {}", end.replace("URL", &url));
        // The failure before this one has the same reason, until the server has checked again.
        eventually("the fault of this registration", LIMIT, || {
            let message = registration.wait_for("FailedDiscoveryCheck")?;
            ensure!(message == want, "{message}\nexpected was {want}");
            Ok(())
        })
    };
    let closed = free_port()?;
    let dial = format!("Get \"URL\": dial tcp 127.0.0.1:{closed}: connect: connection refused");
    checked(closed, &registration.trusted(), &dial)?;
    let stranger = json!({"caBundle": base64(issuer::issue(&["nobody"])?.authority.as_bytes())});
    let why = registration_fault(registration, server.port, &stranger)?;
    ensure!(why.contains("tls: failed to verify certificate: x509: certificate signed by unknown authority"), "{why}");
    server.break_down(true);
    checked(server.port, &registration.trusted(), "bad status from URL: 500")?;
    server.break_down(false);
    registration.register(server.port, &json!({"insecureSkipTLSVerify": true}))?;
    registration.wait_for("Passed")?;
    server.break_down(true);
    Ok(())
}

fn registration_fault(registration: &Registration, port: u16, tls: &Value) -> anyhow::Result<String> {
    registration.register(port, tls)?;
    let address = format!("https://127.0.0.1:{port}/");
    eventually("the fault of this registration", LIMIT, || {
        let message = registration.wait_for("FailedDiscoveryCheck")?;
        ensure!(message.contains(&address), "{message}");
        Ok(message)
    })
}

/// Cached discovery of an unreachable server is kept, and marked as stale.
fn discovery_says_stale(raw: &Raw) -> Outcome {
    let accept = "Accept: application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    eventually("discovery says that it is stale", LIMIT, || {
        let groups = raw.send("GET", "/apis", &[accept], b"")?.json();
        let group = groups["items"].as_array().into_iter().flatten().find(|g| g["metadata"]["name"] == GROUP);
        let version = group.context("the group is not in discovery")?["versions"][0].clone();
        ensure!(version["freshness"] == "Stale", "{version}");
        Ok(())
    })
}
