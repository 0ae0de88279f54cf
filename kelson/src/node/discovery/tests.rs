//! Joining with scripted servers, machines and clusters, on a paused clock.
use super::*;
use kelson_pki::{Authority, certificates_from_pem, public_key_pin, sign_detached};
use serde_json::json;

fn said(fault: Fault) -> String {
    match fault {
        Fault::Wait(e) => format!("wait: {e:#}"),
        Fault::Soon(e) => format!("soon: {e:#}"),
        Fault::Never(e) => format!("never: {e:#}"),
    }
}

#[test]
fn only_what_the_token_signed_is_believed() {
    use base64::Engine as _;
    let ca = Authority::create("ca", jiff::Timestamp::now()).unwrap();
    let encoded = base64::engine::general_purpose::STANDARD.encode(ca.cert_pem());
    let text =
        format!("clusters: [{{name: '', cluster: {{server: 'https://h:1', certificate-authority-data: {encoded}}}}}]");
    let token = Token::parse("abcdef.0123456789abcdef").unwrap();
    let pin = public_key_pin(&certificates_from_pem(ca.cert_pem()).unwrap()[0]).unwrap();
    let check = |data: serde_json::Value, pins: &[String]| {
        let info: ConfigMap = serde_json::from_value(json!({"data": data})).unwrap();
        judge(&info, &token, pins).map_err(said)
    };
    let good = sign_detached(&text, "abcdef", "0123456789abcdef");
    let forged = sign_detached(&text, "abcdef", "ffffffffffffffff");
    let signed = json!({"kubeconfig": text, "jws-kubeconfig-abcdef": good});
    assert_eq!(check(signed.clone(), &[]).unwrap(), ca.cert_pem());
    assert_eq!(check(signed.clone(), &[pin]).unwrap(), ca.cert_pem());
    let rows = [
        (json!({}), vec![], "soon: the cluster's cluster-info holds no kubeconfig"),
        (json!({"kubeconfig": text}), vec![], "soon: token \"abcdef\" does not exist"),
        (json!({"kubeconfig": text, "jws-kubeconfig-abcdef": forged}), vec![], "never: the signature for token"),
        (
            json!({"kubeconfig": format!("{text} "), "jws-kubeconfig-abcdef": good}),
            vec![],
            "never: the signature for token",
        ),
        (signed, vec![format!("sha256:{}", "0".repeat(64))], "never: --token-ca-cert-hash: the cluster's CA is"),
    ];
    for (data, pins, want) in rows {
        let got = check(data, &pins).unwrap_err();
        assert!(got.starts_with(want), "{got}");
        assert!(!got.contains("0123456789abcdef"), "the secret is not repeated: {got}");
    }
}

/// A machine whose clock is before the program's build, and a server that answers the third attempt.
#[derive(Default)]
struct Early {
    asked: parking_lot::Mutex<Vec<(String, String, bool)>>,
    set: parking_lot::Mutex<Vec<jiff::Timestamp>>,
    refuses: bool,
}

fn time(text: &str) -> jiff::Timestamp {
    text.parse().unwrap()
}

impl Clock for Early {
    fn now(&self) -> jiff::Timestamp {
        self.set.lock().last().copied().unwrap_or(jiff::Timestamp::UNIX_EPOCH)
    }
}

impl Machine for Early {
    fn built(&self) -> jiff::Timestamp {
        time("2026-01-01T00:00:00Z")
    }
    async fn date(
        &self,
        config: &Config,
        at: Option<jiff::Timestamp>,
    ) -> Result<jiff::Timestamp, kelson_client::TransportError> {
        let ca = String::from_utf8(config.ca_pem.clone()).unwrap();
        let mut asked = self.asked.lock();
        asked.push((config.server.clone(), ca, at.is_some()));
        match asked.len() {
            ..3 => Err(kelson_client::TransportError("connection refused".into())),
            _ => Ok(time("2026-05-06T07:08:09Z")),
        }
    }
    async fn set(&self, to: jiff::Timestamp) -> Result<(), String> {
        if self.refuses {
            return Err("Operation not permitted".into());
        }
        self.set.lock().push(to);
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_cannot_be_right_is_set_before_a_certificate_is_checked() {
    let machine = Early::default();
    let config = Config { server: "https://h:1".into(), ca_pem: "CA".into(), ..Config::default() };
    persist("https://h:1", async || mend_clock(&config, &machine, &machine).await).await.unwrap();
    assert_eq!(*machine.set.lock(), [time("2026-05-06T07:08:09Z")]);
    let verified = ("https://h:1".to_owned(), "CA".to_owned(), true);
    assert_eq!(machine.asked.lock().last(), Some(&verified), "by the server that the CA vouches for");
    let asked = machine.asked.lock().len();
    mend_clock(&config, &machine, &machine).await.map_err(said).unwrap();
    assert_eq!(machine.asked.lock().len(), asked, "a clock that can be right is left alone");
    // A process that may not set the clock logs that and waits.
    let refused = Early { refuses: true, ..Early::default() };
    let fault = async || mend_clock(&config, &refused, &refused).await.map_err(said).unwrap_err();
    assert!(fault().await.contains("connection refused"));
    assert!(fault().await.contains("connection refused"));
    let fault = fault().await;
    assert!(fault.starts_with("wait: ") && fault.contains("Operation not permitted"), "{fault}");
}

#[test]
fn a_machine_rejoins_only_its_own_cluster() {
    let known = |ca: &str, vni: u32| {
        let known = json!({"ca": ca, "clusterCIDR": "10.42.0.0/16", "serviceCIDR": "10.43.0.0/16", "vni": vni,
            "clusterDNS": "10.43.0.10", "clusterDomain": "cluster.local"});
        serde_json::from_value::<JoinedNode>(known).unwrap()
    };
    let (before, why) = (known("old", 7), anyhow!("its certificate is of another authority"));
    let judge = |found| again(Path::new("/d"), &before, found, &why);
    assert_eq!(judge(Ok(known("new", 7))).unwrap().ca, "new");
    let rows = [
        (Ok(known("new", 8)), ["the token belongs to another cluster", "kelson cleanup --delete-data --data-dir /d"]),
        (Err(anyhow!("it has expired")), ["kelson token create", "it has expired"]),
    ];
    for (found, parts) in rows {
        let said = judge(found).err().unwrap().to_string();
        assert!(said.starts_with("its certificate is of another authority; "), "{said}");
        assert!(parts.iter().all(|part| said.contains(part)), "{said}");
    }
}
