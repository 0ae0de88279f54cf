//! Leader election (`kelson_client::leader`) with the API server in memory.
use std::sync::Arc;
use std::time::Duration;

use kelson_client::leader::{Candidate, LEASE, RENEW};
use tokio::time::{Instant, sleep, timeout};

use crate::Api;

fn candidate(api: &Api, who: &str) -> Candidate {
    Candidate::new(api.client(), Arc::new(api.clock), "kube-system", "kube-scheduler", who)
}

#[tokio::test(start_paused = true)]
async fn one_leads_until_it_ends_or_falls_silent() {
    let api = Api::start().await;
    let (mut a, mut b, mut c) = (candidate(&api, "a"), candidate(&api, "b"), candidate(&api, "c"));
    a.won().await;
    tokio::select! {
        () = b.won() => panic!("two lead"),
        why = a.lost() => panic!("{why}"),
        () = sleep(Duration::from_secs(120)) => {}
    }
    a.release().await;
    timeout(Duration::from_secs(5), b.won()).await.expect("a lease that was given back is free");
    // It sends nothing from here on.
    let silent = Instant::now();
    c.won().await;
    let waited = silent.elapsed();
    assert!(waited >= LEASE - Duration::from_secs(1) && waited < LEASE + Duration::from_secs(5), "{waited:?}");
    let lease = api.get("coordination.k8s.io/v1/leases", "kube-system", "kube-scheduler").await.expect("a lease");
    assert_eq!((&lease["spec"]["holderIdentity"], &lease["spec"]["leaseTransitions"]), (&"c".into(), &2.into()));
    assert!(timeout(LEASE, b.lost()).await.expect("it hears of it").contains("another process"));
    api.stop().await;
    let down = Instant::now();
    let why = c.lost().await;
    assert!(why.contains("timed out") && down.elapsed() < RENEW + Duration::from_secs(5), "{why}");
}
