//! Health of devices as DRA drivers report it, with an expiry (KEP-4680; upstream: `dra/healthinfo.go`). `HealthTable` is pure;
//! `HealthBoard` is the shared instance that drivers update and pods' statuses read.
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use kelson_cri::{Code, CriResult};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use super::client::DriverClient;
use super::messages::{DriverDeviceHealth, DriverHealthList};

/// Default validity of a report (upstream: `DefaultHealthTimeout`).
const VALID_FOR: Duration = Duration::from_secs(30);
/// Maximum length of a driver's message about one device (upstream: `ResourceHealthMessageMaxLength`).
const MESSAGE_BYTES_MAX: usize = 1024;
/// Delay before the stream of a driver is opened again.
const RETRY: Duration = Duration::from_secs(5);

/// Health of a device, as in a pod's status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Health {
    /// Its driver or plugin reports that it works.
    Healthy,
    /// Its driver or plugin reports that it does not work.
    Unhealthy,
    /// There is no valid report: the driver or plugin is gone, or the last report has expired.
    #[default]
    Unknown,
}

impl Health {
    /// Value in `allocatedResourcesStatus`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Healthy => "Healthy",
            Self::Unhealthy => "Unhealthy",
            Self::Unknown => "Unknown",
        }
    }
}

/// Pool and name of a device of one driver.
type DeviceKey = (String, String);

#[derive(Clone, Debug, PartialEq)]
struct KnownHealth {
    health: Health,
    message: String,
    /// When the report expires.
    until: Instant,
}

/// Reports by driver and instance: during an update a driver has two instances.
#[derive(Debug, Default)]
pub struct HealthTable(BTreeMap<(String, u64), BTreeMap<DeviceKey, KnownHealth>>);

/// Converts a driver's report about one device.
fn read(said: DriverDeviceHealth, now: Instant) -> (DeviceKey, KnownHealth) {
    let device = said.device.unwrap_or_default();
    let health = match said.health {
        1 => Health::Healthy,
        2 => Health::Unhealthy,
        _ => Health::Unknown,
    };
    let valid_for = u64::try_from(said.health_check_timeout_seconds).ok().filter(|s| *s > 0);
    let until = now.checked_add(valid_for.map_or(VALID_FOR, Duration::from_secs));
    let known = KnownHealth { health, message: shortened(said.message), until: until.unwrap_or(now + VALID_FOR) };
    ((device.pool_name, device.device_name), known)
}

/// Cuts a message to the maximum length; three dots replace the end of a longer one.
fn shortened(mut text: String) -> String {
    if text.len() > MESSAGE_BYTES_MAX {
        let end = (0..=MESSAGE_BYTES_MAX - 3).rev().find(|n| text.is_char_boundary(*n));
        text.truncate(end.unwrap_or(0));
        text.push_str("...");
    }
    text
}

impl HealthTable {
    /// Records an instance's list of its devices. Returns whether anything changed. Devices that are missing in the list keep their last
    /// report until it expires.
    pub fn heard(&mut self, driver: &str, instance: u64, list: DriverHealthList, now: Instant) -> bool {
        let all = self.0.entry((driver.to_owned(), instance)).or_default();
        let mut changed = false;
        for (key, known) in list.devices.into_iter().map(|d| read(d, now)) {
            let before = all.insert(key, known.clone());
            changed |= before.is_none_or(|b| (b.health, b.message) != (known.health, known.message));
        }
        self.expire(driver, instance, now) || changed
    }

    /// Removes expired reports. Returns whether there were any.
    pub fn expire(&mut self, driver: &str, instance: u64, now: Instant) -> bool {
        let Some(all) = self.0.get_mut(&(driver.to_owned(), instance)) else { return false };
        let before = all.len();
        all.retain(|_, known| known.until > now);
        all.len() != before
    }

    /// Returns when the first report of an instance expires.
    pub fn next_end(&self, driver: &str, instance: u64) -> Option<Instant> {
        self.0.get(&(driver.to_owned(), instance))?.values().map(|known| known.until).min()
    }

    /// Removes all reports of an instance. Returns whether there were any.
    pub fn forget(&mut self, driver: &str, instance: u64) -> bool {
        self.0.remove(&(driver.to_owned(), instance)).is_some_and(|all| !all.is_empty())
    }

    /// Returns the health of a device and the driver's message.
    pub fn of(&self, driver: &str, pool: &str, device: &str, now: Instant) -> (Health, &str) {
        let key = (pool.to_owned(), device.to_owned());
        let instances = self.0.range((driver.to_owned(), 0)..=(driver.to_owned(), u64::MAX));
        let said = instances.filter_map(|(_, all)| all.get(&key)).filter(|known| known.until > now);
        said.max_by_key(|known| known.until).map_or((Health::Unknown, ""), |known| (known.health, &known.message))
    }
}

/// Health reports of all drivers. Clones share the state.
#[derive(Clone, Debug)]
pub struct HealthBoard {
    table: Arc<Mutex<HealthTable>>,
    changes: watch::Sender<()>,
}

impl Default for HealthBoard {
    fn default() -> Self {
        Self { table: Arc::default(), changes: watch::channel(()).0 }
    }
}

impl HealthBoard {
    /// Notifies when the health of a device may have changed.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// Same as [`HealthTable::of`] with the current time.
    pub fn of(&self, driver: &str, pool: &str, device: &str) -> (Health, String) {
        let table = self.table.lock();
        let (health, message) = table.of(driver, pool, device, Instant::now());
        (health, message.to_owned())
    }

    fn change(&self, change: impl FnOnce(&mut HealthTable) -> bool) {
        if change(&mut self.table.lock()) {
            self.changes.send_replace(());
        }
    }

    /// Follows an instance of a driver until it turns out not to support the service. Its reports are removed when the connection ends.
    pub(super) async fn follow(self, client: DriverClient, instance: u64) {
        loop {
            let heard = HealthStream { board: &self, driver: client.name(), instance };
            let why = match heard.listen(&client).await {
                Err(e) if e.code == Code::Unimplemented => return,
                Err(e) => e.to_string(),
                Ok(()) => "the driver closed the stream".to_owned(),
            };
            tracing::debug!(driver = client.name(), why, "lost the health stream of a DRA driver; reconnecting");
            drop(heard);
            tokio::time::sleep(RETRY).await;
        }
    }
}

/// Reports of an instance during one connection; removed when it is dropped.
struct HealthStream<'a> {
    board: &'a HealthBoard,
    driver: &'a str,
    instance: u64,
}

impl HealthStream<'_> {
    async fn listen(&self, client: &DriverClient) -> CriResult<()> {
        let mut lists = client.watch_health().await?;
        loop {
            let end = self.board.table.lock().next_end(self.driver, self.instance);
            let over = async {
                match end {
                    Some(end) => tokio::time::sleep_until(end).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                list = lists.next() => match list {
                    Some(list) => {
                        let list = list?;
                        self.board.change(|t| t.heard(self.driver, self.instance, list, Instant::now()));
                    }
                    None => return Ok(()),
                },
                () = over => self.board.change(|t| t.expire(self.driver, self.instance, Instant::now())),
            }
        }
    }
}

impl Drop for HealthStream<'_> {
    fn drop(&mut self) {
        self.board.change(|t| t.forget(self.driver, self.instance));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dra::messages::DriverDeviceName;

    fn list(devices: &[(&str, i32, i64, &str)]) -> DriverHealthList {
        let one = |(name, health, seconds, message): &(&str, i32, i64, &str)| DriverDeviceHealth {
            device: Some(DriverDeviceName { pool_name: "p".into(), device_name: (*name).into() }),
            health: *health,
            last_updated_time: 0,
            health_check_timeout_seconds: *seconds,
            message: (*message).into(),
        };
        DriverHealthList { devices: devices.iter().map(one).collect() }
    }

    #[test]
    fn health_reports_expire() {
        let (mut t, start) = (HealthTable::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let of = |t: &HealthTable, device: &str, now| {
            let (health, message) = t.of("d", "p", device, now);
            format!("{} {message}", health.as_str())
        };
        assert_eq!(of(&t, "a", start), "Unknown ");
        assert!(t.heard("d", 1, list(&[("a", 1, 0, ""), ("b", 2, 100, "hot"), ("c", 7, -1, "")]), start));
        assert_eq!(
            (of(&t, "a", start), of(&t, "b", start), of(&t, "c", start)),
            ("Healthy ".into(), "Unhealthy hot".into(), "Unknown ".into())
        );
        assert!(!t.heard("d", 1, list(&[("a", 1, 0, ""), ("b", 2, 100, "hot")]), at(10)), "the same again");
        assert_eq!(t.next_end("d", 1), Some(at(30)), "what is not named any more");
        assert!(t.expire("d", 1, at(30)) && !t.expire("d", 1, at(39)));
        assert_eq!((of(&t, "a", at(39)), of(&t, "a", at(40))), ("Healthy ".into(), "Unknown ".into()));
        assert!(t.heard("d", 1, list(&[("b", 2, 0, "hotter")]), at(41)), "other words, and one is over");
        assert_eq!(of(&t, "b", at(41)), "Unhealthy hotter");
        // A second instance takes over: its newer report counts, and the end of the first does not remove it.
        assert!(t.heard("d", 2, list(&[("b", 1, 0, "")]), at(50)));
        assert_eq!(of(&t, "b", at(51)), "Healthy ");
        assert!(t.forget("d", 1) && !t.forget("d", 1));
        assert_eq!(of(&t, "b", at(51)), "Healthy ");
        assert_eq!(t.of("d2", "p", "b", at(51)).0, Health::Unknown);
    }

    #[test]
    fn long_health_messages_are_cut() {
        assert_eq!(shortened("ä".repeat(512)).len(), 1024);
        let cut = shortened("ä".repeat(513));
        assert!(cut.len() <= 1024 && cut.ends_with("ä..."), "{cut}");
    }
}
