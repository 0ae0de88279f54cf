//! Tokens of an issuer in memory: accepted and rejected ones, and the mapping of claims.
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use jiff::Timestamp;
use kelson_pki::Key;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::super::tests::HandClock;
use super::publisher::TOKEN_MAX_BYTES;
use super::*;
use crate::UserInfo;

const NOW: &str = "2026-05-06T07:08:09Z";

/// The server of an issuer with one key.
struct Server {
    key: Key,
    asked: AtomicUsize,
    says: &'static str,
    /// Answers of further addresses to clients with the right token.
    elsewhere: Mutex<HashMap<String, String>>,
}

/// The access token that claim endpoints require.
const ACCESS: &str = "open-sesame";

impl Server {
    fn new(key: Key, says: &'static str) -> Self {
        Self { key, asked: AtomicUsize::new(0), says, elsewhere: Mutex::default() }
    }
}

fn number(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

#[async_trait]
impl Fetch for Server {
    async fn get(&self, url: &str, _: &[u8], bearer: Option<&str>) -> Result<Bytes, String> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        if let Some(answer) = self.elsewhere.lock().get(url) {
            let answer = answer.clone();
            let open = bearer == Some(ACCESS) || answer.starts_with('{');
            return if open { Ok(answer.into()) } else { Err("the server responded with 401".into()) };
        }
        let (issuer, keys) = ("https://issuer.example", "https://issuer.example/keys");
        let body = match url {
            "https://issuer.example/.well-known/openid-configuration" => json!({"issuer": self.says, "jwks_uri": keys}),
            url if url == keys => {
                json!({"keys": [{"kty": "oct"}, published(&self.key)]})
            }
            other => return Err(format!("{other} is not of {issuer}")),
        };
        Ok(body.to_string().into())
    }
}

fn published(key: &Key) -> Value {
    let raw = key.public().raw();
    let (x, y) = (number(&raw[1..33]), number(&raw[33..]));
    json!({"kty": "EC", "crv": "P-256", "kid": "one", "use": "sig", "x": x, "y": y})
}

struct World {
    server: Arc<Server>,
    clock: Arc<HandClock>,
    issuers: Issuers,
}

fn world(mappings: &str) -> World {
    let config = format!(
        "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\njwt:\n- issuer:\n    url: https://issuer.example\n    audiences: [me, other]\n    audienceMatchPolicy: MatchAny\n{mappings}"
    );
    let config = AuthenticationConfiguration::parse(config.as_bytes()).unwrap_or_else(|e| panic!("{e:?}"));
    let server = Arc::new(Server::new(Key::generate().unwrap(), "https://issuer.example"));
    let clock = HandClock::at(NOW);
    let issuers = Issuers::new(config.issuers, Arc::clone(&server) as _, Arc::clone(&clock) as _);
    World { server, clock, issuers }
}

const PLAIN: &str =
    "  claimMappings:\n    username: {claim: sub, prefix: 'ex:'}\n    groups: {claim: groups, prefix: ''}\n";

fn good() -> Value {
    let now: Timestamp = NOW.parse().unwrap();
    json!({"iss": "https://issuer.example", "aud": ["me"], "sub": "jane", "groups": ["dev"], "jti": "7",
        "iat": now.as_second(), "exp": now.as_second() + 600})
}

/// Returns a token with this header, signed with this key.
fn token(key: &Key, header: &Value, claims: &Value) -> String {
    let signed = format!("{}.{}", number(header.to_string().as_bytes()), number(claims.to_string().as_bytes()));
    let der = key.sign(signed.as_bytes()).unwrap();
    format!("{signed}.{}", number(&crate::token::fixed_signature(&der).unwrap()))
}

fn es256() -> Value {
    json!({"alg": "ES256", "kid": "one"})
}

async fn prove(world: &World, token: &str) -> Result<Option<UserInfo>, String> {
    let tokens: &dyn TokenAuthenticator = &world.issuers;
    tokens.prove(token, &[]).await.map(|found| found.map(|f| f.user.as_ref().clone())).map_err(|e| e.0)
}

#[tokio::test]
async fn keys_are_fetched_once_and_a_good_token_is_a_user() {
    let world = world(PLAIN);
    let made = token(&world.server.key, &es256(), &good());
    for _ in 0..3 {
        let user = prove(&world, &made).await.unwrap().expect("known");
        assert_eq!((user.name.as_str(), user.groups), ("ex:jane", vec!["dev".to_owned()]));
        assert_eq!(user.extra[crate::user::CREDENTIAL_ID], ["JTI=7"]);
    }
    assert_eq!(world.server.asked.load(Ordering::SeqCst), 2, "the document and the keys");
    // An unknown key ID causes a fetch, but not for every token.
    let other = json!({"alg": "ES256", "kid": "two"});
    for _ in 0..3 {
        assert!(prove(&world, &token(&world.server.key, &other, &good())).await.is_err());
    }
    assert_eq!(world.server.asked.load(Ordering::SeqCst), 2, "fetched a moment ago");
    world.clock.pass(11);
    assert!(prove(&world, &token(&world.server.key, &other, &good())).await.is_err());
    assert_eq!(world.server.asked.load(Ordering::SeqCst), 4);
}

#[tokio::test]
async fn invalid_tokens_are_rejected_and_not_repeated() {
    let world = world(PLAIN);
    let key = &world.server.key;
    let stranger = Key::generate().unwrap();
    let now: Timestamp = NOW.parse().unwrap();
    let with = |field: &str, value: Value| {
        let mut claims = good();
        claims[field] = value;
        claims
    };
    let mut forged = token(key, &es256(), &good());
    forged.replace_range(forged.len() - 8.., "AAAAAAAA");
    let none = format!("{}.{}.", number(br#"{"alg":"none"}"#), number(good().to_string().as_bytes()));
    let second = now.as_second();
    let mut lasting = good();
    lasting.as_object_mut().unwrap().remove("exp");
    for (what, token, part) in [
        ("alg none", none, "algorithm"),
        ("HMAC with the public key", token(key, &json!({"alg": "HS256"}), &good()), "algorithm"),
        ("another algorithm than the key's", token(key, &json!({"alg": "RS256", "kid": "one"}), &good()), "signature"),
        ("another key", token(&stranger, &es256(), &good()), "signature"),
        ("a changed signature", forged, "signature"),
        ("another audience", token(key, &es256(), &with("aud", json!("you"))), "audience"),
        ("no audience", token(key, &es256(), &with("aud", json!([]))), "audience"),
        ("expired", token(key, &es256(), &with("exp", json!(second - 1))), "expired"),
        ("for ever", token(key, &es256(), &lasting), "expire"),
        ("not yet", token(key, &es256(), &with("nbf", json!(second + 3600))), "not valid yet"),
        ("in two minutes", token(key, &es256(), &with("nbf", json!(second + 120))), "not valid yet"),
        ("a time that is none", token(key, &es256(), &with("exp", json!("x"))), "not a number"),
        ("no name", token(key, &es256(), &with("sub", json!(""))), "empty"),
        ("a name that is no text", token(key, &es256(), &with("sub", json!(7))), "sub"),
        ("groups that are no texts", token(key, &es256(), &with("groups", json!([{}]))), "groups"),
    ] {
        let why = prove(&world, &token).await.expect_err(what);
        assert!(why.contains(part), "{what}: {why}");
        assert!(!why.contains("jane") && !why.contains(&token), "{what}: {why}");
    }
    for (what, token) in [
        ("another issuer", token(key, &es256(), &with("iss", json!("https://issuer.example.evil")))),
        ("no issuer", token(key, &es256(), &with("iss", json!(["https://issuer.example"])))),
        ("bad base64", "a!.b!.c!".to_owned()),
        ("no token", "x".repeat(100)),
        ("too long", format!("{}.{}", "x".repeat(TOKEN_MAX_BYTES), "a.b")),
    ] {
        assert_eq!(prove(&world, &token).await, Ok(None), "{what}: somebody else's");
    }
}

#[tokio::test]
async fn issuers_come_and_go_and_one_that_does_not_answer_changes_nothing() {
    let world = world(PLAIN);
    let made = token(&world.server.key, &es256(), &good());
    let issuer = Arc::clone(&world.issuers.issuers.read()[0].issuer);
    world.issuers.replace(Vec::new()).await.unwrap();
    assert_eq!(prove(&world, &made).await, Ok(None), "no issuer matches the token");
    world.issuers.replace(vec![issuer]).await.unwrap();
    assert!(world.issuers.as_async(&made, &[]).is_none(), "its keys are there before it is believed");
    assert_eq!(prove(&world, &made).await.unwrap().expect("known").name, "ex:jane");
    let other = "apiVersion: apiserver.config.k8s.io/v1
kind: AuthenticationConfiguration
jwt:
- issuer:
    url: https://away.example
    audiences: [me]
"
    .to_owned()
        + PLAIN;
    let other = AuthenticationConfiguration::parse(other.as_bytes()).unwrap_or_else(|e| panic!("{e:?}"));
    let error = world.issuers.replace(other.issuers).await.unwrap_err();
    assert_eq!(error.issuer, "https://away.example", "{error}");
    assert_eq!(prove(&world, &made).await.unwrap().expect("known").name, "ex:jane");
}

#[tokio::test]
async fn an_issuer_that_calls_itself_otherwise_is_not_believed() {
    let mut world = world(PLAIN);
    let key = Key::generate().unwrap();
    let made = token(&key, &es256(), &good());
    world.server = Arc::new(Server::new(key, "https://evil.example"));
    world.issuers.fetch = Arc::clone(&world.server) as _;
    assert!(prove(&world, &made).await.unwrap_err().contains("not available yet"));
}

#[tokio::test]
async fn expressions_make_users_of_claims() {
    let world = world(
        "  claimValidationRules:\n  - {expression: 'claims.hd == \"example.com\"', message: only ours}\n  claimMappings:\n    username: {expression: 'claims.email_verified ? \"m:\" + claims.email : \"\"'}\n    groups: {expression: 'claims.roles.map(r, \"r:\" + r)'}\n    uid: {claim: sub}\n    extra:\n    - {key: example.com/tenant, valueExpression: claims.tenant}\n  userValidationRules:\n  - {expression: '!user.username.startsWith(\"system:\")', message: reserved}\n  - {expression: 'user.groups.all(g, g != \"r:system:masters\")', message: not that group}\n",
    );
    let mut claims = good();
    for (field, value) in [
        ("hd", json!("example.com")),
        ("email", json!("j@example.com")),
        ("email_verified", json!(true)),
        ("roles", json!(["a", "b"])),
        ("tenant", json!("t1")),
    ] {
        claims[field] = value;
    }
    let make = |claims: &Value| token(&world.server.key, &es256(), claims);
    let user = prove(&world, &make(&claims)).await.unwrap().expect("known");
    assert_eq!((user.name.as_str(), user.uid.as_str()), ("m:j@example.com", "jane"));
    assert_eq!(user.groups, ["r:a", "r:b"]);
    assert_eq!(user.extra["example.com/tenant"], ["t1"]);
    for (field, value, part) in [
        ("hd", json!("example.org"), "only ours"),
        ("email_verified", json!(false), "empty"),
        ("roles", json!(["system:masters"]), "not that group"),
        ("roles", json!(7), "failed"),
    ] {
        let mut bad = claims.clone();
        bad[field] = value;
        let why = prove(&world, &make(&bad)).await.expect_err(field);
        assert!(why.contains(part), "{field}: {why}");
    }
}

#[test]
fn every_fault_of_a_configuration_is_said() {
    let faults = |jwt: &str| {
        let text = format!("apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\n{jwt}");
        AuthenticationConfiguration::parse(text.as_bytes()).err().unwrap_or_default().join("; ")
    };
    let of = |issuer: &str, mappings: &str| format!("jwt:\n- issuer: {issuer}\n  claimMappings: {mappings}\n");
    let (issuer, name) = ("{url: 'https://i.example', audiences: [a]}", "{username: {claim: sub, prefix: ''}}");
    assert_eq!(faults(&of(issuer, name)), "");
    for (jwt, part) in [
        (of("{url: 'http://i.example', audiences: [a]}", name), "issuer.url"),
        (of("{url: 'https://i.example', audiences: []}", name), "issuer.audiences"),
        (of("{url: 'https://i.example', audiences: [a, b]}", name), "audienceMatchPolicy"),
        (of("{url: 'https://i.example', audiences: [a], certificateAuthority: x}", name), "certificateAuthority"),
        (of("{url: 'https://i.example', audiences: [a], more: 1}", name), "unknown field"),
        (of(issuer, "{}"), "claimMappings.username"),
        (of(issuer, "{username: {claim: sub}}"), "username.prefix"),
        (of(issuer, "{username: {claim: sub, prefix: '', expression: 'claims.sub'}}"), "both"),
        (of(issuer, "{username: {expression: 'claims.'}}"), "username.expression"),
        (of(issuer, "{username: {expression: claims.email}}"), "email_verified"),
        (
            of(issuer, "{username: {claim: sub, prefix: ''}, extra: [{key: a, valueExpression: claims.a}]}"),
            "extra[0].key",
        ),
        (
            of(
                issuer,
                "{username: {claim: sub, prefix: ''}, extra: [{key: x.kubernetes.io/a, valueExpression: claims.a}]}",
            ),
            "reserved",
        ),
        (
            format!(
                "{}{}",
                of(issuer, name),
                "- issuer: {url: 'https://i.example', audiences: [a]}\n  claimMappings: {username: {claim: sub, prefix: ''}}\n"
            ),
            "Duplicate",
        ),
        ("anonymous: {enabled: false, conditions: [{path: /livez}]}\n".to_owned(), "conditions"),
    ] {
        let said = faults(&jwt);
        assert!(said.contains(part), "{jwt}: {said}");
    }
    let anonymous = |part: &str| {
        let text =
            format!("apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\nanonymous: {part}\n");
        AuthenticationConfiguration::parse(text.as_bytes()).unwrap().anonymous
    };
    use crate::Anonymous;
    assert_eq!(
        anonymous("{enabled: true, conditions: [{path: /livez}]}"),
        Some(Anonymous::Paths(vec!["/livez".into()]))
    );
    assert_eq!(anonymous("{enabled: false}"), Some(Anonymous::Disabled));
}

#[test]
fn flags_are_one_issuer() {
    let flags = OidcFlags {
        issuer_url: "https://issuer.example".into(),
        client_id: "me".into(),
        username_claim: "sub".into(),
        groups_claim: "groups".into(),
        groups_prefix: "g:".into(),
        signing_algs: vec!["RS256".into()],
        required_claims: vec![("hd".into(), "example.com".into())],
        ..OidcFlags::default()
    };
    let claims = json!({"sub": "jane", "groups": "one", "hd": "example.com"});
    let user = |flags: &OidcFlags| Issuer::of_flags(flags).unwrap().rules.user(claims.as_object().unwrap());
    let found = user(&flags).unwrap();
    assert_eq!((found.name.as_str(), found.groups), ("https://issuer.example#jane", vec!["g:one".to_owned()]));
    assert_eq!(user(&OidcFlags { username_prefix: "-".into(), ..flags.clone() }).unwrap().name, "jane");
    assert!(user(&OidcFlags { required_claims: vec![("hd".into(), "x".into())], ..flags.clone() }).is_err());
    assert!(Issuer::of_flags(&OidcFlags { signing_algs: vec!["HS256".into()], ..flags }).is_err());
}

/// Records the reported uses as strings.
#[derive(Default)]
struct RecordedIssuerUse(Mutex<Vec<String>>);

impl IssuerUse for RecordedIssuerUse {
    fn judged(&self, issuer: &str, good: bool, _: Duration) {
        self.0.lock().push(format!("{issuer} {good}"));
    }
    fn keys_fetched(&self, issuer: &str, document: Option<&[u8]>) {
        self.0.lock().push(format!("{issuer} keys {}", document.is_some()));
    }
}

#[tokio::test]
async fn distributed_groups_are_fetched_and_checked_like_any_token() {
    let mut world = world(PLAIN);
    let heard_uses = Arc::new(RecordedIssuerUse::default());
    world.issuers = world.issuers.with_observer(Arc::clone(&heard_uses) as _);
    let (own, other) = (&world.server.key, Key::generate().unwrap());
    let groups = "https://claims.example/groups";
    let with = |source: Value| {
        let mut claims = good();
        claims.as_object_mut().unwrap().remove("groups");
        claims["_claim_names"] = json!({"groups": "src"});
        claims["_claim_sources"] = json!({"src": source});
        token(own, &es256(), &claims)
    };
    let made = with(json!({"endpoint": groups, "access_token": ACCESS}));
    let now: Timestamp = NOW.parse().unwrap();
    let claims = |changed: Value| {
        let mut claims =
            json!({"iss": "https://claims.example", "aud": "me", "exp": now.as_second() + 60, "groups": ["far"]});
        let all = claims.as_object_mut().unwrap();
        for (claim, value) in changed.as_object().unwrap() {
            if value.is_null() {
                all.remove(claim)
            } else {
                all.insert(claim.clone(), value.clone())
            };
        }
        claims
    };
    let put = |url: &str, text: String| drop(world.server.elsewhere.lock().insert(url.to_owned(), text));
    let document = json!({"issuer": "https://claims.example", "jwks_uri": "https://claims.example/keys"});
    put("https://claims.example/.well-known/openid-configuration", document.to_string());
    put("https://claims.example/keys", json!({"keys": [published(&other)]}).to_string());
    put(groups, format!("{}\n", token(&other, &es256(), &claims(json!({})))));
    assert!(world.issuers.as_async(&made, &[]).is_some(), "somebody must be asked");
    assert_eq!(prove(&world, &made).await.unwrap().expect("known").groups, ["far"]);
    // Only uses of the configured issuer are reported.
    let heard = ["https://issuer.example keys true", "https://issuer.example true"];
    assert_eq!(*heard_uses.0.lock(), heard);
    // The issuer of the groups may be that of the token.
    put(groups, token(own, &es256(), &claims(json!({"iss": "https://issuer.example", "groups": "near"}))));
    assert_eq!(prove(&world, &made).await.unwrap().expect("known").groups, ["near"]);

    let fine = claims(json!({}));
    for (what, answer, part) in [
        ("no token", "x".to_owned(), "did not return a token"),
        ("another key", token(own, &es256(), &fine), "failed to verify signature"),
        ("another audience", token(&other, &es256(), &claims(json!({"aud": "you"}))), "audience"),
        ("expired", token(&other, &es256(), &claims(json!({"exp": now.as_second() - 1}))), "expired"),
        ("no groups", token(&other, &es256(), &claims(json!({"groups": null}))), "does not contain it"),
        ("nobody", token(&other, &es256(), &claims(json!({"iss": null}))), "has no issuer"),
        ("in clear", token(&other, &es256(), &claims(json!({"iss": "http://claims.example"}))), "not an https"),
        ("unreachable", token(&other, &es256(), &claims(json!({"iss": "https://away.example"}))), "not available yet"),
        ("groups that are none", token(&other, &es256(), &claims(json!({"groups": [7]}))), "groups"),
    ] {
        put(groups, answer.clone());
        let why = prove(&world, &made).await.expect_err(what);
        assert!(why.contains(part), "{what}: {why}");
        assert!(!why.contains(ACCESS) && !(answer.len() > 1 && why.contains(&answer)), "{what}: {why}");
    }
    for (what, source, part) in [
        ("another access token", json!({"endpoint": groups, "access_token": "guess"}), "401"),
        ("nobody's endpoint", json!({"endpoint": "https://away.example/x"}), "while getting distributed claim"),
        ("an endpoint in clear", json!({"endpoint": "http://claims.example/groups"}), "https"),
    ] {
        let why = prove(&world, &with(source)).await.expect_err(what);
        assert!(why.contains(part) && !why.contains("guess"), "{what}: {why}");
    }
    // A forged token causes no requests.
    let mut forged = with(json!({"endpoint": groups, "access_token": ACCESS}));
    forged.replace_range(forged.len() - 8.., "AAAAAAAA");
    let before = world.server.asked.load(Ordering::SeqCst);
    assert!(prove(&world, &forged).await.is_err());
    assert_eq!(world.server.asked.load(Ordering::SeqCst), before);
    // An aggregated claim is ignored, as upstream.
    let aggregated = prove(&world, &with(json!({"JWT": "a.b.c"}))).await.unwrap().expect("known");
    assert!(aggregated.groups.is_empty());
}

#[tokio::test]
async fn googles_older_tokens_are_of_its_issuer() {
    let config = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\njwt:\n- issuer: {url: 'https://accounts.google.com', audiences: [me]}\n".to_owned() + PLAIN;
    let config = AuthenticationConfiguration::parse(config.as_bytes()).unwrap_or_else(|e| panic!("{e:?}"));
    let server = Arc::new(Server::new(Key::generate().unwrap(), ""));
    let at = "https://accounts.google.com";
    let document = json!({"issuer": at, "jwks_uri": "https://google.example/keys"});
    server.elsewhere.lock().insert(format!("{at}/.well-known/openid-configuration"), document.to_string());
    let keys = json!({"keys": [published(&server.key)]});
    server.elsewhere.lock().insert("https://google.example/keys".into(), keys.to_string());
    let issuers = Issuers::new(config.issuers, Arc::clone(&server) as _, HandClock::at(NOW) as _);
    let mut claims = good();
    claims["iss"] = "accounts.google.com".into();
    let tokens: &dyn TokenAuthenticator = &issuers;
    let found = tokens.prove(&token(&server.key, &es256(), &claims), &[]).await.unwrap().expect("known");
    assert_eq!(found.user.name, "ex:jane");
}

#[test]
fn every_version_is_read_and_a_misspelt_field_at_any_level_is_refused() {
    let of = |version: &str| {
        json!({"apiVersion": format!("apiserver.config.k8s.io/{version}"), "kind": "AuthenticationConfiguration",
            "jwt": [{
                "issuer": {"url": "https://a.example", "audiences": ["me", "you"], "audienceMatchPolicy": "MatchAny"},
                "claimValidationRules": [{"claim": "c", "requiredValue": "v"}],
                "claimMappings": {
                    "username": {"claim": "sub", "prefix": ""},
                    "groups": {"claim": "groups", "prefix": ""},
                    "uid": {"claim": "uid"},
                    "extra": [{"key": "example.com/k", "valueExpression": "claims.k"}],
                },
                "userValidationRules": [{"expression": "true", "message": "m"}],
            }],
            "anonymous": {"enabled": true, "conditions": [{"path": "/livez"}]}})
    };
    let parsed = |document: &Value| AuthenticationConfiguration::parse(document.to_string().as_bytes());
    for version in ["v1", "v1beta1", "v1alpha1"] {
        assert!(parsed(&of(version)).is_ok(), "{version}: {:?}", parsed(&of(version)).err());
    }
    assert!(parsed(&of("v2")).is_err());
    for (at, misspelt) in kelson_codec::strict::misspelt(&of("v1")) {
        let why = parsed(&misspelt).map(drop).expect_err(&at).join(" ");
        assert!(why.contains("misspelt"), "{at}: {why}");
    }
}

#[test]
fn an_expression_of_any_type_may_map_a_claim_and_rules_are_true_or_false() {
    let with = |mappings: &str, rules: &str| {
        let text = format!(
            "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\njwt:\n\
             - issuer: {{url: 'https://a.example', audiences: [me]}}\n  claimMappings: {mappings}\n{rules}"
        );
        AuthenticationConfiguration::parse(text.as_bytes()).map(drop)
    };
    let name = "username: {claim: sub, prefix: ''}";
    for mappings in [
        format!("{{{name}, extra: [{{key: e.io/v, valueExpression: 'claims.?name'}}]}}"),
        format!("{{{name}, groups: {{expression: 'claims.?groups'}}, uid: {{expression: '1'}}}}"),
        "{username: {expression: '1'}}".to_owned(),
    ] {
        assert_eq!(with(&mappings, ""), Ok(()), "{mappings}");
    }
    let rule = with(&format!("{{{name}}}"), "  userValidationRules: [{expression: '1'}]\n").unwrap_err().join(" ");
    assert!(rule.contains("must evaluate to bool"), "{rule}");
}
