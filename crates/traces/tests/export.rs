//! Tests of the export to a collector: batches, rejected calls and shutdown.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use kelson_doubles::collector::Collector;
use kelson_meta::SystemClock;
use kelson_metrics::Registry;
use kelson_tasks::{OnPanic, Tasks};
use kelson_traces::{Exporter, ExporterOptions, KeyValue, Origin, Pace, Tracer, TracingConfiguration, child, event};

fn start(endpoint: &str, pace: Pace, tasks: &Tasks) -> (Arc<Tracer>, Registry) {
    let options = ExporterOptions {
        configuration: TracingConfiguration {
            endpoint: Some(endpoint.to_owned()),
            sampling_rate_per_million: Some(1_000_000),
        },
        resource: vec![KeyValue::text("service.name", "apiserver")],
        clock: Arc::new(SystemClock),
        pace,
        tasks: tasks.clone(),
    };
    Exporter::start(options).unwrap()
}

fn counted(registry: &Registry, result: &str) -> u64 {
    let line = format!("kelson_tracing_spans_total{{result=\"{result}\"}} ");
    let text = registry.text();
    text.lines().find_map(|l| l.strip_prefix(&line)).map_or(0, |n| n.parse().unwrap())
}

async fn request(tracer: &Arc<Tracer>, name: &str) {
    let (name, attributes) = (name.to_owned(), || vec![KeyValue::text("http.request.method", "GET")]);
    let span = tracer.request(&HeaderMap::new(), Origin::Public, || name, attributes);
    span.scope(async {
        let get = child("Get", || vec![KeyValue::number("len", 5u64)]);
        get.event("begins", Vec::new);
        get.scope(async {
            event("in its scope", || vec![KeyValue::text("by", "free")]);
            let part = child("cacher.Get", Vec::new);
            (0..130).for_each(|n| part.event("step", || vec![KeyValue::number("n", n)]));
        })
        .await;
        get.fail("gone");
    })
    .await;
    span.set(|| vec![KeyValue::number("http.response.status_code", 200)]);
}

#[tokio::test]
async fn spans_reach_the_collector_as_a_tree() {
    let mut collector = Collector::start().await;
    let tasks = Tasks::root("test");
    let (tracer, registry) = start(collector.endpoint(), Pace::default(), &tasks);
    request(&tracer, "GET /api").await;
    tracer.close().await;
    let spans = collector.when(|spans| spans.len() == 3).await;
    let [stored, get, request] = spans.as_slice() else { panic!("{spans:?}") };
    assert_eq!([&stored.name, &get.name, &request.name], ["cacher.Get", "Get", "GET /api"]);
    assert_eq!([stored.kind, get.kind, request.kind], [1, 1, 2]);
    assert_eq!((&stored.parent, &get.parent, request.parent.as_str()), (&get.span, &request.span, ""));
    assert!(spans.iter().all(|s| s.trace == request.trace && s.service == "apiserver" && s.nanos <= request.nanos));
    assert_eq!((get.attributes["len"].as_str(), get.status, request.status), ("5", 2, 0));
    assert_eq!(
        (get.events.as_slice(), request.events.len()),
        (&["begins", "in its scope by=free"].map(String::from)[..], 0)
    );
    // The last events are kept, the first ones are dropped.
    assert_eq!(
        (stored.events.len(), stored.events[0].as_str(), stored.events[127].as_str()),
        (128, "step n=2", "step n=129")
    );
    assert_eq!(request.attributes["http.request.method"], "GET");
    assert_eq!(request.attributes["http.response.status_code"], "200");
    assert_eq!((counted(&registry, "exported"), counted(&registry, "dropped")), (3, 0));
    request_after_the_end(&tracer, &registry);
}

fn request_after_the_end(tracer: &Arc<Tracer>, registry: &Registry) {
    drop(tracer.request(&HeaderMap::new(), Origin::Public, || "late".to_owned(), Vec::new));
    assert_eq!(counted(registry, "dropped"), 1, "nobody waits for it");
}

#[tokio::test]
async fn a_call_that_may_do_better_later_is_tried_again() {
    let mut collector = Collector::start().await;
    collector.refuse(1);
    let tasks = Tasks::root("test");
    let soon = Duration::from_millis(1);
    let (tracer, registry) = start(collector.endpoint(), Pace { batch_after: soon, retry_after: soon }, &tasks);
    request(&tracer, "GET /api").await;
    collector.when(|spans| spans.len() == 3).await;
    drop(tracer);
    assert!(tasks.shutdown(Duration::from_secs(60)).await, "it ends when nobody has spans for it any more");
    assert_eq!((counted(&registry, "exported"), counted(&registry, "failed")), (3, 0));
}

#[tokio::test]
async fn a_collector_may_listen_at_a_name_that_is_no_path() {
    let mut collector = Collector::start().await;
    let name = format!("kelson-traces-{}", std::process::id());
    let listener = kelson_platform::sockets::UnixListener::bind(format!("\0{name}")).unwrap();
    let tasks = Tasks::root("test");
    let to = collector.endpoint().to_owned();
    tasks.spawn("splice", OnPanic::Contain, async move {
        let (mut here, _) = listener.accept().await.unwrap();
        let mut there = tokio::net::TcpStream::connect(to).await.unwrap();
        // The proxy ends with the test.
        let _ = tokio::io::copy_bidirectional(&mut here, &mut there).await;
    });
    let (tracer, registry) = start(&format!("unix-abstract:{name}"), Pace::default(), &tasks);
    request(&tracer, "GET /api").await;
    tracer.close().await;
    collector.when(|spans| spans.len() == 3).await;
    assert_eq!((counted(&registry, "exported"), counted(&registry, "failed")), (3, 0));
}
