//! A node that missed the rotation of its cluster's CAs, while it ran or while it was off.
use std::sync::Arc;
use std::time::Duration;

use kelson_client::{Client, ClientError};
use kelson_pki::Authority;
use tokio::task::JoinHandle;

use super::Killed;
use super::scripted::{CSRS, Fate, HOUR, World};
use crate::{CertError, CertificateMetrics, ClientCertificate, Discovery};

/// The interval of requests of the kubelet.
const BEAT: Duration = Duration::from_secs(10);

/// A node that runs: what keeps its certificate, and what renews its lease.
struct Running {
    kubelet: Client,
    keeper: JoinHandle<()>,
    metrics: CertificateMetrics,
}

impl Running {
    async fn start(node: ClientCertificate, world: &World) -> Self {
        let config = node.own().await.expect("a kubeconfig");
        let kubelet = Client::new(node.connection(&config).expect("usable"), "test");
        let metrics = CertificateMetrics::new(Arc::clone(&world.clock));
        Self { kubelet, keeper: tokio::spawn(node.run(metrics.clone())), metrics }
    }

    /// Returns the error that the kubelet gets during this time; `None` once it is answered.
    async fn during(&self, time: Duration) -> Option<ClientError> {
        let end = tokio::time::Instant::now() + time;
        loop {
            let reported = self.kubelet.call(http::Method::GET, "/mine", "", bytes::Bytes::new()).await;
            let Err(e) = reported else { return None };
            if tokio::time::Instant::now() >= end {
                return Some(e);
            }
            tokio::time::sleep(BEAT).await;
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.keeper.abort();
    }
}

/// Makes another CA sign; with `both_vouch` the server presents certificates of both.
fn replace_authority(world: &World, both_vouch: bool) -> Authority {
    let next = Authority::create("ca", world.clock.now()).expect("an authority");
    let old = std::mem::replace(&mut *world.server.ca.lock(), next);
    if both_vouch {
        world.server.vouching.lock().push(old.clone());
    }
    old
}

fn by_token(world: &World) -> usize {
    let by_token = format!("token POST {CSRS}");
    world.server.asked.lock().iter().filter(|line| line.starts_with(&by_token)).count()
}

#[tokio::test(start_paused = true)]
async fn a_rejected_running_node_bootstraps_again_with_its_token() {
    let world = World::new(Fate::Approved);
    world.load().await.expect("joined");
    let node = Running::start(world.node(Some("bootstrap")), &world).await;
    assert!(node.during(HOUR).await.is_none());
    let old = replace_authority(&world, true);
    let reported = node.during(Duration::ZERO).await.expect("refused");
    assert_eq!(reported.status().map(|s| s.code), Some(401));
    assert!(node.during(Duration::from_secs(120)).await.is_none(), "it goes on without a restart");
    let stored = world.files().current().expect("readable").expect("there").cert_pem;
    assert!(world.server.ca.lock().has_issued(&stored) && !old.has_issued(&stored));
    // The request of the first key still exists, with a certificate of the old CA.
    assert_eq!((world.made(), world.server.keys.lock().len(), by_token(&world)), (2, 2, 3));
    assert!(!world.holds("kubelet-client.key.tmp"));
    tokio::time::sleep(5 * HOUR).await;
    assert_eq!(world.made(), 2, "once");
}

#[tokio::test(start_paused = true)]
async fn a_refusal_or_two_are_no_sign() {
    let world = World::new(Fate::Approved);
    world.load().await.expect("joined");
    let node = Running::start(world.node(Some("bootstrap")), &world).await;
    for refusals in 1..=2 {
        *world.server.refusals.lock() = refusals;
        assert!(node.during(Duration::from_secs(60)).await.is_none());
        tokio::time::sleep(HOUR).await;
    }
    assert_eq!(world.made(), 1, "nothing was asked for");
    assert!(node.metrics.text().contains("kubelet_certificate_manager_client_expiration_renew_errors 0"));
}

#[tokio::test(start_paused = true)]
async fn a_token_that_is_not_taken_either_is_tried_again_until_it_is() {
    let world = World::new(Fate::Approved);
    world.load().await.expect("joined");
    let node = Running::start(world.node(Some("bootstrap")), &world).await;
    replace_authority(&world, true);
    *world.server.knows_token.lock() = false;
    assert!(node.during(HOUR).await.is_some());
    assert_eq!(world.made(), 1);
    assert!(!node.metrics.text().contains("kubelet_certificate_manager_client_expiration_renew_errors 0"));
    let said = world.node(Some("bootstrap")).obtain_again().await.expect_err("the token is unknown").to_string();
    assert!(said.contains("it needs a new token"), "{said}");
    *world.server.knows_token.lock() = true;
    assert!(node.during(Duration::from_secs(600)).await.is_none(), "an operator has given the token a longer life");
    assert_eq!(world.made(), 2);
}

#[tokio::test(start_paused = true)]
async fn without_bootstrap_credentials_it_is_said_that_nothing_can_be_done() {
    let world = World::new(Fate::Approved);
    world.joined(24 * HOUR).await;
    let node = Running::start(world.node(None), &world).await;
    replace_authority(&world, true);
    assert!(node.during(HOUR).await.is_some());
    assert_eq!(world.made(), 0);
    assert!(!node.metrics.text().contains("kubelet_certificate_manager_client_expiration_renew_errors 0"));
    assert!(matches!(world.node(None).obtain_again().await, Err(CertError::Stranger)));
}

/// Returns the CA that the cluster proves to the node, in a file that is written again.
fn discovery(world: &World) -> Discovery {
    let (server, file) = (Arc::clone(&world.server), world.path("ca.crt"));
    Arc::new(move || {
        let (server, file) = (Arc::clone(&server), file.clone());
        Box::pin(async move {
            std::fs::write(file, server.ca.lock().cert_pem()).map_err(|e| CertError::Unverified(e.to_string()))
        })
    })
}

#[tokio::test(start_paused = true)]
async fn a_node_learns_the_unknown_ca_of_its_server() {
    for finds_out in [true, false] {
        let world = World::new(Fate::Approved);
        std::fs::write(world.path("ca.crt"), world.server.ca.lock().cert_pem()).expect("written");
        world.write("bootstrap", kelson_pki::UserCredential::Token("t".into()));
        world.load().await.expect("joined");
        let node = world.node(Some("bootstrap"));
        let node = if finds_out { node.discovering(discovery(&world)) } else { node };
        let node = Running::start(node, &world).await;
        replace_authority(&world, false);
        let reported = node.during(Duration::from_secs(120)).await;
        assert_eq!(reported.is_none(), finds_out, "{reported:?}");
        assert_eq!(world.made(), if finds_out { 2 } else { 1 });
        if !finds_out {
            assert!(reported.is_some_and(|e| e.to_string().contains("UnknownIssuer")));
            // The current CA of the cluster is written to the file.
            std::fs::write(world.path("ca.crt"), world.server.ca.lock().cert_pem()).expect("written");
            assert!(node.during(Duration::from_secs(600)).await.is_none());
            assert_eq!(world.made(), 2);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_embedded_authority_is_replaced_by_that_of_a_new_bootstrap_kubeconfig() {
    let world = World::new(Fate::Approved);
    world.load().await.expect("joined");
    let node = Running::start(world.node(Some("bootstrap")), &world).await;
    replace_authority(&world, false);
    assert!(node.during(Duration::from_secs(300)).await.is_some(), "nothing here names the new one");
    world.write("bootstrap", kelson_pki::UserCredential::Token("t".into()));
    assert!(node.during(Duration::from_secs(600)).await.is_none(), "it goes on without a restart");
    assert_eq!(world.made(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_due_while_it_is_refused_asks_with_its_token() {
    let world = World::new(Fate::Approved);
    world.load().await.expect("joined");
    // Only the certificate manager sends requests.
    let keeper = tokio::spawn(world.node(Some("bootstrap")).run(CertificateMetrics::new(Arc::clone(&world.clock))));
    replace_authority(&world, true);
    tokio::time::sleep(23 * HOUR).await;
    let stored = world.files().current().expect("readable").expect("there").cert_pem;
    assert!(world.server.ca.lock().has_issued(&stored));
    keeper.abort();
}

#[tokio::test(start_paused = true)]
async fn the_request_of_before_is_not_taken_up_when_its_certificate_is_refused() {
    for keeps_certificate in [true, false] {
        let world = World::new(Fate::Approved);
        world.load().await.expect("joined");
        replace_authority(&world, true);
        world.write("bootstrap", kelson_pki::UserCredential::Token("t".into()));
        std::fs::remove_file(world.path("kubeconfig")).expect("removed");
        if !keeps_certificate {
            // As after a kill: the key is stored where that of a pending request is.
            let key = world.files().current().expect("readable").expect("there").key;
            std::fs::write(world.files().pending_key(), key.to_pem()).expect("written");
            std::fs::remove_file(world.files().current_path()).expect("removed");
        }
        world.load().await.expect("joined anew");
        let stored = world.files().current().expect("readable").expect("there").cert_pem;
        assert!(world.server.ca.lock().has_issued(&stored), "{keeps_certificate}");
        assert_eq!(world.made(), 2, "{keeps_certificate}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_killed_during_a_new_bootstrap_repeats_it_with_one_more_key() {
    let mut completed = false;
    for steps in 1..800 {
        let world = World::new(Fate::Approved);
        world.load().await.expect("joined");
        replace_authority(&world, true);
        world.write("bootstrap", kelson_pki::UserCredential::Token("t".into()));
        let node = world.node(Some("bootstrap"));
        let done = Killed(Box::pin(node.obtain_again()), steps).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        completed = matches!(done, Some(Ok(())));
        if !completed {
            world.node(Some("bootstrap")).obtain_again().await.unwrap_or_else(|e| panic!("after {steps} steps: {e}"));
        }
        let (keys, made) = (world.server.keys.lock().len(), world.made());
        assert_eq!((keys, made), (2, 2), "killed after {steps} steps");
        if completed {
            break;
        }
    }
    assert!(completed, "every step has been killed");
}
