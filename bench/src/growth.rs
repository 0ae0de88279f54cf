//! Rows of `curves` whose size is a number of clients or objects that a request changes: single objects, watchers that resume, collections
//! that are deleted, and reads beside clients that list everything.
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Method;
use http_body_util::BodyExt as _;
use serde_json::json;

use crate::control_plane::PODS;
use crate::sides::{ALL, JSON, PROTOBUF, Side, TABLE, print};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
/// Clients that list everything, without end.
const LISTERS: usize = 64;
/// Reads of one object beside them.
const READS: usize = 500;
/// Bytes of an object that resumed watchers missed.
const MISSED_BYTES: usize = 10_000;
/// Events that they missed.
const MISSED: usize = 250;

/// A single object in each form.
pub async fn single(sides: &[Side], size: usize) -> anyhow::Result<()> {
    let one = format!("{PODS}/pod-0");
    for (what, accept) in [("get whole, JSON", JSON), ("get whole, protobuf", PROTOBUF), ("get as table", TABLE)] {
        let mut costs = Vec::new();
        for side in sides {
            costs.push(side.cost(|_| side.read(&one, accept)).await?);
        }
        print(what, size, &costs);
    }
    Ok(())
}

/// Watchers that resume behind and read nothing yet: the memory that they hold at the peak.
pub async fn resumed(sides: &[Side], count: usize) -> anyhow::Result<()> {
    let mut peaks = Vec::new();
    for side in sides {
        let begun = side.revision(MAPS).await?;
        for n in 0..MISSED {
            let text = format!("{n} ").repeat(MISSED_BYTES / 4);
            let map = json!({"metadata": {"generateName": "missed-"}, "data": {"text": text}});
            side.send(Method::POST, MAPS, &map).await?;
        }
        let (before, path) = (side.peak_mb(), format!("{MAPS}?watch=1&resourceVersion={begun}"));
        let mut held = Vec::new();
        for _ in 0..count {
            let client = side.another_client()?;
            let mut body = client.raw_accepting(Method::GET, &path, "", JSON, Bytes::new()).await?.into_body();
            let first = body.frame().await;
            held.push((client, body, first));
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        peaks.push((side.peak_mb() - before) as f64);
    }
    print("watchers that resume behind: memory, MB", count, &peaks);
    Ok(())
}

/// Deletes a collection: CPU time for one object in ms, and memory at the peak.
pub async fn collection(sides: &[Side], count: usize) -> anyhow::Result<()> {
    let (mut costs, mut peaks) = (Vec::new(), Vec::new());
    for side in sides {
        let namespace = json!({"metadata": {"name": format!("collection-{count}")}});
        side.send(Method::POST, "/api/v1/namespaces", &namespace).await?;
        let maps = format!("/api/v1/namespaces/collection-{count}/configmaps");
        for n in 0..count {
            let map = json!({"metadata": {"name": format!("map-{n}")}, "data": {"text": format!("{n} ").repeat(300)}});
            side.send(Method::POST, &maps, &map).await?;
        }
        let (peak, cpu) = (side.peak_mb(), side.cpu_ms());
        side.send(Method::DELETE, &maps, &json!({})).await?;
        costs.push((side.cpu_ms() - cpu) as f64 / count as f64);
        peaks.push((side.peak_mb() - peak) as f64);
    }
    print("deleted collection: ms for each object", count, &costs);
    print("deleted collection: memory at peak, MB", count, &peaks);
    Ok(())
}

/// The 99th percentile of a read of one object in ms, beside clients that list everything.
pub async fn beside_listers(sides: &[Side], size: usize) -> anyhow::Result<()> {
    let one = format!("{PODS}/pod-0");
    let mut slowest = Vec::new();
    for side in sides {
        let (over, begun) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let clients: Vec<_> = (0..LISTERS).map(|_| side.another_client()).collect::<Result<_, _>>()?;
        let listers: Vec<_> = clients
            .into_iter()
            .enumerate()
            .map(|(n, client)| {
                let (over, begun) = (Arc::clone(&over), Arc::clone(&begun));
                let accept = [JSON, PROTOBUF, TABLE][n % 3];
                tokio::spawn(async move {
                    while !over.load(Ordering::Relaxed) {
                        let Ok(list) = client.raw_accepting(Method::GET, ALL, "", accept, Bytes::new()).await else {
                            continue;
                        };
                        begun.fetch_add(1, Ordering::Relaxed);
                        let mut body = list.into_body();
                        while let Some(Ok(_)) = body.frame().await {}
                    }
                })
            })
            .collect();
        while begun.load(Ordering::Relaxed) < LISTERS {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let mut times = Vec::new();
        for _ in 0..READS {
            let started = Instant::now();
            side.read(&one, JSON).await?;
            times.push(started.elapsed().as_secs_f64() * 1000.0);
        }
        over.store(true, Ordering::Relaxed);
        for lister in listers {
            lister.await?;
        }
        times.sort_by(f64::total_cmp);
        slowest.push(times[READS * 99 / 100]);
    }
    print("get beside 64 clients that list all: p99, ms", size, &slowest);
    Ok(())
}
