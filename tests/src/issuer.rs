//! Certificates for test servers, created with the `openssl` program: a CA, and a certificate for a server.
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};

/// The content of a certificate Secret, all in PEM.
#[derive(Clone, Debug)]
pub struct Issued {
    /// The CA's certificate, for bundles.
    pub authority: String,
    /// The certificate of the server, or of the client.
    pub certificate: String,
    /// The private key.
    pub key: String,
}

/// Creates a CA and a certificate for these DNS names and 127.0.0.1, which is also valid for clients.
pub fn issue(names: &[&str]) -> anyhow::Result<Issued> {
    let dir = tempfile::tempdir()?;
    let at = dir.path();
    let mut alternative = String::from("IP:127.0.0.1");
    for name in names {
        alternative += &format!(",DNS:{name}");
    }
    fs::write(
        at.join("conf"),
        format!(
            "[req]\ndistinguished_name=dn\nprompt=no\n[dn]\nCN=webhook\n\
             [ca]\nbasicConstraints=critical,CA:TRUE\nkeyUsage=critical,keyCertSign\nsubjectKeyIdentifier=hash\n\
             [leaf]\nbasicConstraints=CA:FALSE\nextendedKeyUsage=serverAuth,clientAuth\nsubjectAltName={alternative}\n"
        ),
    )?;
    let key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-config", "conf"];
    let authority = ["-x509", "-days", "30", "-extensions", "ca", "-subj", "/CN=webhook-ca"];
    openssl(at, &[&["req"], &key[..], &authority, &["-keyout", "ca.key", "-out", "ca.crt"]].concat())?;
    openssl(at, &[&["req"], &key[..], &["-new", "-keyout", "tls.key", "-out", "tls.csr"]].concat())?;
    openssl(
        at,
        &[
            "x509",
            "-req",
            "-in",
            "tls.csr",
            "-CA",
            "ca.crt",
            "-CAkey",
            "ca.key",
            "-CAcreateserial",
            "-days",
            "30",
            "-extfile",
            "conf",
            "-extensions",
            "leaf",
            "-out",
            "tls.crt",
        ],
    )?;
    let read = |name: &str| fs::read_to_string(at.join(name)).with_context(|| name.to_owned());
    Ok(Issued { authority: read("ca.crt")?, certificate: read("tls.crt")?, key: read("tls.key")? })
}

fn openssl(dir: &Path, args: &[&str]) -> anyhow::Result<()> {
    let out = Command::new("openssl").args(args).current_dir(dir).stdin(Stdio::null()).output();
    let out = out.context("start openssl (Debian package of this name)")?;
    if !out.status.success() {
        bail!("openssl {}: {}", args.join(" "), String::from_utf8_lossy(&out.stderr));
    }
    Ok(())
}
