//! A virtual machine: qemu, a serial channel for commands, and a port for the API.
use std::cell::{Cell, RefCell};
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kelson_blackbox::{ChildGuard, Kubectl, Outcome, binary, eventually, free_port, repo_root, sh};

use super::PATIENCE;

/// The environment variable that names the accelerator (`kvm`). The default is `tcg,thread=multi`.
const ACCELERATOR: &str = "KELSON_VM_ACCEL";
/// The time limit of one command in the guest.
const COMMAND: Duration = PATIENCE;

/// The kernel's command line. A busy host starves a guest: it does not take a late timer for a broken one, and waits long for its units.
const KERNEL: &str = "root=/dev/vda rw console=ttyS0 net.ifnames=0 quiet mitigations=off no_timer_check panic=1 systemd.default_timeout_start_sec=900s systemd.default_device_timeout_sec=900s";
/// A guest whose host is busy may get nothing done for a minute; its server is not taken for one that hangs. The program is on the disk
/// `/payload`.
pub const BUSY_HOST: &str = "for unit in server agent; do mkdir -p /etc/systemd/system/kelson-$unit.service.d
printf '[Unit]\\nRequiresMountsFor=/payload\\n[Service]\\nWatchdogSec=900\\n' >/etc/systemd/system/kelson-$unit.service.d/busy.conf; done; systemctl daemon-reload";

/// The first process of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Init {
    Systemd,
    OpenRc,
}

impl Init {
    /// The part of the kernel's command line that selects it.
    fn kernel(self) -> &'static str {
        match self {
            Self::Systemd => "",
            Self::OpenRc => "init=/opt/openrc-init",
        }
    }

    fn reboot(self) -> &'static str {
        match self {
            Self::Systemd => "systemctl reboot",
            Self::OpenRc => "openrc-shutdown --reboot now",
        }
    }

    /// A command that ends when all that starts at boot was started.
    fn booted(self) -> &'static str {
        match self {
            Self::Systemd => "systemctl is-system-running --wait",
            Self::OpenRc => "until [ \"$(rc-status --runlevel)\" = default ]; do sleep 1; done",
        }
    }

    /// Prints when the server's process was started, in seconds since the epoch.
    fn started(self) -> &'static str {
        match self {
            Self::Systemd => "date -d \"$(systemctl show -P ExecMainStartTimestamp kelson-server)\" +%s",
            Self::OpenRc => "date -d \"$(ps -o lstart= -p $(pgrep -xo kelson))\" +%s",
        }
    }

    fn log(self) -> &'static str {
        match self {
            Self::Systemd => "journalctl -u kelson-server -n 60 --no-pager -o cat | cut -c1-300",
            Self::OpenRc => "tail -n 60 /var/log/kelson-server.log | cut -c1-300",
        }
    }
}

/// The hardware of a guest.
#[derive(Clone, Copy)]
pub struct Machine {
    /// Memory in MiB.
    pub memory_mib: u32,
    /// The number of CPUs.
    pub cpus: u32,
    /// The port and the last byte of the MAC address on a network that guests share, beside the one that leads to the host.
    pub wire: Option<(u16, u8)>,
    /// The first process.
    pub init: Init,
}

/// A guest that runs, with its disk in a directory that is removed at the end.
pub struct Guest {
    machine: Machine,
    dir: tempfile::TempDir,
    port: u16,
    qemu: ChildGuard,
    channel: RefCell<BufReader<UnixStream>>,
    /// The number of the last command. An answer repeats it, so that one that came late is not taken for another's.
    sent: Cell<u64>,
}

impl Guest {
    /// Starts a machine with a fresh disk and waits until its init has started everything.
    pub fn boot(machine: &Machine) -> anyhow::Result<Self> {
        let dir = tempfile::Builder::new().prefix("kelson-vm-").tempdir()?;
        let path = dir.path().display();
        let cache = cache();
        let backing = cache.join("disk");
        ensure!(backing.exists(), "no image: scripts/vm image");
        sh(&format!("qemu-img create -q -f qcow2 -b {} -F raw {path}/disk", backing.display()))?;
        // What is tested is a disk too, which needs nothing of the guest's network.
        sh(&format!(
            "mkdir -p {path}/payload/release && cp -r {c}/images {path}/payload/ && cd {path}/payload &&
             cp -r {r}/packaging {r}/scripts/install.sh release/ && ln -s /payload/kelson release/kelson &&
             strip -o {path}/payload/kelson {b} && mke2fs -q -F -t ext4 -d {path}/payload {path}/payload.disk 600M >/dev/null 2>&1 && rm -r {path}/payload",
            c = cache.display(),
            r = repo_root().display(),
            b = binary().display()
        ))?;
        let port = free_port()?;
        let (qemu, channel) = start(&dir, machine, port)?;
        let guest = Self { machine: *machine, dir, port, qemu, channel: RefCell::new(channel), sent: Cell::new(0) };
        guest.wait_for_init()?;
        Ok(guest)
    }

    /// Powers the machine off and starts it with the same disk and this much memory.
    pub fn boot_again(&mut self, memory_mib: u32) -> Outcome {
        // The channel ends with the machine, so nothing answers.
        self.send("systemctl poweroff")?;
        let started = Instant::now();
        while self.qemu.try_wait()?.is_none() {
            ensure!(started.elapsed() < PATIENCE, "the guest did not power off");
            std::thread::sleep(Duration::from_millis(200));
        }
        self.machine.memory_mib = memory_mib;
        let (qemu, channel) = start(&self.dir, &self.machine, self.port)?;
        self.qemu = qemu;
        self.channel = RefCell::new(channel);
        self.wait_for_init()
    }

    /// Restarts the guest's system as its administrator does, and waits for the new one.
    pub fn reboot(&self) -> Outcome {
        let before = self.sh("cat /proc/sys/kernel/random/boot_id")?;
        self.send(self.machine.init.reboot())?;
        eventually("another boot", PATIENCE * 2, || {
            let now = self.run("cat /proc/sys/kernel/random/boot_id", Duration::from_secs(5))?.1;
            ensure!(now.trim().len() == 36 && now != before, "{now}");
            Ok(())
        })?;
        self.wait_for_init()
    }

    fn wait_for_init(&self) -> Outcome {
        eventually("a started guest", PATIENCE, || self.sh("[ -e /payload/kelson ]").map(drop))?;
        self.run(self.machine.init.booted(), COMMAND).map(drop)
    }

    /// Runs a script of bash in the guest, as root; gives both of its outputs. Any exit code except 0 is an error.
    pub fn sh(&self, script: &str) -> anyhow::Result<String> {
        let (code, output) = self.run(script, COMMAND)?;
        ensure!(code == 0, "in the guest: {script}\nexited with {code}\n{output}");
        Ok(output)
    }

    fn run(&self, script: &str, limit: Duration) -> anyhow::Result<(i32, String)> {
        let number = self.send(script)?.to_string();
        let mut channel = self.channel.borrow_mut();
        channel.get_ref().set_read_timeout(Some(limit))?;
        loop {
            let mut line = String::new();
            let read = channel.read_line(&mut line);
            let read = read.with_context(|| format!("no answer from the guest to: {script}"))?;
            ensure!(read > 0, "the guest ended during: {script}");
            let mut words = line.split_whitespace();
            if words.next() != Some(&number) {
                continue;
            }
            let code =
                words.next().and_then(|code| code.parse().ok()).with_context(|| format!("{line}: an exit code"))?;
            let output = STANDARD.decode(words.next().unwrap_or_default())?;
            return Ok((code, String::from_utf8_lossy(&output).into_owned()));
        }
    }

    fn send(&self, script: &str) -> anyhow::Result<u64> {
        self.sent.set(self.sent.get() + 1);
        let mut stream = self.channel.borrow().get_ref().try_clone()?;
        stream.write_all(format!("{} {}\n", self.sent.get(), STANDARD.encode(script)).as_bytes())?;
        Ok(self.sent.get())
    }

    /// Installs the units of packaging/systemd and starts the server with this kubelet configuration and these flags; waits for its node.
    pub fn install(&mut self, kubelet: &str, flags: &str) -> Outcome {
        self.sh(&format!(
            "cp /payload/release/packaging/systemd/*.service /etc/systemd/system/; mkdir -p /etc/kelson
cat >/etc/kelson/kubelet.yaml <<'X'\n{kubelet}X
echo 'KELSON_ARGS=\"--kubelet-config /etc/kelson/kubelet.yaml {flags}\"' >/etc/kelson/kelson.env
{BUSY_HOST}; systemctl enable -q --now kelson-server"
        ))?;
        self.connect()
    }

    /// Writes the kubeconfig for the host's kubectl; waits for a Ready node and the account of pods.
    pub fn connect(&self) -> Outcome {
        let text = eventually("a kubeconfig", PATIENCE, || self.sh("cat /var/lib/kelson/admin.kubeconfig"))?;
        let text = text.replace("https://127.0.0.1:6443", &format!("https://127.0.0.1:{}", self.port));
        fs::write(self.dir.path().join("kubeconfig"), text)?;
        let k = self.kubectl();
        eventually("a ready node", PATIENCE, || {
            k.ok(&["wait", "node", "--all", "--for=condition=Ready", "--timeout=5s"])?;
            k.ok(&["get", "serviceaccount", "default"])
        })
        .with_context(|| self.log_tail())?;
        Ok(())
    }

    /// Changes the kubelet's configuration on a node without pods. Policies keep state that another policy rejects, so it is removed.
    pub fn reconfigure(&mut self, kubelet: &str, flags: &str) -> Outcome {
        self.forget_pods()?;
        self.sh("systemctl stop kelson-server; rm -f /var/lib/kelson/kubelet/*_manager_state")?;
        self.install(kubelet, flags)?;
        self.became_ready_again()
    }

    /// Waits until the node's Ready condition was written after the last start of the server.
    pub fn became_ready_again(&self) -> Outcome {
        let k = self.kubectl();
        let started = super::number(&self.sh(self.machine.init.started())?)?;
        eventually("a node that is ready again", PATIENCE, || {
            let beat = "jsonpath={.items[0].status.conditions[?(@.type==\"Ready\")].lastHeartbeatTime}";
            let beat = k.ok(&["get", "nodes", "-o", beat])?;
            let beat = super::number(&sh(&format!("date -d '{beat}' +%s"))?)?;
            ensure!(beat >= started, "{beat} is before {started}");
            k.ok(&["wait", "node", "--all", "--for=condition=Ready", "--timeout=5s"])
        })
        .with_context(|| self.log_tail())?;
        Ok(())
    }

    /// Deletes all objects of the cases before.
    pub fn forget_pods(&self) -> Outcome {
        let k = self.kubectl();
        eventually("no workload", PATIENCE, || {
            k.ok(&["delete", "deployment,pod", "--all", "--grace-period=1", "--timeout=100s"])
        })?;
        Ok(())
    }

    /// Applies a manifest and waits until these pods are ready.
    pub fn apply(&self, manifest: &str, pods: &[&str]) -> Outcome {
        let k = self.kubectl();
        eventually("the objects", PATIENCE, || k.apply(manifest))?;
        for pod in pods {
            eventually(&format!("{pod} is ready"), PATIENCE, || {
                k.ok(&["wait", "pod", pod, "--for=condition=Ready", "--timeout=10s"])
            })
            .with_context(|| k.ok(&["describe", "pod", pod]).unwrap_or_default())?;
        }
        Ok(())
    }

    /// The host's kubectl, as administrator.
    pub fn kubectl(&self) -> Kubectl {
        Kubectl::new(self.dir.path().join("kubeconfig"))
    }

    /// The last lines of the server's log.
    pub fn log_tail(&self) -> String {
        self.sh(self.machine.init.log()).unwrap_or_default()
    }
}

/// Returns the directory of the files that scripts/vm makes.
fn cache() -> PathBuf {
    std::env::var_os("KELSON_VM").filter(|dir| dir != "1").map_or_else(|| repo_root().join(".cache/vm"), PathBuf::from)
}

/// Starts qemu and opens the channel.
fn start(dir: &tempfile::TempDir, machine: &Machine, port: u16) -> anyhow::Result<(ChildGuard, BufReader<UnixStream>)> {
    let (path, cache) = (dir.path().display(), cache());
    let accelerator = std::env::var(ACCELERATOR).unwrap_or_else(|_| "tcg,thread=multi".into());
    let cpu = if accelerator.starts_with("kvm") { "host" } else { "max" };
    let mut qemu = Command::new("qemu-system-x86_64");
    qemu.args([
        "-nodefaults",
        "-no-user-config",
        "-machine",
        "q35",
        "-accel",
        &accelerator,
        "-cpu",
        cpu,
        "-display",
        "none",
    ]);
    qemu.arg("-kernel").arg(cache.join("vmlinuz")).arg("-initrd").arg(cache.join("initrd"));
    qemu.args(["-append", &format!("{KERNEL} {}", machine.init.kernel())]);
    let mut options = vec![
        format!("-m {}", machine.memory_mib),
        format!("-smp {}", machine.cpus),
        format!("-drive file={path}/disk,if=none,id=d0,cache=unsafe"),
        "-device virtio-blk-pci,drive=d0".into(),
        format!("-drive file={path}/payload.disk,format=raw,readonly=on,if=none,id=d1"),
        "-device virtio-blk-pci,drive=d1".into(),
        format!("-netdev user,id=n0,restrict=on,hostfwd=tcp:127.0.0.1:{port}-:6443"),
        "-device virtio-net-pci,netdev=n0,romfile=".into(),
        "-device virtio-rng-pci".into(),
        "-device virtio-serial-pci".into(),
        format!("-chardev socket,id=c0,path={path}/channel,server=on,wait=off"),
        "-device virtserialport,chardev=c0,name=kelson".into(),
        format!("-serial file:{path}/console"),
    ];
    if let Some((multicast, last)) = machine.wire {
        options.push(format!("-netdev socket,id=n1,mcast=239.255.77.1:{multicast},localaddr=127.0.0.1"));
        options.push(format!("-device virtio-net-pci,netdev=n1,romfile=,mac=52:54:00:12:77:{last:02x}"));
    }
    for option in &options {
        let (flag, value) = option.split_once(' ').unwrap_or((option, ""));
        qemu.args([flag, value]);
    }
    let mut nice = Command::new("nice");
    nice.args(["-n", "5"]).arg(qemu.get_program()).args(qemu.get_args());
    let log = fs::File::create(dir.path().join("qemu.log"))?;
    nice.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    let mut child = ChildGuard(nice.spawn().context("start qemu-system-x86_64")?);
    let channel = eventually("qemu's socket", Duration::from_secs(10), || {
        if let Some(status) = child.try_wait()? {
            bail!("qemu ended with {status}: {}", fs::read_to_string(dir.path().join("qemu.log"))?);
        }
        Ok(UnixStream::connect(dir.path().join("channel"))?)
    })?;
    Ok((child, BufReader::new(channel)))
}
