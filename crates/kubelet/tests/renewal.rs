//! What a kubelet renews by itself, on a paused clock: its client and serving certificates by request, and the tokens of
//! pods' service accounts.
mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use common::{World, open_body, world};
use kelson_client::{Request, Response, full_body};
use kelson_kubelet::certs::store::{self, Store};
use kelson_kubelet::certs::{rotate, serving};
use kelson_meta::Clock;
use kelson_pki::{
    Authority, CertInfo, CertificateRequest, Issued, LeafSpec, Purpose, San, SwappableCertificate, sign_request,
};
use parking_lot::Mutex;
use serde_json::{Value, json};

const DAY: Duration = Duration::from_secs(24 * 3600);
/// Life of every certificate here.
const LIFE: Duration = Duration::from_secs(10 * 24 * 3600);

/// Approves and signs what it is asked, or denies it.
struct Signer {
    ca: Authority,
    clock: Arc<dyn Clock>,
    filed: Mutex<Vec<Value>>,
    deny: AtomicBool,
}

impl Signer {
    fn answer(&self, request: &Request) -> Option<Response> {
        if !request.uri().path().ends_with("/certificatesigningrequests") {
            return None;
        }
        let mut filed = self.filed.lock();
        if request.method() == http::Method::POST {
            let mut body: Value = serde_json::from_slice(request.body()).expect("json");
            let n = filed.len();
            body["metadata"] = json!({"name": format!("csr-{n}"), "uid": format!("uid-{n}")});
            filed.push(body.clone());
            return Some(Response::new(full_body(body.to_string())));
        }
        let mut done = filed.last().expect("filed before it is watched").clone();
        done["status"] = if self.deny.load(Ordering::SeqCst) {
            json!({"conditions": [{"type": "Denied", "status": "True", "reason": "No", "message": "not today"}]})
        } else {
            json!({"conditions": [{"type": "Approved", "status": "True"}], "certificate": STANDARD.encode(self.sign(&done))})
        };
        done["metadata"]["resourceVersion"] = json!("7");
        let event = json!({"type": "ADDED", "object": done});
        Some(Response::new(open_body(format!("{event}\n"))))
    }

    fn sign(&self, csr: &Value) -> String {
        let text = STANDARD.decode(csr["spec"]["request"].as_str().expect("request")).expect("base64");
        let request = CertificateRequest::parse(&String::from_utf8(text).expect("PEM")).expect("a request");
        let usages: Vec<String> = serde_json::from_value(csr["spec"]["usages"].clone()).expect("usages");
        sign_request(&self.ca, &request, &usages, None, LIFE, self.clock.now()).expect("signed")
    }

    fn count(&self) -> usize {
        self.filed.lock().len()
    }
}

fn signer(world: &World) -> Arc<Signer> {
    let clock = Arc::clone(&world.parts.effects.clock);
    let ca = Authority::create("ca", clock.now()).expect("ca");
    let signer = Arc::new(Signer { ca, clock, filed: Mutex::default(), deny: AtomicBool::new(false) });
    let asked = Arc::clone(&signer);
    *world.api.first.lock() = Some(Box::new(move |r| asked.answer(r)));
    signer
}

fn leaf(signer: &Signer, purpose: Purpose) -> Issued {
    let spec = LeafSpec { common_name: "system:node:n1", organizations: &[], sans: &[], purpose, lifetime: LIFE };
    signer.ca.issue(&spec, signer.clock.now()).expect("leaf")
}

fn info(files: &Store) -> CertInfo {
    store::info(&files.current().expect("read").expect("there")).expect("info")
}

#[tokio::test(start_paused = true)]
async fn the_client_certificate_at_seventy_to_ninety_percent_of_its_life() {
    let world = world();
    let signer = signer(&world);
    let files = Store::new("kubelet-client", world.dir.path());
    files.update(&leaf(&signer, Purpose::Client), signer.clock.now()).await.expect("store");
    let first = info(&files).not_after;
    let (client, clock) = (world.parts.client.clone(), Arc::clone(&world.parts.effects.clock));
    let renewal = rotate::client(client, clock, world.dir.path().to_owned(), "n1".into());
    let _renewal = kelson_tasks::scoped("renewal", renewal);

    tokio::time::sleep(DAY * 7 - Duration::from_secs(600)).await;
    assert_eq!(signer.count(), 0, "not before 70 %");
    tokio::time::sleep(DAY * 2 + Duration::from_secs(1200)).await;
    assert_eq!(signer.count(), 1, "by 90 %");
    let second = info(&files);
    assert!(second.not_after > first && second.common_name == "system:node:n1");
    let spec = signer.filed.lock()[0]["spec"].clone();
    assert_eq!(spec["signerName"], "kubernetes.io/kube-apiserver-client-kubelet");
    assert_eq!(spec["usages"], json!(["digital signature", "client auth"]));

    // Denied at first: asked again until it is granted, while the present certificate serves on.
    signer.deny.store(true, Ordering::SeqCst);
    tokio::time::sleep(DAY * 9).await;
    assert!(signer.count() > 2, "asked again: {}", signer.count());
    assert_eq!(info(&files).not_after, second.not_after);
    signer.deny.store(false, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert!(info(&files).not_after > second.not_after);
}

#[tokio::test(start_paused = true)]
async fn the_serving_certificate_under_the_listener() {
    let world = world();
    let signer = signer(&world);
    std::fs::create_dir_all(&world.parts.config.cert_dir).expect("mkdir");
    let own = leaf(&signer, Purpose::Server);
    let certificate = SwappableCertificate::new(&own).expect("usable");
    let before = certificate.renewal().expires;
    let wanted = serving::ServingCertificate {
        client: world.parts.client.clone(),
        clock: Arc::clone(&world.parts.effects.clock),
        config: Arc::clone(&world.parts.config),
        serving: Arc::clone(&certificate),
    };
    let _renewal = kelson_tasks::scoped("renewal", wanted.run());
    // The node's own authority made the first one: the cluster's is asked for at once.
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(signer.count(), 1);
    let files = Store::new("kubelet-server", &world.parts.config.cert_dir);
    let sans = info(&files).sans;
    assert!(
        sans.contains(&San::Dns("n1".into())) && sans.contains(&San::Ip("192.0.2.1".parse().expect("ip"))),
        "{sans:?}"
    );
    assert_eq!(signer.filed.lock()[0]["spec"]["signerName"], "kubernetes.io/kubelet-serving");
    assert_ne!(certificate.renewal().expires, before, "swapped in");
    let issued = certificate.renewal().expires;
    tokio::time::sleep(DAY * 9 + Duration::from_secs(1200)).await;
    assert_eq!(signer.count(), 2);
    assert!(certificate.renewal().expires > issued);
}

#[tokio::test(start_paused = true)]
async fn tokens_of_service_accounts() {
    let world = world();
    let (given, fails) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)));
    let (count, broken, clock) = (Arc::clone(&given), Arc::clone(&fails), Arc::clone(&world.parts.effects.clock));
    *world.api.first.lock() = Some(Box::new(move |r| {
        r.uri().path().ends_with("/serviceaccounts/default/token").then(|| {
            if broken.load(Ordering::SeqCst) {
                let mut no = Response::new(full_body("{}"));
                *no.status_mut() = http::StatusCode::INTERNAL_SERVER_ERROR;
                return no;
            }
            let body: Value = serde_json::from_slice(r.body()).expect("json");
            assert_eq!(body["spec"]["boundObjectRef"]["name"], "p");
            let life = Duration::from_secs(body["spec"]["expirationSeconds"].as_u64().expect("seconds"));
            let n = count.fetch_add(1, Ordering::SeqCst);
            let expires = kelson_meta::format_seconds(clock.now() + life);
            Response::new(full_body(
                json!({"status": {"token": format!("t{n}"), "expirationTimestamp": expires}}).to_string(),
            ))
        })
    }));
    let pod = serde_json::from_value(json!({"metadata":{"name":"p","namespace":"n","uid":"u"}})).expect("pod");
    let tokens = &world.parts.volumes.tokens;
    let get = async || tokens.get(&pod, "", 3600).await.map(|t| t.secret().to_owned());
    assert_eq!(get().await.as_deref(), Ok("t0"));
    tokio::time::sleep(Duration::from_secs(47 * 60)).await;
    assert_eq!(get().await.as_deref(), Ok("t0"), "kept for 80 % of its hour");
    tokio::time::sleep(Duration::from_secs(2 * 60)).await;
    assert_eq!(get().await.as_deref(), Ok("t1"));
    fails.store(true, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_secs(55 * 60)).await;
    assert_eq!(get().await.as_deref(), Ok("t1"), "better an old one than none");
    tokio::time::sleep(Duration::from_secs(6 * 60)).await;
    assert!(get().await.expect_err("expired").starts_with("failed to fetch token: "));
}
