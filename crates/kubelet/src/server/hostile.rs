//! Clients without valid credentials, and what each subresource permits: foreign certificates, headers of front proxies, a user with one
//! permission.
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderName, header};
use jiff::Timestamp;
use kelson_client::{Client, Request, Response, Transport, TransportError, full_body};
use kelson_doubles::TokioClock;
use kelson_meta::Clock;
use kelson_pki::{Authority, LeafSpec, Purpose, certificates_from_pem};
use parking_lot::Mutex;
use rustls_pki_types::CertificateDer;
use serde_json::{Value, json};

use super::auth::Auth;
use super::routes::judged;
use crate::config::Config;

/// An API server that knows the token `good` as user `u`, who may read `nodes/pods` only. Records the requests.
struct ReviewWire(Arc<Mutex<Vec<Value>>>);

impl Transport for ReviewWire {
    fn send(&self, request: Request) -> Pin<Box<dyn Future<Output = Result<Response, TransportError>> + Send>> {
        let asked = Arc::clone(&self.0);
        Box::pin(async move {
            let spec = serde_json::from_slice::<Value>(request.body()).expect("json")["spec"].clone();
            let status = match spec["token"].as_str() {
                Some("good") => json!({"authenticated": true, "user": {"username": "u", "groups": ["g"]}}),
                Some(_) => json!({}),
                None => json!({"allowed": spec["resourceAttributes"]["subresource"] == "pods"}),
            };
            asked.lock().push(spec);
            Ok(Response::new(full_body(json!({"metadata": {}, "spec": {}, "status": status}).to_string())))
        })
    }
}

struct World {
    asked: Arc<Mutex<Vec<Value>>>,
    ca: Authority,
    now: Timestamp,
    auth: Auth,
}

fn world() -> World {
    let clock = Arc::new(TokioClock::starting_at(Timestamp::from_second(1_800_000_000).expect("time")));
    let (asked, now) = (Arc::default(), clock.now());
    let ca = Authority::create("ca", now).expect("ca");
    let client = Client::new(Arc::new(ReviewWire(Arc::clone(&asked))), "test");
    let auth = Auth::new(
        client,
        clock,
        &Config::new("n1", std::path::Path::new("/")),
        &[ca.cert_pem()],
        &kelson_metrics::Registry::new(),
    )
    .expect("auth");
    World { asked, ca, now, auth }
}

fn shown(ca: &Authority, purpose: Purpose, at: Timestamp) -> Vec<CertificateDer<'static>> {
    let organizations = ["ops".to_owned()];
    let lifetime = Duration::from_secs(3600);
    let spec = LeafSpec { common_name: "jane", organizations: &organizations, sans: &[], purpose, lifetime };
    certificates_from_pem(&ca.issue(&spec, at).expect("issued").cert_pem).expect("a chain")
}

#[tokio::test(start_paused = true)]
async fn only_valid_client_certificates_of_the_ca_authenticate() {
    let w = world();
    let (none, two_hours) = (HeaderMap::new(), Duration::from_secs(7200));
    let jane = w.auth.authenticate(&shown(&w.ca, Purpose::Client, w.now), &none).await.expect("known");
    assert_eq!((jane.name.as_str(), jane.groups), ("jane", vec!["ops".to_owned(), "system:authenticated".to_owned()]));
    let stranger = Authority::create("ca", w.now).expect("ca");
    for (what, chain) in [
        ("none", Vec::new()),
        ("of another CA of that name", shown(&stranger, Purpose::Client, w.now)),
        ("expired", shown(&w.ca, Purpose::Client, w.now - two_hours)),
        ("not yet valid", shown(&w.ca, Purpose::Client, w.now + two_hours)),
        ("a server's", shown(&w.ca, Purpose::Server, w.now)),
        ("no certificate", vec![CertificateDer::from(vec![0x30, 0])]),
    ] {
        assert_eq!(w.auth.authenticate(&chain, &none).await, None, "{what}");
    }
    let headers = [
        ("x-remote-user", "root"),
        ("x-remote-group", "system:masters"),
        ("impersonate-user", "root"),
        ("authorization", "Basic cm9vdDpyb290"),
    ];
    let headers = headers.map(|(name, value)| (HeaderName::from_static(name), value.parse().expect("a value")));
    assert_eq!(w.auth.authenticate(&[], &HeaderMap::from_iter(headers)).await, None, "there is no front proxy here");
    assert!(w.asked.lock().is_empty(), "nothing of it is a token");
}

#[tokio::test(start_paused = true)]
async fn permission_for_a_subresource_permits_only_its_endpoints() {
    let w = world();
    let token = HeaderMap::from_iter([(header::AUTHORIZATION, "Bearer good".parse().expect("a header"))]);
    let user = w.auth.authenticate(&[], &token).await.expect("known");
    for (path, opens) in [
        ("/pods", true),
        ("/runningpods/", true),
        ("/healthz", false),
        ("/healthz/syncloop", false),
        ("/configz", false),
        ("/metrics", false),
        ("/metrics/cadvisor", false),
        ("/stats/summary", false),
        ("/logs/", false),
        ("/containerLogs/n/p/c", false),
        ("/exec/n/p/c", false),
        ("/attach/n/p/c", false),
        ("/portForward/n/p", false),
        ("/run/n/p/c", false),
        ("/checkpoint/n/p/c", false),
        ("/localVolumes/v", false),
        ("/debug/pprof/profile", false),
        ("/whatever", false),
    ] {
        let (verb, subresources) = judged(&http::Method::GET, path).expect("judged");
        let judged = w.auth.authorize(&user, verb, subresources).await;
        assert_eq!(judged.is_ok(), opens, "{path}");
    }
    let asked = w.asked.lock().clone();
    let of = |spec: &Value| spec["resourceAttributes"]["subresource"].as_str().map(str::to_owned);
    let mut seen: Vec<String> = asked.iter().filter_map(of).collect();
    // The general subresource is checked once for reading and once for acting.
    seen.sort_unstable();
    let wanted = ["checkpoint", "configz", "healthz", "log", "metrics", "pods", "proxy", "proxy", "stats"];
    assert_eq!(seen, wanted, "the fine ones each once, as answers are kept");
    assert!(asked[1..].iter().all(|spec| spec["resourceAttributes"]["name"] == "n1"), "of this node: {asked:?}");
}
