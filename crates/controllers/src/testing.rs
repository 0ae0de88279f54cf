//! Controllers on the real API server in memory, for this crate's tests.
use std::sync::Arc;

use kelson_client::{BoxFuture, Client, Request, Response, Transport, TransportError, full_body};
use kelson_simulation::Api;
use kelson_tasks::Tasks;
use parking_lot::Mutex;

use crate::{ClientFactory, Config, Controllers, Running};

/// Runs the named controllers, each as its own user, and waits until they are synced.
pub(crate) async fn run(api: &Api, names: &[&str], config: Config) -> Running {
    let factory = api.clone();
    let running = start(api, names, config, Box::new(move |user| factory.client_as(user)));
    running.synced().await;
    running
}

/// Starts the named controllers, whose requests pass `gate` before they reach the API server.
pub(crate) fn run_through(api: &Api, names: &[&str], gate: &Gate) -> Running {
    let (api_of, gate) = (api.clone(), gate.clone());
    let client = move |user: &str| {
        let way: Arc<dyn Transport> = Arc::new(Gated { to: api_of.transport(user), gate: gate.clone() });
        Client::new(way, "test")
    };
    start(api, names, Config::default(), Box::new(client))
}

fn start(api: &Api, names: &[&str], config: Config, factory: Box<ClientFactory>) -> Running {
    let config = Config { controllers: names.iter().map(|s| (*s).to_owned()).collect(), ..config };
    Controllers::start(config, factory, Arc::new(api.clock), Tasks::root("controllers"))
}

/// Overrides the responses of requests whose `METHOD PATH` contains a string. Other requests pass unchanged.
#[derive(Clone, Default)]
pub(crate) struct Gate {
    rules: Arc<Mutex<Vec<(String, Barred)>>>,
}

/// The response of a gate.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Barred {
    /// 500, as with an unavailable conversion webhook.
    Fails,
    Hangs,
    /// 404 without a `Status`, as for a version that is not served.
    Unserved,
}

impl Gate {
    /// Requests whose `METHOD PATH` contains `part` get this response from now on.
    pub(crate) fn bar(&self, part: &str, how: Barred) {
        self.rules.lock().push((part.to_owned(), how));
    }
    /// All requests pass again.
    pub(crate) fn open(&self) {
        self.rules.lock().clear();
    }
}

struct Gated {
    to: Arc<dyn Transport>,
    gate: Gate,
}

impl Transport for Gated {
    fn send(&self, request: Request) -> BoxFuture<Result<Response, TransportError>> {
        let asked = format!("{} {}", request.method(), request.uri().path());
        let how = self.gate.rules.lock().iter().find(|(part, _)| asked.contains(part.as_str())).map(|(_, how)| *how);
        let plain = |code: u16, text: &'static str| {
            let answer = http::Response::builder().status(code).body(full_body(text)).expect("a response");
            Box::pin(async move { Ok(answer) })
        };
        match how {
            None => self.to.send(request),
            Some(Barred::Fails) => plain(500, "conversion webhook: connection refused"),
            Some(Barred::Unserved) => plain(404, "404 page not found\n"),
            Some(Barred::Hangs) => Box::pin(std::future::pending()),
        }
    }
}
