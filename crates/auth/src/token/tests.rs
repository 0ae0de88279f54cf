//! Issued tokens: verified, and rejected for every possible reason.
use super::uses::{TokenUses, Use, UsedSecret};
use super::*;
use crate::authenticate::tests::{Fixture, HandClock};
use crate::authenticate::{CachedTokens, TokenAuthenticator};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use kelson_meta::Clock;
use kelson_pki::Key;
use serde_json::{Value, json};
use std::sync::Arc;

struct World {
    heard: Arc<RecordedTokenUse>,
    clock: Arc<HandClock>,
    objects: Arc<Fixture>,
    issuer: TokenIssuer,
    tokens: Arc<ServiceAccountTokens>,
    key: Key,
}

/// Records uses, and secrets to be marked.
#[derive(Default)]
struct RecordedTokenUse(parking_lot::Mutex<(Vec<Use>, Vec<UsedSecret>)>);

impl TokenUses for RecordedTokenUse {
    fn used(&self, how: Use) {
        self.0.lock().0.push(how);
    }
    fn mark(&self, secret: UsedSecret) {
        self.0.lock().1.push(secret);
    }
}

fn world() -> World {
    let clock = HandClock::at("2026-05-06T07:08:09Z");
    let objects = Arc::new(Fixture::default());
    objects.put("serviceaccounts/a/bot", json!({"metadata": {"uid": "sa-1"}}));
    objects.put(
        "pods/a/p",
        json!({"metadata": {"uid": "pod-1"}, "spec": {"serviceAccountName": "bot", "nodeName": "n1"}}),
    );
    objects.put("nodes//n1", json!({"metadata": {"uid": "node-1"}}));
    objects.put("secrets/a/s", json!({"metadata": {"uid": "sec-1"}}));
    let key = Key::generate().unwrap();
    let tokens = ServiceAccountTokens::new(
        vec![Key::generate().unwrap().public().clone(), key.public().clone()],
        VerifierOptions::default(),
        objects.clone(),
        clock.clone(),
    );
    let heard = Arc::new(RecordedTokenUse::default());
    let tokens = tokens.with_observer(heard.clone());
    World {
        heard,
        issuer: TokenIssuer::new(key.clone(), IssuerOptions::default()),
        tokens: Arc::new(tokens),
        clock,
        objects,
        key,
    }
}

impl World {
    fn mint(&self, spec: Value) -> Result<Value, (u16, String)> {
        self.issuer
            .answer(self.objects.as_ref(), "a", "bot", &json!({"spec": spec}), self.clock.now())
            .map(|m| m.response)
            .map_err(|s| (s.code, s.message))
    }
    fn token(&self, spec: Value) -> String {
        self.mint(spec).unwrap()["status"]["token"].as_str().unwrap().to_owned()
    }
    fn ask(&self, token: &str) -> Result<Option<crate::UserInfo>, String> {
        self.tokens.authenticate_token(token, &[]).map(|a| a.map(|a| (*a.user).clone())).map_err(|e| e.0)
    }
}

fn claims(token: &str) -> Value {
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(token.split('.').nth(1).unwrap()).unwrap()).unwrap()
}

fn pod_ref() -> Value {
    json!({"kind": "Pod", "apiVersion": "v1", "name": "p", "uid": "pod-1"})
}

#[test]
fn claims_are_upstreams() {
    let w = world();
    let now = w.clock.now().as_second();
    let response = w.mint(json!({"boundObjectRef": pod_ref(), "expirationSeconds": 3607})).unwrap();
    assert_eq!(response["status"]["expirationTimestamp"], "2026-05-06T08:08:16Z");
    assert_eq!(response["metadata"]["name"], "bot");
    let c = claims(response["status"]["token"].as_str().unwrap());
    assert_eq!(
        c["kubernetes.io"],
        json!({"namespace": "a", "node": {"name": "n1", "uid": "node-1"},
        "pod": {"name": "p", "uid": "pod-1"}, "serviceaccount": {"name": "bot", "uid": "sa-1"}, "warnafter": now + 3607})
    );
    assert_eq!((&c["exp"], &c["iat"], &c["nbf"]), (&json!(now + EXTENDED_SECONDS), &json!(now), &json!(now)));
    assert_eq!((&c["aud"], &c["iss"]), (&json!([DEFAULT_ISSUER]), &json!(DEFAULT_ISSUER)));
    assert_eq!(c["sub"], "system:serviceaccount:a:bot");
    assert_eq!(
        c.as_object().unwrap().keys().collect::<Vec<_>>(),
        ["aud", "exp", "iat", "iss", "jti", "kubernetes.io", "nbf", "sub"]
    );
    let plain =
        claims(&w.token(json!({"audiences": ["vault"], "boundObjectRef": pod_ref(), "expirationSeconds": 3607})));
    assert_eq!(plain["exp"], json!(now + 3607), "only for the API server's own audiences");
    assert!(plain["kubernetes.io"].get("warnafter").is_none());
    assert_eq!(claims(&w.token(json!({})))["exp"], json!(now + 3600));
}

#[test]
fn requests_refused() {
    let w = world();
    w.objects.put("pods/a/other", json!({"metadata": {"uid": "x"}, "spec": {"serviceAccountName": "someone"}}));
    for (spec, code, text) in [
        (
            json!({"expirationSeconds": 599}),
            422,
            "TokenRequest.authentication.k8s.io \"\" is invalid: spec.expirationSeconds: Invalid value: 599: may not specify a duration less than 10 minutes",
        ),
        (json!({"expirationSeconds": 1i64 << 33}), 422, "may not specify a duration larger than 2^32 seconds"),
        (
            json!({"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "gone"}}),
            404,
            "pods \"gone\" not found",
        ),
        (
            json!({"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "other"}}),
            400,
            "pod running with different serviceaccount name",
        ),
        (
            json!({"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "p", "uid": "old"}}),
            409,
            "does not match the UID in record",
        ),
        (
            json!({"boundObjectRef": {"kind": "ConfigMap", "apiVersion": "v1", "name": "p"}}),
            400,
            "cannot bind token to object of type /v1, Kind=ConfigMap",
        ),
    ] {
        let e = w.mint(spec.clone()).unwrap_err();
        assert!(e.0 == code && e.1.contains(text), "{spec}: {e:?}");
    }
    let now = w.clock.now();
    let absent = w.issuer.answer(w.objects.as_ref(), "a", "none", &json!({}), now).unwrap_err();
    assert_eq!(absent.message, "serviceaccounts \"none\" not found");
    let wrong = json!({"metadata": {"name": "x"}});
    assert_eq!(w.issuer.answer(w.objects.as_ref(), "a", "bot", &wrong, now).unwrap_err().code, 422);
    let minted = w.issuer.answer(w.objects.as_ref(), "a", "bot", &json!({}), now).unwrap();
    assert!(!format!("{minted:?} {:?}", w.issuer).contains("eyJ"), "tokens do not print");
}

#[test]
fn bound_tokens_end_with_what_they_are_bound_to() {
    let w = world();
    let token = w.token(json!({"boundObjectRef": pod_ref()}));
    let user = w.ask(&token).unwrap().unwrap();
    assert_eq!(user.name, "system:serviceaccount:a:bot");
    assert_eq!(user.groups, ["system:serviceaccounts", "system:serviceaccounts:a"]);
    let extra = |k| user.extra_one(k);
    assert_eq!((extra(crate::user::POD_NAME), extra(crate::user::POD_UID)), (Some("p"), Some("pod-1")));
    assert_eq!((extra(crate::user::NODE_NAME), extra(crate::user::NODE_UID)), (Some("n1"), Some("node-1")));
    assert!(extra(crate::user::CREDENTIAL_ID).unwrap().starts_with("JTI="));

    let pod = |meta: Value| json!({"metadata": meta, "spec": {"serviceAccountName": "bot"}});
    w.objects.put("pods/a/p", pod(json!({"uid": "pod-1", "deletionTimestamp": "2026-05-06T07:08:00Z"})));
    assert!(w.ask(&token).is_ok(), "within the leeway");
    w.clock.pass(60);
    assert_eq!(w.ask(&token).unwrap_err(), "service account token has been invalidated");
    w.objects.put("pods/a/p", pod(json!({"uid": "pod-2"})));
    assert_eq!(w.ask(&token).unwrap_err(), "pod UID (pod-2) does not match service account pod ref claim (pod-1)");
    w.objects.0.lock().remove("pods/a/p");
    assert_eq!(w.ask(&token).unwrap_err(), "service account token has been invalidated");

    let on_node = w.token(json!({"boundObjectRef": {"kind": "Node", "apiVersion": "v1", "name": "n1"}}));
    let in_secret = w.token(json!({"boundObjectRef": {"kind": "Secret", "apiVersion": "v1", "name": "s"}}));
    assert!(w.ask(&on_node).is_ok() && w.ask(&in_secret).is_ok());
    w.objects.put("nodes//n1", json!({"metadata": {"uid": "node-2"}}));
    w.objects.0.lock().remove("secrets/a/s");
    assert_eq!(
        w.ask(&on_node).unwrap_err(),
        "node UID (node-2) does not match service account node ref claim (node-1)"
    );
    assert!(w.ask(&in_secret).is_err());
    let plain = w.token(json!({}));
    w.objects.put("serviceaccounts/a/bot", json!({"metadata": {"uid": "sa-2"}}));
    assert_eq!(w.ask(&plain).unwrap_err(), "service account UID (sa-2) does not match claim (sa-1)");
}

#[test]
fn forged_stale_and_foreign() {
    let w = world();
    let token = w.token(json!({}));
    let mut parts: Vec<&str> = token.split('.').collect();
    let other = Key::generate().unwrap();
    let stolen = TokenIssuer::new(other, IssuerOptions::default());
    let foreign = stolen.answer(w.objects.as_ref(), "a", "bot", &json!({}), w.clock.now()).unwrap();
    let foreign = foreign.response["status"]["token"].as_str().unwrap().to_owned();
    assert_eq!(w.ask(&foreign).unwrap_err(), "invalid signature, no keys found");
    let changed = token.replace(parts[1], &URL_SAFE_NO_PAD.encode(claims(&token).to_string().replace("bot", "bob")));
    assert_eq!(w.ask(&changed).unwrap_err(), "invalid signature");
    let none = URL_SAFE_NO_PAD.encode(json!({"alg": "none", "kid": w.key.public().key_id()}).to_string());
    parts[0] = &none;
    assert_eq!(w.ask(&parts.join(".")).unwrap_err(), "invalid signature");
    for unknown in ["", "a.b", "a.b.c", "abcdef.0123456789abcdef"] {
        assert_eq!(w.ask(unknown), Ok(None));
    }
    let vault = w.token(json!({"audiences": ["vault"]}));
    assert!(w.ask(&vault).unwrap_err().contains("is invalid for the target audiences"));
    let found = w.tokens.authenticate_token(&vault, &["x".into(), "vault".into()]).unwrap().unwrap();
    assert_eq!(&*found.audiences, ["vault"]);
    w.clock.pass(3600 + 60);
    assert!(w.ask(&token).is_ok());
    w.clock.pass(1);
    assert_eq!(w.ask(&token).unwrap_err(), "service account token has expired");
    let early = world();
    early.objects.put("serviceaccounts/a/bot", json!({"metadata": {"uid": "sa-1"}}));
    let later = early.clock.now() + std::time::Duration::from_secs(61);
    let m = early.issuer.answer(early.objects.as_ref(), "a", "bot", &json!({}), later).unwrap();
    assert_eq!(
        early.ask(m.response["status"]["token"].as_str().unwrap()).unwrap_err(),
        "service account token is not valid yet"
    );
}

#[test]
fn tokens_in_secrets() {
    let w = world();
    let token = w.issuer.legacy_token("a", "bot", "sa-1", "s").unwrap();
    assert_eq!(w.ask(&token).unwrap_err(), "Token does not match server's copy");
    let stored =
        |labels: Value| json!({"metadata": {"uid": "x", "labels": labels}, "data": {"token": STANDARD.encode(&token)}});
    w.objects.put("secrets/a/s", stored(json!({})));
    assert_eq!(w.ask(&token).unwrap().unwrap().name, "system:serviceaccount:a:bot");
    let marked = UsedSecret { namespace: "a".into(), name: "s".into(), uid: "x".into(), day: "2026-05-06".into() };
    let heard = || std::mem::take(&mut *w.heard.0.lock());
    assert_eq!(heard(), (vec![Use::Manual, Use::Legacy], vec![marked.clone()]));
    let remarks = |token: &str| w.tokens.authenticate_token(token, &[]).unwrap().unwrap().remarks.unwrap();
    assert!(remarks(&token).warnings.is_empty());
    w.objects.put("serviceaccounts/a/bot", json!({"metadata": {"uid": "sa-1"}, "secrets": [{"name": "s"}]}));
    w.objects.put("secrets/a/s", stored(json!({"kubernetes.io/legacy-token-last-used": "2026-05-06"})));
    heard();
    let reported = remarks(&token);
    assert!(reported.warnings[0].contains("instead of auto-generated"));
    let keys: Vec<&str> = reported.annotations.iter().map(|(key, _)| *key).collect();
    let annotations = ["authentication.k8s.io/legacy-token-autogenerated-secret", "authentication.k8s.io/legacy-token"];
    assert_eq!(keys, annotations);
    assert_eq!(heard(), (vec![Use::AutoGenerated, Use::Legacy], vec![]), "marked once a day");
    w.objects.put("secrets/a/s", stored(json!({"kubernetes.io/legacy-token-invalid-since": "2026-01-01"})));
    assert!(w.ask(&token).unwrap_err().contains("has been marked invalid"));
    assert_eq!(heard(), (vec![Use::Invalidated], vec![marked]), "that it was used is noted all the same");
    w.objects.0.lock().remove("secrets/a/s");
    assert_eq!(w.ask(&token).unwrap_err(), "Token has been invalidated");
}

#[test]
fn a_pods_token_that_was_not_replaced_is_noted() {
    let w = world();
    let token = w.token(json!({"boundObjectRef": pod_ref(), "expirationSeconds": 3607}));
    let noted = |wanted: Use| {
        let found = w.tokens.authenticate_token(&token, &[]).unwrap().unwrap();
        assert_eq!(std::mem::take(&mut *w.heard.0.lock()), (vec![wanted], vec![]));
        found.remarks.map(|remarks| remarks.annotations.clone()).unwrap_or_default()
    };
    assert_eq!(noted(Use::Valid), []);
    w.clock.pass(3610);
    let reported = "subject: system:serviceaccount:a:bot, seconds after warning threshold: 3".to_owned();
    assert_eq!(noted(Use::Stale), [("authentication.k8s.io/stale-token", reported)]);
}

#[test]
fn cached_for_ten_seconds() {
    let w = world();
    let token = w.token(json!({}));
    let cached = CachedTokens::new(w.tokens.clone(), w.clock.clone());
    assert!(cached.authenticate_token(&token, &[]).unwrap().is_some());
    w.objects.0.lock().remove("serviceaccounts/a/bot");
    w.clock.pass(9);
    assert!(cached.authenticate_token(&token, &[]).unwrap().is_some());
    w.clock.pass(1);
    assert!(cached.authenticate_token(&token, &[]).is_err());
}

#[test]
fn discovery() {
    let key = Key::generate().unwrap();
    let set = jwks(&[key.public().clone()]);
    let k = &set["keys"][0];
    assert_eq!(
        (&k["kty"], &k["crv"], &k["alg"], &k["use"]),
        (&json!("EC"), &json!("P-256"), &json!("ES256"), &json!("sig"))
    );
    assert_eq!(k["kid"], json!(key.public().key_id()));
    assert_eq!(URL_SAFE_NO_PAD.decode(k["x"].as_str().unwrap()).unwrap().len(), 32);
    let document = openid_configuration(DEFAULT_ISSUER, "https://1.2.3.4:6443/openid/v1/jwks", &[key.public().clone()]);
    assert_eq!(document["id_token_signing_alg_values_supported"], json!(["ES256"]));
}
