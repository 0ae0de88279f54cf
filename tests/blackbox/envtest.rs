//! API server and store as test environments start them: the exact sequence of controller-runtime's envtest and the
//! conventions of fabric8's kube-api-test, with a folder of assets as in a release. No node, no controllers.
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use kelson_blackbox::{
    ChildGuard, Needs::OwnServer, Outcome, Subject, Test, binary, eventually, free_port, repo_root, sh,
};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

pub fn tests() -> Vec<Test> {
    vec![
        Test { name: "envtest::the_sequence_of_a_test_environment", needs: OwnServer, run: sequence },
        Test { name: "envtest::the_habits_of_another", needs: OwnServer, run: habits },
        Test { name: "envtest::nothing_is_left_of_a_killed_parent", needs: OwnServer, run: orphans },
        Test { name: "envtest::what_is_refused_and_how", needs: OwnServer, run: refused },
        Test { name: "envtest::the_archive", needs: OwnServer, run: archive },
    ]
}

/// The maximum wait for a debug build on a slow machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Creates a folder as `KUBEBUILDER_ASSETS` names one.
fn assets(dir: &Path) -> anyhow::Result<PathBuf> {
    let at = dir.join("bin");
    let script = repo_root().join("scripts/envtest");
    sh(&format!("LINK=1 {} assets {} {}", script.display(), binary().display(), at.display()))?;
    Ok(at)
}

pub fn ask(args: &[&str]) -> anyhow::Result<(u16, String)> {
    let out = Command::new("curl").args(["-sSk", "-m", "30", "-w", "\n%{http_code}"]).args(args).output()?;
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let (body, code) = text.rsplit_once('\n').unwrap_or(("", "0"));
    Ok((code.trim().parse().unwrap_or(0), body.to_owned()))
}

/// A started program, killed with SIGKILL when dropped.
pub struct Running {
    child: Child,
    log: PathBuf,
}

impl Running {
    /// Starts it in a separate process group, as test environments do.
    pub fn start(program: &Path, args: &[String], log: PathBuf) -> anyhow::Result<Self> {
        use std::os::unix::process::CommandExt as _;
        let file = fs::File::create(&log)?;
        let child = Command::new(program)
            .args(args)
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .process_group(0)
            .spawn()
            .with_context(|| format!("start {}", program.display()))?;
        Ok(Self { child, log })
    }

    fn said(&self) -> String {
        fs::read(&self.log).map(|b| String::from_utf8_lossy(&b).into_owned()).unwrap_or_default()
    }

    /// Waits until `check` is true; the end of the program is a failure.
    pub fn until(&mut self, what: &str, mut check: impl FnMut() -> bool) -> Outcome {
        let begun = Instant::now();
        while !check() {
            if let Some(status) = self.child.try_wait()? {
                anyhow::bail!("{what}: the program ended with {status}\n{}", self.said());
            }
            ensure!(begun.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}\n{}", self.said());
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Sends SIGTERM to the whole group; returns how long the program took to end.
    pub fn stop(mut self) -> anyhow::Result<Duration> {
        let begun = Instant::now();
        let group = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).context("pid")?;
        kill_process_group(group, Signal::TERM)?;
        while begun.elapsed() < PATIENCE {
            if let Some(status) = self.child.try_wait()? {
                ensure!(status.success(), "{status}\n{}", self.said());
                return Ok(begun.elapsed());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        anyhow::bail!("SIGTERM was not heard\n{}", self.said())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The files and ports of one environment.
struct EnvtestFiles {
    dir: PathBuf,
    port: u16,
    etcd: u16,
}

impl EnvtestFiles {
    /// Creates the files of a test environment: a serving certificate, a CA of users with its administrator, and a key
    /// of service accounts whose public half is a certificate.
    fn new(dir: &Path) -> anyhow::Result<Self> {
        let key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";
        sh(&format!(
            "cd {dir} && exec 2>openssl.log &&
             openssl req -x509 {key} -subj /CN=ca -days 7 -keyout ca.key -out ca.crt &&
             openssl req {key} -subj /CN=localhost -keyout apiserver.key -out apiserver.csr &&
             printf 'subjectAltName=IP:127.0.0.1,DNS:localhost' > san &&
             openssl x509 -req -in apiserver.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 7 -extfile san -out apiserver.crt &&
             openssl req -x509 {key} -subj /CN=users -days 7 -keyout users.key -out client-cert-auth-ca.crt &&
             openssl req {key} -subj /O=system:masters/CN=admin -keyout admin.key -out admin.csr &&
             printf 'extendedKeyUsage=clientAuth' > usage &&
             openssl x509 -req -in admin.csr -CA client-cert-auth-ca.crt -CAkey users.key -CAcreateserial -days 7 -extfile usage -out admin.crt &&
             openssl req -x509 {key} -subj /CN=sa-signer -days 7 -keyout sa-signer.key -out sa-signer.crt",
            dir = dir.display(),
        ))?;
        Ok(Self { dir: dir.to_owned(), port: free_port()?, etcd: free_port()? })
    }

    fn file(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }

    fn flags(&self) -> Vec<String> {
        let Self { port, etcd, .. } = self;
        let dir = self.dir.display();
        [
            "--allow-privileged=true".to_owned(),
            "--authorization-mode=RBAC".to_owned(),
            "--bind-address=127.0.0.1".to_owned(),
            format!("--cert-dir={dir}"),
            format!("--client-ca-file={dir}/client-cert-auth-ca.crt"),
            "--disable-admission-plugins=ServiceAccount".to_owned(),
            format!("--etcd-servers=http://127.0.0.1:{etcd}"),
            format!("--secure-port={port}"),
            format!("--service-account-issuer=https://127.0.0.1:{port}/"),
            format!("--service-account-key-file={dir}/sa-signer.crt"),
            format!("--service-account-signing-key-file={dir}/sa-signer.key"),
            "--service-cluster-ip-range=10.0.0.0/24".to_owned(),
        ]
        .into()
    }

    fn url(&self, path: &str) -> String {
        format!("https://127.0.0.1:{}{path}", self.port)
    }

    /// Sends a request as the administrator.
    fn admin(&self, args: &[&str], path: &str) -> anyhow::Result<(u16, String)> {
        let (cert, key, ca, url) =
            (self.file("admin.crt"), self.file("admin.key"), self.file("ca.crt"), self.url(path));
        ask(&[
            &["--cert", &cert, "--key", &key, "--cacert", &ca, "-H", "Content-Type: application/json"],
            args,
            &[&url],
        ]
        .concat())
    }

    /// Starts the assets' own etcd, or Debian's if they have none.
    fn etcd(&self, bin: &Path) -> anyhow::Result<Running> {
        let data = self.file("etcd-data");
        let flags = [
            format!("--advertise-client-urls=http://127.0.0.1:{}", self.etcd),
            format!("--data-dir={data}"),
            format!("--listen-client-urls=http://127.0.0.1:{}", self.etcd),
            format!("--listen-peer-urls=http://127.0.0.1:{}", free_port()?),
        ];
        let program = if has_etcd(bin)? { bin.join("etcd") } else { PathBuf::from("etcd") };
        let mut etcd = Running::start(&program, &flags, self.dir.join("etcd.log"))?;
        let health = format!("http://127.0.0.1:{}/health", self.etcd);
        etcd.until("etcd is healthy", || ask(&[&health]).is_ok_and(|(code, _)| code == 200))?;
        Ok(etcd)
    }
}

/// Reports whether the assets have an etcd: test environments check the status of `etcd --help`.
fn has_etcd(bin: &Path) -> anyhow::Result<bool> {
    Ok(Command::new(bin.join("etcd")).arg("--help").output()?.status.success())
}

const DEFINITION: &str = r#"{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"ships.example.com"},
"spec":{"group":"example.com","scope":"Namespaced","names":{"plural":"ships","singular":"ship","kind":"Ship"},
"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]}}"#;

fn sequence(_: &Subject) -> Outcome {
    let scratch = tempfile::tempdir()?;
    let bin = assets(scratch.path())?;
    let server = bin.join("kube-apiserver");
    let help = Command::new(&server).arg("--help").output()?;
    let text = String::from_utf8_lossy(&help.stdout).into_owned();
    ensure!(help.status.success() && !text.lines().any(|l| l.trim_start().starts_with("--insecure-port")), "{text}");
    let place = EnvtestFiles::new(scratch.path())?;
    let etcd = place.etcd(&bin)?;
    let mut running = Running::start(&server, &place.flags(), place.dir.join("api.log"))?;
    // Without credentials; the first answer must be success, and never forbidden.
    let (health, mut answers) = (place.url("/healthz"), Vec::new());
    running.until("healthy", || {
        let (code, _) = ask(&[&health]).unwrap_or((0, String::new()));
        answers.push(code);
        code == 200
    })?;
    ensure!(answers.iter().all(|code| [0, 200].contains(code)), "{answers:?}");
    ensure!(ask(&[&place.url("/readyz")])?.0 == 200, "not ready for anybody");
    ensure!(ask(&[&place.url("/api/v1/pods")])?.0 == 403, "anybody may read pods");
    let (code, body) = place.admin(&[], "/api/v1/namespaces/default")?;
    ensure!(code == 200, "the namespace default is not there: {code} {body}");
    let (code, body) = place.admin(&["-d", DEFINITION], "/apis/apiextensions.k8s.io/v1/customresourcedefinitions")?;
    ensure!(code == 201, "{code} {body}");
    let (code, body) = place.admin(&[], "/apis/example.com/v1")?;
    ensure!(code == 200 && body.contains("\"ships\""), "the kind is not in discovery at once: {code} {body}");
    let account = r#"{"metadata":{"name":"robot"}}"#;
    ensure!(
        place.admin(&["-d", account], "/api/v1/namespaces/default/serviceaccounts")?.0 == 201,
        "no service account"
    );
    let token = "/api/v1/namespaces/default/serviceaccounts/robot/token";
    let (code, body) = place.admin(&["-d", r#"{"spec":{"audiences":[]}}"#], token)?;
    let body: serde_json::Value = serde_json::from_str(&body).unwrap_or_default();
    let token = body["status"]["token"].as_str().with_context(|| format!("a token: {code} {body}"))?;
    let bearer = format!("Authorization: Bearer {token}");
    let (code, body) = ask(&["-H", &bearer, &place.url("/api/v1/pods")])?;
    ensure!(code == 403 && body.contains("system:serviceaccount:default:robot"), "{code} {body}");
    // Suites rely on the absence of controllers.
    ensure!(place.admin(&["-d", r#"{"metadata":{"name":"bare"}}"#], "/api/v1/namespaces")?.0 == 201, "no namespace");
    let (_, accounts) = place.admin(&[], "/api/v1/namespaces/bare/serviceaccounts")?;
    let accounts: serde_json::Value = serde_json::from_str(&accounts)?;
    ensure!(accounts["items"].as_array().is_some_and(Vec::is_empty), "a controller made an account: {accounts}");

    let watch = Command::new("curl")
        .args(["-sSkN", "--cert", &place.file("admin.crt"), "--key", &place.file("admin.key")])
        .arg(place.url("/api/v1/namespaces?watch=true"))
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let mut watch = ChildGuard(watch);
    let mut first = String::new();
    BufReader::new(watch.stdout.take().context("stdout")?).read_line(&mut first)?;
    ensure!(first.contains("ADDED"), "{first}");
    let took = running.stop()?;
    watch.kill()?;
    watch.wait()?;
    // The limit of test environments is 20 s; an open watch must not delay the stop.
    ensure!(took < Duration::from_secs(10), "took {took:?} to stop with a watch open");
    println!("stopped with an open watch in {took:?}");
    etcd.stop().map(drop)
}

/// Single dashes, values as separate words, booleans without a value, an issuer that is a path, ended by SIGKILL.
fn habits(_: &Subject) -> Outcome {
    let scratch = tempfile::tempdir()?;
    let bin = assets(scratch.path())?;
    let place = EnvtestFiles::new(scratch.path())?;
    let etcd = place.etcd(&bin)?;
    let mut words: Vec<String> = Vec::new();
    for flag in place.flags() {
        match flag.split_once('=') {
            Some(("--allow-privileged", _)) => words.push("--allow-privileged".into()),
            Some((name, value)) => words.extend([name.to_owned(), value.to_owned()]),
            None => words.push(flag),
        }
    }
    words.extend(["--service-account-issuer".to_owned(), place.file("sa-signer.key")]);
    words.extend(
        ["--disable_admission_plugins=", "--enable-admission-plugins=NamespaceAutoProvision", "-v4"].map(String::from),
    );
    words.extend(["--watch-cache-sizes=a#1", "--watch-cache-sizes", "b#2", "--profiling=false"].map(String::from));
    let mut running = Running::start(&bin.join("kube-apiserver"), &words, place.dir.join("api.log"))?;
    running.until("ready", || place.admin(&[], "/readyz").is_ok_and(|(code, _)| code == 200))?;
    let pod = r#"{"metadata":{"name":"m"},"data":{"a":"b"}}"#;
    let (code, body) = place.admin(&["-d", pod], "/api/v1/namespaces/made-for-it/configmaps")?;
    ensure!(code == 201, "the plugin that was asked for does not run: {code} {body}");
    let said = running.said();
    let lines: Vec<&str> = said.lines().filter(|line| line.contains("without effect")).collect();
    ensure!(lines.len() == 1, "one line names the flags without effect: {lines:?}");
    for name in ["watch-cache-sizes", "profiling"] {
        ensure!(lines[0].contains(name), "{name}: {}", lines[0]);
    }
    drop(running);
    drop(etcd);
    Ok(())
}

/// The parent is killed; its children in separate process groups end as well.
fn orphans(_: &Subject) -> Outcome {
    let scratch = tempfile::tempdir()?;
    let bin = assets(scratch.path())?;
    let place = EnvtestFiles::new(scratch.path())?;
    let (etcd, _other) = if has_etcd(&bin)? {
        let peers = free_port()?;
        let etcd = format!(
            "setsid {}/etcd --data-dir={} --listen-client-urls=http://127.0.0.1:{port} --advertise-client-urls=http://127.0.0.1:{port} \
             --listen-peer-urls=http://127.0.0.1:{peers} --unsafe-no-fsync=true & echo $!;",
            bin.display(),
            place.file("etcd-data"),
            port = place.etcd,
        );
        (etcd, None)
    } else {
        (String::new(), Some(place.etcd(&bin)?))
    };
    let script = format!("{etcd} setsid {}/kube-apiserver {} & echo $!; wait", bin.display(), place.flags().join(" "));
    let parent = Command::new("bash")
        .args(["-c", &script])
        .stdout(Stdio::piped())
        .stderr(fs::File::create(place.dir.join("log"))?)
        .spawn()?;
    let mut parent = ChildGuard(parent);
    let healthy = || ask(&[&place.url("/healthz")]).is_ok_and(|(code, _)| code == 200);
    eventually("healthy", PATIENCE, || {
        ensure!(healthy(), "{}", fs::read_to_string(place.dir.join("log")).unwrap_or_default());
        Ok(())
    })?;
    let mut lines = BufReader::new(parent.stdout.take().context("stdout")?).lines();
    let mut children = vec![lines.next().context("a pid")??];
    if !etcd.is_empty() {
        children.push(lines.next().context("a pid")??);
    }
    parent.kill()?;
    parent.wait()?;
    eventually("nothing is left", PATIENCE, || {
        for pid in &children {
            let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            ensure!(command.is_empty(), "{pid} lives: {}", String::from_utf8_lossy(&command));
        }
        Ok(())
    })
    .inspect_err(|_| {
        for pid in children.iter().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)) {
            let _ = kill_process(pid, Signal::KILL);
        }
    })
}

fn refused(_: &Subject) -> Outcome {
    let run = |words: &[&str]| -> anyhow::Result<Output> {
        Ok(Command::new(binary()).arg("kube-apiserver").args(words).stdin(Stdio::null()).output()?)
    };
    let rows: [(&[&str], &str); 5] = [
        (&["--etcd-server=http://127.0.0.1:1"], "unknown flag: --etcd-server"),
        (&["--secure-port"], "flag needs an argument: --secure-port"),
        (
            &["--secure-port=high"],
            r#"invalid argument "high" for "--secure-port" flag: strconv.ParseInt: parsing "high": invalid syntax"#,
        ),
        (&["start"], r#""kube-apiserver" does not take any arguments, got ["start"]"#),
        (&["--cert-dir=", "--secure-port=1"], "--etcd-servers must be specified"),
    ];
    for (words, want) in rows {
        let out = run(words)?;
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        ensure!(out.status.code() == Some(1) && said.contains(want), "{words:?}: {}\n{said}", out.status);
    }
    let version = run(&["--version"])?;
    let said = String::from_utf8_lossy(&version.stdout).into_owned();
    ensure!(version.status.success() && said.starts_with("Kubernetes v1."), "{said}");
    Ok(())
}

fn archive(_: &Subject) -> Outcome {
    let scratch = tempfile::tempdir()?;
    let bin = assets(scratch.path())?;
    let out = scratch.path().join("out");
    // A small substitute for the binary: the test is about the archive.
    sh(&format!(
        "rm {bin}/kelson && printf '#!/bin/sh\\necho Kubernetes v1.36.2+kelson.0 linux/amd64\\n' > {bin}/kelson && chmod 755 {bin}/kelson",
        bin = bin.display()
    ))?;
    let script = repo_root().join("scripts/envtest");
    sh(&format!("{} archive {} {} http://mirror.example/x", script.display(), bin.display(), out.display()))?;
    let name = "envtest-v1.36.2-linux-amd64.tar.gz";
    let listed = sh(&format!("tar -tvzf {}", out.join(name).display()))?;
    let files: Vec<&str> = listed.lines().filter(|line| line.starts_with('-')).collect();
    ensure!(files.len() == 4 && listed.lines().count() == 4, "regular files alone: {listed}");
    for file in ["kelson", "kube-apiserver", "etcd", "kubectl"] {
        ensure!(files.iter().any(|line| line.ends_with(&format!("/{file}"))), "{file}: {listed}");
    }
    let index = fs::read_to_string(out.join("envtest-releases.yaml"))?;
    let hash = sh(&format!("sha512sum {} | cut -d' ' -f1", out.join(name).display()))?;
    for want in ["v1.36.2:", name, hash.trim(), "selfLink: http://mirror.example/x/envtest-v1.36.2-linux-amd64.tar.gz"]
    {
        ensure!(index.contains(want), "{want}: {index}");
    }
    Ok(())
}
