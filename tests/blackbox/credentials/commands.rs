//! Credential providers on the command line: errors at startup, all at once with their paths; `credential-provider
//! check`; a pull that stalls; and the kubelet alone, joined to a control plane like any node.
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use kelson_blackbox::registry::{DerivedImage, PULLER, Registry, TENANT, archive, hex, make};
use kelson_blackbox::{Outcome, Process, Subject, binary, eventually, free_port, repo_root};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::world::{Plugins, World, answer, pod, provider, recovers, refused};

struct Ended {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

fn kelson(args: &[&str]) -> anyhow::Result<Ended> {
    let out = Command::new(binary()).args(args).stdin(Stdio::null()).output()?;
    let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
    Ok(Ended { code: out.status.code(), stdout: text(&out.stdout), stderr: text(&out.stderr) })
}

/// Server, agent and kubelet do not start, with the same messages, and report all errors.
pub fn start_up_faults(_: &Subject) -> Outcome {
    let plugins = Plugins::new()?;
    plugins.configure_raw(
        "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders:\n- {name: a/b, matchImages: [r.io:x], defaultCacheDuration: soon, apiVersion: v7, args: [Passw0rd-In-Args]}\n- {name: absent, matchImages: [r.io], defaultCacheDuration: 1m, apiVersion: credentialprovider.kubelet.k8s.io/v1}\n",
    )?;
    let scratch = tempfile::tempdir()?;
    let file = scratch.path().join("kubelet.yaml");
    fs::write(
        &file,
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nmaxParallelImagePulls: 0\nimagePullCredentialsVerificationPolicy: Sometimes\nnoSuchField: 1\n",
    )?;
    let (dir, file) = (scratch.path().join("data").display().to_string(), file.display().to_string());
    let flags = plugins.flags();
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let token = "abcdef.0123456789abcdef";
    let commands: [Vec<&str>; 3] = [
        vec!["server", "--data-dir", &dir, "--secure-port", "0", "--kubelet-config", &file],
        vec![
            "agent",
            "--server",
            "https://127.0.0.1:1",
            "--token",
            token,
            "--data-dir",
            &dir,
            "--kubelet-config",
            &file,
        ],
        vec!["kubelet", "--kubeconfig", "/nowhere", "--root-dir", &dir, "--config", &file],
    ];
    for mut command in commands {
        command.extend(&flags);
        let ended = kelson(&command)?;
        let what = command[0];
        ensure!(ended.code == Some(1), "{what} ended with {:?}\n{}", ended.code, ended.stderr);
        for path in [
            "maxParallelImagePulls: Invalid value: 0",
            "imagePullCredentialsVerificationPolicy: Invalid value: \"Sometimes\"",
            "noSuchField: Forbidden: unknown field",
            "providers[0].name: Invalid value: \"a/b\"",
            "providers[0].matchImages[0]: Invalid value: \"r.io:x\"",
            "providers[0].defaultCacheDuration: Invalid value: \"soon\"",
            "providers[0].apiVersion: Unsupported value: \"v7\"",
            "providers[1].name: Invalid value: \"absent\"",
        ] {
            ensure!(ended.stderr.contains(path), "{what}: {path} is not in\n{}", ended.stderr);
        }
        ensure!(!ended.stderr.contains("Passw0rd"), "{}", ended.stderr);
        ensure!(!std::path::Path::new(&dir).exists(), "{what} made its directory before it looked");
    }
    let one = kelson(&["server", "--data-dir", &dir, "--image-credential-provider-config", "/x"])?;
    ensure!(one.code == Some(2) && one.stderr.contains("--image-credential-provider-bin-dir"), "{}", one.stderr);
    Ok(())
}

/// Matching providers, their answers and durations; never a credential, and a meaningful exit code.
pub fn check(_: &Subject) -> Outcome {
    let plugins = Plugins::new()?;
    let sound = answer("r.example", PULLER, "Registry");
    plugins.put("sound", &format!("sleep 0.1\n{sound}"))?;
    plugins.put("broken", &format!("echo 'no such role, password={}' >&2\nexit 3", TENANT.password))?;
    plugins.configure(&[
        provider("sound", "*.example", ""),
        provider("broken", "r.example/broken", ""),
        provider("other", "other.example", ""),
    ])?;
    plugins.put("other", "exit 1")?;
    let (config, bin) = (plugins.config().display().to_string(), plugins.bin().display().to_string());
    let check = |image: &str| kelson(&["credential-provider", "check", image, "--config", &config, "--bin-dir", &bin]);
    let fine = check("r.example/team/app:1")?;
    ensure!(fine.code == Some(0), "{}{}", fine.stdout, fine.stderr);
    for want in [
        "sound: responded in ",
        "cache key type: Registry",
        "cache duration: 0s",
        "user pu***, password set",
        "from credential provider \"sound\"",
    ] {
        ensure!(fine.stdout.contains(want), "{want} in {}", fine.stdout);
    }
    ensure!(!fine.stdout.contains("broken") && !fine.stdout.contains("other"), "{}", fine.stdout);
    let failed = check("r.example/broken:1")?;
    ensure!(failed.code == Some(1), "{}", failed.stdout);
    ensure!(
        failed.stderr.contains("broken: FAILED after") && failed.stderr.contains("exit status 3"),
        "{}",
        failed.stderr
    );
    ensure!(failed.stdout.contains("stderr: no such role, password=[redacted]"), "{}", failed.stdout);
    for (image, why) in [
        ("r.example.com/x", "no provider matches image r.example.com/x"),
        ("Not An Image", "couldn't parse image name"),
    ] {
        let ended = check(image)?;
        ensure!(ended.code == Some(1) && ended.stderr.contains(why), "{image}: {}", ended.stderr);
    }
    plugins.remove("broken")?;
    let unsound = check("r.example/x")?;
    ensure!(unsound.code == Some(1) && unsound.stderr.contains("providers[1].name"), "{}", unsound.stderr);
    for text in [&fine, &failed, &unsound] {
        let both = format!("{}{}", text.stdout, text.stderr);
        ensure!(!both.contains(PULLER.password) && !both.contains(TENANT.password), "{both}");
    }
    let nowhere = kelson(&["credential-provider", "check", "r.io/x", "--data-dir", "/nowhere"])?;
    ensure!(nowhere.code == Some(1) && nowhere.stderr.contains("has no credential providers"), "{}", nowhere.stderr);
    Ok(())
}

/// A registry that starts to send and then stalls: the pull is cancelled, reported, and retried.
pub fn stalled_pull(_: &Subject) -> Outcome {
    let stalling = Stalling::start()?;
    let (registry, plugins) = (Registry::start()?, Plugins::new()?);
    let other = registry.add("other/app")?;
    plugins.put("all", &answer(&registry.host, PULLER, "Registry"))?;
    plugins.configure(&[provider("all", &registry.host, "")])?;
    let w = World::start(registry, plugins, &["--image-pull-progress-deadline", "2s"])?;
    let k = w.k.fresh_namespace("stalled")?;
    k.apply(&pod("stalled", &format!("{}/stalled:1", stalling.host), "IfNotPresent", ""))?;
    refused(&k, "stalled", &["image pull progress deadline exceeded: no progress for 2s"])?;
    // Pulls are serialized: the next one gets its turn.
    k.apply(&pod("other", &other, "IfNotPresent", ""))?;
    recovers(&k, "other")?;
    let node = w.k.ok(&["get", "nodes", "-o", "jsonpath={.items[0].metadata.name}"])?;
    let configz = w.k.ok(&["get", "--raw", &format!("/api/v1/nodes/{node}/proxy/configz")])?;
    ensure!(configz.contains("\"serializeImagePulls\":true"), "{configz}");
    // A check without flags uses the running node's configuration.
    let checked = kelson(&["credential-provider", "check", &other, "--data-dir", &w.server.dir.display().to_string()])?;
    ensure!(
        checked.code == Some(0) && checked.stdout.contains("all: responded in"),
        "{}{}",
        checked.stdout,
        checked.stderr
    );
    w.finish()
}

/// Serves one image, whose layer never comes to its end.
struct Stalling {
    host: String,
}

impl Stalling {
    fn start() -> anyhow::Result<Self> {
        let image = make("stalled", &["sh"])?;
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let host = listener.local_addr()?.to_string();
        // Ends with the test process, since a blocked thread cannot be stopped.
        std::thread::spawn(move || {
            let image = std::sync::Arc::new(image);
            for stream in listener.incoming().flatten() {
                let image = image.clone();
                std::thread::spawn(move || drop(Self::serve(stream, &image)));
            }
        });
        Ok(Self { host })
    }

    fn serve(mut stream: std::net::TcpStream, image: &DerivedImage) -> anyhow::Result<()> {
        let mut reader = BufReader::new(stream.try_clone()?);
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
            let mut words = line.split_whitespace();
            let (method, path) =
                (words.next().unwrap_or_default().to_owned(), words.next().unwrap_or_default().to_owned());
            let mut header = String::new();
            while reader.read_line(&mut header)? > 2 {
                header.clear();
            }
            let manifest: Value = serde_json::from_slice(&image.manifest)?;
            let (body, kind, whole): (&[u8], &str, bool) = match path.rsplit('/').next().unwrap_or_default() {
                "" | "v2" => (b"{}", "application/json", true),
                last if path.contains("/manifests/") && !last.is_empty() => {
                    (&image.manifest, manifest["mediaType"].as_str().context("mediaType")?, true)
                }
                last if last.ends_with(&hex(&image.config)) => (&image.config, "application/octet-stream", true),
                _ => (&image.layer, "application/octet-stream", false),
            };
            let digest = hex(&image.manifest);
            write!(
                stream,
                "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nDocker-Content-Digest: sha256:{digest}\r\n\r\n",
                body.len()
            )?;
            if method == "HEAD" {
                continue;
            }
            if !whole {
                stream.write_all(&body[..body.len() / 2])?;
                // Until the client gives up.
                let mut rest = String::new();
                reader.read_line(&mut rest)?;
                return Ok(());
            }
            stream.write_all(body)?;
        }
    }
}

/// A child process that is stopped, gracefully first, at the end of the test.
struct Ending(Child);

impl Drop for Ending {
    fn drop(&mut self) {
        if let Some(pid) = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::TERM);
        }
        for _ in 0..250 {
            if matches!(self.0.try_wait(), Ok(Some(_)) | Err(_)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// `kelson kubelet` with a control plane without a node: bootstrap, registration, a private image in a pod.
pub fn kubelet_alone(_: &Subject) -> Outcome {
    let (registry, plugins) = (Registry::start()?, Plugins::new()?);
    let image = registry.add("alone/app")?;
    plugins.put("all", &answer(&registry.host, PULLER, "Registry"))?;
    plugins.configure(&[provider("all", &registry.host, "")])?;
    let server = Process::start(&["--disable-agent"], &repo_root().join(".cache/none"))?;
    let scratch = tempfile::Builder::new().prefix("kelson-alone-").tempdir()?;
    let at = |name: &str| scratch.path().join(name);
    let endpoint = format!("unix://{}", at("containerd.sock").display());
    let _containerd = containerd(&endpoint, scratch.path())?;
    let token = write_files(&server, scratch.path(), &endpoint)?;
    let log = fs::File::create(at("kubelet.log"))?;
    let kubelet = Command::new(binary())
        .arg("kubelet")
        .arg("--kubeconfig")
        .arg(at("kubeconfig"))
        .arg("--bootstrap-kubeconfig")
        .arg(at("bootstrap.kubeconfig"))
        .arg("--config")
        .arg(at("config.yaml"))
        .arg("--root-dir")
        .arg(at("root"))
        .arg("--cert-dir")
        .arg(at("pki"))
        .args(["--hostname-override", "alone", "--node-ip", "127.0.0.1", "--node-labels", "place=here"])
        .args(plugins.flags())
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()?;
    let kubelet = Ending(kubelet);
    let k = server.kubectl().namespaced("default");
    let checked = (|| {
        eventually("the node", Duration::from_secs(60), || k.json(&["get", "node", "alone"]))?;
        let node = k.json(&["get", "node", "alone"])?;
        ensure!(node["metadata"]["labels"]["place"] == "here", "{}", node["metadata"]["labels"]);
        let taints = node["spec"]["taints"].to_string();
        ensure!(taints.contains("\"alone\""), "{taints}");
        eventually("the service account", Duration::from_secs(30), || k.ok(&["get", "serviceaccount", "default"]))?;
        // There is no pod network here: the pod uses the host's.
        k.apply(&pod("private", &image, "IfNotPresent", "  hostNetwork: true\n  tolerations: [{operator: Exists}]\n"))?;
        recovers(&k, "private")?;
        k.ok(&["delete", "pod", "private", "--timeout=60s"])?;
        // The API removes a pod with a grace period of zero immediately; the kubelet then stops it.
        eventually("the end of the pod", Duration::from_secs(30), || {
            let left = mounts_below(scratch.path());
            ensure!(left.is_empty(), "still mounted: {left:?}");
            Ok(())
        })
    })();
    drop(kubelet);
    if checked.is_err() {
        sweep(scratch.path());
    }
    let log = fs::read_to_string(at("kubelet.log")).unwrap_or_default();
    let Ok(_) = checked else {
        let tail: Vec<&str> = log.lines().rev().take(30).collect();
        bail!("{:#}\n{}", checked.err().context("error")?, tail.into_iter().rev().collect::<Vec<_>>().join("\n"));
    };
    ensure!(!log.contains(PULLER.password) && !log.contains(token.trim()), "credentials in the log");
    // The sandbox is removed with the pod, before the runtime stops.
    server.finish(false)
}

/// Writes the files a kubelet needs to join: a kubeconfig with a bootstrap token, which is returned, and its
/// configuration.
fn write_files(server: &Process, dir: &std::path::Path, endpoint: &str) -> anyhow::Result<String> {
    let token = fs::read_to_string(server.dir.join("node-token"))?;
    let ca = fs::read_to_string(server.dir.join("pki/ca.crt"))?;
    let bootstrap = json!({"apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": format!("https://127.0.0.1:{}", server.port),
            "certificate-authority-data": kelson_blackbox::registry::base64(ca.as_bytes())}}],
        "users": [{"name": "u", "user": {"token": token.trim()}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}]});
    fs::write(dir.join("bootstrap.kubeconfig"), bootstrap.to_string())?;
    fs::write(
        dir.join("config.yaml"),
        format!(
            "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\ncgroupsPerQOS: false\nevictionHard: {{memory.available: 1Mi}}\nclusterDNS: [10.43.0.10]\npodLogsDir: {}\ncontainerRuntimeEndpoint: {endpoint}\nport: {}\nserializeImagePulls: false\nmaxParallelImagePulls: 4\nregisterWithTaints: [{{key: alone, effect: NoSchedule}}]\n",
            dir.join("logs").display(),
            free_port()?
        ),
    )?;
    Ok(token)
}

fn mounts_below(dir: &std::path::Path) -> Vec<String> {
    let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
    let points = mounts.lines().filter_map(|l| l.split(' ').nth(1));
    points.filter(|m| std::path::Path::new(m).starts_with(dir)).map(str::to_owned).collect()
}

/// After a failure: kills the containers of a directory and their shims, and unmounts what is below it.
fn sweep(dir: &std::path::Path) {
    let ours = format!("-address {}", dir.display());
    let read = |pid: &str, file: &str| {
        let data = fs::read(std::path::Path::new("/proc").join(pid).join(file)).unwrap_or_default();
        String::from_utf8_lossy(&data).replace('\0', " ")
    };
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    let all: Vec<String> = all.map(|p| p.file_name().to_string_lossy().into_owned()).collect();
    let is_shim = |pid: &str| {
        let line = read(pid, "cmdline");
        line.contains("containerd-shim") && line.contains(&ours)
    };
    let (shims, others): (Vec<&String>, Vec<&String>) = all.iter().partition(|pid| is_shim(pid));
    let parent = |pid: &str| {
        let stat = read(pid, "stat");
        stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1).map(str::to_owned)).unwrap_or_default()
    };
    // A shim is the parent of its containers, and outlives them to report their exit.
    let contained: Vec<&String> = others.into_iter().filter(|pid| shims.contains(&&parent(pid))).collect();
    for pid in contained.into_iter().chain(shims.iter().copied()) {
        if let Some(pid) = pid.parse().ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
    for mount in mounts_below(dir) {
        let _ = Command::new("umount").arg("--lazy").arg(mount).status();
    }
}

/// Starts a containerd with only the image that a sandbox needs.
fn containerd(endpoint: &str, dir: &std::path::Path) -> anyhow::Result<Ending> {
    let pause = "kelson.local/test/pause:1";
    let tar = dir.join("pause.tar");
    archive(&make("pause", &["sleep", "2147483647"])?, pause, &tar)?;
    let config = format!(
        "version = 2\nroot = {root:?}\nstate = {state:?}\ndisabled_plugins = [\"io.containerd.tracing.processor.v1.otlp\", \"io.containerd.internal.v1.tracing\"]\n[grpc]\naddress = {socket:?}\n[plugins.\"io.containerd.grpc.v1.cri\"]\nsandbox_image = {pause:?}\ndisable_tcp_service = true\nrestrict_oom_score_adj = true\ntolerate_missing_hugetlb_controller = true\n[plugins.\"io.containerd.grpc.v1.cri\".containerd]\nsnapshotter = \"native\"\n[plugins.\"io.containerd.grpc.v1.cri\".cni]\nbin_dir = {root:?}\nconf_dir = {cni:?}\n",
        root = dir.join("containerd"),
        state = dir.join("state"),
        socket = dir.join("containerd.sock"),
        cni = dir.join("cni"),
    );
    fs::write(dir.join("containerd.toml"), config)?;
    let log = fs::File::create(dir.join("containerd.log"))?;
    let child = Command::new("containerd")
        .arg("--config")
        .arg(dir.join("containerd.toml"))
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .context("start containerd")?;
    let ending = Ending(child);
    eventually("containerd", Duration::from_secs(30), || {
        let done = kelson(&["image", "import", &tar.display().to_string(), "--container-runtime-endpoint", endpoint])?;
        ensure!(done.code == Some(0), "{}\n{}", done.stderr, fs::read_to_string(dir.join("containerd.log"))?);
        Ok(())
    })?;
    Ok(ending)
}
