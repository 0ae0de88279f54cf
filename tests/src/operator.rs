//! An operator in pods: a webhook server that uses the certificate of a Secret, and an injector that writes the
//! Secret's CA into objects that request it (as cert-manager and Istio do). It is this crate's test program again,
//! started as `operator …` in an image that the test creates.
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, ServerName};
use serde_json::{Value, json};

use crate::issuer::Issued;
use crate::registry::{base64, unbase64};
use crate::webhook::{Answer, WebhookRequest, WebhookServer};

/// The interval of requests for changes.
const PERIOD: Duration = Duration::from_millis(300);
/// The annotation that requests the CA of the Secret `NAMESPACE/NAME`.
pub const INJECT_FROM: &str = "operator.example.com/inject-ca-from-secret";
/// The directory of a pod's service account.
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const HOOKS: &str = "/apis/admissionregistration.k8s.io/v1";

/// Runs `serve NAMESPACE/SECRET` or `inject`, until it is killed.
pub fn run(args: &[String]) -> anyhow::Result<()> {
    let api = Api::of_pod()?;
    match args {
        [mode, secret] if mode == "serve" => serve(&api, secret),
        [mode] if mode == "inject" => loop {
            if let Err(why) = inject(&api) {
                println!("{why:#}");
            }
            std::thread::sleep(PERIOD);
        },
        _ => bail!("usage: operator serve NAMESPACE/SECRET | inject"),
    }
}

/// The API server as a pod reaches it.
struct Api {
    host: String,
    port: u16,
    tls: Arc<ClientConfig>,
}

impl Api {
    fn of_pod() -> anyhow::Result<Self> {
        let bundle = std::fs::read(format!("{ACCOUNT}/ca.crt"))?;
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(&bundle) {
            roots.add(certificate?)?;
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        let tls = Arc::new(builder.with_root_certificates(roots).with_no_client_auth());
        let host = std::env::var("KUBERNETES_SERVICE_HOST")?;
        Ok(Self { host, port: std::env::var("KUBERNETES_SERVICE_PORT")?.parse()?, tls })
    }

    /// Sends a request over a new connection.
    fn ask(&self, method: &str, path: &str, media_type: &str, body: &str) -> anyhow::Result<Value> {
        let token = std::fs::read_to_string(format!("{ACCOUNT}/token"))?;
        let tcp = TcpStream::connect((self.host.as_str(), self.port))?;
        tcp.set_read_timeout(Some(Duration::from_secs(30)))?;
        let name = ServerName::try_from(self.host.clone())?;
        let mut stream = StreamOwned::new(ClientConnection::new(Arc::clone(&self.tls), name)?, tcp);
        // With this version the answer is not chunked and the connection ends with it.
        write!(
            stream,
            "{method} {path} HTTP/1.0\r\nHost: {}\r\nAuthorization: Bearer {}\r\nContent-Type: {media_type}\r\n\
             Content-Length: {}\r\n\r\n{body}",
            self.host,
            token.trim(),
            body.len()
        )?;
        stream.flush()?;
        let mut answer = Vec::new();
        if let Err(why) = stream.read_to_end(&mut answer) {
            // The end of TLS is not always signalled; a truncated answer does not parse.
            if answer.is_empty() {
                return Err(why.into());
            }
        }
        let answer = String::from_utf8_lossy(&answer);
        let (head, body) = answer.split_once("\r\n\r\n").context("an answer without a head")?;
        let code = head.split(' ').nth(1).unwrap_or_default();
        if !code.starts_with('2') {
            bail!("{method} {path}: {code} {body}");
        }
        serde_json::from_str(body).with_context(|| format!("{method} {path}"))
    }

    fn get(&self, path: &str) -> anyhow::Result<Value> {
        self.ask("GET", path, "application/json", "")
    }

    /// Returns the decoded values of a Secret.
    fn secret(&self, of: &str) -> anyhow::Result<impl Fn(&str) -> anyhow::Result<String> + use<>> {
        let (namespace, name) = of.split_once('/').context("NAMESPACE/NAME")?;
        let secret = self.get(&format!("/api/v1/namespaces/{namespace}/secrets/{name}"))?;
        Ok(move |key: &str| {
            let text = secret["data"][key].as_str().with_context(|| format!("no key {key}"))?;
            Ok(String::from_utf8(unbase64(text)?)?)
        })
    }
}

fn issued(api: &Api, secret: &str) -> anyhow::Result<Issued> {
    let key = api.secret(secret)?;
    Ok(Issued { authority: key("ca.crt")?, certificate: key("tls.crt")?, key: key("tls.key")? })
}

/// Serves with the certificate in the Secret, and with the next one as soon as it exists.
fn serve(api: &Api, secret: &str) -> anyhow::Result<()> {
    let mut shown = loop {
        match issued(api, secret) {
            Ok(issued) => break issued,
            Err(why) => println!("{why:#}"),
        }
        std::thread::sleep(PERIOD);
    };
    let server = WebhookServer::start("0.0.0.0:8443", &shown, decide)?;
    println!("serving");
    loop {
        std::thread::sleep(PERIOD);
        match issued(api, secret) {
            Ok(issued) if issued.certificate != shown.certificate => {
                server.show(&issued)?;
                shown = issued;
                println!("another certificate");
            }
            Ok(_) => {}
            Err(why) => println!("{why:#}"),
        }
    }
}

/// Writes CAs where they are requested and differ.
fn inject(api: &Api) -> anyhow::Result<()> {
    let webhooks = |object: &Value| {
        let count = object["webhooks"].as_array().map_or(0, Vec::len);
        (0..count).map(|i| format!("/webhooks/{i}/clientConfig/caBundle")).collect::<Vec<_>>()
    };
    let conversion = |object: &Value| {
        let place = "/spec/conversion/webhook/clientConfig";
        object.pointer(place).map(|_| format!("{place}/caBundle")).into_iter().collect()
    };
    type Places<'a> = &'a dyn Fn(&Value) -> Vec<String>;
    let kinds: [(String, Places<'_>); 3] = [
        (format!("{HOOKS}/mutatingwebhookconfigurations"), &webhooks),
        (format!("{HOOKS}/validatingwebhookconfigurations"), &webhooks),
        ("/apis/apiextensions.k8s.io/v1/customresourcedefinitions".to_owned(), &conversion),
    ];
    for (path, places) in kinds {
        let all = api.get(&path)?;
        for object in all["items"].as_array().into_iter().flatten() {
            let Some(secret) = object["metadata"]["annotations"][INJECT_FROM].as_str() else { continue };
            let bundle = base64(api.secret(secret)?("ca.crt")?.as_bytes());
            let differ: Vec<String> = places(object)
                .into_iter()
                .filter(|place| object.pointer(place).and_then(Value::as_str) != Some(&bundle))
                .collect();
            if differ.is_empty() {
                continue;
            }
            let operations: Value =
                differ.iter().map(|place| json!({"op": "add", "path": place, "value": bundle})).collect();
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            api.ask("PATCH", &format!("{path}/{name}"), "application/json-patch+json", &operations.to_string())?;
            println!("injected into {name}");
        }
    }
    Ok(())
}

fn decide(asked: &WebhookRequest) -> Answer {
    let object = asked.object();
    Answer::Json(
        200,
        match asked.path.as_str() {
            "/default-certificate" => default_certificate(asked, object),
            "/judge-certificate" => judge_certificate(asked, object),
            "/convert" => convert(&asked.review),
            "/inject-sidecar" => inject_sidecar(asked, object),
            _ => return Answer::Bytes(404, Vec::new()),
        },
    )
}

/// Records the requester of a certificate, and defaults key rotation.
fn default_certificate(asked: &WebhookRequest, object: &Value) -> Value {
    let user = &asked.review["request"]["userInfo"]["username"];
    let mut operations = vec![json!({"op": "add", "path": "/spec/requestor", "value": user})];
    if object["spec"]["rotation"].is_null() {
        operations.push(json!({"op": "add", "path": "/spec/rotation", "value": "Always"}));
    }
    asked.patch(&operations.into())
}

fn judge_certificate(asked: &WebhookRequest, object: &Value) -> Value {
    if object["spec"]["issuer"].as_str().unwrap_or_default().is_empty() {
        return asked.deny(
            json!({"code": 422, "reason": "Invalid", "message": "spec.issuer: Required value: must be specified"}),
        );
    }
    let old = &asked.review["request"]["oldObject"]["spec"]["requestor"];
    if !old.is_null() && *old != object["spec"]["requestor"] {
        return asked.deny(json!({"code": 403, "message": "spec.requestor: Forbidden: field is immutable"}));
    }
    asked.allow(json!({"warnings": ["spec.rotation defaults to Always"], "auditAnnotations": {"judged": "yes"}}))
}

/// Converts between the versions, which differ in the position of the issuer.
fn convert(review: &Value) -> Value {
    let wanted = review["request"]["desiredAPIVersion"].as_str().unwrap_or_default();
    let converted: Value = review["request"]["objects"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|object| {
            let mut object = object.clone();
            object["apiVersion"] = wanted.into();
            let (from, to) = if wanted.ends_with("/v1") { ("issuerName", "issuer") } else { ("issuer", "issuerName") };
            if let Some(spec) = object["spec"].as_object_mut()
                && let Some(issuer) = spec.remove(from)
            {
                spec.insert(to.to_owned(), issuer);
            }
            object
        })
        .collect();
    json!({"apiVersion": review["apiVersion"], "kind": "ConversionReview", "response": {"uid": review["request"]["uid"],
        "result": {"status": "Success"}, "convertedObjects": converted}})
}

/// Adds a container that prepares the pod's network before all others, and a proxy.
fn inject_sidecar(asked: &WebhookRequest, pod: &Value) -> Value {
    const STATUS: &str = "sidecar.mesh.example.com/status";
    if !pod["metadata"]["annotations"][STATUS].is_null() {
        return asked.allow(json!({}));
    }
    let image = pod["spec"]["containers"][0]["image"].clone();
    let mount = json!([{"name": "mesh", "mountPath": "/mesh"}]);
    let prepare = json!({"name": "mesh-init", "image": image, "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", "echo redirected > /mesh/state"], "volumeMounts": mount});
    let proxy = json!({"name": "mesh-proxy", "image": image, "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", "mkdir /www; cp /mesh/state /www/index.html; exec httpd -f -p 15021 -h /www"],
        "readinessProbe": {"httpGet": {"port": 15021, "path": "/"}, "periodSeconds": 1}, "volumeMounts": mount,
        "env": [{"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]});
    let first = |list: &Value, place: &str, item: Value| {
        // A missing list is created; existing items come after the new one.
        if list.is_null() {
            json!({"op": "add", "path": place, "value": [item]})
        } else {
            json!({"op": "add", "path": format!("{place}/0"), "value": item})
        }
    };
    let annotations = &pod["metadata"]["annotations"];
    let mut all = annotations.as_object().cloned().unwrap_or_default();
    all.insert(STATUS.to_owned(), "injected".into());
    asked.patch(&json!([
        first(&pod["spec"]["initContainers"], "/spec/initContainers", prepare),
        {"op": "add", "path": "/spec/containers/-", "value": proxy},
        first(&pod["spec"]["volumes"], "/spec/volumes", json!({"name": "mesh", "emptyDir": {}})),
        {"op": "add", "path": "/metadata/annotations", "value": all},
    ]))
}
