//! A server in memory that decides about requests as a test wants it, and a node that joins it.
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::Method;
use kelson_client::kubeconfig::{Config, Credentials};
use kelson_client::{Request, Response, Transport, TransportError, full_body};
use kelson_doubles::TokioClock;
use kelson_meta::Clock;
use kelson_pki::{
    Authority, CertInfo, CertificateRequest, Kubeconfig, LeafSpec, Purpose, UserCredential, sign_request,
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::files::Store;
use crate::{CertError, ClientCertificate, Paths};

pub(super) const HOUR: Duration = Duration::from_secs(3600);
pub(super) const CSRS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";

/// The scripted result of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fate {
    Approved,
    Denied,
    Failed,
    Deleted,
    Replaced,
    Nothing,
}

/// The behaviour of the server.
pub(super) struct Behaviour {
    pub(super) fate: Fate,
    /// The delay of the decision after the request.
    pub(super) delay: Duration,
    /// When it starts to answer.
    pub(super) up: Instant,
    /// Whether it can stream what is there.
    pub(super) streams: bool,
    /// Whether a certificate that has ended is let in.
    pub(super) grace: bool,
    pub(super) lifetime: Duration,
}

pub(super) struct Server {
    /// Signs, and vouches for the server itself.
    pub(super) ca: Mutex<Authority>,
    /// Additional CAs that client certificates may have.
    pub(super) believed: Mutex<Vec<Authority>>,
    /// Additional CAs of the server's certificate.
    pub(super) vouching: Mutex<Vec<Authority>>,
    /// So many more answers to the node's own certificate are 401, whatever it is.
    pub(super) refusals: Mutex<usize>,
    /// Whether the bootstrap token is taken.
    pub(super) knows_token: Mutex<bool>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) how: Mutex<Behaviour>,
    pub(super) csrs: Mutex<BTreeMap<String, (Value, Instant)>>,
    /// Public keys and names that were ever asked with.
    pub(super) keys: Mutex<BTreeSet<Vec<u8>>>,
    pub(super) made: Mutex<Vec<String>>,
    pub(super) asked: Mutex<Vec<String>>,
}

impl Server {
    /// Returns the current state of a request.
    pub(super) fn settle(&self) {
        let how = self.how.lock();
        let mut csrs = self.csrs.lock();
        let names: Vec<String> = csrs.keys().cloned().collect();
        for name in names {
            let Some((csr, at)) = csrs.get_mut(&name) else { continue };
            if at.elapsed() < how.delay || !csr["status"].is_null() {
                continue;
            }
            let condition = |kind: &str| json!([{"type": kind, "status": "True", "reason": "R", "message": "M"}]);
            match how.fate {
                Fate::Nothing => {}
                Fate::Denied => csr["status"] = json!({"conditions": condition("Denied")}),
                Fate::Failed => csr["status"] = json!({"conditions": condition("Failed")}),
                Fate::Deleted => drop(csrs.remove(&name)),
                Fate::Replaced => csr["metadata"]["uid"] = "another".into(),
                Fate::Approved => {
                    let request = STANDARD.decode(csr["spec"]["request"].as_str().unwrap_or_default()).expect("base64");
                    let request = CertificateRequest::parse(&String::from_utf8(request).expect("pem")).expect("csr");
                    let usages: Vec<String> = serde_json::from_value(csr["spec"]["usages"].clone()).expect("usages");
                    let pem = sign_request(&self.ca.lock(), &request, &usages, None, how.lifetime, self.clock.now());
                    let pem = STANDARD.encode(pem.expect("signed"));
                    csr["status"] = json!({"conditions": condition("Approved"), "certificate": pem});
                }
            }
        }
    }

    pub(super) fn answer(&self, who: &str, request: &Request) -> (u16, String) {
        let status = |code: u16, reason: &str| {
            let body =
                json!({"kind": "Status", "status": "Failure", "reason": reason, "code": code, "message": reason});
            (code, body.to_string())
        };
        self.settle();
        let (path, query) = (request.uri().path(), request.uri().query().unwrap_or_default());
        self.asked.lock().push(format!("{who} {} {path}", request.method()));
        let unknown = match who {
            "old" => !self.how.lock().grace,
            "own" => {
                let mut left = self.refusals.lock();
                let refuses = *left > 0;
                *left = left.saturating_sub(1);
                refuses
            }
            "token" => !*self.knows_token.lock(),
            _ => who == "foreign",
        };
        if unknown {
            return status(401, "Unauthorized");
        }
        if ["/healthz", "/version", "/mine"].contains(&path) {
            return (200, "{}".into());
        }
        let named = path.strip_prefix(&format!("{CSRS}/"));
        let mut csrs = self.csrs.lock();
        if request.method() == Method::POST {
            let mut csr: Value = serde_json::from_slice(request.body()).expect("json");
            let name = csr["metadata"]["name"].as_str().expect("a name").to_owned();
            if csrs.contains_key(&name) {
                return status(409, "AlreadyExists");
            }
            let pem = STANDARD.decode(csr["spec"]["request"].as_str().unwrap_or_default()).expect("base64");
            let parsed = CertificateRequest::parse(&String::from_utf8(pem).expect("pem")).expect("csr");
            self.keys.lock().insert(parsed.public.spki().to_vec());
            self.made.lock().push(name.clone());
            csr["metadata"]["uid"] = format!("uid-{}", self.made.lock().len()).into();
            let body = csr.to_string();
            csrs.insert(name, (csr, Instant::now()));
            return (201, body);
        }
        if let Some(name) = named {
            return csrs.get(name).map_or_else(|| status(404, "NotFound"), |(csr, _)| (200, csr.to_string()));
        }
        let found: Vec<&Value> = csrs
            .values()
            .map(|(csr, _)| csr)
            .filter(|csr| {
                let name = csr["metadata"]["name"].as_str().unwrap_or_default();
                query.contains(&format!("metadata.name%3D{name}")) || query.contains(&format!("metadata.name={name}"))
            })
            .collect();
        if !query.contains("watch=true") {
            return (200, json!({"metadata": {"resourceVersion": "5"}, "items": found}).to_string());
        }
        let mut frames = String::new();
        if query.contains("sendInitialEvents=true") {
            let last = match self.how.lock().streams {
                true => json!({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "5",
                    "annotations": {"k8s.io/initial-events-end": "true"}}}}),
                false => json!({"type": "ERROR", "object": {"kind": "Status", "status": "Failure", "reason": "Timeout",
                    "code": 504, "message": "Too large resource version"}}),
            };
            if self.how.lock().streams {
                for csr in &found {
                    frames.push_str(&format!("{}\n", json!({"type": "ADDED", "object": csr})));
                }
            }
            frames.push_str(&format!("{last}\n"));
        }
        (200, frames)
    }

    /// Returns the user of these credentials.
    ///
    /// # Errors
    /// A TLS error, when the configuration does not trust the server.
    fn who(&self, config: &Config) -> Result<&'static str, TransportError> {
        let text = |file: &Path| std::fs::read_to_string(file).unwrap_or_default();
        let trusted = config.ca_file.as_deref().map_or_else(|| String::from_utf8_lossy(&config.ca_pem).into(), text);
        let signs =
            |all: &[Authority], what: &dyn Fn(&Authority) -> bool| all.iter().any(what) || what(&self.ca.lock());
        if !signs(&self.vouching.lock(), &|ca| trusted.contains(ca.cert_pem().trim())) {
            return Err(TransportError("client error (Connect): invalid peer certificate: UnknownIssuer".into()));
        }
        let pem = match &config.credentials {
            Credentials::Token(_) => return Ok("token"),
            Credentials::Certificate { cert_pem, .. } => String::from_utf8_lossy(cert_pem).into_owned(),
            Credentials::CertificateFiles { cert, .. } => text(cert),
            _ => panic!("other credentials"),
        };
        let pem = crate::files::blocks(&pem, |kind| kind == "CERTIFICATE");
        Ok(match () {
            () if !signs(&self.believed.lock(), &|ca| ca.has_issued(&pem)) => "foreign",
            () if CertInfo::from_pem(&pem).is_ok_and(|info| info.is_valid_at(self.clock.now())) => "own",
            () => "old",
        })
    }
}

/// The credentials of a client.
pub(super) enum As {
    /// As this one, whatever happens.
    Known(&'static str),
    /// The credentials of the configuration when a request is sent.
    By(Box<Config>),
}

/// A client's connection to the server.
pub(super) struct Wire(pub(super) Arc<Server>, pub(super) As);

impl Transport for Wire {
    fn send(&self, request: Request) -> Pin<Box<dyn Future<Output = Result<Response, TransportError>> + Send>> {
        let server = Arc::clone(&self.0);
        let who = match &self.1 {
            As::Known(who) => Ok(*who),
            As::By(config) => server.who(config),
        };
        Box::pin(async move {
            // A kill may come before the server hears of it, and after.
            tokio::task::yield_now().await;
            if Instant::now() < server.how.lock().up {
                return Err(TransportError("connection refused".into()));
            }
            let (code, body) = server.answer(who?, &request);
            tokio::task::yield_now().await;
            let mut response = Response::new(full_body(body));
            *response.status_mut() = http::StatusCode::from_u16(code).map_err(TransportError::new)?;
            Ok(response)
        })
    }
}

pub(super) struct World {
    pub(super) server: Arc<Server>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) dir: tempfile::TempDir,
}

impl World {
    pub(super) fn new(fate: Fate) -> Self {
        let clock: Arc<dyn Clock> = Arc::new(TokioClock::starting_at("2026-05-06T07:08:09Z".parse().expect("a time")));
        let how = Behaviour {
            fate,
            delay: Duration::from_secs(30),
            up: Instant::now(),
            streams: true,
            grace: false,
            lifetime: 24 * HOUR,
        };
        let ca = Authority::create("ca", clock.now()).expect("ca");
        let server = Server {
            ca: Mutex::new(ca),
            believed: Mutex::default(),
            vouching: Mutex::default(),
            refusals: Mutex::new(0),
            knows_token: Mutex::new(true),
            clock: Arc::clone(&clock),
            how: Mutex::new(how),
            csrs: Mutex::default(),
            keys: Mutex::default(),
            made: Mutex::default(),
            asked: Mutex::default(),
        };
        let world = Self { server: Arc::new(server), clock, dir: tempfile::tempdir().expect("tempdir") };
        world.write("bootstrap", UserCredential::Token("t".into()));
        world
    }

    pub(super) fn path(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join(name)
    }

    pub(super) fn write(&self, name: &str, credential: UserCredential) {
        let kubeconfig = Kubeconfig {
            cluster: "c".into(),
            user: "u".into(),
            server: "https://192.0.2.1:6443".into(),
            ca_pem: self.server.ca.lock().cert_pem().to_owned(),
            ca_file: self.path("ca.crt").exists().then(|| self.path("ca.crt")),
            credential,
        };
        kubeconfig.write(&self.path(name)).expect("a kubeconfig");
    }

    pub(super) fn files(&self) -> Store {
        Store::new("kubelet-client", &self.path("pki"))
    }

    pub(super) fn node(&self, bootstrap: Option<&str>) -> ClientCertificate {
        let paths = Paths {
            kubeconfig: self.path("kubeconfig"),
            bootstrap: bootstrap.map(|name| self.path(name)),
            cert_dir: self.path("pki"),
        };
        let server = Arc::clone(&self.server);
        let connect = move |config: &Config| {
            Ok(Arc::new(Wire(Arc::clone(&server), As::By(Box::new(config.clone())))) as Arc<dyn Transport>)
        };
        ClientCertificate { connect: Arc::new(connect), ..ClientCertificate::new(paths, "n1", Arc::clone(&self.clock)) }
    }

    pub(super) async fn load(&self) -> Result<Config, CertError> {
        self.node(Some("bootstrap")).load().await
    }

    /// A certificate of the node's of this life, with its kubeconfig.
    pub(super) async fn joined(&self, lifetime: Duration) {
        let organizations = ["system:nodes".to_owned()];
        let spec = LeafSpec {
            common_name: "system:node:n1",
            organizations: &organizations,
            sans: &[],
            purpose: Purpose::Client,
            lifetime,
        };
        std::fs::create_dir_all(self.path("pki")).expect("a directory");
        let issued = self.server.ca.lock().issue(&spec, self.clock.now()).expect("issued");
        self.files().update(&issued, self.clock.now()).await.expect("stored");
        let pem = self.files().current_path();
        self.write("kubeconfig", UserCredential::CertificateFiles { cert: pem.clone(), key: pem });
    }

    pub(super) fn made(&self) -> usize {
        self.server.made.lock().len()
    }

    pub(super) fn asked(&self, prefix: &str) -> bool {
        self.server.asked.lock().iter().any(|line| line.starts_with(prefix))
    }

    pub(super) fn info(&self) -> CertInfo {
        let current = self.files().current().expect("readable").expect("a certificate");
        crate::files::info(&current).expect("a certificate")
    }

    pub(super) fn holds(&self, name: &str) -> bool {
        Path::exists(&self.path("pki").join(name))
    }
}
