//! Watches the server in use and chooses another one when it does not answer, is not ready, or a preferred one has
//! answered for a while. Connections fail over without it too; it finds out what they cannot see.
use std::io;
use std::sync::Arc;
use std::time::Duration;

use http::Uri;
use kelson_meta::Backoff;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior};

use super::race::race;
use crate::servers::{Previous, Servers};

/// The interval of looks at the readiness of the server in use, and the timeout of one.
const LOOK_EVERY: Duration = Duration::from_secs(3);
const LOOK_LIMIT: Duration = Duration::from_secs(2);
/// The looks in a row after which a server counts as not ready. A single one may meet a moment of load.
const MISSES: u32 = 2;
/// The looks in a row after which a preferred server is used again.
const STEADY_LOOKS: u32 = 10;
/// The pause before a preferred server is looked at, doubled each time that it did not stay.
const RETURN: Backoff = Backoff::new(Duration::from_secs(60), Duration::from_secs(1800));
/// The pauses while no server is ready.
const RETRY: Backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(10));

/// How a probe's connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    /// The server closed it, as it does when it stops or is restarted.
    Closed,
    /// The server does not answer.
    Broken,
}

/// Opens the connections on which servers are probed.
pub(super) trait Prober: Send + Sync {
    /// What it opens.
    type Probe: Probe;
    /// Connects to a server.
    fn open(&self, server: Uri) -> impl Future<Output = io::Result<Self::Probe>> + Send;
}

/// A connection that shows whether one server answers.
pub(super) trait Probe: Send {
    /// Waits for its end. It may be called again until it has resolved.
    fn ended(&mut self) -> impl Future<Output = Ending> + Send;
    /// Asks whether the server is ready.
    fn is_ready(&mut self) -> impl Future<Output = bool> + Send;
}

/// The choice of a server over time.
pub(super) struct Monitor<P> {
    servers: Arc<Servers>,
    prober: P,
}

/// How the use of a server ended.
struct Departure {
    previous: Previous,
    /// When it was returned to, if it was.
    returned: Option<Instant>,
}

impl<P: Prober> Monitor<P> {
    pub(super) fn new(servers: Arc<Servers>, prober: P) -> Self {
        Self { servers, prober }
    }

    /// Runs until it is dropped.
    pub(super) async fn run(self) {
        let mut changes = self.servers.changes();
        let (mut previous, mut hold, mut pause) = (Previous::Drain, RETURN.base, None);
        loop {
            if !self.servers.are_several() {
                if changes.changed().await.is_err() {
                    return;
                }
                continue;
            }
            match race(self.servers.order(), |server| self.ready(server)).await {
                Ok((server, probe)) => {
                    pause = None;
                    self.switch(&server, previous);
                    let left = self.stay(probe, hold, &mut changes).await;
                    previous = left.previous;
                    hold = match left.returned {
                        Some(at) if at.elapsed() < hold * 2 => RETURN.after(Some(hold)),
                        _ => RETURN.base,
                    };
                }
                Err(error) => {
                    if pause.is_none() {
                        tracing::warn!(%error, "no API server is ready; retrying");
                    }
                    let next = RETRY.after(pause);
                    pause = Some(next);
                    tokio::time::sleep(next.mul_f64(rand::random_range(0.5..1.0))).await;
                }
            }
        }
    }

    fn switch(&self, to: &Uri, previous: Previous) {
        let (from, _) = self.servers.current();
        self.servers.switch(to, previous);
        if from != *to {
            tracing::info!(%from, %to, "using another API server");
        }
    }

    /// Connects to a server that is ready.
    async fn ready(&self, server: Uri) -> io::Result<P::Probe> {
        let mut probe = self.prober.open(server).await?;
        match is_ready(&mut probe).await {
            true => Ok(probe),
            false => Err(io::Error::other("the server is not ready")),
        }
    }

    /// Uses the server of this probe, and preferred ones that answer again, for as long as they answer.
    async fn stay(&self, mut probe: P::Probe, hold: Duration, changes: &mut watch::Receiver<u64>) -> Departure {
        let mut looks = tokio::time::interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        looks.reset();
        let (mut misses, mut returned) = (0, None);
        loop {
            let mut preferred = Box::pin(self.preferred(hold));
            let left = loop {
                tokio::select! {
                    ending = probe.ended() => break Some(match ending {
                        Ending::Closed => Previous::Drain,
                        Ending::Broken => Previous::Cut,
                    }),
                    _ = looks.tick() => {
                        misses = if is_ready(&mut probe).await { 0 } else { misses + 1 };
                        if misses >= MISSES {
                            break Some(Previous::Cut);
                        }
                    }
                    (server, found) = &mut preferred => {
                        self.switch(&server, Previous::Drain);
                        (probe, misses, returned) = (found, 0, Some(Instant::now()));
                        break None;
                    }
                    _ = changes.changed() => {}
                }
            };
            if let Some(previous) = left {
                return Departure { previous, returned };
            }
        }
    }

    /// Waits until a server that is preferred to the one in use has been ready for a while.
    async fn preferred(&self, hold: Duration) -> (Uri, P::Probe) {
        loop {
            tokio::time::sleep(hold.mul_f64(rand::random_range(1.0..1.5))).await;
            let better = self.servers.better();
            if better.is_empty() {
                continue;
            }
            if let Ok((server, probe)) = race(better, |server| self.ready(server)).await
                && let Some(probe) = steady(probe).await
            {
                return (server, probe);
            }
        }
    }
}

async fn is_ready(probe: &mut impl Probe) -> bool {
    tokio::time::timeout(LOOK_LIMIT, probe.is_ready()).await.unwrap_or(false)
}

/// Returns the probe after its server has been ready for a while.
async fn steady<P: Probe>(mut probe: P) -> Option<P> {
    for _ in 0..STEADY_LOOKS {
        let ended = tokio::time::timeout(LOOK_EVERY, probe.ended()).await;
        if ended.is_ok() || !is_ready(&mut probe).await {
            return None;
        }
    }
    Some(probe)
}

#[cfg(test)]
mod tests;
