//! A test cluster: the API server and the parts that run with it, started, forked and stopped.
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ipnet::{IpNet, Ipv4Net};
use kelson_apiserver::{ApiServer, AuthorizationMode, Config, Running, ServingConfig, StartError};
use kelson_auth::token::{IssuerOptions, TokenIssuer};
use kelson_auth::{UserInfo, user};
use kelson_client::Client;
use kelson_controllers::{Authorities, Controllers};
use kelson_meta::{Clock, SystemClock};
use kelson_pki::PkiError;
use kelson_scheduler::Scheduler;
use kelson_store::{Store, StoreError, StoreOptions};
use kelson_tasks::{FILES, LaneError, Tasks};

use crate::identity::{DOMAIN, Identity};
use crate::options::Options;

/// The timeout for stopping each part.
const END_MAX: Duration = Duration::from_secs(5);
/// The service address range.
const SERVICES: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(10, 0, 0, 0), 16);
/// The name of the administrator in kubeconfigs.
const ADMIN: &str = "admin";

/// The initial objects of every cluster in memory: the first cluster of the process creates them, the others are forks
/// of them.
static PREPARED: OnceLock<Store> = OnceLock::new();

/// Why a cluster could not be started.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server did not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// A certificate could not be issued.
    #[error(transparent)]
    Pki(#[from] PkiError),
    /// The directory cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The process has no room for blocking work.
    #[error(transparent)]
    Lane(#[from] LaneError),
    /// An option names an unknown controller.
    #[error("{0:?} is not in the list of known controllers")]
    UnknownController(String),
}

/// A running test cluster: an API server with its own store, revisions, CAs and port, and the controllers, scheduler
/// and hollow nodes that its [`Options`] name.
///
/// [`Cluster::client`] sends requests within the process, [`Cluster::kubeconfig`] is for other programs.
/// [`Cluster::fork`] creates a second, independent cluster with the same objects in a few milliseconds, which is how
/// tests share an expensive setup. Dropping a cluster stops it in the background; [`Cluster::shutdown`] waits for that.
pub struct Cluster {
    options: Options,
    identity: Identity,
    api: Running,
    store: Store,
    tasks: Tasks,
    address: SocketAddr,
    controllers: Option<kelson_controllers::Running>,
    scheduler: Option<kelson_scheduler::Running>,
    hollow: Option<kelson_hollow::Running>,
}

impl Cluster {
    /// Starts a cluster; returns when it serves requests.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn start(options: Options) -> Result<Self, Error> {
        let (store, prepared) = match (&options.directory, PREPARED.get()) {
            (Some(directory), _) => (open(directory).await?, false),
            (None, Some(prepared)) => (prepared.fork(clock()), true),
            (None, None) => (Store::in_memory(StoreOptions::default()), false),
        };
        let cluster = Self::on(options, store, prepared, None).await?;
        if !prepared && cluster.options.directory.is_none() {
            // Before anything else is written: the parts that write start after this.
            drop(PREPARED.set(cluster.store.fork(clock())));
        }
        cluster.with_parts()
    }

    /// Starts another cluster in memory with the current objects of this one, and with the same controllers and nodes.
    /// Objects that neither changes are shared.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn fork(&self) -> Result<Self, Error> {
        self.fork_with(self.options.clone()).await
    }

    /// As [`Cluster::fork`], with other controllers and nodes. `directory` is ignored.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn fork_with(&self, options: Options) -> Result<Self, Error> {
        let options = Options { directory: None, ..options };
        Self::on(options, self.store.fork(clock()), true, Some(&self.api)).await?.with_parts()
    }

    /// Starts the API server alone.
    async fn on(options: Options, store: Store, prepared: bool, model: Option<&Running>) -> Result<Self, Error> {
        options.controllers().map_err(Error::UnknownController)?;
        let identity = Identity::new(clock().now())?;
        let tasks = Tasks::root("cluster");
        let mut config = Config::new(store.clone());
        config.prepared = prepared;
        let bind = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        config.serving = Some(ServingConfig { bind, certificate: identity.serving()? });
        config.client_ca_pem = identity.ca_pem().to_owned();
        config.service_accounts = Some(identity.service_accounts());
        config.authorization = vec![AuthorizationMode::Rbac];
        config.bootstrap_tokens = false;
        // A test does not overload its own cluster, and the objects for it would appear in every list.
        config.priority_and_fairness = false;
        config.service_cidrs = vec![IpNet::V4(SERVICES)];
        config.advertise_address = IpAddr::V4(Ipv4Addr::LOCALHOST);
        config.cluster_domain = DOMAIN.to_owned();
        config.admission.disable = options.plugins_off();
        config.tasks = tasks.child("apiserver");
        let api = match model {
            // Boxed, since the future of a start is larger than the stack of a runtime's thread should be.
            Some(model) => Box::pin(model.fork(config)).await?,
            None => Box::pin(ApiServer::start(config)).await?,
        };
        api.ready().await;
        let address = api.local_addr().unwrap_or(bind);
        Ok(Self { options, identity, api, store, tasks, address, controllers: None, scheduler: None, hollow: None })
    }

    /// Starts everything besides the API server that the options name.
    fn with_parts(mut self) -> Result<Self, Error> {
        let names = self.options.controllers().map_err(Error::UnknownController)?;
        if !names.is_empty() {
            self.controllers = Some(self.start_controllers(names));
        }
        if self.options.scheduler {
            let client = self.client_as(user::KUBE_SCHEDULER);
            let config = kelson_scheduler::Config::default();
            self.scheduler = Some(Scheduler::start(config, client, clock(), None, &self.tasks));
        }
        let nodes = &self.options.nodes;
        if nodes.count > 0 {
            let labels = nodes.labels.iter().map(|(key, value)| (key.clone(), value.clone())).collect();
            let config = kelson_hollow::Config { nodes: nodes.count, labels, ..kelson_hollow::Config::default() };
            self.hollow = Some(kelson_hollow::start(config, &self.client(), clock(), &self.tasks));
        }
        Ok(self)
    }

    fn start_controllers(&self, controllers: Vec<String>) -> kelson_controllers::Running {
        let accounts = self.identity.service_accounts();
        let issuer = TokenIssuer::new(accounts.key, IssuerOptions::default());
        let authorities = Authorities {
            root_ca: self.identity.ca_pem().to_owned(),
            signer: Some(Arc::new(self.identity.authority().clone())),
            ..Authorities::default()
        };
        let config = kelson_controllers::Config {
            controllers,
            service_cidr: Some(IpNet::V4(SERVICES)),
            authorities: authorities.fixed(),
            legacy_tokens: Some(Arc::new(move |namespace: &str, account: &str, uid: &str, secret: &str| {
                issuer.legacy_token(namespace, account, uid, secret).map_err(|e| e.message)
            })),
            ..kelson_controllers::Config::default()
        };
        let api = self.api.clone();
        let factory = move |name: &str| Client::new(api.in_process(identity(name)), "controller-manager");
        Controllers::start(config, Box::new(factory), clock(), self.tasks.child("controllers"))
    }

    /// Returns a client in this process, as the administrator: requests pass all filters, without a socket.
    pub fn client(&self) -> Client {
        Client::new(self.api.in_process(UserInfo::new(ADMIN, [user::MASTERS])), "test")
    }

    /// Returns a client in this process as this user, with the permissions of the cluster's roles; a service account's
    /// groups follow from its name (`system:serviceaccount:NAMESPACE:NAME`).
    pub fn client_as(&self, name: &str) -> Client {
        Client::new(self.api.in_process(identity(name)), "test")
    }

    /// Returns the URL of the API over TLS: `https://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// Returns the CA of the API's certificate, PEM.
    pub fn ca_pem(&self) -> &str {
        self.identity.ca_pem()
    }

    /// Returns a kubeconfig of the administrator, YAML, with a new certificate.
    ///
    /// # Errors
    /// [`Error::Pki`].
    pub fn kubeconfig(&self) -> Result<String, Error> {
        Ok(self.identity.kubeconfig(self.address, ADMIN, &[user::MASTERS])?)
    }

    /// Returns a kubeconfig of another user.
    ///
    /// # Errors
    /// [`Error::Pki`].
    pub fn kubeconfig_for(&self, name: &str, groups: &[&str]) -> Result<String, Error> {
        Ok(self.identity.kubeconfig(self.address, name, groups)?)
    }

    /// Returns the options it was started with.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Begins to stop it: requests are rejected and watches end from now on.
    pub(crate) fn stop(&self) {
        self.tasks.token().cancel();
    }

    /// Stops it and waits until nothing of it runs any more. Open watches end immediately.
    pub async fn shutdown(mut self) {
        if let Some(hollow) = self.hollow.take() {
            within("hollow nodes", hollow.shutdown()).await;
        }
        if let Some(scheduler) = self.scheduler.take() {
            within("scheduler", scheduler.shutdown()).await;
        }
        if let Some(controllers) = self.controllers.take() {
            within("controllers", controllers.shutdown()).await;
        }
        self.tasks.token().cancel();
        within("API server", self.api.shutdown()).await;
        within("store", self.store.close()).await;
    }
}

impl Drop for Cluster {
    /// Its tasks end in the background.
    fn drop(&mut self) {
        self.tasks.token().cancel();
    }
}

fn clock() -> Arc<dyn Clock> {
    Arc::new(SystemClock)
}

/// Returns the user a component acts as.
fn identity(name: &str) -> UserInfo {
    match user::split_service_account(name) {
        Some((namespace, account)) => UserInfo::service_account(namespace, account, ""),
        None => UserInfo::new(name, [user::AUTHENTICATED]),
    }
}

async fn open(directory: &Path) -> Result<Store, Error> {
    let directory = directory.to_owned();
    Ok(FILES.run(move || Store::open_dir(&directory, StoreOptions::default())).await??)
}

async fn within(part: &str, end: impl Future<Output = ()>) {
    if tokio::time::timeout(END_MAX, end).await.is_err() {
        tracing::warn!(part, "shutdown timed out; continuing");
    }
}
