//! Static pods from a test server.
use std::collections::VecDeque;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::*;
use crate::pod;

const POD: &str =
    r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web"},"spec":{"containers":[{"name":"a","image":"x"}]}}"#;
const LIST: &str = r#"{"apiVersion":"v1","kind":"PodList","items":[
    {"metadata":{"name":"web"},"spec":{"containers":[{"name":"a","image":"x"}]}},
    {"metadata":{"name":"other","namespace":"y"},"spec":{"containers":[{"name":"a","image":"x"}]}}]}"#;

/// Sends the given responses in order and records the requests.
struct Publisher {
    port: u16,
    asked: Arc<Mutex<Vec<String>>>,
    _task: kelson_tasks::Scoped<()>,
}

impl Publisher {
    async fn start(answers: &[(u16, &str, &str)]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&asked);
        let answer = |(status, location, body): &(u16, &str, &str)| {
            let location = location.replace("PORT", &port.to_string());
            let length = body.len();
            format!("HTTP/1.1 {status} x\r\nlocation: {location}\r\ncontent-length: {length}\r\n\r\n{body}")
        };
        let mut answers: VecDeque<String> = answers.iter().map(answer).collect();
        let task = kelson_tasks::scoped("server", async move {
            while let Ok((mut io, _)) = listener.accept().await {
                let mut bytes = [0; 4096];
                let n = io.read(&mut bytes).await.unwrap_or(0);
                seen.lock().push(String::from_utf8_lossy(&bytes[..n]).to_ascii_lowercase());
                let _ = io.write_all(answers.pop_front().unwrap_or_default().as_bytes()).await;
            }
        });
        Self { port, asked, _task: task }
    }

    async fn published(&self, headers: &[(&str, &str)]) -> Published {
        let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let url = format!("http://127.0.0.1:{}/pods?x=1", self.port);
        let from = PublishedPods { url, headers, every: Duration::from_secs(20) };
        Published { from, node: "n".into(), tls: tls().await.expect("roots"), digest: None }
    }
}

/// Returns the names of the pods that the manager received, or `None`.
async fn received(inbox: &ManagerInbox) -> Option<Vec<String>> {
    let next = tokio::time::timeout(Duration::ZERO, inbox.next()).await.ok()?;
    let pods = next.statics.get(&ManifestSource::Url)?;
    Some(pods.iter().map(|p| format!("{}/{}", pod::namespace(p), pod::name(p))).collect())
}

#[tokio::test]
async fn pods_follow_the_document() {
    let server = Publisher::start(&[
        (200, "", POD),
        (200, "", POD),
        (200, "", LIST),
        (500, "", "no"),
        (200, "", "kind: Service\napiVersion: v1"),
        (200, "", ""),
        (200, "", LIST),
    ])
    .await;
    let mut published = server.published(&[]).await;
    let inbox = ManagerInbox::default();
    let both = || Some(vec!["default/web-n".to_owned(), "y/other-n".to_owned()]);
    for (fault, pods) in [
        ("", Some(vec!["default/web-n".to_owned()])),
        ("", None),
        ("", both()),
        ("500", None),
        ("expected a v1 Pod or PodList, got \"v1\" \"Service\"", None),
        ("zero-length data received from http://127.0.0.1", Some(vec![])),
        ("", both()),
    ] {
        let looked = published.look(&inbox).await;
        match looked {
            Ok(()) => assert_eq!(fault, ""),
            Err(why) => assert!(!fault.is_empty() && why.contains(fault), "{why}"),
        }
        assert_eq!(received(&inbox).await, pods, "{fault}");
    }
}

#[tokio::test]
async fn headers_go_along_and_stay_with_their_host() {
    let to = "http://localhost:PORT/there";
    let server = Publisher::start(&[(302, "/here", ""), (307, to, ""), (200, "", POD)]).await;
    let mut published = server.published(&[("Authorization", "Bearer t"), ("X-Site", "a"), ("X-Site", "b")]).await;
    published.look(&ManagerInbox::default()).await.expect("a pod");
    let asked = server.asked.lock().clone();
    let lines: Vec<&str> = asked.iter().filter_map(|text| text.lines().next()).collect();
    assert_eq!(lines, ["get /pods?x=1 http/1.1", "get /here http/1.1", "get /there http/1.1"]);
    for (n, text) in asked.iter().enumerate() {
        assert_eq!(text.contains("authorization: bearer t"), n < 2, "{text}");
        assert!(text.contains("x-site: a\r\n") && text.contains("x-site: b\r\n"), "{text}");
    }
    let around = Publisher::start(&[(302, "/pods", ""); 20]).await;
    let why = around.published(&[]).await.look(&ManagerInbox::default()).await.expect_err("a circle");
    assert!(why.ends_with("stopped after 10 redirects"), "{why}");
    assert_eq!(around.asked.lock().len(), 11);
}

#[test]
fn published_pods_become_static_pods() {
    let of = |node: &str| pods(POD.as_bytes(), "https://example.com/pods", node).expect("a pod").remove(0);
    let made = of("n");
    assert_eq!(pod::annotation(&made, pod::CONFIG_SOURCE), Some("http"));
    assert!(pod::is_static(&made) && pod::is_critical(&made) && !pod::is_mirror(&made));
    assert_eq!(pod::annotation(&made, pod::CONFIG_HASH), Some(pod::uid(&made)));
    assert!(made.spec.as_ref().is_some_and(|s| s.tolerations.is_none()), "node problems are its publisher's matter");
    assert_eq!(pod::uid(&made), pod::uid(&of("other")), "what it is says the URL alone");
    let bad = LIST.replace(r#""name":"other""#, r#""name":"""#);
    assert!(pods(bad.as_bytes(), "u", "n").expect_err("one of them").contains("name is needed"));
    let many = format!(r#"{{"apiVersion":"v1","kind":"PodList","items":[{}]}}"#, vec!["{}"; 513].join(","));
    assert_eq!(pods(many.as_bytes(), "u", "n"), Err("more than 512 pods".to_owned()));
    assert_eq!(pods(br#"{"apiVersion":"v1","kind":"PodList"}"#, "u", "n"), Ok(vec![]));
}

#[test]
fn headers_are_not_shown() {
    let headers = vec![("Authorization".to_owned(), "Bearer secret".to_owned())];
    let from = PublishedPods { url: "https://example.com".into(), headers, every: LOOK_MAX };
    let shown = format!("{from:?}");
    assert!(shown.contains("Authorization") && !shown.contains("secret"), "{shown}");
}
