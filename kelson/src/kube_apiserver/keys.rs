//! Reads the API server's certificates and keys, and creates a serving certificate if there is none.
#![allow(clippy::disallowed_methods, reason = "blocking: at start, before anything is served")]
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use jiff::Timestamp;
use kelson_apiserver::ServiceAccountConfig;
use kelson_auth::authenticate::FrontProxyOptions;
use kelson_auth::token::TokenTerms;
use kelson_pki::{Authority, ClusterPki, Issued, Key, LeafSpec, PublicKey, Purpose, San, certificates_from_pem};

use super::args::{FrontProxyArgs, ServiceAccountArgs, ServingArgs};

/// The lifetime of a self-signed certificate, as upstream's.
const OWN_CERTIFICATE: std::time::Duration = std::time::Duration::from_secs(365 * 24 * 3600);

/// Reads a file; the error also names the flag.
pub fn text(flag: &str, file: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(file).with_context(|| format!("{flag} {}", file.display()))
}

/// Reads a certificate and its key, if both files are given.
pub fn pair(flag: &str, cert: Option<&PathBuf>, key: Option<&PathBuf>) -> anyhow::Result<Option<Issued>> {
    let (Some(cert), Some(key)) = (cert, key) else { return Ok(None) };
    let key = Key::from_pem(&text(flag, key)?).with_context(|| format!("{flag} {}", key.display()))?;
    Ok(Some(Issued { cert_pem: text(flag, cert)?, key }))
}

/// Returns the serving certificate: of the flags, else the pair in the certificate directory, else a new one that is
/// written there.
pub fn serving(args: &ServingArgs, address: IpAddr, service: Option<IpAddr>, now: Timestamp) -> anyhow::Result<Issued> {
    if let Some(given) = pair("--tls-cert-file", args.tls_cert_file.as_ref(), args.tls_private_key_file.as_ref())? {
        return Ok(given);
    }
    let dir = (!args.cert_dir.is_empty()).then(|| PathBuf::from(&args.cert_dir));
    let files = dir.map(|dir| (dir.join("apiserver.crt"), dir.join("apiserver.key")));
    if let Some((cert, key)) = files.as_ref().filter(|(cert, key)| cert.exists() && key.exists()) {
        return pair("--cert-dir", Some(cert), Some(key))?.context("--cert-dir");
    }
    let host = crate::host::name().unwrap_or_else(|_| "localhost".to_owned());
    let authority = Authority::create(&format!("{host}-ca@{}", now.as_second()), now)?;
    let service = service.unwrap_or(IpAddr::from([127, 0, 0, 1]));
    let sans = ClusterPki::server_sans(
        crate::cluster::CLUSTER_DOMAIN,
        service,
        &[San::Ip(address), San::Ip(args.bind_address), San::Dns(host.clone())],
    );
    let leaf = LeafSpec {
        common_name: &format!("{host}@{}", now.as_second()),
        organizations: &[],
        sans: &sans,
        purpose: Purpose::Server,
        lifetime: OWN_CERTIFICATE,
    };
    let mut made = authority.issue(&leaf, now)?;
    made.cert_pem.push_str(authority.cert_pem());
    if let Some((cert, key)) = files {
        let dir = cert.parent().unwrap_or(Path::new("/"));
        let wrote = std::fs::create_dir_all(dir).and_then(|()| std::fs::write(&cert, &made.cert_pem));
        wrote.with_context(|| format!("--cert-dir: write {}", cert.display()))?;
        kelson_pki::write_secret(&key, made.key.to_pem().as_bytes(), false)?;
        tracing::info!(certificate = %cert.display(), "created a self-signed certificate");
    }
    Ok(made)
}

/// Returns how service account tokens are issued and verified.
///
/// # Errors
/// All of upstream's requirements that the flags violate, and files without a key.
pub fn service_accounts(args: &ServiceAccountArgs) -> anyhow::Result<ServiceAccountConfig> {
    let Some((issuer, before)) = args.service_account_issuer.split_first() else {
        bail!(
            "service-account-issuer is a required flag, as are service-account-key-file and service-account-signing-key-file"
        );
    };
    let Some(signing) = &args.service_account_signing_key_file else {
        bail!("service-account-signing-key-file and service-account-issuer are required flags");
    };
    if args.service_account_key_file.is_empty() {
        bail!("service-account-key-file must be set");
    }
    let what = "--service-account-signing-key-file";
    let key = Key::from_pem(&text(what, signing)?).with_context(|| format!("{what} {}", signing.display()))?;
    let mut verifiers = Vec::new();
    for file in &args.service_account_key_file {
        let what = "--service-account-key-file";
        let keys = PublicKey::all_from_pem(&text(what, file)?).with_context(|| format!("{what} {}", file.display()))?;
        verifiers.extend(keys);
    }
    Ok(ServiceAccountConfig {
        issuer: issuer.clone(),
        issuers_before: before.to_vec(),
        key,
        verifiers,
        audiences: args.api_audiences.clone(),
        terms: terms(args)?,
    })
}

/// Returns the lifetime of tokens, and the published address of their keys.
fn terms(args: &ServiceAccountArgs) -> anyhow::Result<TokenTerms> {
    for (i, issuer) in args.service_account_issuer.iter().enumerate() {
        if issuer.is_empty() {
            bail!("service-account-issuer should not be an empty string");
        }
        if args.service_account_issuer[..i].contains(issuer) {
            bail!("service-account-issuer {issuer:?} is already specified");
        }
    }
    let most = args.service_account_max_token_expiration.filter(|most| !most.is_zero());
    if most.is_some_and(|most| !(3600..=1 << 32).contains(&most.as_secs())) {
        bail!("the service-account-max-token-expiration must be between 1 hour and 2^32 seconds");
    }
    let jwks_uri = args.service_account_jwks_uri.clone().filter(|uri| !uri.is_empty());
    if let Some(uri) = &jwks_uri {
        let parsed: http::Uri = uri.parse().context("service-account-jwks-uri must be a valid URL")?;
        if parsed.scheme_str() != Some("https") {
            bail!("service-account-jwks-uri requires https scheme, parsed as: {uri}");
        }
    }
    Ok(TokenTerms {
        expiration_max_seconds: most.and_then(|most| i64::try_from(most.as_secs()).ok()),
        extend_expiration: args.service_account_extend_token_expiration,
        jwks_uri,
    })
}

/// Checks that client CA and front proxy CA are separate: otherwise a client with any certificate could act as a front
/// proxy for any user, if proxies of any name are allowed.
///
/// # Errors
/// The bundles have a certificate in common, and no names of proxies are given.
pub fn apart(clients: &str, proxies: &str, allowed_names: &[String]) -> anyhow::Result<()> {
    let (clients, proxies) = (certificates_from_pem(clients), certificates_from_pem(proxies));
    let (Ok(clients), Ok(proxies)) = (clients, proxies) else { return Ok(()) };
    if allowed_names.is_empty() && clients.iter().any(|authority| proxies.contains(authority)) {
        bail!(
            "--requestheader-client-ca-file and --client-ca-file contain overlapping certificates; --requestheader-allowed-names \
             must be specified to ensure regular client certificates cannot set authenticating proxy headers for arbitrary users"
        );
    }
    Ok(())
}

/// Returns the trusted proxies, and their headers.
pub fn request_headers(args: &FrontProxyArgs) -> FrontProxyOptions {
    FrontProxyOptions {
        allowed_names: args.requestheader_allowed_names.clone(),
        username_headers: args.requestheader_username_headers.clone(),
        uid_headers: args.requestheader_uid_headers.clone(),
        group_headers: args.requestheader_group_headers.clone(),
        extra_prefixes: args.requestheader_extra_headers_prefix.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> Timestamp {
        "2026-05-06T07:08:09Z".parse().unwrap()
    }

    fn serving_args(dir: &Path) -> ServingArgs {
        ServingArgs {
            bind_address: IpAddr::from([127, 0, 0, 1]),
            secure_port: 6443,
            advertise_address: None,
            external_hostname: String::new(),
            cert_dir: dir.display().to_string(),
            tls_cert_file: None,
            tls_private_key_file: None,
        }
    }

    #[test]
    fn a_certificate_is_read_from_its_file_or_created_there() {
        let dir = tempfile::tempdir().unwrap();
        let address = IpAddr::from([192, 0, 2, 7]);
        let args = serving_args(&dir.path().join("made"));
        let made = serving(&args, address, None, now()).unwrap();
        let again = serving(&args, address, None, now()).unwrap();
        assert_eq!(made.cert_pem, again.cert_pem, "the second start finds the first one's");
        let info = kelson_pki::CertInfo::from_pem(&made.cert_pem).unwrap();
        assert!(info.sans.contains(&San::Ip(address)), "{:?}", info.sans);

        let other = Authority::create("other", now()).unwrap();
        let sans = [San::Dns("elsewhere".into())];
        let leaf = LeafSpec {
            common_name: "elsewhere",
            organizations: &[],
            sans: &sans,
            purpose: Purpose::Server,
            lifetime: OWN_CERTIFICATE,
        };
        let theirs = other.issue(&leaf, now()).unwrap();
        let (cert, key) = (dir.path().join("tls.crt"), dir.path().join("tls.key"));
        std::fs::write(&cert, &theirs.cert_pem).unwrap();
        std::fs::write(&key, theirs.key.to_pem()).unwrap();
        let args = ServingArgs { tls_cert_file: Some(cert), tls_private_key_file: Some(key), ..args };
        assert_eq!(serving(&args, address, None, now()).unwrap().cert_pem, theirs.cert_pem);
        let nowhere = ServingArgs { cert_dir: String::new(), ..serving_args(dir.path()) };
        assert!(serving(&nowhere, address, None, now()).is_ok(), "in memory");
        assert!(!dir.path().join("apiserver.crt").exists());
    }

    #[test]
    fn keys_of_service_accounts_in_every_form() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let authority = Authority::create("signer", now()).unwrap();
        let leaf = LeafSpec {
            common_name: "sa-signer",
            organizations: &[],
            sans: &[],
            purpose: Purpose::Client,
            lifetime: OWN_CERTIFICATE,
        };
        let signer = authority.issue(&leaf, now()).unwrap();
        let (old, older) = (Key::generate().unwrap(), Key::generate().unwrap());
        let certificate = file("sa-signer.crt", &signer.cert_pem);
        let private = file("sa-signer.key", &signer.key.to_pem());
        let both = file("old.pem", &format!("{}{}", old.public().to_pem(), older.to_pem()));
        let args = ServiceAccountArgs {
            service_account_issuer: vec!["https://a".into(), "/old/sa.key".into()],
            service_account_key_file: vec![certificate.clone(), both],
            service_account_signing_key_file: Some(private),
            api_audiences: Vec::new(),
            service_account_max_token_expiration: None,
            service_account_extend_token_expiration: true,
            service_account_jwks_uri: None,
        };
        let config = service_accounts(&args).unwrap();
        assert_eq!(config.terms, TokenTerms::default());
        let verifiers = [signer.key.public(), old.public(), older.public()].map(Clone::clone);
        assert_eq!(config.verifiers, verifiers);
        assert_eq!(
            (config.issuer.as_str(), config.issuers_before.as_slice()),
            ("https://a", &["/old/sa.key".to_owned()][..])
        );

        let refused = |change: &dyn Fn(&mut ServiceAccountArgs), want: &str| {
            let mut args = args.clone();
            change(&mut args);
            let why = format!("{:#}", service_accounts(&args).err().expect("refused"));
            assert!(why.contains(want), "{why}");
        };
        refused(&|a| a.service_account_issuer.clear(), "service-account-issuer is a required flag");
        refused(&|a| a.service_account_key_file.clear(), "service-account-key-file must be set");
        refused(
            &|a| a.service_account_signing_key_file = Some(certificate.clone()),
            "--service-account-signing-key-file",
        );
        refused(&|a| a.service_account_key_file = vec!["/nowhere".into()], "--service-account-key-file /nowhere");
        refused(&|a| a.service_account_issuer.push(String::new()), "should not be an empty string");
        refused(&|a| a.service_account_issuer.push("https://a".into()), "\"https://a\" is already specified");
        let seconds = |n| Some(std::time::Duration::from_secs(n));
        for most in [3599, (1 << 32) + 1] {
            refused(&|a| a.service_account_max_token_expiration = seconds(most), "between 1 hour and 2^32 seconds");
        }
        refused(&|a| a.service_account_jwks_uri = Some("http://keys/jwks".into()), "requires https scheme");
        let args = ServiceAccountArgs {
            service_account_max_token_expiration: seconds(7200),
            service_account_extend_token_expiration: false,
            service_account_jwks_uri: Some("https://keys.example/jwks".into()),
            ..args
        };
        let jwks_uri = Some("https://keys.example/jwks".to_owned());
        let terms = TokenTerms { expiration_max_seconds: Some(7200), extend_expiration: false, jwks_uri };
        assert_eq!(service_accounts(&args).unwrap().terms, terms);
    }

    #[test]
    fn one_authority_for_clients_and_proxies_needs_the_proxies_names() {
        let [clients, proxies] = ["clients", "proxies"].map(|name| Authority::create(name, now()).unwrap());
        let (clients, proxies) = (clients.cert_pem(), proxies.cert_pem());
        apart(clients, proxies, &[]).unwrap();
        let both = format!("{proxies}{clients}");
        let why = apart(clients, &both, &[]).unwrap_err().to_string();
        assert!(why.contains("contain overlapping certificates"), "{why}");
        apart(clients, &both, &["front-proxy-client".into()]).unwrap();
    }
}
