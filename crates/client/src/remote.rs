//! A [`Transport`] over TLS: pooled connections (HTTP/2 where the server speaks it), credentials re-read when their files
//! change, and a fresh connection after a certificate was rotated so that the new identity is used at once. Of several
//! servers one that answers is used, and another one as soon as it does not.
#![allow(clippy::disallowed_methods, reason = "blocking: read at start, and again in the lane for files")]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::{HeaderMap, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Full};
use jiff::Timestamp;
use kelson_tasks::FILES;
use kelson_transport::BoxFuture;
use parking_lot::Mutex;

use crate::kubeconfig::{Config, Credentials};
use crate::{Request, Response, Transport, TransportError};

mod connector;
mod dial;
mod impersonation;
mod monitor;
mod plain;
mod pools;
mod probe;
mod proxy;
mod race;
mod severable;
mod tls;
use connector::{Route, TlsConnector};
use dial::{chain, tcp};
use monitor::Monitor;
pub use plain::Plain;
use pools::Pools;
use probe::TlsProber;
use proxy::Way;
pub use tls::client_config;
use tls::{Tls, read, server_name};

/// The minimum interval of checks of credential files.
const RECHECK: Duration = Duration::from_secs(10);
/// The same while they are not there.
const RECHECK_MISSING: Duration = Duration::from_millis(500);
/// The minimum interval of runs of a plugin while the server answers 401 to its credentials.
const RECHECK_REFUSED: Duration = Duration::from_secs(1);
/// A program is asked again so long before what it said ends.
const EXEC_AHEAD: Duration = Duration::from_secs(10);

/// Speaks to one server, or to one of several at a time.
pub struct Remote {
    base: Uri,
    config: Arc<Config>,
    current: Arc<Mutex<Current>>,
    /// Headers that name the impersonated user.
    acting: HeaderMap,
    /// Held while files are read or a program runs, so that other requests wait for the result.
    turn: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Default)]
struct Current {
    /// The connections; `None` while there are no credentials, when no request is sent.
    pools: Option<Pools>,
    token: Option<header::HeaderValue>,
    checked: Option<std::time::Instant>,
    stamp: Vec<Option<SystemTime>>,
    /// When the answer of a program expires.
    ends: Option<Timestamp>,
    /// The server answered 401 to these credentials.
    refused: bool,
    /// Counts the credentials that the plugin gave.
    said: u64,
    /// The generation of the choice of a server ([`Servers::current`](crate::servers::Servers::current)).
    generation: u64,
}

impl Current {
    /// Uses other connections after another server was chosen.
    fn follow(&mut self, config: &Config) {
        let generation = config.servers.as_ref().map_or(0, |servers| servers.current().1);
        if std::mem::replace(&mut self.generation, generation) != generation
            && let Some(pools) = &mut self.pools
        {
            pools.renew();
        }
    }
}

impl Remote {
    /// A transport for what a kubeconfig says.
    pub fn new(config: Config) -> Result<Self, TransportError> {
        let file = config.file.clone();
        Self::of(config).map_err(|TransportError(why)| match file {
            Some(file) => TransportError(format!("{}: {why}", file.display())),
            None => TransportError(why),
        })
    }

    fn of(config: Config) -> Result<Self, TransportError> {
        let base = base(&config)?;
        if base.scheme_str() != Some("https") {
            return Err(TransportError(format!("server {:?}: must be an https URL", config.server)));
        }
        let acting =
            impersonation::headers(config.impersonation.as_ref()).map_err(|e| TransportError(e.to_string()))?;
        let current = Arc::new(Mutex::new(open(&config)?));
        Ok(Self { base, config: Arc::new(config), current, acting, turn: Arc::default() })
    }
}

fn base(config: &Config) -> Result<Uri, TransportError> {
    config.server.parse().map_err(|e| TransportError(format!("server {:?}: {e}", config.server)))
}

/// Reports whether files must be checked or a program must run; only one caller gets true.
fn is_due(config: &Config, current: &Mutex<Current>) -> bool {
    let mut current = current.lock();
    let rested = |pause| current.checked.is_none_or(|at| at.elapsed() >= pause);
    let due = match (&config.credentials, &current.pools) {
        (Credentials::TokenFile(_) | Credentials::CertificateFiles { .. }, Some(_)) => rested(RECHECK),
        (Credentials::Exec(_), Some(_)) => {
            let ends = current.ends.is_some_and(|ends| Timestamp::now() + EXEC_AHEAD >= ends);
            (ends && rested(RECHECK_MISSING)) || (current.refused && rested(RECHECK_REFUSED))
        }
        (_, None) => rested(RECHECK_MISSING),
        _ => config.ca_file.is_some() && rested(RECHECK),
    };
    if due {
        current.checked = Some(std::time::Instant::now());
    }
    due
}

/// Takes over credentials that have changed in their files, or what a program says now.
fn reload(config: &Config, current: &Mutex<Current>) {
    let new = match &config.credentials {
        Credentials::Exec(plugin) => plugin.run().and_then(|said| said_by(config, said)),
        _ if stamps(config) == current.lock().stamp => return,
        _ => open(config),
    };
    match new {
        Ok(new) => {
            let mut current = current.lock();
            *current = Current { said: current.said + 1, ..new };
        }
        // A file in the middle of being replaced, a program that could not ask: keep what works and look again.
        Err(e) => tracing::warn!(error = %e, "reloading client credentials failed; keeping the current ones"),
    }
}

/// Applies the credentials of a program.
fn said_by(config: &Config, said: crate::exec::Said) -> Result<Current, TransportError> {
    let ends = said.ends;
    let token = said.token.as_deref().map(bearer).transpose()?;
    let credentials = match said.certificate {
        Some((cert_pem, key_pem)) => Credentials::Certificate { cert_pem, key_pem },
        None => Credentials::None,
    };
    let opened = open(&Config { credentials, ..config.clone() })?;
    Ok(Current { token, ends, ..opened })
}

fn open(config: &Config) -> Result<Current, TransportError> {
    let stamp = stamps(config);
    let missing = matches!(&config.credentials, Credentials::CertificateFiles { cert, .. } if !cert.exists());
    if matches!(config.credentials, Credentials::Exec(_)) || (missing && config.credentials_may_come) {
        return Ok(Current { stamp, ..Current::default() });
    }
    let connector = TlsConnector::new(route(config)?, Tls::of(config)?);
    let token = match &config.credentials {
        Credentials::Token(t) => Some(bearer(t)?),
        Credentials::TokenFile(p) => {
            Some(bearer(&read(p).and_then(|b| String::from_utf8(b).map_err(TransportError::new))?)?)
        }
        _ => None,
    };
    Ok(Current {
        pools: Some(Pools::new(connector)),
        token,
        checked: Some(std::time::Instant::now()),
        stamp,
        ..Current::default()
    })
}

fn route(config: &Config) -> Result<Route, TransportError> {
    let way = Way::to(&base(config)?, &config.proxy, tcp()).map_err(|e| TransportError(e.to_string()))?;
    Ok(match &config.servers {
        Some(servers) => Route::Several(Arc::clone(servers), config.proxy.clone()),
        None => Route::One(way),
    })
}

/// Keeps the choice among the servers of a configuration until it is dropped: it notices a server that does not answer
/// or is not ready, and returns to a preferred one.
pub async fn choose_server(config: Config) {
    if let Some(servers) = config.servers.clone() {
        Monitor::new(servers, TlsProber(config)).run().await;
    }
}

fn bearer(token: &str) -> Result<header::HeaderValue, TransportError> {
    let value = header::HeaderValue::from_str(&format!("Bearer {}", token.trim()));
    let mut value =
        value.map_err(|_| TransportError("the bearer token has characters that are not valid in a header".into()))?;
    value.set_sensitive(true);
    Ok(value)
}

fn stamps(config: &Config) -> Vec<Option<SystemTime>> {
    let modified = |p: &PathBuf| std::fs::metadata(p).and_then(|m| m.modified()).ok();
    let mut files: Vec<&PathBuf> = config.ca_file.iter().collect();
    match &config.credentials {
        Credentials::TokenFile(p) => files.push(p),
        Credentials::CertificateFiles { cert, key } => files.extend([cert, key]),
        _ => {}
    }
    files.into_iter().map(modified).collect()
}

/// Returns the time of the server of `config` (the `Date` of an answer), over a connection that is verified as of `at`;
/// with `None` it is not verified, which makes the answer a guess.
///
/// # Errors
/// There is no such answer.
pub async fn date(config: &Config, at: Option<Timestamp>) -> Result<Timestamp, TransportError> {
    let insecure_skip_tls_verify = at.is_none();
    let anonymous = Config { insecure_skip_tls_verify, ..config.clone().under(Credentials::None) };
    let mut tls = client_config(&anonymous)?;
    if let Some(at) = at {
        tls.time_provider = Arc::new(FixedTime(at));
    }
    let mut current = open(&anonymous)?;
    let tls = Tls { config: Arc::new(tls), name: server_name(config)? };
    let connector = TlsConnector::new(route(&anonymous)?, tls);
    current.pools = Some(Pools::new(connector));
    let base = base(config)?;
    let current = Arc::new(Mutex::new(current));
    let remote = Remote { base, config: Arc::new(anonymous), current, acting: HeaderMap::new(), turn: Arc::default() };
    // Whatever the answer is, 401 too, it has a date.
    let request = http::Request::get("/livez").body(Bytes::new()).map_err(TransportError::new)?;
    let response = remote.send(request).await?;
    let text = response.headers().get(header::DATE).and_then(|v| v.to_str().ok());
    let date = text.and_then(|text| jiff::fmt::rfc2822::parse(text).ok());
    date.map(|date| date.timestamp()).ok_or_else(|| TransportError("the server's response has no Date header".into()))
}

/// Verifies certificates as of a fixed time.
#[derive(Debug)]
struct FixedTime(Timestamp);

impl rustls::time_provider::TimeProvider for FixedTime {
    fn current_time(&self) -> Option<rustls_pki_types::UnixTime> {
        let seconds = u64::try_from(self.0.as_second()).ok()?;
        Some(rustls_pki_types::UnixTime::since_unix_epoch(Duration::from_secs(seconds)))
    }
}

impl Transport for Remote {
    fn send(&self, mut request: Request) -> BoxFuture<Result<Response, TransportError>> {
        let mut parts = self.base.clone().into_parts();
        parts.path_and_query = request.uri().path_and_query().cloned();
        let (current, config, turn) = (self.current.clone(), self.config.clone(), self.turn.clone());
        for (name, value) in &self.acting {
            request.headers_mut().append(name, value.clone());
        }
        Box::pin(async move {
            let waits = current.lock().pools.is_none();
            let turn = if waits { Some(turn.lock().await) } else { None };
            if is_due(&config, &current) {
                let (config, current) = (Arc::clone(&config), current.clone());
                // An error is logged where it occurs; the previous credentials stay in use.
                let _ = FILES.run(move || reload(&config, &current)).await;
            }
            drop(turn);
            let (pool, token, said) = {
                let mut current = current.lock();
                current.follow(&config);
                (current.pools.as_mut().map(Pools::take), current.token.clone(), current.said)
            };
            if let Some(token) = token {
                request.headers_mut().insert(header::AUTHORIZATION, token);
            }
            *request.uri_mut() = Uri::from_parts(parts).map_err(TransportError::new)?;
            let (pool, place) =
                pool.ok_or_else(|| TransportError("the client's credentials are not available yet".into()))?;
            let response = pool.request(request.map(Full::new)).await.map_err(|e| TransportError(chain(&e)))?;
            if response.status() == StatusCode::UNAUTHORIZED {
                let mut current = current.lock();
                // The plugin may have given other credentials meanwhile.
                current.refused |= current.said == said;
            }
            // The slot is released when the answer's last byte was read, or the answer is dropped.
            let held = |b: hyper::body::Incoming| {
                b.map_frame(move |frame| {
                    let _ = &place;
                    frame
                })
            };
            Ok(response.map(|b| held(b).map_err(|e| TransportError(chain(&e))).boxed_unsync()))
        })
    }
}

#[cfg(test)]
mod tests;
