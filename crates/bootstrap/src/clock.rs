//! Correction of a wrong clock at first boot. A board without a battery starts in 1970 or at the last write of its file
//! system. No certificate is valid then, so the node could not join. A clock before this program's build time is
//! certainly wrong. It is set to the API server's time, over a connection that the server's CA verifies.
use jiff::Timestamp;
use kelson_client::TransportError;
use kelson_client::kubeconfig::Config;
use kelson_client::remote;
use kelson_meta::Clock;

use crate::CertError;

/// The interface to the machine and the network for repairing the clock.
pub trait Machine: Send + Sync {
    /// Returns when this program was built: a correct clock cannot show an earlier time.
    fn built(&self) -> Timestamp;
    /// The server's time, over a connection that is verified as of `at`, or not verified at all.
    fn date(
        &self,
        config: &Config,
        at: Option<Timestamp>,
    ) -> impl Future<Output = Result<Timestamp, TransportError>> + Send;
    /// Sets the machine's clock.
    fn set(&self, to: Timestamp) -> impl Future<Output = Result<(), String>> + Send;
}

/// The machine that this program runs on.
#[derive(Clone, Copy, Debug)]
pub struct ThisMachine;

impl Machine for ThisMachine {
    fn built(&self) -> Timestamp {
        kelson_meta::version::build().date.parse().unwrap_or(Timestamp::MIN)
    }

    async fn date(&self, config: &Config, at: Option<Timestamp>) -> Result<Timestamp, TransportError> {
        remote::date(config, at).await
    }

    /// By the system's own `date`, which every distribution has, BusyBox too.
    async fn set(&self, to: Timestamp) -> Result<(), String> {
        let mut date = tokio::process::Command::new("date");
        date.args(["-u", "-s", &format!("@{}", to.as_second())]).kill_on_drop(true);
        let done = date.output().await.map_err(|e| format!("date: {e}"))?;
        match done.status.success() {
            true => Ok(()),
            false => Err(String::from_utf8_lossy(&done.stderr).trim().to_owned()),
        }
    }
}

/// Sets the clock by the server of `config` where it shows a time before this program was built. Gives whether it did.
///
/// # Errors
/// When the clock is wrong and cannot be set, or the server does not answer.
pub async fn repair(config: &Config, clock: &dyn Clock, machine: &impl Machine) -> Result<bool, CertError> {
    let (now, built) = (clock.now(), machine.built());
    if now >= built {
        return Ok(false);
    }
    let fail = |why: String| CertError::Clock { now, why };
    // An unverified time, used only to verify the server's certificate.
    let guess = machine.date(config, None).await.map_err(|e| fail(e.to_string()))?;
    if guess < built {
        return Err(fail(format!("the server's clock shows {guess}")));
    }
    // Only the time from the verified server is used.
    let reported = machine.date(config, Some(guess)).await.map_err(|e| fail(e.to_string()))?;
    if reported < built {
        return Err(fail(format!("the server's clock shows {reported}")));
    }
    machine.set(reported).await.map_err(fail)?;
    tracing::warn!(from = %now, to = %reported, "the clock was wrong; set it to the API server's time");
    Ok(true)
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;

    struct At(Timestamp);

    impl Clock for At {
        fn now(&self) -> Timestamp {
            self.0
        }
    }

    /// A server with these times over unverified and verified connections.
    struct Scripted {
        unverified: &'static str,
        verified: Result<&'static str, &'static str>,
        set: Mutex<Vec<Timestamp>>,
    }

    fn time(text: &str) -> Timestamp {
        text.parse().expect("a time")
    }

    impl Machine for Scripted {
        fn built(&self) -> Timestamp {
            time("2026-01-01T00:00:00Z")
        }
        async fn date(&self, _: &Config, at: Option<Timestamp>) -> Result<Timestamp, TransportError> {
            match at {
                None => Ok(time(self.unverified)),
                Some(at) => {
                    assert_eq!(at, time(self.unverified), "judged as of the guess");
                    self.verified.map(time).map_err(|e| TransportError(e.into()))
                }
            }
        }
        async fn set(&self, to: Timestamp) -> Result<(), String> {
            self.set.lock().push(to);
            Ok(())
        }
    }

    #[tokio::test]
    async fn a_clock_that_cannot_be_right_is_set_by_a_server_of_the_ca() {
        let (early, late) = ("1970-01-01T00:05:00Z", "2026-05-06T07:08:09Z");
        for (now, unverified, verified, wanted) in [
            (late, late, Ok(late), Ok(None)),
            (early, late, Ok("2026-05-06T07:08:10Z"), Ok(Some("2026-05-06T07:08:10Z"))),
            (early, late, Err("invalid peer certificate"), Err("invalid peer certificate")),
            (early, early, Ok(late), Err("the server's clock")),
            (early, late, Ok(early), Err("the server's clock")),
        ] {
            let machine = Scripted { unverified, verified, set: Mutex::default() };
            let done = repair(&Config::default(), &At(time(now)), &machine).await;
            match (done, wanted) {
                (Ok(done), Ok(wanted)) => {
                    assert_eq!(done, wanted.is_some());
                    assert_eq!(*machine.set.lock(), wanted.map(time).into_iter().collect::<Vec<_>>());
                }
                (Err(e), Err(part)) => {
                    assert!(e.to_string().contains(part), "{e}");
                    assert!(machine.set.lock().is_empty(), "nothing is set by what is not believed");
                }
                (done, _) => panic!("{now} {unverified} {verified:?}: {done:?}"),
            }
        }
    }
}
