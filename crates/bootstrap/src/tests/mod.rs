//! The whole of bootstrap against a server in memory, on a paused clock.
mod refused;
mod scripted;

use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kelson_client::Client;
use kelson_client::kubeconfig::Credentials;
use kelson_pki::{Authority, Key, LeafSpec, Purpose, San, SwappableCertificate, UserCredential, create_request};
use scripted::{As, CSRS, Fate, HOUR, Wire, World};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::files::Store;
use crate::request::{RequestedCertificate, digested_name};
use crate::{CertificateMetrics, Demand, ServingCertificate};

#[tokio::test(start_paused = true)]
async fn a_node_joins_by_a_token() {
    for streams in [true, false] {
        let world = World::new(Fate::Approved);
        world.server.how.lock().streams = streams;
        let began = Instant::now();
        let config = world.load().await.expect("joined");
        assert!(matches!(config.credentials, Credentials::CertificateFiles { .. }));
        assert_eq!(world.info().common_name, "system:node:n1");
        assert_eq!(world.made(), 1);
        assert!(!world.holds("kubelet-client.key.tmp"), "the temporary key is gone");
        assert!(began.elapsed() < Duration::from_secs(40), "streams {streams}: {:?}", began.elapsed());
        use std::os::unix::fs::PermissionsExt as _;
        let mode = std::fs::metadata(world.path("kubeconfig")).expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        world.load().await.expect("a restart");
        assert_eq!(world.made(), 1, "what is valid is used as it is");
    }
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_used_is_bootstrapped_over() {
    let world = World::new(Fate::Approved);
    std::fs::write(world.path("kubeconfig"), "{not a kubeconfig").expect("written");
    world.load().await.expect("joined over a file that does not parse");
    std::fs::write(world.path("pki").join("kubelet-client-current.pem"), "garbage").expect("written");
    world.load().await.expect("joined over a certificate that does not parse");
    assert_eq!(world.made(), 2);
}

#[tokio::test(start_paused = true)]
async fn without_credentials_there_is_an_error_that_says_so() {
    let world = World::new(Fate::Approved);
    let missing = world.node(Some("nowhere")).load().await.expect_err("no bootstrap kubeconfig").to_string();
    assert!(missing.starts_with("unable to load bootstrap kubeconfig"), "{missing}");
    let missing = world.node(None).load().await.expect_err("no kubeconfig").to_string();
    assert!(missing.starts_with("unable to load the kubeconfig"), "{missing}");
    assert!(world.node(None).begin().await.is_err());
    assert_eq!(world.made(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_kubeconfig_that_cannot_even_be_looked_at_ends_the_start() {
    let world = World::new(Fate::Approved);
    let node = world.node(Some("bootstrap"));
    // Below a file there is nothing to look at, which is not the same as that nothing is there.
    let paths = crate::Paths { kubeconfig: world.path("bootstrap").join("kubeconfig"), ..node.paths.clone() };
    let node = crate::ClientCertificate { paths, ..node };
    for said in [node.load().await.err(), node.begin().await.err()] {
        let said = said.expect("no start").to_string();
        assert!(said.contains("bootstrap/kubeconfig"), "{said}");
    }
    assert_eq!((world.made(), world.holds("kubelet-client.key.tmp")), (0, false), "nothing was asked for");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_late_is_waited_for_a_minute() {
    for (late, joins) in [(40, true), (59, true), (200, false)] {
        let world = World::new(Fate::Approved);
        world.server.how.lock().up = Instant::now() + Duration::from_secs(late);
        let began = Instant::now();
        assert_eq!(world.load().await.is_ok(), joins, "{late}");
        assert!(joins || began.elapsed() < Duration::from_secs(70));
    }
}

/// The request that a node with this key would file.
fn request_of(key: &Key) -> (String, Value) {
    let organizations = vec!["system:nodes".to_owned()];
    let signer = kelson_pki::KUBE_APISERVER_CLIENT_KUBELET;
    let wanted = RequestedCertificate {
        key,
        common_name: "system:node:n1".into(),
        organizations: organizations.clone(),
        sans: Vec::new(),
        signer,
        usage: "client auth",
    };
    let name = digested_name(&wanted);
    let pem = create_request(key, "system:node:n1", &organizations, &[]).expect("a request");
    let spec = json!({"request": STANDARD.encode(pem), "signerName": signer,
        "usages": ["digital signature", "client auth"]});
    (name.clone(), json!({"metadata": {"name": name, "uid": "old"}, "spec": spec}))
}

#[tokio::test(start_paused = true)]
async fn a_request_of_before_is_taken_up_only_if_it_is_ours() {
    let world = World::new(Fate::Approved);
    let key = world.files().key_to_ask_with().await.expect("a key");
    let (name, csr) = request_of(&key);
    let put = |csr: Value| drop(world.server.csrs.lock().insert(name.clone(), (csr, Instant::now())));
    let (_, other) = request_of(&Key::generate().expect("a key"));
    put(other);
    let refused = world.load().await.expect_err("a request of another key").to_string();
    assert!(refused.contains("is not compatible"), "{refused}");
    put(csr.clone());
    world.load().await.expect("the same request");
    assert_eq!(world.made(), 0, "no request but the one that was there");
    let old = world.info();
    // Long after, everything but the key's request is lost: its certificate has ended, so another key is taken.
    std::fs::remove_file(world.path("kubeconfig")).expect("removed");
    tokio::time::sleep(48 * HOUR).await;
    world.load().await.expect("joined under another key");
    assert_eq!(world.made(), 1);
    assert!(world.info().not_after > old.not_after && !world.holds("kubelet-client.key.tmp"));
}

#[tokio::test(start_paused = true)]
async fn what_becomes_of_a_request_is_said() {
    for (fate, limit, part) in [
        (Fate::Denied, 60, "is denied, reason: R, message: M"),
        (Fate::Failed, 60, "failed, reason: R, message: M"),
        (Fate::Deleted, 60, "was deleted"),
        (Fate::Replaced, 60, "was deleted"),
        (Fate::Nothing, 3700, "timed out"),
    ] {
        for streams in [true, false] {
            let world = World::new(fate);
            world.server.how.lock().streams = streams;
            let began = Instant::now();
            let said = world.load().await.expect_err("no certificate").to_string();
            assert!(said.contains(part), "{fate:?}: {said}");
            assert!(began.elapsed() < Duration::from_secs(limit), "{fate:?}: {:?}", began.elapsed());
            assert!(!Path::exists(&world.path("kubeconfig")));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_was_off_too_long_returns_by_its_old_key_or_else_by_the_token() {
    for (grace, bootstrap, who) in [
        (true, Some("bootstrap"), Some("old")),
        (false, Some("bootstrap"), Some("token")),
        (true, None, Some("old")),
        (false, None, None),
    ] {
        let world = World::new(Fate::Approved);
        world.server.how.lock().grace = grace;
        world.joined(HOUR).await;
        let old = world.info();
        tokio::time::sleep(2 * HOUR).await;
        let node = world.node(bootstrap);
        let returned = match bootstrap {
            Some(_) => node.load().await.map(drop),
            None => node.obtain().await,
        };
        assert_eq!(returned.is_ok(), who.is_some(), "{grace} {bootstrap:?}");
        if let Some(who) = who {
            assert!(world.asked(&format!("{who} POST {CSRS}")));
            assert!(world.info().not_after > old.not_after);
        }
    }
}

/// Drops what it drives when it has been polled so often: a kill, between any two steps.
struct Killed<F>(Pin<Box<F>>, usize);

impl<F: Future> Future for Killed<F> {
    type Output = Option<F::Output>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if self.1 == 0 {
            return Poll::Ready(None);
        }
        self.1 -= 1;
        self.0.as_mut().poll(cx).map(Some)
    }
}

#[tokio::test(start_paused = true)]
async fn killed_between_any_two_steps_it_asks_once_with_one_key() {
    let mut completed = false;
    for steps in 1..500 {
        let world = World::new(Fate::Approved);
        let done = Killed(Box::pin(world.load()), steps).await;
        // What a lane has begun ends, as what the kernel has begun does.
        tokio::time::sleep(Duration::from_secs(1)).await;
        completed = matches!(done, Some(Ok(_)));
        world.load().await.unwrap_or_else(|e| panic!("killed after {steps} steps: {e}"));
        assert_eq!(world.server.keys.lock().len(), 1, "killed after {steps} steps: a second key");
        assert_eq!(world.made(), 1, "killed after {steps} steps: a second request");
        if completed {
            break;
        }
    }
    assert!(completed, "every step has been killed");
}

#[tokio::test(start_paused = true)]
async fn a_certificate_is_awaited_in_the_background_and_then_renewed() {
    let world = World::new(Fate::Approved);
    let node = world.node(Some("bootstrap"));
    let joined = node.begin().await.expect("begun");
    assert!(joined.awaited && joined.config.credentials_may_come && world.made() == 0);
    let metrics = CertificateMetrics::new(Arc::clone(&world.clock));
    assert!(metrics.text().contains("kubelet_certificate_manager_client_ttl_seconds inf"), "{}", metrics.text());
    let running = tokio::spawn(node.clone().run(metrics.clone()));
    tokio::time::sleep(Duration::from_secs(60)).await;
    let first = world.info();
    assert!(!node.begin().await.expect("begun").awaited, "a restart has a certificate");
    let ttl = metrics.text();
    let ttl =
        ttl.lines().find_map(|l| l.strip_prefix("kubelet_certificate_manager_client_ttl_seconds ")).expect("a row");
    let left = ttl.parse::<f64>().expect("a number");
    assert!(left > 23.0 * 3600.0 && left <= 24.0 * 3600.0, "{left}");
    tokio::time::sleep(16 * HOUR).await;
    assert_eq!(world.info().not_after, first.not_after, "not before 70 % of its life");
    tokio::time::sleep(6 * HOUR).await;
    assert!(world.info().not_after > first.not_after, "at 90 % at the latest");
    running.abort();
}

#[test]
fn relative_paths_are_made_whole() {
    let clock = Arc::new(kelson_meta::SystemClock);
    let paths = crate::Paths { kubeconfig: "k".into(), bootstrap: Some("b".into()), cert_dir: "pki".into() };
    let made = crate::ClientCertificate::new(paths, "n1", clock).paths;
    let here = std::env::current_dir().expect("a directory");
    assert_eq!((made.kubeconfig, made.bootstrap), (here.join("k"), Some(here.join("b"))));
    assert_eq!(made.cert_dir, here.join("pki"));
}

#[tokio::test(start_paused = true)]
async fn a_day_of_ten_minutes_certificates_leaves_no_moment_without_a_good_one() {
    let world = World::new(Fate::Approved);
    // No shorter one is signed; it begins five minutes before it is made.
    world.server.how.lock().lifetime = Duration::from_secs(600);
    world.load().await.expect("joined");
    let metrics = CertificateMetrics::new(Arc::clone(&world.clock));
    let running = tokio::spawn(world.node(Some("bootstrap")).run(metrics.clone()));
    let end = Instant::now() + 24 * HOUR;
    while Instant::now() < end {
        tokio::time::sleep(Duration::from_secs(20)).await;
        assert!(world.info().is_valid_at(world.clock.now()), "{:?}", world.info());
    }
    assert!(world.made() > 24 * 6, "{} renewals", world.made());
    assert!(metrics.text().contains("kubelet_certificate_manager_client_expiration_renew_errors 0"));
    let by_token = format!("token POST {CSRS}");
    let asked = world.server.asked.lock().iter().filter(|line| line.starts_with(&by_token)).count();
    assert_eq!(asked, 1, "the token is used once");
    running.abort();
}

#[tokio::test(start_paused = true)]
async fn a_good_certificate_is_replaced_when_the_cluster_has_another_authority() {
    let world = World::new(Fate::Approved);
    world.load().await.expect("joined");
    let (demand, demands) = watch::channel(Demand::default());
    let metrics = CertificateMetrics::new(Arc::clone(&world.clock));
    let running = tokio::spawn(world.node(Some("bootstrap")).demanding(demands).run(metrics));
    tokio::time::sleep(HOUR).await;
    assert_eq!(world.made(), 1, "nothing is demanded");
    let stored = || world.files().current().expect("readable").expect("a certificate").cert_pem;
    let old = world.server.ca.lock().clone();
    let next = old.successor(world.clock.now()).expect("an authority");
    demand.send_replace(Demand { issuer_pem: old.cert_pem().to_owned(), ..Demand::default() });
    tokio::time::sleep(HOUR).await;
    assert_eq!(world.made(), 1, "it is what is demanded");
    // While they are replaced both are trusted.
    world.server.believed.lock().push(old.clone());
    world.server.vouching.lock().push(old.clone());
    *world.server.ca.lock() = next.clone();
    demand.send_replace(Demand { issuer_pem: next.cert_pem().to_owned(), ..Demand::default() });
    tokio::time::sleep(HOUR / 2).await;
    assert_eq!(world.made(), 2);
    assert!(next.has_issued(&stored()) && !old.has_issued(&stored()));
    // A demand for a CA that does not sign is followed once, and not repeatedly.
    let other = Authority::create("ca", world.clock.now()).expect("an authority");
    demand.send_replace(Demand { issuer_pem: other.cert_pem().to_owned(), ..Demand::default() });
    tokio::time::sleep(12 * HOUR).await;
    assert_eq!(world.made(), 3);
    demand.send_replace(Demand { since: world.clock.now(), ..Demand::default() });
    tokio::time::sleep(HOUR / 2).await;
    assert_eq!(world.made(), 4, "an operator asked");
    running.abort();
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_is_denied_is_tried_again_and_counted() {
    let world = World::new(Fate::Denied);
    world.server.how.lock().grace = true;
    world.joined(10 * HOUR).await;
    let metrics = CertificateMetrics::new(Arc::clone(&world.clock));
    let running = tokio::spawn(world.node(Some("bootstrap")).run(metrics.clone()));
    tokio::time::sleep(9 * HOUR + Duration::from_secs(120)).await;
    let errors = "kubelet_certificate_manager_client_expiration_renew_errors 0";
    assert!(!metrics.text().contains(errors), "{}", metrics.text());
    assert!(world.server.keys.lock().len() > 1, "a denied key is not asked with again");
    world.server.how.lock().fate = Fate::Approved;
    let before = world.info().not_after;
    tokio::time::sleep(HOUR / 2).await;
    assert!(world.info().not_after > before);
    running.abort();
}

#[tokio::test(start_paused = true)]
async fn an_embedded_certificate_moves_to_the_store_where_it_is_renewed() {
    let world = World::new(Fate::Approved);
    let organizations = ["system:nodes".to_owned()];
    let spec = LeafSpec {
        common_name: "system:node:n1",
        organizations: &organizations,
        sans: &[],
        purpose: Purpose::Client,
        lifetime: HOUR,
    };
    let issued = world.server.ca.lock().issue(&spec, world.clock.now()).expect("issued");
    world.write("kubeconfig", UserCredential::Certificate(Box::new(issued)));
    std::fs::create_dir_all(world.path("pki")).expect("a directory");
    let joined = world.node(None).begin().await.expect("begun");
    let Credentials::CertificateFiles { cert, .. } = joined.config.credentials else { panic!("files") };
    assert_eq!(cert, world.files().current_path());
    // A newer one in the store is not replaced by the one of long ago.
    let longer = LeafSpec { lifetime: 9 * HOUR, ..spec };
    let newer = world.server.ca.lock().issue(&longer, world.clock.now()).expect("issued");
    world.files().update(&newer, world.clock.now()).await.expect("stored");
    let newer = world.info().not_after;
    world.node(None).begin().await.expect("begun");
    assert_eq!(world.info().not_after, newer);
}

#[tokio::test(start_paused = true)]
async fn the_serving_certificate_follows_the_nodes_addresses() {
    let world = World::new(Fate::Approved);
    let self_signed = Authority::create("n1-ca", world.clock.now()).expect("ca");
    let spec = LeafSpec { common_name: "n1", organizations: &[], sans: &[], purpose: Purpose::Server, lifetime: HOUR };
    let own = self_signed.issue(&spec, world.clock.now()).expect("issued");
    let serving = SwappableCertificate::new(&own).expect("usable");
    let (name, names) = watch::channel(Vec::new());
    let (demand, demands) = watch::channel(Demand::default());
    let metrics = CertificateMetrics::new(Arc::clone(&world.clock));
    let certificate = ServingCertificate {
        client: Client::new(Arc::new(Wire(Arc::clone(&world.server), As::Known("own"))), "test"),
        clock: Arc::clone(&world.clock),
        node_name: "n1".into(),
        cert_dir: world.path("pki"),
        names,
        demands,
        serving: Arc::clone(&serving),
        metrics: metrics.clone(),
    };
    let running = tokio::spawn(certificate.run());
    tokio::time::sleep(HOUR).await;
    assert_eq!(world.made(), 0, "a node without addresses asks for nothing");
    let files = Store::new("kubelet-server", &world.path("pki"));
    let ip = |text: &str| San::Ip(text.parse().expect("ip"));
    let sans = || crate::files::info(&files.current().expect("read").expect("issued")).expect("info").sans;
    name.send_replace(vec![San::Dns("n1".into()), ip("192.0.2.1")]);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!((world.made(), sans()), (1, vec![San::Dns("n1".into()), ip("192.0.2.1")]));
    let first = serving.renewal().expires;
    tokio::time::sleep(16 * HOUR).await;
    assert_eq!(world.made(), 1, "not before 70 % of its life");
    tokio::time::sleep(6 * HOUR).await;
    assert_eq!(world.made(), 2, "at 90 % at the latest");
    assert!(serving.renewal().expires > first, "swapped in under the listener");
    assert!(
        metrics.text().contains("kubelet_certificate_manager_server_rotation_seconds_count 1"),
        "{}",
        metrics.text()
    );
    // Requests are not approved any more, and the node gets another address: one request waits, and no second one is
    // created.
    world.server.how.lock().fate = Fate::Nothing;
    name.send_replace(vec![San::Dns("n1".into()), ip("192.0.2.2")]);
    tokio::time::sleep(HOUR).await;
    assert_eq!(world.made(), 3);
    tokio::time::sleep(HOUR).await;
    assert_eq!(world.made(), 3, "the request that waits is the one that is waited for");
    assert!(!metrics.text().contains("kubelet_server_expiration_renew_errors 0"));
    world.server.how.lock().fate = Fate::Approved;
    tokio::time::sleep(HOUR / 2).await;
    assert_eq!(sans(), [San::Dns("n1".into()), ip("192.0.2.2")]);
    let (made, before) = (world.made(), serving.renewal().expires);
    demand.send_replace(Demand { since: world.clock.now(), ..Demand::default() });
    tokio::time::sleep(HOUR / 2).await;
    assert_eq!(world.made(), made + 1, "renewed once because it was asked for");
    assert!(serving.renewal().expires > before);
    running.abort();
}
