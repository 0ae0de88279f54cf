//! One cluster: the API server and what runs beside it, put together, forked and ended.
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

/// How long each part may take to end.
const END_MAX: Duration = Duration::from_secs(5);
/// The range from which services get their addresses.
const SERVICES: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(10, 0, 0, 0), 16);
/// The administrator in kubeconfigs.
const ADMIN: &str = "admin";

/// What every cluster in memory begins with: the first one of the process makes it, the others are forks of it.
static PREPARED: OnceLock<Store> = OnceLock::new();

/// Why there is no cluster.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server did not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// A certificate could not be made.
    #[error(transparent)]
    Pki(#[from] PkiError),
    /// The directory cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The process has no room for blocking work.
    #[error(transparent)]
    Lane(#[from] LaneError),
    /// An option names a controller that there is not.
    #[error("{0:?} is not in the list of known controllers")]
    UnknownController(String),
}

/// A running cluster.
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
    /// Starts one; returns when it serves.
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
            // Before anybody has written anything: the parts that write start after this.
            drop(PREPARED.set(cluster.store.fork(clock())));
        }
        cluster.with_parts()
    }

    /// Another cluster that begins as this one is now, on memory, with the same controllers and nodes. What neither changes is
    /// there once.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn fork(&self) -> Result<Self, Error> {
        self.fork_with(self.options.clone()).await
    }

    /// As [`Cluster::fork`], with other controllers and nodes. `directory` is not looked at.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn fork_with(&self, options: Options) -> Result<Self, Error> {
        let options = Options { directory: None, ..options };
        Self::on(options, self.store.fork(clock()), true, Some(&self.api)).await?.with_parts()
    }

    /// The API server alone.
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
        // Nobody floods a cluster of his own, and its objects would be in every list of it.
        config.priority_and_fairness = false;
        config.service_cidrs = vec![IpNet::V4(SERVICES)];
        config.advertise_address = IpAddr::V4(Ipv4Addr::LOCALHOST);
        config.cluster_domain = DOMAIN.to_owned();
        config.admission.disable = options.plugins_off();
        config.tasks = tasks.child("apiserver");
        let api = match model {
            // Boxed: what a start holds is more than the stack of a runtime's thread should.
            Some(model) => Box::pin(model.fork(config)).await?,
            None => Box::pin(ApiServer::start(config)).await?,
        };
        api.ready().await;
        let address = api.local_addr().unwrap_or(bind);
        Ok(Self { options, identity, api, store, tasks, address, controllers: None, scheduler: None, hollow: None })
    }

    /// With everything beside the API server that the options name.
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

    /// A client in this process, as the administrator: the whole way of a request, without a socket.
    pub fn client(&self) -> Client {
        Client::new(self.api.in_process(UserInfo::new(ADMIN, [user::MASTERS])), "test")
    }

    /// A client in this process as this user, who may do what the cluster's roles say; a service account's groups follow from its
    /// name (`system:serviceaccount:NAMESPACE:NAME`).
    pub fn client_as(&self, name: &str) -> Client {
        Client::new(self.api.in_process(identity(name)), "test")
    }

    /// Where the API is served over TLS: `https://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// The certificate that the API's leads to, PEM.
    pub fn ca_pem(&self) -> &str {
        self.identity.ca_pem()
    }

    /// The administrator's kubeconfig, YAML, with a certificate made for it.
    ///
    /// # Errors
    /// [`Error::Pki`].
    pub fn kubeconfig(&self) -> Result<String, Error> {
        Ok(self.identity.kubeconfig(self.address, ADMIN, &[user::MASTERS])?)
    }

    /// The kubeconfig of another user.
    ///
    /// # Errors
    /// [`Error::Pki`].
    pub fn kubeconfig_for(&self, name: &str, groups: &[&str]) -> Result<String, Error> {
        Ok(self.identity.kubeconfig(self.address, name, groups)?)
    }

    /// How it was started.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Begins its end: requests are refused and watches end from now on.
    pub(crate) fn stop(&self) {
        self.tasks.token().cancel();
    }

    /// Ends it and waits until nothing of it runs any more. Open watches end at once.
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
    /// Its tasks end by themselves; nobody waits for them.
    fn drop(&mut self) {
        self.tasks.token().cancel();
    }
}

fn clock() -> Arc<dyn Clock> {
    Arc::new(SystemClock)
}

/// The user a component acts as.
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
