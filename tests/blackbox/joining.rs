//! A node joins the subject's control plane with only a bootstrap kubeconfig: our kubelet's requests are accepted by
//! that control plane's own approver and signer.
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use kelson_blackbox::{Kubectl, Needs::OwnAgent, Outcome, Subject, Test, binary, eventually};
use serde_json::{Value, json};

pub fn tests() -> Vec<Test> {
    vec![Test { name: "joining::a_bootstrap_kubeconfig_is_enough", needs: OwnAgent, run: joins }]
}

const PATIENCE: Duration = Duration::from_secs(120);

/// A kubelet of ours with its own runtime, in one directory.
struct Node {
    name: String,
    dir: tempfile::TempDir,
    runtime: Option<Child>,
    kubelet: Option<Child>,
}

impl Node {
    fn new(name: &str) -> anyhow::Result<Self> {
        let dir = tempfile::Builder::new().prefix("kelson-test-").tempdir()?;
        let at = |what: &str| dir.path().join(what).display().to_string();
        let config = format!(
            "version = 2\nroot = {:?}\nstate = {:?}\n[grpc]\naddress = {:?}\n",
            at("root"),
            at("state"),
            at("c.sock")
        );
        std::fs::write(dir.path().join("containerd.toml"), config)?;
        let kubelet = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nrotateCertificates: true\n\
            cgroupsPerQOS: false\nenforceNodeAllocatable: []\nauthentication: {webhook: {enabled: true}}\n";
        std::fs::write(dir.path().join("kubelet.yaml"), kubelet)?;
        Ok(Self { name: name.to_owned(), dir, runtime: None, kubelet: None })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn spawn(&self, command: &mut Command, log: &str) -> anyhow::Result<Child> {
        let log = File::options().create(true).append(true).open(self.path(log))?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        command.spawn().with_context(|| format!("{command:?}"))
    }

    fn launch(&mut self) -> Outcome {
        if self.runtime.is_none() {
            let mut containerd = Command::new("containerd");
            self.runtime =
                Some(self.spawn(containerd.arg("--config").arg(self.path("containerd.toml")), "containerd.log")?);
        }
        let mut kubelet = Command::new(binary());
        kubelet.arg("kubelet").args(["--hostname-override", &self.name, "--port", "0"]);
        for (flag, file) in [
            ("--kubeconfig", "kubeconfig"),
            ("--bootstrap-kubeconfig", "bootstrap"),
            ("--cert-dir", "pki"),
            ("--root-dir", "kubelet"),
            ("--config", "kubelet.yaml"),
        ] {
            kubelet.arg(flag).arg(self.path(file));
        }
        let socket = format!("unix://{}", self.path("c.sock").display());
        self.kubelet = Some(self.spawn(kubelet.args(["--container-runtime-endpoint", &socket]), "kubelet.log")?);
        Ok(())
    }

    fn end(&mut self) {
        for child in [&mut self.kubelet, &mut self.runtime] {
            if let Some(mut child) = child.take() {
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }

    fn log(&self) -> String {
        let log = std::fs::read(self.path("kubelet.log")).unwrap_or_default();
        let text = String::from_utf8_lossy(&log).into_owned();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.end();
    }
}

/// The objects that allow joining, with kubeadm's names of roles, removed at the end.
struct Way<'a> {
    k: &'a Kubectl,
    id: String,
    secret: String,
}

impl Way<'_> {
    fn group(&self) -> String {
        format!("system:bootstrappers:{}", self.id)
    }

    fn open(&self) -> Outcome {
        let (id, secret) = (&self.id, &self.secret);
        let token = json!({"apiVersion": "v1", "kind": "Secret", "type": "bootstrap.kubernetes.io/token",
            "metadata": {"name": format!("bootstrap-token-{id}"), "namespace": "kube-system"},
            "stringData": {"token-id": id, "token-secret": secret, "usage-bootstrap-authentication": "true",
                "auth-extra-groups": self.group()}});
        self.k.apply(&token.to_string())?;
        let certificates = "system:certificates.k8s.io:certificatesigningrequests:nodeclient";
        for (name, role) in [("join", "system:node-bootstrapper"), ("approve", certificates)] {
            let group = "rbac.authorization.k8s.io";
            let binding = json!({"apiVersion": format!("{group}/v1"), "kind": "ClusterRoleBinding",
                "metadata": {"name": format!("{name}-{id}")},
                "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": role},
                "subjects": [{"apiGroup": group, "kind": "Group", "name": self.group()}]});
            self.k.apply(&binding.to_string())?;
        }
        Ok(())
    }

    /// Revokes the token.
    fn close(&self) -> Outcome {
        self.k.ok(&["delete", "secret", "-n", "kube-system", &format!("bootstrap-token-{}", self.id)])?;
        let names = ["join", "approve"].map(|name| format!("{name}-{}", self.id));
        self.k.ok(&["delete", "clusterrolebinding", &names[0], &names[1]])?;
        Ok(())
    }

    fn kubeconfig(&self, file: &Path) -> Outcome {
        let all: Value =
            serde_json::from_str(&self.k.ok(&["config", "view", "--raw", "--minify", "--flatten", "-o", "json"])?)?;
        let cluster = &all["clusters"][0]["cluster"];
        let kubeconfig = json!({"apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": {"token": format!("{}.{}", self.id, self.secret)}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}]});
        Ok(std::fs::write(file, kubeconfig.to_string())?)
    }
}

fn joins(s: &Subject) -> Outcome {
    let number = std::process::id() % 1_000_000;
    let name = format!("joins-{number}");
    let way = Way { k: &s.kubectl, id: format!("{number:06}"), secret: format!("{:016}", number * 7) };
    let mut node = Node::new(&name)?;
    way.kubeconfig(&node.path("bootstrap"))?;
    way.open()?;
    let done = joined(&way, &mut node).with_context(|| format!("the kubelet's log:\n{}", node.log()));
    node.end();
    s.kubectl.ok(&["delete", "node", &name, "--ignore-not-found"])?;
    done
}

/// Returns the certificate requests made with the token.
fn requests(way: &Way<'_>) -> anyhow::Result<Vec<Value>> {
    let all = way.k.json(&["get", "csr"])?;
    let own = json!(format!("system:bootstrap:{}", way.id));
    Ok(all["items"].as_array().into_iter().flatten().filter(|csr| csr["spec"]["username"] == own).cloned().collect())
}

fn joined(way: &Way<'_>, node: &mut Node) -> Outcome {
    node.launch()?;
    let (k, name) = (way.k, node.name.clone());
    eventually("the node is there", PATIENCE, || k.ok(&["get", "node", &name]))?;
    let asked = requests(way)?;
    ensure!(asked.len() == 1, "one request: {asked:?}");
    let (spec, status) = (&asked[0]["spec"], &asked[0]["status"]);
    ensure!(spec["signerName"] == "kubernetes.io/kube-apiserver-client-kubelet", "{spec}");
    ensure!(status["conditions"][0]["type"] == "Approved", "{status}");
    // A PEM certificate's first line in base64.
    let issued = status["certificate"].as_str().unwrap_or_default();
    ensure!(issued.starts_with("LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS"), "{status}");
    let own = Kubectl::new(node.path("kubeconfig"));
    let who = own.ok(&["auth", "whoami", "-o", "jsonpath={.status.userInfo.username}"])?;
    ensure!(who == format!("system:node:{name}"), "{who}");
    own.fails(&["get", "secrets", "-A"])?;
    let renewed = || k.ok(&["get", "lease", &name, "-n", "kube-node-lease", "-o", "jsonpath={.spec.renewTime}"]);
    let first = eventually("it holds a lease", PATIENCE, renewed)?;
    // The token is deleted, the kubelet is killed and restarted: it uses its own certificate.
    way.close()?;
    let mut kubelet = node.kubelet.take().context("a kubelet")?;
    kubelet.kill()?;
    kubelet.wait()?;
    let before = eventually("its lease", PATIENCE, renewed)?;
    ensure!(before >= first, "{before} {first}");
    node.launch()?;
    eventually("it reports under its own certificate", PATIENCE, || {
        ensure!(renewed()? != before, "its lease is of {before}");
        Ok(())
    })?;
    ensure!(requests(way)?.len() == 1, "it asked once");
    Ok(())
}
