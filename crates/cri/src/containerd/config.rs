//! The paths of this containerd, and its `config.toml`, written for the installed version: format 2 for 1.x, format 3
//! for 2.x. Pure, except the probes of the host at the end.
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files")]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;

use super::ContainerdError;
use super::handlers::{self, Handler};
use super::programs::quote;

/// The maximum length of a line in a container's log before containerd splits it, which is containerd's default.
const LOG_LINE_BYTES_MAX: u32 = 16 * 1024;
/// The size of `sun_path` less its zero and the `.ttrpc` that containerd appends.
const SOCKET_PATH_BYTES_MAX: usize = 107 - 6;
/// The bit of CAP_SYS_RESOURCE in a capability set.
const CAP_SYS_RESOURCE: u32 = 24;

/// The settings of containerd.
#[derive(Debug, Clone)]
pub struct ContainerdConfig {
    /// The absolute path of the server's data directory. All files are in `containerd/`, `registry/` and `log/` below
    /// it.
    pub data_dir: PathBuf,
    /// The directory of CNI executables.
    pub cni_bin_dir: PathBuf,
    /// The directory of CNI network configurations.
    pub cni_conf_dir: PathBuf,
    /// Whether systemd manages cgroups (the kubelet must use the same driver).
    pub systemd_cgroup: bool,
    /// Moves containerd out of this process's service unit; `None` where no service manager ends it with this process.
    pub scope: Option<Arc<dyn ProcessScope>>,
}

/// Moves a process into a unit of the service manager that does not end with this process's. Shims of containerd, and containers in the
/// shims' cgroups, are then safe from a stop of this process's unit, whatever the unit's settings say.
#[async_trait]
pub trait ProcessScope: std::fmt::Debug + Send + Sync {
    /// Moves the process.
    ///
    /// # Errors
    /// The service manager's. The process then stays where it is.
    async fn enter(&self, pid: i32) -> Result<(), Box<dyn std::error::Error + Send + Sync>>;
}

impl ContainerdConfig {
    /// Creates the default settings: CNI in `DIR/cni`, cgroups without systemd.
    ///
    /// # Errors
    /// The data directory does not exist or its path is too long for a socket.
    pub fn new(data_dir: &Path) -> Result<Self, ContainerdError> {
        let data_dir =
            data_dir.canonicalize().map_err(ContainerdError::io(format!("data directory {}", data_dir.display())))?;
        let config = Self {
            cni_bin_dir: data_dir.join("cni").join("bin"),
            cni_conf_dir: data_dir.join("cni").join("conf"),
            systemd_cgroup: false,
            scope: None,
            data_dir,
        };
        let socket = config.socket();
        if socket.as_os_str().len() > SOCKET_PATH_BYTES_MAX {
            return Err(ContainerdError::PathTooLong { path: socket, max: SOCKET_PATH_BYTES_MAX });
        }
        Ok(config)
    }

    /// Returns containerd's own directory.
    pub fn dir(&self) -> PathBuf {
        self.data_dir.join("containerd")
    }

    /// Returns the socket of the CRI service.
    pub fn socket(&self) -> PathBuf {
        self.dir().join("containerd.sock")
    }

    /// Returns the socket in the form of `--container-runtime-endpoint`.
    pub fn endpoint(&self) -> String {
        format!("unix://{}", self.socket().display())
    }

    /// Returns the file for containerd's stdout and stderr.
    pub fn log(&self) -> PathBuf {
        self.data_dir.join("log").join("containerd.log")
    }

    /// Returns the directory of registry configuration in the `certs.d` format: `registry/HOST/hosts.toml`.
    pub fn registry_dir(&self) -> PathBuf {
        self.data_dir.join("registry")
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.dir().join("config.toml")
    }
}

/// The version of containerd, as far as it is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// The major version: 1 or 2.
    pub major: u32,
    /// The minor version.
    pub minor: u32,
}

impl Version {
    /// The first version that supports devices by name of the Container Device Interface.
    pub(crate) const FIRST_WITH_CDI: Self = Self { major: 1, minor: 7 };

    /// Parses the output of `containerd --version`: `containerd SOURCE VERSION COMMIT`.
    pub(crate) fn parse(output: &str) -> Option<Self> {
        let word = output.split_whitespace().nth(2)?;
        let mut numbers = word.trim_start_matches('v').split(['.', '~', '-', '+']);
        let major = numbers.next()?.parse().ok()?;
        let minor = numbers.next()?.parse().ok()?;
        Some(Self { major, minor })
    }
}

/// Properties of the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Host {
    pub version: Version,
    pub runc: PathBuf,
    pub snapshotter: &'static str,
    /// Whether CAP_SYS_RESOURCE is missing, so that no process may get a lower oom_score_adj than ours.
    pub restrict_oom_score_adj: bool,
    /// Runtime handlers in addition to runc.
    pub handlers: Vec<Handler>,
}

/// Returns the whole file. Equal input gives equal bytes, so that a running containerd is restarted only for a change.
pub(crate) fn render(config: &ContainerdConfig, host: &Host) -> String {
    if host.version.major >= 2 { version_3(config, host) } else { version_2(config, host) }
}

fn common(config: &ContainerdConfig, format: u32, disabled: &[&str]) -> String {
    let dir = config.dir();
    let mut out = format!(
        "# Written by Kelson at each start; changes are lost. Further runtime handlers: runtimes/NAME.toml beside it.\n\
         version = {format}\nroot = {}\nstate = {}\n",
        quote(&dir.join("root")),
        quote(&dir.join("state")),
    );
    let disabled: Vec<String> = disabled.iter().map(|name| format!("  \"{name}\",\n")).collect();
    let _ = write!(out, "disabled_plugins = [\n{}]\n\n", disabled.concat());
    let _ = write!(out, "[grpc]\naddress = {}\n\n[debug]\nlevel = \"warn\"\n\n", quote(&config.socket()));
    out
}

fn version_2(config: &ContainerdConfig, host: &Host) -> String {
    // runtime.v1.linux is unneeded too, but the tasks service does not load without it.
    const DISABLED: [&str; 8] = [
        "io.containerd.internal.v1.opt",
        "io.containerd.internal.v1.restart",
        "io.containerd.internal.v1.tracing",
        "io.containerd.snapshotter.v1.aufs",
        "io.containerd.snapshotter.v1.btrfs",
        "io.containerd.snapshotter.v1.devmapper",
        "io.containerd.snapshotter.v1.zfs",
        "io.containerd.tracing.processor.v1.otlp",
    ];
    let mut out = common(config, 2, &DISABLED);
    let cri = "plugins.\"io.containerd.grpc.v1.cri\"";
    let _ = write!(
        out,
        "[{cri}]
sandbox_image = {pause}
disable_tcp_service = true
stream_server_address = \"127.0.0.1\"
stream_server_port = \"0\"
max_container_log_line_size = {LOG_LINE_BYTES_MAX}
netns_mounts_under_state_dir = true
restrict_oom_score_adj = {restrict}
tolerate_missing_hugetlb_controller = true
{cdi}
[{cri}.cni]
bin_dir = {bin}
conf_dir = {conf}
max_conf_num = 1

[{cri}.containerd]
snapshotter = \"{snapshotter}\"
default_runtime_name = \"runc\"

[{cri}.containerd.runtimes.runc]
runtime_type = \"io.containerd.runc.v2\"

[{cri}.containerd.runtimes.runc.options]
BinaryName = {runc}
SystemdCgroup = {systemd}
{handlers}
[{cri}.registry]
config_path = {registry}

[plugins.\"io.containerd.monitor.v1.cgroups\"]
no_prometheus = true
",
        pause = quote(Path::new(&crate::image::pause::name())),
        restrict = host.restrict_oom_score_adj,
        cdi = if host.version >= Version::FIRST_WITH_CDI { "enable_cdi = true\n" } else { "" },
        bin = quote(&config.cni_bin_dir),
        conf = quote(&config.cni_conf_dir),
        snapshotter = host.snapshotter,
        runc = quote(&host.runc),
        systemd = config.systemd_cgroup,
        handlers = handlers::render(&format!("{cri}.containerd.runtimes"), &host.handlers, config.systemd_cgroup),
        registry = quote(&config.registry_dir()),
    );
    out
}

fn version_3(config: &ContainerdConfig, host: &Host) -> String {
    const DISABLED: [&str; 10] = [
        "io.containerd.internal.v1.opt",
        "io.containerd.internal.v1.restart",
        "io.containerd.internal.v1.tracing",
        "io.containerd.nri.v1.nri",
        "io.containerd.snapshotter.v1.blockfile",
        "io.containerd.snapshotter.v1.btrfs",
        "io.containerd.snapshotter.v1.devmapper",
        "io.containerd.snapshotter.v1.erofs",
        "io.containerd.snapshotter.v1.zfs",
        "io.containerd.tracing.processor.v1.otlp",
    ];
    let mut out = common(config, 3, &DISABLED);
    let (images, runtime) = ("plugins.'io.containerd.cri.v1.images'", "plugins.'io.containerd.cri.v1.runtime'");
    // 2.1 accepts several directories and deprecated the single one.
    let bin = quote(&config.cni_bin_dir);
    let bin = if host.version.minor >= 1 { format!("bin_dirs = [{bin}]") } else { format!("bin_dir = {bin}") };
    let _ = write!(
        out,
        "[{images}]
snapshotter = '{snapshotter}'

[{images}.pinned_images]
sandbox = {pause}

[{images}.registry]
config_path = {registry}

[{runtime}]
max_container_log_line_size = {LOG_LINE_BYTES_MAX}
netns_mounts_under_state_dir = true
restrict_oom_score_adj = {restrict}
tolerate_missing_hugetlb_controller = true

[{runtime}.cni]
{bin}
conf_dir = {conf}
max_conf_num = 1

[{runtime}.containerd]
default_runtime_name = 'runc'

[{runtime}.containerd.runtimes.runc]
runtime_type = 'io.containerd.runc.v2'

[{runtime}.containerd.runtimes.runc.options]
BinaryName = {runc}
SystemdCgroup = {systemd}
{handlers}
[plugins.'io.containerd.grpc.v1.cri']
disable_tcp_service = true
stream_server_address = '127.0.0.1'
stream_server_port = '0'

[plugins.'io.containerd.monitor.task.v1.cgroups']
no_prometheus = true
",
        snapshotter = host.snapshotter,
        pause = quote(Path::new(&crate::image::pause::name())),
        registry = quote(&config.registry_dir()),
        restrict = host.restrict_oom_score_adj,
        conf = quote(&config.cni_conf_dir),
        runc = quote(&host.runc),
        systemd = config.systemd_cgroup,
        handlers = handlers::render(&format!("{runtime}.containerd.runtimes"), &host.handlers, config.systemd_cgroup),
    );
    out
}

/// Reports whether the capability set of `/proc/self/status` lacks CAP_SYS_RESOURCE. An unreadable file counts as
/// having it.
pub(crate) fn lacks_sys_resource(status: &str) -> bool {
    let line = status.lines().find_map(|l| l.strip_prefix("CapEff:"));
    let set = line.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    set.is_some_and(|set| set & (1 << CAP_SYS_RESOURCE) == 0)
}

/// Returns the snapshotter of an earlier configuration, which is kept since images and containers are stored in it.
pub(crate) fn chosen_snapshotter(config: &str) -> Option<&'static str> {
    let line = config.lines().find_map(|l| l.strip_prefix("snapshotter = "))?;
    ["overlayfs", "native"].into_iter().find(|name| line.trim_matches(['"', '\'']) == *name)
}

/// Returns `overlayfs` if an overlay can be mounted in `dir`, else `native` (copies, which work everywhere): the data
/// directory may itself be on an overlay.
pub(crate) fn choose_snapshotter(dir: &Path) -> &'static str {
    match probe_overlay(dir) {
        Ok(()) => "overlayfs",
        Err(e) => {
            tracing::warn!(error = %e, dir = %dir.display(), "overlayfs is not available; using the native snapshotter, which copies images for each container");
            "native"
        }
    }
}

fn probe_overlay(dir: &Path) -> std::io::Result<()> {
    use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
    let probe = dir.join("overlay-probe");
    let [lower, upper, work, merged] = ["lower", "upper", "work", "merged"].map(|name| probe.join(name));
    // Removes what a killed probe left.
    while unmount(&merged, UnmountFlags::DETACH).is_ok() {}
    for path in [&lower, &upper, &work, &merged] {
        std::fs::create_dir_all(path)?;
    }
    // Commas and colons would end an option: such a directory counts as one without overlays.
    let options = format!("lowerdir={},upperdir={},workdir={}", lower.display(), upper.display(), work.display());
    let options = std::ffi::CString::new(options)?;
    let mounted = mount("overlay", &merged, "overlay", MountFlags::empty(), options.as_c_str());
    if mounted.is_ok() {
        unmount(&merged, UnmountFlags::DETACH)?;
    }
    std::fs::remove_dir_all(&probe)?;
    mounted.map_err(Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> ContainerdConfig {
        ContainerdConfig {
            data_dir: "/d \"q\"".into(),
            cni_bin_dir: "/b".into(),
            cni_conf_dir: "/c".into(),
            systemd_cgroup: false,
            scope: None,
        }
    }

    fn host(major: u32, minor: u32) -> Host {
        Host {
            version: Version { major, minor },
            runc: "/usr/sbin/runc".into(),
            snapshotter: "overlayfs",
            restrict_oom_score_adj: true,
            handlers: Vec::new(),
        }
    }

    #[test]
    fn versions_as_distributions_print_them() {
        for (output, major, minor) in [
            ("containerd github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1-1+deb12u3", 1, 6),
            ("containerd containerd.io v1.7.27 05044ec0a9a75232cad458027ca83437aae3f4da", 1, 7),
            ("containerd github.com/containerd/containerd/v2 v2.1.0-rc.1 abc", 2, 1),
        ] {
            assert_eq!(Version::parse(output), Some(Version { major, minor }), "{output}");
        }
        assert_eq!(Version::parse("nonsense"), None);
    }

    #[test]
    fn each_version_gets_its_format() {
        let old = render(&config(), &host(1, 6));
        assert!(old.contains("version = 2\nroot = \"/d \\\"q\\\"/containerd/root\""), "{old}");
        assert!(old.contains("restrict_oom_score_adj = true") && old.contains("bin_dir = \"/b\""), "{old}");
        assert!(!old.contains("enable_cdi") && render(&config(), &host(1, 7)).contains("enable_cdi = true\n"));
        let new = render(&config(), &host(2, 1));
        assert!(new.contains("version = 3") && new.contains("bin_dirs = [\"/b\"]"), "{new}");
        assert!(render(&config(), &host(2, 0)).contains("bin_dir = \"/b\""));
    }

    #[test]
    fn an_earlier_snapshotter_is_kept() {
        for version in [host(1, 6), host(2, 1)] {
            let native = Host { snapshotter: "native", ..version };
            assert_eq!(chosen_snapshotter(&render(&config(), &native)), Some("native"));
        }
        assert_eq!(chosen_snapshotter("snapshotter = \"zfs\"\n"), None);
    }

    #[test]
    fn the_missing_capability_is_seen() {
        assert!(lacks_sys_resource("Name:\tx\nCapEff:\t000001fffeffffff\n"));
        assert!(!lacks_sys_resource("CapEff:\t000001ffffffffff\n"));
        assert!(!lacks_sys_resource(""));
    }

    #[test]
    fn runc_has_the_cgroup_driver_of_the_kubelet_in_each_version() {
        for (major, minor) in [(1, 6), (1, 7), (2, 0), (2, 1)] {
            for systemd_cgroup in [false, true] {
                let text = render(&ContainerdConfig { systemd_cgroup, ..config() }, &host(major, minor));
                let line = format!("SystemdCgroup = {systemd_cgroup}");
                assert_eq!(text.lines().filter(|l| *l == line).count(), 1, "{major}.{minor}: {text}");
            }
        }
    }
}
