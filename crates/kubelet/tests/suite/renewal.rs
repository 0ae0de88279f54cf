//! Renewal of service account tokens on the paused clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use crate::common::world;
use kelson_client::{Response, full_body};
use serde_json::{Value, json};

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
    world.clock.jump(-7200);
    assert_eq!(get().await.as_deref(), Ok("t2"), "the server takes no token from its future");
    fails.store(true, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_secs(55 * 60)).await;
    assert_eq!(get().await.as_deref(), Ok("t2"), "better an old one than none");
    tokio::time::sleep(Duration::from_secs(6 * 60)).await;
    assert!(get().await.expect_err("expired").starts_with("failed to fetch token: "));
}
