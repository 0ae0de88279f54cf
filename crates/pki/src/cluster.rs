//! The PKI of one cluster under `DIR/pki`. On disk are only what must outlive the process: the CAs and the service
//! account keys. Leaf certificates of this process are made afresh at each start, which costs less than reading them,
//! and renewed while it runs; so none can be found expired.
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files, or at start")]

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;

use crate::kubeconfig::KubeconfigFile;
use crate::{
    Authority, BACKDATE, CertInfo, Issued, Key, Kubeconfig, LEAF_LIFETIME, LeafSpec, PkiError, PublicKey, Purpose,
    Renewal, San, UserCredential, file, rotation,
};

/// The location of the PKI.
#[derive(Clone, Debug)]
pub struct PkiOptions {
    /// The directory, usually `DIR/pki`.
    pub dir: PathBuf,
    /// The date of the build. A clock that shows an earlier time is wrong, and no CA is made then.
    pub clock_min: Timestamp,
}

impl PkiOptions {
    /// In this directory, whatever the clock shows.
    pub fn new(dir: PathBuf) -> Self {
        Self { dir, clock_min: Timestamp::MIN }
    }
}

/// Group of those who may do at kubelets what `system:kubelet-api-admin` allows, and nothing else anywhere.
pub const KUBELET_CLIENTS: &str = "kelson:kubelet-clients";

/// Components of the control plane with their own client certificates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Component {
    /// The user `system:kube-scheduler`.
    Scheduler,
    /// The user `system:kube-controller-manager`.
    ControllerManager,
    /// The user `system:kube-proxy`.
    Proxy,
    /// The API server towards kubelets, in [`KUBELET_CLIENTS`].
    KubeletClient,
    /// The API server itself (loopback).
    ApiServer,
    /// The administrator: `system:masters`.
    Admin,
}

impl Component {
    fn subject(self) -> (&'static str, &'static [&'static str]) {
        match self {
            Self::Scheduler => ("system:kube-scheduler", &[]),
            Self::ControllerManager => ("system:kube-controller-manager", &[]),
            Self::Proxy => ("system:kube-proxy", &[]),
            Self::KubeletClient => ("kube-apiserver-kubelet-client", &[KUBELET_CLIENTS]),
            Self::ApiServer => ("system:apiserver", &["system:masters"]),
            Self::Admin => ("kubernetes-admin", &["system:masters"]),
        }
    }
}

/// The cluster's CAs and keys.
#[derive(Clone, Debug)]
pub struct ClusterPki {
    /// Issues the API server's certificate and client certificates.
    pub ca: Authority,
    /// Issues kubelets' serving certificates. What a kubelet is called and where it is, it says itself: nothing that
    /// trusts [`ClusterPki::ca`], and so nothing that speaks to the API server, may believe such a certificate.
    pub kubelet_serving_ca: Authority,
    /// Issues the certificate with which the API server shows itself to extension API servers.
    pub front_proxy_ca: Authority,
    /// Signs service account tokens.
    pub service_account: Key,
    /// No certificate may have been made before this time ([`rotation::ask_to_renew`]).
    pub renew_since: Timestamp,
    /// The previous CAs that are still trusted, PEM: `ca`, `front-proxy-ca`, `kubelet-serving-ca`.
    previous: [Option<String>; 3],
    dir: PathBuf,
}

impl ClusterPki {
    /// Opens the PKI, and creates missing keys and certificates.
    pub fn open(options: &PkiOptions, now: Timestamp) -> Result<Self, PkiError> {
        let dir = &options.dir;
        kelson_platform::files::ensure_private_dir(dir).map_err(|e| file::at(dir, e))?;
        // A board without a battery starts in 1970. A CA created at that time would have expired when the clock is set.
        if now < options.clock_min && !dir.join("ca.crt").exists() {
            return Err(PkiError::ClockBehind { now, min: options.clock_min });
        }
        let _lock = rotation::lock(dir)?;
        rotation::complete(dir)?;
        let [ca, front_proxy, kubelet_serving] = rotation::AUTHORITIES.map(|name| rotation::previous(dir, name));
        let authority = |file: &str, name: &str| {
            Ok::<_, PkiError>(Authority::load_or_create(dir, file, name, now)?.with_cross(rotation::cross(dir, file)?))
        };
        Ok(Self {
            previous: [ca?, front_proxy?, kubelet_serving?],
            renew_since: rotation::renew_since(dir)?,
            ca: authority("ca", "kubernetes")?,
            kubelet_serving_ca: authority("kubelet-serving-ca", "kubelet-serving-ca")?,
            front_proxy_ca: authority("front-proxy-ca", "front-proxy-ca")?,
            service_account: Key::load_or_generate(&dir.join("sa.key"))?,
            dir: dir.clone(),
        })
    }

    /// Returns the CA bundle of the API server and its clients, PEM: [`ClusterPki::ca`] first, then the previous one
    /// while that is trusted.
    pub fn ca_bundle(&self) -> String {
        bundle(&self.ca, &self.previous[0])
    }

    /// Returns all trusted CAs: [`ClusterPki::ca_bundle`], [`ClusterPki::front_proxy_bundle`] and
    /// [`ClusterPki::kubelet_serving_bundle`].
    pub fn bundles(&self) -> [String; 3] {
        [self.ca_bundle(), self.front_proxy_bundle(), self.kubelet_serving_bundle()]
    }

    /// Returns the CA bundle for the API server as a client of extension API servers, PEM, in the same order.
    pub fn front_proxy_bundle(&self) -> String {
        bundle(&self.front_proxy_ca, &self.previous[1])
    }

    /// Returns the CA bundle of kubelets' serving certificates, PEM, in the same order. It includes [`ClusterPki::ca`],
    /// which signed those in data directories from before there was a separate CA; they are replaced when they are
    /// renewed.
    pub fn kubelet_serving_bundle(&self) -> String {
        format!("{}{}", bundle(&self.kubelet_serving_ca, &self.previous[2]), self.ca_bundle())
    }

    /// Returns the keys that verify service account tokens: the current one, then any in `sa-previous.pub`.
    pub fn service_account_verifiers(&self) -> Result<Vec<PublicKey>, PkiError> {
        let mut keys = vec![self.service_account.public().clone()];
        if let Some(text) = file::read(&self.dir.join("sa-previous.pub"))? {
            keys.extend(PublicKey::all_from_pem(&text)?);
        }
        Ok(keys)
    }

    /// Returns the names of every API server certificate, and `more` (host name, node addresses, `--tls-san`).
    pub fn server_sans(cluster_domain: &str, service_ip: IpAddr, more: &[San]) -> Vec<San> {
        let dns = |d: &str| San::Dns(d.to_owned());
        let mut sans = vec![
            dns("kubernetes"),
            dns("kubernetes.default"),
            dns("kubernetes.default.svc"),
            San::Dns(format!("kubernetes.default.svc.{cluster_domain}")),
            dns("localhost"),
            San::Ip(service_ip),
            San::Ip(IpAddr::from([127, 0, 0, 1])),
            San::Ip(IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1])),
        ];
        for san in more {
            if !sans.contains(san) {
                sans.push(san.clone());
            }
        }
        sans
    }

    /// A serving certificate of the API server.
    pub fn issue_server(&self, sans: &[San], now: Timestamp) -> Result<Issued, PkiError> {
        self.ca.issue(
            &LeafSpec {
                common_name: "kube-apiserver",
                organizations: &[],
                sans,
                purpose: Purpose::Server,
                lifetime: LEAF_LIFETIME,
            },
            now,
        )
    }

    /// A client certificate of a component.
    pub fn issue_component(&self, component: Component, now: Timestamp) -> Result<Issued, PkiError> {
        let (name, groups) = component.subject();
        let groups: Vec<&str> = groups.to_vec();
        self.issue_client(name, &groups, LEAF_LIFETIME, now)
    }

    /// A client certificate for any user.
    pub fn issue_client(
        &self,
        user: &str,
        groups: &[&str],
        lifetime: Duration,
        now: Timestamp,
    ) -> Result<Issued, PkiError> {
        let organizations: Vec<String> = groups.iter().map(|g| (*g).to_owned()).collect();
        self.ca.issue(
            &LeafSpec {
                common_name: user,
                organizations: &organizations,
                sans: &[],
                purpose: Purpose::Client,
                lifetime,
            },
            now,
        )
    }

    /// The certificate that is presented to extension API servers.
    pub fn issue_front_proxy_client(&self, now: Timestamp) -> Result<Issued, PkiError> {
        let spec = LeafSpec {
            common_name: "front-proxy-client",
            organizations: &[],
            sans: &[],
            purpose: Purpose::Client,
            lifetime: LEAF_LIFETIME,
        };
        self.front_proxy_ca.issue(&spec, now)
    }

    /// The certificate in an administrator's kubeconfig for this server and CA.
    fn admin_certificate(&self, text: &str, server: &str) -> Option<CertInfo> {
        let file = KubeconfigFile::parse(text.as_bytes()).ok()?;
        let (cluster, user) = file.current().ok()?;
        let ca = cluster.ca(Path::new("")).ok()?.load().ok()??;
        let ours = cluster.server == server && ca == self.ca_bundle().as_bytes();
        let cert = user.filter(|_| ours)?.certificate(Path::new("")).ok()?.load().ok()??;
        let info = CertInfo::from_pem(std::str::from_utf8(&cert).ok()?).ok()?;
        Some(info).filter(|info| info.not_before + BACKDATE >= self.renew_since)
    }

    /// Writes the administrator's kubeconfig to `path`, unless the existing one has the same server and CA and is not
    /// due for renewal. Returns whether it wrote.
    pub fn ensure_admin_kubeconfig(&self, path: &Path, server: &str, now: Timestamp) -> Result<bool, PkiError> {
        if let Some(text) = file::read(path)?
            && let Some(info) = self.admin_certificate(&text, server)
            && info.not_before <= now
            && now < Renewal::plan(info.not_before, info.not_after, 0.0).due
        {
            return Ok(false);
        }
        let issued = self.issue_component(Component::Admin, now)?;
        Kubeconfig {
            cluster: "kubernetes".into(),
            user: "kubernetes-admin".into(),
            server: server.to_owned(),
            ca_pem: self.ca_bundle(),
            ca_file: None,
            credential: UserCredential::Certificate(Box::new(issued)),
        }
        .write(path)?;
        Ok(true)
    }
}

fn bundle(now: &Authority, before: &Option<String>) -> String {
    format!("{}{}", now.cert_pem(), before.as_deref().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opens_twice_and_renews_the_admin() {
        let now: Timestamp = "2026-05-06T07:08:09Z".parse().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let early = PkiOptions { clock_min: now + Duration::from_secs(1), dir: dir.path().join("pki") };
        let refused = ClusterPki::open(&early, now).unwrap_err().to_string();
        assert!(refused.contains("2026-05-06T07:08:09Z"), "{refused}");
        let options = PkiOptions::new(dir.path().join("pki"));
        let pki = ClusterPki::open(&options, now).unwrap();
        let again = ClusterPki::open(&options, now).unwrap();
        assert_eq!(pki.ca.cert(), again.ca.cert());
        assert_eq!(pki.kubelet_serving_ca.cert(), again.kubelet_serving_ca.cert());
        assert_ne!(pki.ca.cert(), pki.kubelet_serving_ca.cert());
        assert_eq!(pki.service_account.public(), again.service_account.public());
        assert!(ClusterPki::open(&early, now).is_ok(), "the authorities are there already");
        assert_eq!(again.service_account_verifiers().unwrap().len(), 1);

        let path = dir.path().join("admin.kubeconfig");
        let url = "https://127.0.0.1:6443";
        assert!(pki.ensure_admin_kubeconfig(&path, url, now).unwrap());
        assert!(!pki.ensure_admin_kubeconfig(&path, url, now).unwrap());
        assert!(pki.ensure_admin_kubeconfig(&path, "https://127.0.0.1:7443", now).unwrap());
        assert!(pki.ensure_admin_kubeconfig(&path, url, now).unwrap());
        let late = now + Duration::from_secs(300 * 24 * 3600);
        assert!(pki.ensure_admin_kubeconfig(&path, url, late).unwrap());
        // The clock was ahead when the file was written, so its certificate is not valid yet.
        assert!(pki.ensure_admin_kubeconfig(&path, url, now).unwrap());

        let sans =
            ClusterPki::server_sans("cluster.local", "10.43.0.1".parse().unwrap(), &[San::Dns("localhost".into())]);
        let info = CertInfo::from_pem(&pki.issue_server(&sans, now).unwrap().cert_pem).unwrap();
        assert_eq!(info.sans.len(), 8);
        assert!(!format!("{pki:?}").contains("PRIVATE"), "keys do not print");
        let kubelet_client = CertInfo::from_pem(&pki.issue_component(Component::KubeletClient, now).unwrap().cert_pem);
        assert_eq!(kubelet_client.unwrap().organizations, [KUBELET_CLIENTS], "not system:masters");
        for c in [Component::Scheduler, Component::KubeletClient, Component::Admin] {
            let i = CertInfo::from_pem(&pki.issue_component(c, now).unwrap().cert_pem).unwrap();
            assert_eq!(i.common_name, c.subject().0);
        }
        assert!(pki.issue_front_proxy_client(now).is_ok());
    }
}
