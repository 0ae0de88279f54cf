//! The queue on a paused clock: each key once, delays, back-off, panics and ends.
use super::*;

#[tokio::test(start_paused = true)]
async fn dedupes_and_never_hands_out_twice() {
    let q = WorkQueue::default();
    q.add(1);
    q.add(1);
    assert_eq!(q.next().await, Some(1));
    q.add(1);
    assert!(q.is_empty(), "held back while it is worked on");
    q.done(&1);
    assert_eq!(q.next().await, Some(1));
    q.done(&1);
    assert!(q.is_empty());
}

#[tokio::test(start_paused = true)]
async fn delays_in_order_and_backs_off() {
    let q = WorkQueue::new(Backoff { base: Duration::from_secs(1), max: Duration::from_secs(3) });
    let start = Instant::now();
    q.add_after("late", Duration::from_secs(10));
    q.add_after("early", Duration::from_secs(2));
    q.add_after("late", Duration::from_secs(5));
    assert_eq!(q.next().await, Some("early"));
    assert_eq!(start.elapsed(), Duration::from_secs(2));
    assert_eq!(q.next().await, Some("late"));
    assert_eq!(start.elapsed(), Duration::from_secs(5));
    for want in [1, 2, 3, 3] {
        let t = Instant::now();
        q.retry("r");
        assert_eq!(q.next().await, Some("r"));
        assert_eq!(t.elapsed(), Duration::from_secs(want));
        q.done(&"r");
    }
    q.forget(&"r");
    assert_eq!(q.failures(&"r"), 0);
}

#[tokio::test(start_paused = true)]
async fn a_panic_costs_its_key_a_pause_and_the_worker_nothing() {
    let q: WorkQueue<&str> = WorkQueue::new(Backoff { base: Duration::from_secs(1), max: Duration::from_secs(8) });
    let log = Arc::new(Mutex::new(Vec::new()));
    let (queue, seen) = (q.clone(), Arc::clone(&log));
    let worker = kelson_tasks::scoped("test worker", async move {
        let sync = |key: &'static str| {
            let tries = seen.lock().iter().filter(|k| **k == key).count();
            seen.lock().push(key);
            async move {
                assert!(key != "bad" || tries >= 2, "not before the third try");
                Ok::<_, std::convert::Infallible>(())
            }
        };
        queue.work("test queue", sync, |_, _| {}).await;
    });
    let begun = Instant::now();
    q.add("bad");
    q.add("good");
    tokio::time::sleep(Duration::from_millis(3500)).await;
    assert_eq!(*log.lock(), ["bad", "good", "bad", "bad"], "after {:?}", begun.elapsed());
    assert_eq!(q.failures(&"bad"), 0, "the third try succeeded");
    q.close();
    assert_eq!(worker.await, Some(()), "the worker lived through two panics");
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_is_ended_gives_its_key_back() {
    let q: WorkQueue<u8> = WorkQueue::default();
    q.add(1);
    let queue = q.clone();
    let hung = kelson_tasks::scoped("test worker", async move {
        let sync = |_| std::future::pending::<Result<(), std::convert::Infallible>>();
        queue.work("test queue", sync, |_, _| {}).await;
    });
    tokio::task::yield_now().await;
    q.add(1);
    assert!(q.is_empty(), "held by the worker");
    drop(hung);
    assert_eq!(tokio::time::timeout(Duration::from_secs(1), q.next()).await, Ok(Some(1)));
}

#[tokio::test(start_paused = true)]
async fn closing_ends_all_workers() {
    let q: WorkQueue<u8> = WorkQueue::default();
    let workers: Vec<_> = (0..3)
        .map(|_| {
            let q = q.clone();
            kelson_tasks::scoped("test worker", async move { q.next().await })
        })
        .collect();
    tokio::task::yield_now().await;
    q.close();
    for w in workers {
        assert_eq!(w.await, Some(None));
    }
}

#[tokio::test(start_paused = true)]
async fn a_key_that_panics_is_held_back_whatever_is_added() {
    let q: WorkQueue<u8> = WorkQueue::default();
    let (queue, at, reported) = (q.clone(), Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(Vec::new())));
    let (times, reports) = (Arc::clone(&at), Arc::clone(&reported));
    let begun = Instant::now();
    let _worker = kelson_tasks::scoped("test worker", async move {
        let sync = |_| {
            times.lock().push(begun.elapsed().as_secs());
            async { panic!("always") }
        };
        let failed = |_: &u8, why: Failure<'_, std::convert::Infallible>| {
            if let Failure::Panic { in_a_row, pause } = why {
                reports.lock().push((in_a_row, pause.as_secs()));
            }
        };
        queue.work_and_report("test queue", sync, failed).await;
    });
    // The object changes all the time.
    for _ in 0..1000 {
        q.add(1);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(*at.lock(), [0, 1, 3, 7, 15, 31, 63, 127, 255, 511, 811]);
    assert_eq!(reported.lock()[..3], [(1, 1), (2, 2), (3, 4)]);
    assert_eq!(reported.lock().last(), Some(&(11, 300)));
}

#[tokio::test(start_paused = true)]
async fn what_is_added_during_a_panic_waits_too() {
    let q: WorkQueue<u8> = WorkQueue::default();
    let (queue, tries) = (q.clone(), Arc::new(Mutex::new(0)));
    let count = Arc::clone(&tries);
    let _worker = kelson_tasks::scoped("test worker", async move {
        let again = queue.clone();
        let sync = |key| {
            *count.lock() += 1;
            again.add(key);
            async { panic!("always") }
        };
        queue.work("test queue", sync, |_, _: &std::convert::Infallible| {}).await;
    });
    q.add(1);
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(*tries.lock(), 1);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(*tries.lock(), 2);
}
