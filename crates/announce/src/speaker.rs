//! Speaks for a set of addresses on one interface: announces new ones, answers questions about all, and reports other
//! machines that use one. Also asks whether an address is free.
use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use crate::answer::{ReceivedFrame, announcements, hear, probe, user_of};
use crate::error::AnnounceError;
use crate::ethernet::Mac;
use crate::ndp::solicited_node;
use crate::wire::Wire;

/// How often an address is announced when it is new. The first announcement may be lost, and kernels ignore one that comes
/// less than a second after another answer for the address (`neigh/default/locktime`).
pub(crate) const ANNOUNCEMENTS: u32 = 5;
/// The pause between announcements.
pub(crate) const ANNOUNCE_PAUSE: Duration = Duration::from_secs(1);
/// How often a machine asks before it uses an address. RFC 5227 has the number and allows a second between two; a lease
/// excludes the cluster's own machines already, so a shorter pause finds others without delaying a fail-over.
const PROBES: u32 = 3;
/// The pause after each question.
const PROBE_PAUSE: Duration = Duration::from_millis(250);

/// Another machine uses an address of this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rival {
    /// The address that both machines use.
    pub ip: IpAddr,
    /// The hardware address of the other machine.
    pub mac: Mac,
}

/// The addresses of one interface. A higher number means that the address must be announced again.
pub type Addresses = BTreeMap<IpAddr, u64>;

/// Asks three times whether another machine has the address.
///
/// # Errors
/// [`AnnounceError::Conflict`] names the machine that has it; or the interface failed.
pub async fn probe_free(wire: &impl Wire, ip: IpAddr) -> Result<(), AnnounceError> {
    let io = |source| AnnounceError::Io { what: format!("ask whether {ip} is in use"), source };
    let group = group_of(ip);
    if let Some(group) = group {
        // The answer to a machine without an address goes to all nodes, but questions of other machines to this group.
        wire.join(group).map_err(io)?;
    }
    let own = wire.mac();
    let question = probe(own, ip);
    let asked = async {
        for _ in 0..PROBES {
            wire.send(&question).await.map_err(io)?;
            let until = Instant::now() + PROBE_PAUSE;
            while let Ok(frame) = timeout_at(until, wire.receive()).await {
                if let Some(mac) = user_of(&frame.map_err(io)?, own, ip) {
                    return Err(AnnounceError::Conflict { ip, mac });
                }
            }
        }
        Ok(())
    };
    let done = asked.await;
    if let Some(group) = group {
        // Fails when the interface is gone, which ends the membership as well.
        let _ = wire.leave(group);
    }
    done
}

/// Announces an address once.
///
/// # Errors
/// The interface failed.
pub async fn announce(wire: &impl Wire, ip: IpAddr) -> io::Result<()> {
    for frame in announcements(wire.mac(), ip) {
        wire.send(&frame).await?;
    }
    Ok(())
}

fn group_of(ip: IpAddr) -> Option<Ipv6Addr> {
    match ip {
        IpAddr::V4(_) => None,
        IpAddr::V6(ip) => Some(solicited_node(ip)),
    }
}

/// Speaks for the addresses until the channel closes. Rivals are reported to `rivals`; a report is dropped when the reader
/// is behind, since a machine that uses an address does so again.
///
/// # Errors
/// The interface failed or is gone.
pub async fn speak(
    wire: &impl Wire,
    mut addresses: watch::Receiver<Addresses>,
    rivals: mpsc::Sender<Rival>,
) -> io::Result<()> {
    let mut speaker = Speaker { wire, known: Addresses::new(), due: BTreeMap::new(), groups: BTreeSet::new() };
    let wanted = addresses.borrow_and_update().clone();
    speaker.update(wanted)?;
    loop {
        let next = speaker.due.values().map(|(at, _)| *at).min();
        let due = async {
            match next {
                Some(at) => sleep_until(at).await,
                None => pending().await,
            }
        };
        tokio::select! {
            // An address that is no longer ours is not answered for.
            biased;
            changed = addresses.changed() => {
                if changed.is_err() {
                    return Ok(());
                }
                let wanted = addresses.borrow_and_update().clone();
                speaker.update(wanted)?;
            }
            () = due => speaker.announce_due().await?,
            frame = wire.receive() => match hear(&frame?, wire.mac(), |ip| speaker.known.contains_key(&ip)) {
                Some(ReceivedFrame::Question(answer)) => wire.send(&answer).await?,
                Some(ReceivedFrame::Conflict { ip, mac }) => drop(rivals.try_send(Rival { ip, mac })),
                None => {}
            },
        }
    }
}

struct Speaker<'a, W: Wire> {
    wire: &'a W,
    known: Addresses,
    /// When an address is announced next, and how many announcements are left.
    due: BTreeMap<IpAddr, (Instant, u32)>,
    groups: BTreeSet<Ipv6Addr>,
}

impl<W: Wire> Speaker<'_, W> {
    fn update(&mut self, wanted: Addresses) -> io::Result<()> {
        let now = Instant::now();
        for (ip, number) in &wanted {
            if self.known.get(ip) != Some(number) {
                self.due.insert(*ip, (now, ANNOUNCEMENTS));
            }
        }
        self.due.retain(|ip, _| wanted.contains_key(ip));
        // Two addresses may have the same group.
        let groups: BTreeSet<Ipv6Addr> = wanted.keys().filter_map(|ip| group_of(*ip)).collect();
        for group in groups.difference(&self.groups) {
            self.wire.join(*group)?;
        }
        for group in self.groups.difference(&groups) {
            self.wire.leave(*group)?;
        }
        (self.known, self.groups) = (wanted, groups);
        Ok(())
    }

    async fn announce_due(&mut self) -> io::Result<()> {
        let now = Instant::now();
        let due: Vec<IpAddr> = self.due.iter().filter(|(_, (at, _))| *at <= now).map(|(ip, _)| *ip).collect();
        for ip in due {
            announce(self.wire, ip).await?;
            match self.due.get_mut(&ip) {
                Some((at, left)) if *left > 1 => (*at, *left) = (now + ANNOUNCE_PAUSE, *left - 1),
                _ => drop(self.due.remove(&ip)),
            }
        }
        Ok(())
    }
}

/// Announces an address as often as a new one, with the usual pauses.
pub async fn announce_often(wire: &impl Wire, ip: IpAddr) {
    for left in (0..ANNOUNCEMENTS).rev() {
        if let Err(error) = announce(wire, ip).await {
            tracing::warn!(%ip, %error, "announcing the address failed; other machines find it when their entries expire");
        }
        if left > 0 {
            sleep(ANNOUNCE_PAUSE).await;
        }
    }
}

#[cfg(test)]
mod tests;
