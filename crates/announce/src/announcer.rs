//! Announces addresses that the machine does not have on an interface, as its service proxy accepts their traffic before
//! routing. The process answers for them itself: when it ends, however it ends, nothing answers any more, and another
//! machine can take over. An address on an interface would stay after `kill -9`.
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use kelson_meta::Backoff;
use kelson_tasks::{OnPanic, Scoped, Tasks, scoped};
use tokio::sync::{mpsc, watch};
use tokio::time::{MissedTickBehavior, interval};

use crate::error::AnnounceError;
use crate::links::{Link, Links, link_for};
use crate::speaker::{Addresses, Rival, speak};
use crate::wire::PacketWire;

/// The interval at which interfaces are compared with what was found before.
const CHECK: Duration = Duration::from_secs(5);
/// The maximum number of unread reports of other machines with an address.
const RIVALS_MAX: usize = 64;
/// The pauses before an interface that failed is used again.
const RETRY: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));

/// Announces a set of addresses until it is dropped. An address that another machine has is not announced until it is free.
pub struct Announcer {
    wanted: watch::Sender<Addresses>,
    tasks: Tasks,
}

impl Drop for Announcer {
    fn drop(&mut self) {
        self.tasks.token().cancel();
    }
}

impl Announcer {
    /// Starts without addresses, in the network namespace of the calling thread. An address on no network of this machine is
    /// announced on the interface with the address `fallback`. The receiver reports other machines that use an address.
    ///
    /// # Errors
    /// The system has no free socket.
    pub fn start(fallback: Option<IpAddr>, tasks: &Tasks) -> Result<(Self, mpsc::Receiver<Rival>), AnnounceError> {
        let (announcer, follow) = Self::new(tasks.child("announcer"));
        let (rivals, heard) = mpsc::channel(RIVALS_MAX);
        let interfaces =
            Interfaces { links: Links::open()?, fallback, rivals, speakers: BTreeMap::new(), lost: BTreeSet::new() };
        announcer.tasks.spawn("announcer", OnPanic::EndProcess, interfaces.keep(follow));
        Ok((announcer, heard))
    }

    /// Creates an announcer, and the receiver of its addresses.
    pub(crate) fn new(tasks: Tasks) -> (Self, watch::Receiver<Addresses>) {
        let (wanted, follow) = watch::channel(Addresses::new());
        (Self { wanted, tasks }, follow)
    }

    /// Sets the addresses. New ones are announced if no other machine has them.
    pub fn set(&self, ips: &BTreeSet<IpAddr>) {
        self.wanted.send_if_modified(|wanted| {
            let is_same = wanted.keys().eq(ips.iter());
            wanted.retain(|ip, _| ips.contains(ip));
            for ip in ips {
                wanted.entry(*ip).or_default();
            }
            !is_same
        });
    }

    /// Announces an address again, if it is one of ours.
    pub fn repeat(&self, ip: IpAddr) {
        self.wanted.send_if_modified(|wanted| wanted.get_mut(&ip).map(|number| *number += 1).is_some());
    }
}

/// The speakers of all interfaces.
struct Interfaces {
    links: Links,
    fallback: Option<IpAddr>,
    rivals: mpsc::Sender<Rival>,
    speakers: BTreeMap<u32, InterfaceSpeaker>,
    /// Addresses for which no interface was found, each reported once.
    lost: BTreeSet<IpAddr>,
}

struct InterfaceSpeaker {
    link: Link,
    addresses: watch::Sender<Addresses>,
    _task: Scoped<()>,
}

impl Interfaces {
    async fn keep(mut self, mut wanted: watch::Receiver<Addresses>) {
        let mut check = interval(CHECK);
        check.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                changed = wanted.changed() => {
                    if changed.is_err() {
                        return;
                    }
                }
                _ = check.tick(), if !wanted.borrow().is_empty() => {}
            }
            let all = wanted.borrow_and_update().clone();
            if all.is_empty() {
                self.speakers.clear();
                continue;
            }
            match self.links.all().await {
                Ok(links) => self.distribute(&links, &all),
                Err(error) => {
                    tracing::warn!(%error, "listing interfaces failed; announced addresses stay where they are")
                }
            }
        }
    }

    /// Gives each address to the speaker of its interface.
    fn distribute(&mut self, links: &[Link], all: &Addresses) {
        let mut parts: BTreeMap<u32, Addresses> = BTreeMap::new();
        self.lost.retain(|ip| all.contains_key(ip));
        for (ip, number) in all {
            match link_for(links, *ip, self.fallback) {
                Some(link) => {
                    self.lost.remove(ip);
                    parts.entry(link.index).or_default().insert(*ip, *number);
                }
                None if self.lost.insert(*ip) => {
                    tracing::warn!(%ip, "no interface for the address; it is not announced until one is up");
                }
                None => {}
            }
        }
        // The hardware address may have changed, or the number may be another interface's now.
        let is_same =
            |index: u32, was: &Link| links.iter().any(|l| (l.index, l.mac, &l.name) == (index, was.mac, &was.name));
        self.speakers.retain(|index, speaker| parts.contains_key(index) && is_same(*index, &speaker.link));
        for (index, addresses) in parts {
            if let Some(speaker) = self.speakers.get(&index) {
                speaker.addresses.send_if_modified(|now| {
                    let differs = *now != addresses;
                    *now = addresses;
                    differs
                });
            } else if let Some(link) = links.iter().find(|link| link.index == index) {
                let speaker = InterfaceSpeaker::start(link.clone(), addresses, self.rivals.clone());
                self.speakers.insert(index, speaker);
            }
        }
    }
}

impl InterfaceSpeaker {
    fn start(link: Link, addresses: Addresses, rivals: mpsc::Sender<Rival>) -> Self {
        let (addresses, follow) = watch::channel(addresses);
        let of = link.clone();
        let _task = scoped("speaker", async move {
            let mut failures = 0;
            loop {
                let done = match PacketWire::open(&of) {
                    Ok(wire) => {
                        let spoken = speak(&wire, follow.clone(), rivals.clone()).await;
                        spoken.map_err(AnnounceError::io(format!("announce addresses on {}", of.name)))
                    }
                    Err(error) => Err(error),
                };
                let Err(error) = done else { return };
                let pause = RETRY.delay(failures);
                failures += 1;
                tracing::warn!(%error, retry_in = ?pause, "announced addresses have no answer; retrying");
                tokio::time::sleep(pause).await;
            }
        });
        Self { link, addresses, _task }
    }
}
