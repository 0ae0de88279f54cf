//! Speaks for a set of addresses on one interface: asks whether new ones are free, announces those, answers questions about them, and
//! reports other machines with one.
use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use kelson_meta::Backoff;
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
/// How often a machine asks before it uses an address. RFC 5227 has the number and allows a second between two; a lease or
/// the API excludes the cluster's own machines already, so a shorter pause finds others without delaying a fail-over.
const PROBES: u32 = 3;
/// The pause after each question.
const PROBE_PAUSE: Duration = Duration::from_millis(250);

/// The pauses before an address that another machine has is asked for again (RFC 5227, section 2.1.1: after several conflicts once a
/// minute).
const CONFLICT_PAUSE: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));

/// What another machine does with an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RivalKind {
    /// It uses the address, which this machine announces.
    User,
    /// It asks whether the address is free, which this machine announces.
    Prober,
    /// It has the address, which this machine does not announce for that reason.
    Owner {
        /// How often this machine has asked and found it since the address was set.
        conflicts: u32,
    },
}

/// Another machine with an address of this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rival {
    /// The address of both machines.
    pub ip: IpAddr,
    /// The hardware address of the other machine.
    pub mac: Mac,
    /// What it does.
    pub kind: RivalKind,
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

/// Speaks for the addresses until the channel closes. An address is announced when no other machine answers questions about it; else it is
/// asked for again after a pause. Rivals are reported to `rivals`; a report is dropped when the reader is behind, since a machine that
/// uses an address does so again.
///
/// # Errors
/// The interface failed or is gone.
pub async fn speak(
    wire: &impl Wire,
    mut addresses: watch::Receiver<Addresses>,
    rivals: mpsc::Sender<Rival>,
) -> io::Result<()> {
    let mut speaker = Speaker { wire, rivals, states: BTreeMap::new(), groups: BTreeSet::new() };
    let first = addresses.borrow_and_update().clone();
    speaker.update(&first)?;
    loop {
        let next = speaker.states.values().filter_map(|state| state.due).min();
        let due = async {
            match next {
                Some(at) => sleep_until(at).await,
                None => pending().await,
            }
        };
        tokio::select! {
            // An address that is no longer ours is not answered for, and an answer that is there is read before the address is announced.
            biased;
            changed = addresses.changed() => {
                if changed.is_err() {
                    return Ok(());
                }
                let now = addresses.borrow_and_update().clone();
                speaker.update(&now)?;
            }
            frame = wire.receive() => speaker.on_frame(&frame?).await?,
            () = due => speaker.on_due().await?,
        }
    }
}

/// What happens next with an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Ask whether another machine has it. So many questions are left; after the last one it is announced.
    Probe(u32),
    /// Announce it. So many announcements are left.
    Announce(u32),
}

/// The progress of an address from the first question to the last announcement.
#[derive(Clone, Copy, Debug)]
struct AddressState {
    /// The number with which it was set last.
    number: u64,
    step: Step,
    /// When the step is due; `None` after the last one.
    due: Option<Instant>,
    /// How often another machine answered since the address was set.
    conflicts: u32,
}

struct Speaker<'a, W: Wire> {
    wire: &'a W,
    rivals: mpsc::Sender<Rival>,
    states: BTreeMap<IpAddr, AddressState>,
    groups: BTreeSet<Ipv6Addr>,
}

impl<W: Wire> Speaker<'_, W> {
    fn update(&mut self, addresses: &Addresses) -> io::Result<()> {
        let due = Some(Instant::now());
        self.states.retain(|ip, _| addresses.contains_key(ip));
        for (ip, number) in addresses {
            let new = AddressState { number: *number, step: Step::Probe(PROBES), due, conflicts: 0 };
            let state = self.states.entry(*ip).or_insert(new);
            if state.number != *number {
                state.number = *number;
                if let Step::Announce(_) = state.step {
                    (state.step, state.due) = (Step::Announce(ANNOUNCEMENTS), due);
                }
            }
        }
        // Two addresses may have the same group.
        let groups: BTreeSet<Ipv6Addr> = addresses.keys().filter_map(|ip| group_of(*ip)).collect();
        for group in groups.difference(&self.groups) {
            self.wire.join(*group)?;
        }
        for group in self.groups.difference(&groups) {
            self.wire.leave(*group)?;
        }
        self.groups = groups;
        Ok(())
    }

    /// Takes the steps that are due.
    async fn on_due(&mut self) -> io::Result<()> {
        let now = Instant::now();
        for (ip, state) in self.states.iter_mut().filter(|(_, state)| state.due.is_some_and(|due| due <= now)) {
            if state.step == Step::Probe(0) {
                state.step = Step::Announce(ANNOUNCEMENTS);
                if std::mem::take(&mut state.conflicts) > 0 {
                    tracing::info!(%ip, "no other machine has the address any more; announcing it");
                }
            }
            (state.step, state.due) = match state.step {
                Step::Probe(left) => {
                    self.wire.send(&probe(self.wire.mac(), *ip)).await?;
                    (Step::Probe(left.saturating_sub(1)), Some(now + PROBE_PAUSE))
                }
                Step::Announce(left) => {
                    announce(self.wire, *ip).await?;
                    (Step::Announce(left.saturating_sub(1)), (left > 1).then_some(now + ANNOUNCE_PAUSE))
                }
            };
        }
        Ok(())
    }

    async fn on_frame(&mut self, frame: &[u8]) -> io::Result<()> {
        let is_announced =
            |ip: IpAddr| self.states.get(&ip).is_some_and(|state| matches!(state.step, Step::Announce(_)));
        let (ip, mac, kind) = match hear(frame, self.wire.mac(), is_announced) {
            Some(ReceivedFrame::Question(answer)) => return self.wire.send(&answer).await,
            Some(ReceivedFrame::Probe { ip, mac, answer }) => {
                self.wire.send(&answer).await?;
                (ip, mac, RivalKind::Prober)
            }
            Some(ReceivedFrame::Conflict { ip, mac }) => (ip, mac, RivalKind::User),
            None => {
                self.find_owner(frame);
                return Ok(());
            }
        };
        let _ = self.rivals.try_send(Rival { ip, mac, kind });
        Ok(())
    }

    /// Looks for a machine that has an address which is being asked for.
    fn find_owner(&mut self, frame: &[u8]) {
        let (own, now) = (self.wire.mac(), Instant::now());
        for (ip, state) in &mut self.states {
            // Before the first question the pause after a conflict passes.
            let is_asked = matches!(state.step, Step::Probe(left) if left < PROBES);
            let Some(mac) = user_of(frame, own, *ip).filter(|_| is_asked) else { continue };
            let pause = CONFLICT_PAUSE.delay(state.conflicts);
            state.conflicts = state.conflicts.saturating_add(1);
            (state.step, state.due) = (Step::Probe(PROBES), Some(now + pause));
            tracing::debug!(%ip, %mac, retry_in = ?pause, "another machine has the address; not announcing it");
            let kind = RivalKind::Owner { conflicts: state.conflicts };
            let _ = self.rivals.try_send(Rival { ip: *ip, mac, kind });
        }
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
