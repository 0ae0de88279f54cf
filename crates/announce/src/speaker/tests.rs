//! Speakers on a network in memory, by a paused clock.
use std::sync::Arc;

use kelson_tasks::{Scoped, scoped};
use tokio::sync::{Mutex, broadcast};

use super::*;
use crate::arp::Arp;
use crate::ethernet;

/// A machine of a network in memory, which hears the frames of all others and its own.
struct Station {
    mac: Mac,
    network: broadcast::Sender<Vec<u8>>,
    heard: Mutex<broadcast::Receiver<Vec<u8>>>,
    groups: parking_lot::Mutex<BTreeSet<Ipv6Addr>>,
}

impl Station {
    fn new(network: &broadcast::Sender<Vec<u8>>, last: u8) -> Arc<Self> {
        let heard = Mutex::new(network.subscribe());
        let (network, groups) = (network.clone(), parking_lot::Mutex::default());
        Arc::new(Self { mac: Mac([2, 0, 0, 0, 0, last]), network, heard, groups })
    }
}

impl Wire for Station {
    fn mac(&self) -> Mac {
        self.mac
    }
    async fn send(&self, frame: &[u8]) -> io::Result<()> {
        drop(self.network.send(frame.to_vec()));
        Ok(())
    }
    async fn receive(&self) -> io::Result<Vec<u8>> {
        self.heard.lock().await.recv().await.map_err(io::Error::other)
    }
    fn join(&self, group: Ipv6Addr) -> io::Result<()> {
        // The kernel rejects a second membership of one socket.
        self.groups.lock().insert(group).then_some(()).ok_or_else(|| io::ErrorKind::AddrInUse.into())
    }
    fn leave(&self, group: Ipv6Addr) -> io::Result<()> {
        self.groups.lock().remove(&group).then_some(()).ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
    }
}

struct Speaking {
    station: Arc<Station>,
    addresses: watch::Sender<Addresses>,
    rivals: mpsc::Receiver<Rival>,
    _task: Scoped<io::Result<()>>,
}

fn speaking(network: &broadcast::Sender<Vec<u8>>, last: u8, ips: &[&str]) -> Speaking {
    let station = Station::new(network, last);
    let (addresses, follow) = watch::channel(set(ips));
    let (report, rivals) = mpsc::channel(8);
    let own = Arc::clone(&station);
    let _task = scoped("speaker", async move { speak(&*own, follow, report).await });
    Speaking { station, addresses, rivals, _task }
}

fn set(ips: &[&str]) -> Addresses {
    ips.iter().map(|ip| (ip.parse().unwrap(), 0)).collect()
}

fn network() -> broadcast::Sender<Vec<u8>> {
    broadcast::channel(64).0
}

/// Returns how many frames of ARP and of NDP were sent within ten seconds.
async fn count(frames: &mut broadcast::Receiver<Vec<u8>>) -> (usize, usize) {
    sleep(Duration::from_secs(10)).await;
    let mut all = Vec::new();
    while let Ok(frame) = frames.try_recv() {
        all.push(ethernet::parse(&frame).unwrap().1);
    }
    let of = |kind: u16| all.iter().filter(|one| **one == kind).count();
    (of(ethernet::ARP), of(ethernet::IPV6))
}

/// Returns the machines whose frames say that they have the address.
fn claimants(frames: &mut broadcast::Receiver<Vec<u8>>, ip: IpAddr) -> BTreeSet<Mac> {
    let mut all = BTreeSet::new();
    while let Ok(frame) = frames.try_recv() {
        if let Some(ReceivedFrame::Conflict { mac, .. }) = hear(&frame, Mac::ZERO, |one| one == ip) {
            all.insert(mac);
        }
    }
    all
}

#[tokio::test(start_paused = true)]
async fn a_new_address_is_probed_and_announced_five_times_and_again_when_it_is_raised() {
    let network = network();
    let mut frames = network.subscribe();
    let one = speaking(&network, 1, &["192.0.2.10"]);
    assert_eq!(count(&mut frames).await, (3 + 10, 0), "three probes, then a request and a reply each");
    one.addresses.send_replace(set(&["192.0.2.10", "2001:db8::10"]));
    assert_eq!(count(&mut frames).await, (0, 3 + 5), "only what is new");
    one.addresses.send_modify(|all| *all.get_mut(&"192.0.2.10".parse().unwrap()).unwrap() += 1);
    assert_eq!(count(&mut frames).await, (10, 0), "without probes");
}

#[tokio::test(start_paused = true)]
async fn questions_are_answered_while_the_address_is_there() {
    let network = network();
    let one = speaking(&network, 1, &["192.0.2.10"]);
    sleep(Duration::from_secs(10)).await;
    let mut frames = network.subscribe();
    let question = Arp {
        sender_ip: "192.0.2.1".parse().unwrap(),
        ..Arp::probe(Mac([2, 0, 0, 0, 0, 9]), "192.0.2.10".parse().unwrap())
    };
    network.send(question.frame()).unwrap();
    assert_eq!(frames.recv().await.unwrap(), question.frame());
    assert_eq!(frames.recv().await.unwrap(), question.reply(one.station.mac).frame());
    one.addresses.send_replace(Addresses::new());
    network.send(question.frame()).unwrap();
    assert_eq!(count(&mut frames).await, (1, 0), "the question alone");
}

#[tokio::test(start_paused = true)]
async fn another_machine_that_uses_the_address_is_reported() {
    let network = network();
    let mut one = speaking(&network, 1, &["192.0.2.10", "2001:db8::10"]);
    sleep(Duration::from_secs(10)).await;
    let mac = Mac([2, 0, 0, 0, 0, 9]);
    for ip in ["192.0.2.10", "2001:db8::10"].map(|ip| ip.parse().unwrap()) {
        network.send(announcements(mac, ip).remove(0)).unwrap();
        assert_eq!(one.rivals.recv().await, Some(Rival { ip, mac, kind: RivalKind::User }));
    }
}

#[tokio::test(start_paused = true)]
async fn an_address_that_another_machine_has_is_not_announced_until_it_is_free() {
    for address in ["192.0.2.10", "2001:db8::10"] {
        let (network, ip) = (network(), address.parse().unwrap());
        let mut one = speaking(&network, 1, &[address]);
        sleep(Duration::from_secs(10)).await;
        let mut frames = network.subscribe();
        let mut two = speaking(&network, 2, &[address]);
        let (began, mut waited) = (Instant::now(), Vec::new());
        for conflicts in 1..=9 {
            let owner = Rival { ip, mac: one.station.mac, kind: RivalKind::Owner { conflicts } };
            assert_eq!(two.rivals.recv().await, Some(owner));
            let prober = Rival { ip, mac: two.station.mac, kind: RivalKind::Prober };
            assert_eq!(one.rivals.recv().await, Some(prober));
            waited.push(began.elapsed().as_secs());
        }
        assert_eq!(waited, [0, 1, 3, 7, 15, 31, 63, 123, 183], "in growing pauses, at last once a minute");
        assert!(!claimants(&mut frames, ip).contains(&two.station.mac));
        one.addresses.send_replace(Addresses::new());
        sleep(Duration::from_secs(60)).await;
        claimants(&mut frames, ip);
        sleep(Duration::from_secs(4)).await;
        assert_eq!(claimants(&mut frames, ip), BTreeSet::from([two.station.mac]));
        assert!(two.rivals.try_recv().is_err());
    }
}

#[tokio::test(start_paused = true)]
async fn an_address_moves_within_two_seconds_from_a_machine_that_stops_late() {
    let network = network();
    let one = speaking(&network, 1, &["192.0.2.10"]);
    sleep(Duration::from_secs(10)).await;
    let mut two = speaking(&network, 2, &["192.0.2.10"]);
    sleep(Duration::from_millis(500)).await;
    one.addresses.send_replace(Addresses::new());
    let mut frames = network.subscribe();
    sleep(Duration::from_millis(1500)).await;
    let ip = "192.0.2.10".parse().unwrap();
    assert_eq!(claimants(&mut frames, ip), BTreeSet::from([two.station.mac]));
    assert_eq!(two.rivals.recv().await.unwrap().kind, RivalKind::Owner { conflicts: 1 });
    assert!(two.rivals.try_recv().is_err());
}

#[tokio::test(start_paused = true)]
async fn groups_are_joined_once_and_left_with_their_last_address() {
    let network = network();
    let one = speaking(&network, 1, &["2001:db8::10", "2001:db8:1::10", "192.0.2.10"]);
    let groups = || one.station.groups.lock().clone();
    sleep(Duration::from_secs(1)).await;
    assert_eq!(groups(), BTreeSet::from(["ff02::1:ff00:10".parse().unwrap()]));
    one.addresses.send_replace(set(&["2001:db8:1::10", "2001:db8::11"]));
    sleep(Duration::from_secs(1)).await;
    assert_eq!(groups().len(), 2);
    one.addresses.send_replace(set(&["2001:db8::11"]));
    sleep(Duration::from_secs(1)).await;
    assert_eq!(groups(), BTreeSet::from(["ff02::1:ff00:11".parse().unwrap()]));
}

#[tokio::test(start_paused = true)]
async fn a_probe_finds_the_machine_that_has_the_address() {
    let network = network();
    let _one = speaking(&network, 1, &["192.0.2.10", "2001:db8::10"]);
    sleep(Duration::from_secs(10)).await;
    let two = Station::new(&network, 2);
    for ip in ["192.0.2.10", "2001:db8::10"] {
        match probe_free(&*two, ip.parse().unwrap()).await {
            Err(AnnounceError::Conflict { mac, .. }) => assert_eq!(mac, Mac([2, 0, 0, 0, 0, 1])),
            other => panic!("{ip}: {other:?}"),
        }
    }
    let mut frames = network.subscribe();
    probe_free(&*two, "192.0.2.11".parse().unwrap()).await.unwrap();
    assert_eq!(count(&mut frames).await, (3, 0));
    assert!(two.groups.lock().is_empty());
}
