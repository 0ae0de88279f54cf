//! Installation and removal: install.sh in an empty root and below DESTDIR, the archive of a release, and notifications
//! to a service manager. The program of most tests is a script that records its command lines.
use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use kelson_blackbox::{
    Needs::{OwnNode, OwnServer},
    Outcome, Subject, Test, binary, free_port, repo_root, sh,
};
use rustix::process::{Pid, Signal, kill_process};

pub fn tests() -> Vec<Test> {
    vec![
        Test { name: "install::nothing_is_left_after_an_uninstall", needs: OwnNode, run: lifecycle },
        Test { name: "install::openrc_and_no_manager", needs: OwnNode, run: other_managers },
        Test { name: "install::files_of_others_stay", needs: OwnNode, run: files_of_others },
        Test { name: "install::what_k3s_automation_sets", needs: OwnServer, run: variables },
        Test { name: "install::a_release_is_the_same_twice", needs: OwnServer, run: release },
        Test { name: "install::a_service_manager_is_kept_informed", needs: OwnServer, run: service_manager },
        Test { name: "install::the_machine_is_checked", needs: OwnServer, run: check },
        Test { name: "install::a_firewall_that_drops_is_named_with_its_rules", needs: OwnNode, run: firewall },
    ]
}

/// A program that writes its command line down, fails at `--wrong`, and removes what `cleanup` is asked to.
pub const PROGRAM: &str = r#"#!/bin/sh
echo "kelson $*" >>"${LOG:-/log}"
case "$*" in *--wrong*) echo "error: unexpected argument '--wrong' found" >&2; exit 2 ;; esac
case $1 in
  cleanup) rm -rf "$3" ;;
  version) echo "kelson 0.1.0 (abc)"; echo "Kubernetes v1.36.2+kelson.0.1.0 linux/amd64" ;;
  completion) echo "complete $2" ;;
  man) mkdir -p "$2"; echo page >"$2/kelson.1" ;;
esac
"#;
/// Records how it was called; `is-active` succeeds after a start.
const MANAGER: &str = r#"#!/bin/sh
echo "${0##*/} $*" >>/log
case "$*" in *is-active*) [ -e /active ] ;; *start*) : >/active ;; esac
"#;

/// Creates the release next to install.sh.
fn unpacked(dir: &Path) -> Outcome {
    let root = repo_root();
    sh(&format!(
        "mkdir -p {d} && cp -r {r}/packaging {r}/scripts/install.sh {d}/",
        d = dir.display(),
        r = root.display()
    ))?;
    script(&dir.join("kelson"), PROGRAM)
}

pub fn script(path: &Path, text: &str) -> Outcome {
    fs::write(path, text)?;
    sh(&format!("chmod 755 {}", path.display())).map(drop)
}

/// A root file system with busybox only, with a release in it.
struct Root(tempfile::TempDir);

impl Root {
    fn new() -> anyhow::Result<Self> {
        let root = Self(tempfile::tempdir()?);
        sh(&format!(
            "cd {} && mkdir -p bin sbin etc tmp dev run var/lib && cp $(command -v busybox) bin/busybox &&
             for applet in $(bin/busybox --list); do [ -e bin/$applet ] || ln -s busybox bin/$applet; done && : >dev/null",
            root.path("").display()
        ))?;
        unpacked(&root.path("release"))?;
        Ok(root)
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    /// Runs a shell command inside; returns its output, also if it fails.
    fn run(&self, words: &str) -> anyhow::Result<(bool, String)> {
        let path = "/bin:/sbin:/usr/local/bin";
        let out = Command::new("chroot")
            .arg(self.0.path())
            .args(["/bin/env", "-i", &format!("PATH={path}"), "sh", "-c", words])
            .output()?;
        let text = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
        Ok((out.status.success(), text))
    }

    fn ok(&self, words: &str) -> anyhow::Result<String> {
        let (is_ok, text) = self.run(words)?;
        ensure!(is_ok, "{words}: {text}");
        Ok(text)
    }

    /// Returns what the scripts have recorded since the last call.
    fn called(&self) -> anyhow::Result<Vec<String>> {
        let log = self.path("log");
        let text = fs::read_to_string(&log).unwrap_or_default();
        let _ = fs::remove_file(log);
        Ok(text.lines().map(str::to_owned).collect())
    }

    /// Returns every path with its kind, mode and size, except the recordings.
    fn tree(&self) -> anyhow::Result<String> {
        let left_out = "! -path './tmp*' ! -path ./log ! -path ./active";
        sh(&format!("cd {} && find . {left_out} -printf '%p %y %m %s\\n' | sort", self.path("").display()))
    }
}

fn lifecycle(_: &Subject) -> Outcome {
    let root = Root::new()?;
    sh(&format!("mkdir -p {}", root.path("run/systemd/system").display()))?;
    script(&root.path("bin/systemctl"), MANAGER)?;
    let before = root.tree()?;
    root.ok(
        "K3S_DATA_DIR=/var/lib/k INSTALL_K3S_EXEC='server --node-name box' sh /release/install.sh --tls-san a.example",
    )?;
    let flags = "--node-name box --tls-san a.example --data-dir /var/lib/k";
    let called = root.called()?;
    let wanted = [
        format!("kelson server {flags} --help").as_str(),
        "kelson check --quiet --role server --data-dir /var/lib/k",
        "systemctl daemon-reload",
        "systemctl -q enable kelson-server.service",
        "systemctl -q is-active kelson-server.service",
        "systemctl start kelson-server.service",
    ]
    .map(str::to_owned);
    ensure!(called == wanted, "{called:?}");
    let environment = fs::read_to_string(root.path("etc/kelson/kelson.env"))?;
    ensure!(environment.contains(&format!("KELSON_ARGS='{flags}'")), "{environment}");
    let unit = fs::read_to_string(root.path("etc/systemd/system/kelson-server.service"))?;
    for line in
        ["Type=notify", "Delegate=yes", "KillMode=process", "ExecStart=/usr/local/bin/kelson server $KELSON_ARGS"]
    {
        ensure!(unit.lines().any(|l| l == line), "{line}: {unit}");
    }
    // A repeated installation changes and restarts nothing; a new version does.
    let installed = root.tree()?;
    root.ok("sh /release/install.sh")?;
    ensure!(root.called()?.iter().all(|call| !call.contains("start kelson")), "nothing had changed");
    ensure!(root.tree()? == installed, "a second run changes nothing");
    root.ok("KELSON_LOG=debug sh /release/install.sh")?;
    ensure!(root.called()?.contains(&"systemctl restart kelson-server.service".to_owned()), "restarted");
    let environment = fs::read_to_string(root.path("etc/kelson/kelson.env"))?;
    ensure!(environment.contains(flags) && environment.contains("KELSON_LOG='debug'"), "{environment}");
    let (is_ok, text) =
        root.run("KELSON_URL=https://192.0.2.1:6443 KELSON_TOKEN=abcdef.0123456789abcdef sh /release/install.sh")?;
    ensure!(!is_ok && text.contains("kelson-server is installed here"), "{text}");
    fs::create_dir_all(root.path("var/lib/k/store"))?;
    root.called()?;
    root.ok("kelson-killall.sh")?;
    ensure!(
        root.called()? == ["systemctl stop kelson-server.service", "kelson cleanup --data-dir /var/lib/k"],
        "containers are stopped"
    );
    root.ok("kelson-uninstall.sh")?;
    ensure!(root.called()?.contains(&"systemctl disable kelson-server.service".to_owned()), "disabled");
    let after = root.tree()?;
    ensure!(after == before, "before:\n{before}\nafter:\n{after}");
    Ok(())
}

fn other_managers(_: &Subject) -> Outcome {
    let root = Root::new()?;
    let before = root.tree()?;
    let text =
        root.ok("sh /release/install.sh agent --server https://192.0.2.1:6443 --token abcdef.0123456789abcdef")?;
    ensure!(text.contains("no service manager: run /usr/local/bin/kelson agent"), "{text}");
    root.ok("kelson-uninstall.sh")?;
    ensure!(root.tree()? == before, "nothing is left");
    for program in ["sbin/openrc-run", "sbin/rc-service", "sbin/rc-update"] {
        script(&root.path(program), MANAGER)?;
    }
    let before = root.tree()?;
    root.called()?;
    root.ok("K3S_URL=https://192.0.2.1:6443 K3S_TOKEN=abcdef.0123456789abcdef INSTALL_K3S_BIN_DIR=/opt/bin sh /release/install.sh")?;
    let called = root.called()?;
    ensure!(called.contains(&"rc-update -q add kelson-agent default".to_owned()), "{called:?}");
    ensure!(called.contains(&"rc-service kelson-agent restart".to_owned()), "{called:?}");
    let service = fs::read_to_string(root.path("etc/init.d/kelson-agent"))?;
    ensure!(service.contains("command=/opt/bin/kelson"), "{service}");
    let mode = sh(&format!("stat -c %a {}", root.path("etc/kelson/kelson.env").display()))?;
    ensure!(mode.trim() == "600", "the token is in it: {mode}");
    root.ok("/opt/bin/kelson-uninstall.sh")?;
    ensure!(root.tree()? == before, "nothing is left");
    Ok(())
}

fn files_of_others(_: &Subject) -> Outcome {
    let root = Root::new()?;
    sh(&format!("mkdir -p {r}/usr/local/bin {r}/etc/kelson", r = root.path("").display()))?;
    let theirs = root.path("usr/local/bin/kelson");
    script(&theirs, "#!/bin/sh\nexit 0\n")?;
    let before = root.tree()?;
    let (is_ok, text) = root.run("sh /release/install.sh")?;
    ensure!(!is_ok && text.contains("usr/local/bin/kelson exists and was not installed by this script"), "{text}");
    ensure!(root.tree()? == before, "nothing was changed");
    // A program that exists already, the user's environment file, and another file next to it.
    fs::write(root.path("etc/kelson/kelson.env"), "KELSON_ARGS='--node-name box'\n")?;
    fs::write(root.path("etc/kelson/config.yaml"), "node-name: other\ndata-dir: \"/srv/k\"  # large\n")?;
    fs::write(root.path("etc/kelson/policy.yaml"), "x")?;
    let before = root.tree()?;
    root.ok("INSTALL_K3S_BIN_DIR_READ_ONLY=true sh /release/install.sh")?;
    let (is_ok, text) = root.run("KELSON_LOG=debug INSTALL_K3S_BIN_DIR_READ_ONLY=true sh /release/install.sh")?;
    ensure!(!is_ok && text.contains("kelson.env was not written by this script"), "{text}");
    ensure!(
        fs::read_to_string(root.path("usr/local/bin/kelson-uninstall.sh"))?.contains("data_dir='/srv/k'"),
        "whose data"
    );
    root.ok("kelson-uninstall.sh")?;
    ensure!(root.tree()? == before, "what others made stays");
    Ok(())
}

/// Variables, the result (`true`: installed), and expected output or files.
const VARIABLES: &[(&str, bool, &str)] = &[
    (
        "INSTALL_K3S_SKIP_DOWNLOAD=true INSTALL_K3S_SYMLINK=skip INSTALL_K3S_SKIP_SELINUX_RPM=true",
        true,
        "KELSON_ARGS=''",
    ),
    ("INSTALL_K3S_TYPE=exec", true, "Type=exec"),
    ("K3S_NODE_NAME=box", true, "--node-name box"),
    ("K3S_KUBECONFIG_OUTPUT=/root/kubeconfig", true, "--kubeconfig-out /root/kubeconfig"),
    ("K3S_DEBUG=true", true, "KELSON_LOG='debug'"),
    ("HTTPS_PROXY=http://192.0.2.1:3128", true, "HTTPS_PROXY='http://192.0.2.1:3128'"),
    (
        "K3S_URL=https://192.0.2.1:6443 K3S_TOKEN=abcdef.0123456789abcdef",
        true,
        "KELSON_TOKEN='abcdef.0123456789abcdef'",
    ),
    ("K3S_URL=https://192.0.2.1:6443 K3S_TOKEN_FILE=token", true, "KELSON_TOKEN='fedcba.0123456789abcdef'"),
    ("INSTALL_K3S_EXEC='--feature-gates \"A=true,B=false\"'", true, "--feature-gates A=true,B=false"),
    ("K3S_URL=https://192.0.2.1:6443", false, "an agent needs KELSON_TOKEN"),
    ("K3S_URL=https://192.0.2.1:6443 K3S_TOKEN=K10abc::server:x", false, "kelson token create --print-join-command"),
    ("K3S_TOKEN=abcdef.0123456789abcdef", false, "KELSON_TOKEN is for nodes"),
    ("INSTALL_K3S_VERSION=v1.36.2+k3s1", false, "KELSON_INSTALL_FROM"),
    ("INSTALL_K3S_CHANNEL=stable", false, "KELSON_INSTALL_FROM"),
    ("INSTALL_K3S_SYMLINK=force", false, "no kubectl, crictl or ctr comes with Kelson"),
    ("INSTALL_K3S_NAME=second", false, "kelson-server or kelson-agent"),
    ("INSTALL_K3S_EXEC='server --wrong'", false, "kelson server does not take these flags: --wrong"),
    ("INSTALL_K3S_EXEC='server $(id)'", false, "a character that a shell would act on"),
    ("INSTALL_K3S_EXEC=etcd-snapshot", false, "the first word must be server or agent"),
    ("K3S_KUBECONFIG_MODE=644", false, "K3S_KUBECONFIG_OUTPUT"),
    ("K3S_DATASTORE_ENDPOINT=https://192.0.2.1:2379", false, "--etcd-servers"),
    ("K3S_SELINUX=true", false, "K3S_SELINUX has no counterpart"),
];

fn variables(_: &Subject) -> Outcome {
    let dir = tempfile::tempdir()?;
    let release = dir.path().join("release");
    unpacked(&release)?;
    fs::write(dir.path().join("token"), "fedcba.0123456789abcdef\n")?;
    for (i, (variables, is_taken, want)) in VARIABLES.iter().enumerate() {
        let root = dir.path().join(format!("root{i}"));
        let install = format!(
            "cd {} && DESTDIR={} LOG=/dev/null KELSON_INSTALL_SERVICE=systemd {variables} sh {}/install.sh 2>&1 && echo status 0 || echo status 1",
            dir.path().display(),
            root.display(),
            release.display()
        );
        let said = sh(&install)?;
        ensure!(said.ends_with("status 0\n") == *is_taken, "{variables}: {said}");
        let written = sh(&format!(
            "cat {r}/etc/kelson/kelson.env {r}/etc/systemd/system/*.service 2>/dev/null || true",
            r = root.display()
        ))?;
        let text = if *is_taken { &written } else { &said };
        ensure!(text.contains(want), "{variables}: {want}: {text}");
        ensure!(*is_taken || !root.exists(), "{variables}: a refusal changes nothing");
    }
    Ok(())
}

fn release(_: &Subject) -> Outcome {
    let dir = tempfile::tempdir()?;
    let program = dir.path().join("kelson");
    script(&program, &PROGRAM.replace("/log", "/dev/null"))?;
    let make = |out: &str| {
        let (script, out) = (repo_root().join("scripts/release"), dir.path().join(out));
        // Built with everything else; where it is not, the script has cargo build it.
        let xtask = binary().with_file_name("xtask");
        let xtask = if xtask.is_file() { format!("XTASK={}", xtask.display()) } else { String::new() };
        sh(&format!(
            "SOURCE_DATE_EPOCH=1780000000 {xtask} {} {} {}",
            script.display(),
            program.display(),
            out.display()
        ))?;
        anyhow::Ok(out.join("kelson-0.1.0-linux-amd64.tar.gz"))
    };
    let first = make("a")?;
    std::thread::sleep(Duration::from_millis(1100));
    let second = make("b")?;
    ensure!(fs::read(&first)? == fs::read(&second)?, "two archives differ");
    for file in ["kelson_0.1.0_amd64.deb", "kelson-0.1.0-linux-amd64.cdx.json", "SHA256SUMS"] {
        let read = |out: &str| fs::read(dir.path().join(out).join(file)).context(file);
        ensure!(read("a")? == read("b")?, "{file}: two builds differ");
    }
    crate::releases::package(&dir.path().join("a"))?;
    sh(&format!("cd {} && sha256sum -c SHA256SUMS", dir.path().join("a").display()))?;
    let listed = sh(&format!("tar -tzf {}", first.display()))?;
    for file in
        ["kelson", "install.sh", "completions/_kelson", "man/kelson.1", "packaging/openrc/kelson-agent", "SHA256SUMS"]
    {
        let path = format!("kelson-0.1.0-linux-amd64/{file}");
        ensure!(listed.lines().any(|line| line == path), "{path}: {listed}");
    }
    // It is installed unchanged, and a damaged one is not installed.
    let install = |from: &Path, root: &str| {
        let script = repo_root().join("scripts/install.sh");
        let root = dir.path().join(root);
        sh(&format!(
            "DESTDIR={} KELSON_INSTALL_FROM={} sh {} 2>&1 && echo status 0 || echo status 1",
            root.display(),
            from.display(),
            script.display()
        ))
    };
    let said = install(&first, "whole")?;
    ensure!(said.ends_with("status 0\n"), "{said}");
    ensure!(dir.path().join("whole/usr/local/share/man/man1/kelson.1").exists(), "the manual");
    sh(&format!(
        "cd {} && tar -xzf {} && echo >>kelson-0.1.0-linux-amd64/kelson",
        dir.path().display(),
        first.display()
    ))?;
    let said = install(&dir.path().join("kelson-0.1.0-linux-amd64"), "damaged")?;
    ensure!(said.contains("is damaged") && !said.ends_with("status 0\n"), "{said}");
    Ok(())
}

/// The maximum wait for a debug build on a slow machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn service_manager(_: &Subject) -> Outcome {
    let dir = tempfile::tempdir()?;
    let socket = dir.path().join("notify");
    let manager = UnixDatagram::bind(&socket)?;
    manager.set_read_timeout(Some(PATIENCE))?;
    let log = fs::File::create(dir.path().join("log"))?;
    let stream = sh(&format!("stat -c %d:%i {}", dir.path().join("log").display()))?;
    let (data, port) = (dir.path().join("data"), free_port()?);
    let mut server = Command::new(binary())
        .args(["server", "--disable-agent", "--bind-address=127.0.0.1", "--data-dir"])
        .arg(&data)
        .args(["--secure-port", &port.to_string()])
        .env("NOTIFY_SOCKET", &socket)
        .env("WATCHDOG_USEC", "4000000")
        .env("JOURNAL_STREAM", stream.trim())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()?;
    let heard = |until: &str| -> Outcome {
        let (begun, mut all) = (Instant::now(), Vec::new());
        while begun.elapsed() < PATIENCE {
            let mut bytes = [0; 512];
            let length = manager.recv(&mut bytes).with_context(|| format!("{until}: {all:?}"))?;
            let text = String::from_utf8_lossy(&bytes[..length]).into_owned();
            if text.starts_with(until) {
                return Ok(());
            }
            all.push(text);
        }
        anyhow::bail!("{until} was not heard: {all:?}")
    };
    let pid = i32::try_from(server.id()).ok().and_then(Pid::from_raw).context("pid")?;
    let outcome = heard("READY=1\nSTATUS=serves the API at https://127.0.0.1:").and_then(|()| {
        heard("WATCHDOG=1")?;
        kill_process(pid, Signal::HUP)?;
        heard("RELOADING=1")?;
        heard("READY=1")?;
        shown(&data, server.id(), port)?;
        kill_process(pid, Signal::TERM)?;
        heard("STOPPING=1")
    });
    if outcome.is_err() {
        let _ = server.kill();
    }
    let status = server.wait()?;
    outcome?;
    ensure!(status.success(), "{status}");
    let log = fs::read_to_string(dir.path().join("log"))?;
    let is_entry = |line: &str| ["<3>", "<4>", "<6>", "<7>"].iter().any(|level| line.starts_with(level));
    ensure!(log.lines().count() > 1 && log.lines().all(is_entry), "priorities alone, no times: {log}");
    ensure!(log.contains("reloaded:"), "{log}");
    let out = Command::new(binary()).args(["status", "--data-dir"]).arg(&data).output()?;
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    ensure!(!out.status.success() && text.contains("nothing runs with this data directory"), "{text}");
    Ok(())
}

/// Checks the output of `kelson status` for a healthy control plane.
fn shown(data: &Path, pid: u32, port: u16) -> Outcome {
    let out = Command::new(binary()).args(["status", "-o", "json", "--data-dir"]).arg(data).output()?;
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    ensure!(out.status.success(), "{text}\n{}", String::from_utf8_lossy(&out.stderr));
    let status: serde_json::Value = serde_json::from_str(&text).context(text)?;
    ensure!(status["process"]["pid"] == pid && status["api"]["notReady"].is_null(), "{status}");
    ensure!(status["certificates"].as_array().is_some_and(|all| all.len() > 3), "{status}");
    // Only root sees the sockets of a process with protected memory.
    let listens = status["listens"].as_array().cloned().unwrap_or_default();
    ensure!(!rustix::process::geteuid().is_root() || listens.contains(&port.to_string().into()), "{port}: {status}");
    Ok(())
}

/// Firewalls of a network namespace are named, and the rules that are printed are what they lack.
fn firewall(_: &Subject) -> Outcome {
    let dir = tempfile::tempdir()?;
    let check = format!("{} check --role agent -o json --data-dir {}", binary().display(), dir.path().display());
    let findings = |rules: &str| -> anyhow::Result<Vec<serde_json::Value>> {
        let chain = |hook| {
            format!("nft add chain inet other {hook} \"{{ type filter hook {hook} priority 0; policy drop; }}\"")
        };
        let table = format!("nft add table inet other; {}; {}", chain("input"), chain("forward"));
        // What else this machine lacks makes the check fail, which is not looked at here.
        let script = format!("set -e; {table}; {rules}\n{check} || true");
        let out = Command::new("unshare").args(["-n", "sh", "-c", &script]).output()?;
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        ensure!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        let report: serde_json::Value = serde_json::from_str(&text).context(text)?;
        let all = report["findings"].as_array().context("findings")?;
        Ok(all.iter().filter(|f| f["probe"] == "firewall").cloned().collect())
    };
    let found = findings("")?;
    ensure!(found.len() == 2 && found.iter().all(|f| f["level"] == "warning"), "{found:?}");
    let actions: Vec<&str> = found.iter().filter_map(|f| f["action"].as_str()).collect();
    ensure!(actions.iter().any(|action| action.contains("udp dport 8472 accept")), "{actions:?}");
    let after = findings(&actions.join("; "))?;
    ensure!(after.len() == 1 && after[0]["level"] == "ok", "{after:?}");
    Ok(())
}

fn check(_: &Subject) -> Outcome {
    let dir = tempfile::tempdir()?;
    let port = free_port()?;
    let run = |port: u16, words: &[&str]| -> anyhow::Result<(bool, String)> {
        let data = dir.path().join("data");
        let out = Command::new(binary())
            .args(["check", "--role", "control-plane", "--secure-port", &port.to_string(), "--data-dir"])
            .arg(data)
            .args(words)
            .output()?;
        Ok((out.status.success(), String::from_utf8_lossy(&out.stdout).into_owned()))
    };
    let (is_ok, text) = run(port, &["-o", "json"])?;
    let report: serde_json::Value = serde_json::from_str(&text).context(text)?;
    let findings = report["findings"].as_array().context("findings")?;
    ensure!(is_ok && findings.iter().any(|f| f["probe"] == "disk"), "{report}");
    let taken = std::net::TcpListener::bind(("127.0.0.1", port))?;
    let (is_ok, text) = run(port, &["--quiet"])?;
    ensure!(!is_ok && text.contains(&format!("ERROR    ports         port {port} (the API) is used by")), "{text}");
    drop(taken);
    for shell in ["bash", "zsh", "fish"] {
        let out = Command::new(binary()).args(["completion", shell]).output()?;
        ensure!(out.status.success() && out.stdout.len() > 10_000, "{shell}");
    }
    let script = dir.path().join("kelson.bash");
    fs::write(&script, Command::new(binary()).args(["completion", "bash"]).output()?.stdout)?;
    sh(&format!("bash -n {}", script.display())).map(drop)
}
