//! Credentials and the resulting identity or rejection.
use super::*;
use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderValue;
use jiff::Timestamp;
use kelson_meta::Clock;
use kelson_pki::{Authority, ClientChains, LeafSpec, Purpose, certificates_from_pem};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::Attributes;
use crate::Objects;
use crate::authorize::{AlwaysAllow, AlwaysDeny, Authorizer, Decision};

/// Objects by `resource/namespace/name`.
#[derive(Default)]
pub(crate) struct Fixture(pub Mutex<BTreeMap<String, Value>>);

impl Fixture {
    pub(crate) fn put(&self, path: &str, object: Value) {
        self.0.lock().insert(path.to_owned(), object);
    }
}

impl Objects for Fixture {
    fn get(&self, _: &str, resource: &str, namespace: &str, name: &str) -> Option<Bytes> {
        self.0.lock().get(&format!("{resource}/{namespace}/{name}")).map(|v| serde_json::to_vec(v).unwrap().into())
    }
    fn list(&self, _: &str, _: &str, _: &str) -> Vec<Bytes> {
        Vec::new()
    }
}

/// A clock that tests set.
pub(crate) struct HandClock(pub Mutex<Timestamp>);

impl HandClock {
    pub(crate) fn at(text: &str) -> Arc<Self> {
        Arc::new(Self(Mutex::new(text.parse().unwrap())))
    }
    pub(crate) fn pass(&self, seconds: u64) {
        let mut t = self.0.lock();
        *t += Duration::from_secs(seconds);
    }
}

impl Clock for HandClock {
    fn now(&self) -> Timestamp {
        *self.0.lock()
    }
}

fn headers(list: &[(&'static str, &str)]) -> HeaderMap {
    let mut h = HeaderMap::new();
    for (k, v) in list {
        h.append(*k, HeaderValue::from_str(v).unwrap());
    }
    h
}

fn bootstrap_secret(fields: &[(&str, &str)]) -> Value {
    use base64::Engine;
    let mut data = json!({});
    let base =
        [("token-id", "abcdef"), ("token-secret", "0123456789abcdef"), ("usage-bootstrap-authentication", "true")];
    for (k, v) in base.iter().chain(fields) {
        data[*k] = base64::engine::general_purpose::STANDARD.encode(v).into();
    }
    json!({"metadata": {}, "type": "bootstrap.kubernetes.io/token", "data": data})
}

#[test]
fn bootstrap_tokens() {
    let clock = HandClock::at("2026-05-06T07:08:09Z");
    let objects = Arc::new(Fixture::default());
    let tokens = BootstrapTokens::new(objects.clone(), clock);
    let path = "secrets/kube-system/bootstrap-token-abcdef";
    let good = "abcdef.0123456789abcdef";
    let ask = |token: &str| tokens.authenticate_token(token, &[]).unwrap().map(|a| (*a.user).clone());
    assert_eq!(ask(good), None);
    let cases = [
        (json!({}), true),
        (json!({"expiration": "2026-05-06T07:08:10Z"}), true),
        (json!({"expiration": "2026-05-06T07:08:09Z"}), false),
        (json!({"expiration": "soon"}), false),
        (json!({"usage-bootstrap-authentication": "false"}), false),
        (json!({"token-id": "abcdee"}), false),
        (json!({"token-secret": "0123456789abcdeF"}), false),
        (json!({"auth-extra-groups": "system:bootstrappers:a:b,system:bootstrappers:c"}), true),
        (json!({"auth-extra-groups": "system:masters"}), false),
        (json!({"auth-extra-groups": "system:bootstrappers:a-"}), false),
        (json!({"auth-extra-groups": "system:bootstrappers:a,"}), false),
        (json!({"auth-extra-groups": ""}), true),
    ];
    for (fields, want) in cases {
        let list: Vec<(&str, &str)> =
            fields.as_object().unwrap().iter().map(|(k, v)| (k.as_str(), v.as_str().unwrap())).collect();
        objects.put(path, bootstrap_secret(&list));
        assert_eq!(ask(good).is_some(), want, "{fields}");
    }
    objects.put(path, bootstrap_secret(&[("auth-extra-groups", "system:bootstrappers:z")]));
    let user = ask(good).unwrap();
    assert_eq!(
        (user.name.as_str(), user.groups),
        ("system:bootstrap:abcdef", vec!["system:bootstrappers".to_owned(), "system:bootstrappers:z".to_owned()])
    );
    for bad in ["abcdef.0123456789abcdee", "abcdef.0123456789abcde", "ABCDEF.0123456789abcdef", "x", "", "abcdef."] {
        assert_eq!(ask(bad), None, "{bad}");
    }
    let mut other = bootstrap_secret(&[]);
    other["type"] = json!("Opaque");
    objects.put(path, other);
    assert_eq!(ask(good), None);
    let mut dying = bootstrap_secret(&[]);
    dying["metadata"]["deletionTimestamp"] = json!("2026-05-06T07:08:09Z");
    objects.put(path, dying);
    assert_eq!(ask(good), None);
}

#[test]
fn token_files() {
    let file = TokenFile::parse("t1,jane,1\nt2,joe,2,\"a,b\"\n\n,empty,3\n\"q\"\"t\",quo,4,g\n").unwrap();
    let ask = |t: &str| file.authenticate_token(t, &[]).unwrap().map(|a| (*a.user).clone());
    assert_eq!(ask("t1").unwrap().name, "jane");
    assert_eq!(ask("t2").unwrap().groups, ["a", "b"]);
    assert_eq!(ask("q\"t").unwrap().groups, ["g"]);
    assert_eq!(ask(""), None);
    assert_eq!(ask("t3"), None);
    assert_eq!(TokenFile::parse("a,b").unwrap_err(), TokenFileError::Columns { record: 1, found: 2 });
    assert_eq!(TokenFile::parse("a,b,c\n\"a,b,c").unwrap_err(), TokenFileError::Quotes(2));
    assert_eq!(format!("{file:?}"), "TokenFile { tokens: 3 }");
}

#[test]
fn bearer_headers() {
    let cases: [(&[(&'static str, &str)], Option<&str>); 8] = [
        (&[("authorization", "Bearer abc")], Some("abc")),
        (&[("authorization", "bearer abc extra")], Some("abc")),
        (&[("authorization", "Basic abc")], None),
        (&[("authorization", "Bearer")], None),
        (
            &[
                ("upgrade", "websocket"),
                ("sec-websocket-protocol", "base64url.bearer.authorization.k8s.io.YWJj, v4.channel.k8s.io"),
            ],
            Some("abc"),
        ),
        (&[("upgrade", "websocket"), ("sec-websocket-protocol", "base64url.bearer.authorization.k8s.io.YWJj")], None),
        (&[("sec-websocket-protocol", "base64url.bearer.authorization.k8s.io.YWJj, v4.channel.k8s.io")], None),
        (&[], None),
    ];
    for (list, want) in cases {
        let token = bearer_token(&headers(list));
        assert_eq!(token.as_ref().map(BearerToken::as_str), want, "{list:?}");
        assert!(want.is_none_or(|want| !format!("{token:?}").contains(want)), "a token is never printed");
    }
    let mut h = headers(cases[4].0);
    strip_credentials(&mut h);
    assert_eq!(h["sec-websocket-protocol"], "v4.channel.k8s.io");
}

struct Chain {
    clock: Arc<HandClock>,
    client_ca: Authority,
    proxy_ca: Authority,
    auth: RequestAuthenticator,
}

fn chain(anonymous: Anonymous) -> Chain {
    let clock = HandClock::at("2026-05-06T07:08:09Z");
    let (client_ca, proxy_ca) =
        (Authority::create("ca", clock.now()).unwrap(), Authority::create("fp", clock.now()).unwrap());
    let file = TokenFile::parse("tok,jane,1,dev\nfile-masters,root,2,\"system:masters\"").unwrap();
    let auth = RequestAuthenticator {
        front_proxy: Some(Arc::new(FrontProxy::new(
            ClientChains::new(&[proxy_ca.cert_pem()]).unwrap(),
            FrontProxyOptions::default(),
            clock.clone(),
        ))),
        certificates: Some(Arc::new(ClientCertificates::new(
            ClientChains::new(&[client_ca.cert_pem()]).unwrap(),
            clock.clone(),
        ))),
        tokens: Arc::new(CachedTokens::new(Arc::new(TokenChain::new(vec![Arc::new(file)])), clock.clone())),
        anonymous,
    };
    Chain { clock, client_ca, proxy_ca, auth }
}

fn leaf(ca: &Authority, cn: &str, orgs: &[&str], clock: &HandClock) -> Vec<CertificateDer<'static>> {
    let organizations: Vec<String> = orgs.iter().map(|o| (*o).to_owned()).collect();
    let spec = LeafSpec {
        common_name: cn,
        organizations: &organizations,
        sans: &[],
        purpose: Purpose::Client,
        lifetime: Duration::from_secs(3600),
    };
    certificates_from_pem(&ca.issue(&spec, clock.now()).unwrap().cert_pem).unwrap()
}

#[test]
fn clients_and_proxies_are_believed_as_go_believes_them() {
    let clock = HandClock::at("2026-05-06T07:08:09Z");
    let mut named = HeaderMap::new();
    named.insert("x-remote-user", "joe".parse().unwrap());
    let options = || FrontProxyOptions { allowed_names: Vec::new(), ..FrontProxyOptions::default() };
    for row in kelson_doubles::chains::rows_of(kelson_pki::Usage::Client) {
        let chains = || ClientChains::new(&[&row.bundle_pem()]).unwrap();
        let credentials = |headers| Credentials { headers, certificates: &row.shown, path: "/" };
        let nothing = HeaderMap::new();
        let client = ClientCertificates::new(chains(), clock.clone()).authenticate(&credentials(&nothing));
        let client = client.map(|found| found.map(|found| (found.user.name.clone(), found.user.groups.clone())));
        let jane = Some(("jane".to_owned(), vec!["system:masters".to_owned()]));
        assert_eq!(client.ok(), row.is_accepted.then_some(jane), "{}", row.what);
        let proxied = FrontProxy::new(chains(), options(), clock.clone()).authenticate(&credentials(&named)).unwrap();
        let proxied = proxied.map(|found| found.user.name.clone());
        assert_eq!(proxied, row.is_accepted.then(|| "joe".to_owned()), "{}", row.what);
    }
}

#[test]
fn nothing_that_a_front_proxy_says_is_left_out() {
    let c = chain(Anonymous::Enabled);
    let proxy = leaf(&c.proxy_ca, "front-proxy-client", &[], &c.clock);
    let ask = |lines: &[(&'static str, &[u8])]| {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, http::HeaderValue::from_bytes(value).unwrap());
        }
        let credentials = Credentials { headers: &headers, certificates: &proxy, path: "/" };
        let found = c.auth.front_proxy.as_ref().unwrap().authenticate(&credentials);
        found.map(|found| found.map(|found| found.user.as_ref().clone())).map_err(|e| e.0)
    };
    let user: (&str, &[u8]) = ("x-remote-user", "Jürgen".as_bytes());
    let group: (&str, &[u8]) = ("x-remote-group", "Größe".as_bytes());
    let extra: (&str, &[u8]) = ("x-remote-extra-scope", "für".as_bytes());
    let found = ask(&[user, group, extra]).unwrap().unwrap();
    assert_eq!((found.name.as_str(), found.groups.as_slice()), ("Jürgen", ["Größe".to_owned()].as_slice()));
    assert_eq!(found.extra["scope"], ["für"]);
    for name in ["x-remote-user", "x-remote-group", "x-remote-uid", "x-remote-extra-scope"] {
        let refused = ask(&[user, (name, b"\xff")]);
        let first = ask(&[(name, b"\xff"), user]);
        let refused = if name == "x-remote-user" { first } else { refused };
        assert_eq!(refused, Err(format!("request header {name} is not valid UTF-8")), "{name}");
    }
    assert_eq!(ask(&[("x-remote-user", b"")]), Ok(None));
}

/// Returns the result of a future that has nothing to wait for.
fn at_once<T>(future: impl Future<Output = T>) -> T {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::pin!(future).poll(&mut context) {
        std::task::Poll::Ready(value) => value,
        std::task::Poll::Pending => panic!("decided from memory, so nothing may wait"),
    }
}

#[test]
fn request_order_and_refusals() {
    let c = chain(Anonymous::Enabled);
    let ask = |h: &HeaderMap, certs: &[CertificateDer<'static>]| {
        at_once(c.auth.authenticate(&Credentials { headers: h, certificates: certs, path: "/api" }))
            .map(|a| (*a.user).clone())
    };
    let none = HeaderMap::new();
    assert_eq!(ask(&none, &[]).unwrap(), UserInfo::anonymous());
    let token = headers(&[("authorization", "Bearer tok")]);
    assert_eq!(ask(&token, &[]).unwrap().groups, ["dev", "system:authenticated"]);
    let wrong = headers(&[("authorization", "Bearer nope")]);
    assert_eq!(ask(&wrong, &[]).unwrap_err(), Rejected::because("invalid bearer token"));

    let jane = leaf(&c.client_ca, "jane", &["ops", "dev"], &c.clock);
    let user = ask(&wrong, &jane).unwrap();
    assert_eq!(user.name, "jane");
    assert!(user.in_group("ops") && user.in_group("system:authenticated"));
    assert!(user.extra_one(user::CREDENTIAL_ID).unwrap().starts_with("X509SHA256="));
    assert_eq!(ask(&none, &jane).unwrap(), user, "the second time from the cache");
    let nameless = leaf(&c.client_ca, "", &["system:masters"], &c.clock);
    assert_eq!(
        ask(&none, &nameless).unwrap(),
        UserInfo::anonymous(),
        "without a name it is nobody's, whatever its groups"
    );
    let stranger = leaf(&c.proxy_ca, "jane", &["system:masters"], &c.clock);
    assert!(ask(&none, &stranger).unwrap_err().0.starts_with("verifying certificate failed"));
    assert_eq!(ask(&token, &stranger).unwrap().name, "jane", "a good token outweighs a strange certificate");
    c.clock.pass(3601);
    assert!(ask(&none, &jane).is_err(), "expired, also in the cache");
}

#[test]
fn front_proxies() {
    let c = chain(Anonymous::Disabled);
    let ask = |h: &HeaderMap, certs: &[CertificateDer<'static>]| {
        at_once(c.auth.authenticate(&Credentials { headers: h, certificates: certs, path: "/api" }))
            .map(|a| (*a.user).clone())
    };
    let h = headers(&[
        ("x-remote-user", "amy"),
        ("x-remote-group", "a"),
        ("x-remote-group", "b"),
        ("x-remote-extra-acme.com%2fproject", "p"),
        ("x-remote-uid", "7"),
    ]);
    let user = ask(&h, &leaf(&c.proxy_ca, "front-proxy-client", &[], &c.clock)).unwrap();
    assert_eq!((user.name.as_str(), user.uid.as_str()), ("amy", "7"));
    assert_eq!(user.groups, ["a", "b", "system:authenticated"]);
    assert_eq!(user.extra_one("acme.com/project"), Some("p"));
    let refused = ask(&h, &leaf(&c.proxy_ca, "other", &[], &c.clock)).unwrap_err();
    assert!(refused.0.contains("subject with cn=other is not in the allowed list"), "{refused}");
    let jane = ask(&h, &leaf(&c.client_ca, "jane", &[], &c.clock)).unwrap();
    assert_eq!(jane.name, "jane", "the headers of an ordinary client say nothing");
    assert!(ask(&h, &[]).is_err());
    let mut stripped = h.clone();
    c.auth.front_proxy.as_ref().unwrap().strip(&mut stripped);
    assert!(stripped.is_empty());
}

#[test]
fn anonymous_by_path() {
    let c = chain(Anonymous::Paths(vec!["/livez".into()]));
    let h = HeaderMap::new();
    let ask = |path| at_once(c.auth.authenticate(&Credentials { headers: &h, certificates: &[], path }));
    assert_eq!(*ask("/livez").unwrap().user, UserInfo::anonymous());
    assert!(ask("/api").is_err());
    let secret = headers(&[("authorization", "Bearer s3cret")]);
    let shown = format!("{:?}", Credentials { headers: &secret, certificates: &[], path: "/" });
    assert!(!shown.contains("s3cret"));
}

struct Only(&'static str);
impl Authorizer for Only {
    fn authorize(&self, a: &Attributes<'_>) -> Decision {
        let asked = format!("{} {}/{}/{} {}/{}", a.verb, a.group, a.resource, a.subresource, a.namespace, a.name);
        if self.0.split(';').any(|w| w == asked) { Decision::Allow(String::new()) } else { Decision::NoOpinion(asked) }
    }
}

#[test]
fn impersonation() {
    let boss = UserInfo::new("boss", ["g"]);
    let get = Attributes::resource(&boss, "get", "", "pods", "n", "p");
    let ask = |list: &[(&'static str, &str)], a: &dyn Authorizer| {
        at_once(impersonate(&headers(list), &get, a)).map(|other| other.map(|other| other.user))
    };
    assert_eq!(ask(&[], &AlwaysDeny), Ok(None));
    let user = ask(&[("impersonate-user", "jane")], &AlwaysAllow).unwrap().unwrap();
    assert_eq!(user, UserInfo::new("jane", ["system:authenticated"]));
    let user = ask(&[("impersonate-user", "system:serviceaccount:a:b")], &AlwaysAllow).unwrap().unwrap();
    assert_eq!(user.groups, ["system:serviceaccounts", "system:serviceaccounts:a", "system:authenticated"]);
    let user = ask(&[("impersonate-user", "system:anonymous")], &AlwaysAllow).unwrap().unwrap();
    assert_eq!(user, UserInfo::anonymous());
    let user = ask(&[("impersonate-user", "x"), ("impersonate-group", "system:unauthenticated")], &AlwaysAllow)
        .unwrap()
        .unwrap();
    assert_eq!(user.groups, ["system:unauthenticated"]);
    let full: &[(&'static str, &str)] = &[
        ("impersonate-user", "jane"),
        ("impersonate-group", "ops"),
        ("impersonate-extra-scopes", "view"),
        ("impersonate-uid", "9"),
    ];
    let enough = Only(
        "impersonate /users/ /jane;impersonate /groups/ /ops;\
        impersonate authentication.k8s.io/userextras/scopes /view;impersonate authentication.k8s.io/uids/ /9",
    );
    let user = ask(full, &enough).unwrap().unwrap();
    assert_eq!((user.uid.as_str(), user.extra_one("scopes")), ("9", Some("view")));
    let refused = ask(full, &Only("impersonate /users/ /jane")).unwrap_err();
    assert!(refused.message.starts_with(
        "pods \"p\" is forbidden: User \"boss\" cannot impersonate-on:user-info:get resource \"pods\" in API group \"\""
    ), "{}", refused.message);
    let no_user = ask(&[("impersonate-group", "g")], &AlwaysAllow).unwrap_err();
    assert_eq!(
        (no_user.code, no_user.message.as_str()),
        (
            400,
            "requested &user.DefaultInfo{Name:\"\", UID:\"\", Groups:[]string{\"g\"}, Extra:map[string][]string(nil)} without impersonating a user name"
        )
    );
    let no_user = ask(&[("impersonate-uid", "u"), ("impersonate-extra-scopes", "view")], &AlwaysAllow).unwrap_err();
    let asked = r#"UID:"u", Groups:[]string(nil), Extra:map[string][]string{"scopes":[]string{"view"}}}"#;
    assert!(no_user.message.contains(asked), "{}", no_user.message);
    let mut h = headers(full);
    strip_impersonation(&mut h);
    assert!(h.is_empty());
}

#[test]
fn impersonated_values_are_read_as_utf8_or_refused() {
    let boss = UserInfo::new("boss", ["g"]);
    let ask = |name: &'static str, value: &[u8], a: &dyn Authorizer| {
        let mut h = headers(&[("impersonate-user", "jane")]);
        h.insert(name, http::HeaderValue::from_bytes(value).unwrap());
        at_once(impersonate(&h, &Attributes::path(&boss, "get", "/"), a)).map(|other| other.map(|other| other.user))
    };
    let user = ask("impersonate-user", "Jürgen".as_bytes(), &AlwaysAllow).unwrap().expect("it is asked for");
    assert_eq!(user.name, "Jürgen");
    let user = ask("impersonate-group", "Bücher".as_bytes(), &AlwaysAllow).unwrap().expect("it is asked for");
    assert_eq!(user.groups[0], "Bücher");
    assert!(ask("impersonate-user", "Jürgen".as_bytes(), &AlwaysDeny).is_err());
    for name in ["impersonate-user", "impersonate-group", "impersonate-uid", "impersonate-extra-scopes"] {
        assert_eq!(ask(name, b"J\xfcrgen", &AlwaysAllow).unwrap_err().code, 400, "{name}");
    }
}

#[test]
fn a_node_returns_with_a_certificate_that_has_ended_to_ask_for_another_and_for_nothing_else() {
    let clock = HandClock::at("2026-01-01T00:00:00Z");
    let (ca, other) = (Authority::create("ca", clock.now()).unwrap(), Authority::create("ca", clock.now()).unwrap());
    let objects = Arc::new(Fixture::default());
    objects.put("nodes//n1", json!({"metadata": {"name": "n1"}}));
    let chains = || ClientChains::new(&[ca.cert_pem()]).unwrap();
    let grace = Duration::from_secs(30 * 24 * 3600);
    let asks = ClientCertificates::new(chains(), clock.clone()).returning(grace, objects.clone());
    let lives: Arc<Mutex<Vec<f64>>> = Arc::default();
    let reported = Arc::clone(&lives);
    let strict = ClientCertificates::new(chains(), clock.clone());
    let strict = strict.counting(Arc::new(move |seconds| reported.lock().push(seconds)));
    let none = HeaderMap::new();
    let who = |with: &ClientCertificates, chain: &[CertificateDer<'_>]| {
        let credentials = Credentials { headers: &none, certificates: chain, path: "/" };
        let found = with.authenticate(&credentials).map(|found| found.expect("a certificate was shown").user);
        found.map(|user| (user.name.clone(), user.groups.clone())).map_err(|e| e.0)
    };
    let node = |ca: &Authority, name: &str, groups: &[&str]| leaf(ca, name, groups, &clock);
    let n1 = node(&ca, "system:node:n1", &["system:nodes"]);
    let deleted = node(&ca, "system:node:n2", &["system:nodes"]);
    let user = node(&ca, "jane", &["system:masters"]);
    let forged = node(&other, "system:node:n1", &["system:nodes"]);
    assert_eq!(who(&asks, &n1), Ok(("system:node:n1".into(), vec!["system:nodes".into()])));
    who(&strict, &n1).unwrap();
    clock.pass(30);
    who(&strict, &n1).unwrap();
    assert!(matches!(lives.lock()[..], [first, again] if first == again + 30.0), "told each time: {lives:?}");
    clock.pass(400 * 24 * 3600 - 30);
    let end = "verifying certificate failed";
    assert!(who(&strict, &n1).unwrap_err().starts_with(end));
    *clock.0.lock() = leaf_end(&n1) + Duration::from_secs(10 * 24 * 3600);
    assert_eq!(who(&asks, &n1), Ok(("system:node:n1".into(), vec![user::RETURNING_NODES.into()])));
    for (what, chain) in [("deleted", &deleted), ("a user", &user), ("forged", &forged)] {
        assert!(who(&asks, chain).unwrap_err().starts_with(end), "{what}");
    }
    *clock.0.lock() = leaf_end(&n1) + Duration::from_secs(31 * 24 * 3600);
    assert!(who(&asks, &n1).unwrap_err().starts_with(end), "its time has run out");
}

fn leaf_end(chain: &[CertificateDer<'_>]) -> Timestamp {
    kelson_pki::CertInfo::from_der(&chain[0]).unwrap().not_after
}

#[test]
fn constrained_impersonation_needs_both_the_user_and_the_action() {
    let mut bot = UserInfo::service_account("ns", "bot", "");
    bot.extra.insert(user::NODE_NAME.into(), vec!["n1".into()]);
    let (of, on) = ("authentication.k8s.io", "impersonate-on");
    let ask = |who: &UserInfo, list: &[(&'static str, &str)], allowed: &str| {
        let list_pods = Attributes::resource(who, "list", "", "pods", "n", "");
        let user = at_once(impersonate(&headers(list), &list_pods, &Allowed(allowed.to_owned())));
        let other = user.map(|other| other.expect("it is asked for"))?;
        let mode = if other.constraint.is_empty() { "legacy" } else { impersonation_mode(&other.constraint) };
        let first = allowed.split_whitespace().next().unwrap_or_default();
        assert_eq!(mode, impersonation_mode(first), "{allowed}");
        Ok::<_, kelson_meta::Status>((other.user.name, other.user.groups))
    };
    let node =
        |name: &str| (format!("system:node:{name}"), vec![user::NODES.to_owned(), user::AUTHENTICATED.to_owned()]);
    let is = |name: &'static str| [("impersonate-user", name)];
    let associated = format!("{on}:associated-node:list //pods/ n/;impersonate:associated-node {of}/nodes/ /*");
    assert_eq!(ask(&bot, &is("system:node:n1"), &associated).unwrap(), node("n1"));
    assert!(ask(&bot, &is("system:node:n2"), &associated).is_err(), "not the node of its pod");
    assert!(ask(&UserInfo::new("jane", [""; 0]), &is("system:node:n1"), &associated).is_err(), "no service account");
    let arbitrary = format!("{on}:arbitrary-node:list //pods/ n/;impersonate:arbitrary-node {of}/nodes/ /n2");
    assert_eq!(ask(&bot, &is("system:node:n2"), &arbitrary).unwrap(), node("n2"));
    for half in arbitrary.split(';') {
        assert!(ask(&bot, &is("system:node:n2"), half).is_err(), "{half} alone");
    }
    let account = format!("{on}:serviceaccount:list //pods/ n/;impersonate:serviceaccount {of}/serviceaccounts/ a/b");
    assert_eq!(
        ask(&bot, &is("system:serviceaccount:a:b"), &account).unwrap().1,
        ["system:serviceaccounts", "system:serviceaccounts:a", "system:authenticated"]
    );
    let info = format!(
        "{on}:user-info:list //pods/ n/;impersonate:user-info {of}/users/ /jane;impersonate:user-info {of}/groups/ /dev;impersonate:user-info {of}/groups/ /system:masters"
    );
    let with = |group: &'static str| [("impersonate-user", "jane"), ("impersonate-group", group)];
    assert_eq!(ask(&bot, &with("dev"), &info).unwrap().1, ["dev", "system:authenticated"]);
    assert!(ask(&bot, &with("ops"), &info).is_err());
    assert!(ask(&bot, &with("system:masters"), &info).is_err(), "never that group");
    let legacy = "impersonate //users/ /jane;impersonate //groups/ /system:masters";
    assert_eq!(ask(&bot, &with("system:masters"), legacy).unwrap().1[0], "system:masters", "the old way goes on");
}

#[test]
fn modes_of_impersonation_by_the_verbs_that_are_asked() {
    for (verb, mode) in [
        ("impersonate", "legacy"),
        ("impersonate:user-info", "user-info"),
        ("impersonate-on:serviceaccount:list", "serviceaccount"),
        ("impersonate-on:associated-node:get", "associated-node"),
        ("impersonate:arbitrary-node", "arbitrary-node"),
        ("impersonate:", ""),
        ("impersonate:else", ""),
        ("impersonate-on:", ""),
        ("get", ""),
    ] {
        assert_eq!(impersonation_mode(verb), mode, "{verb}");
    }
}

/// Allows what it lists.
struct Allowed(String);
impl Authorizer for Allowed {
    fn authorize(&self, a: &Attributes<'_>) -> Decision {
        let asked = format!("{} {}/{}/{} {}/{}", a.verb, a.group, a.resource, a.subresource, a.namespace, a.name);
        let asked = if a.group.is_empty() { asked.replacen(" /", " //", 1) } else { asked };
        if self.0.split(';').any(|w| w == asked) { Decision::Allow(String::new()) } else { Decision::NoOpinion(asked) }
    }
}
