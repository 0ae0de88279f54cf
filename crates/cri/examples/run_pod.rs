//! One pod from nothing, as root: containerd under a temporary directory, the pause and a busybox image made here, a
//! sandbox with an address on the bridge, a container that pings its gateway, its log, an exec, and everything removed.
//! `cargo run -p kelson-cri --example run_pod`

use std::path::Path;
use std::time::{Duration, Instant};

use kelson_cri::containerd::{Containerd, ContainerdConfig};
use kelson_cri::image::build::busybox_layer;
use kelson_cri::image::tar::Writer;
use kelson_cri::image::{ImageConfig, NewImage};
use kelson_cri::proto::*;
use kelson_cri::{CriClient, Limits, Runtime};
use kelson_net::{Network, NetworkConfig};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> Outcome<()> {
    // containerd calls the pod network's plugin, which here is this program.
    if let Some(code) = kelson_net::cni::run_if_invoked() {
        std::process::exit(i32::from(code != std::process::ExitCode::SUCCESS));
    }
    tokio::runtime::Runtime::new()?.block_on(example())
}

async fn example() -> Outcome<()> {
    let dir = tempfile::tempdir()?;
    let outcome = run(dir.path()).await;
    if outcome.is_err() {
        let log = std::fs::read_to_string(dir.path().join("log/containerd.log")).unwrap_or_default();
        eprintln!("--- containerd.log\n{log}");
    }
    let start = Instant::now();
    let errors = kelson_cri::containerd::cleanup(dir.path()).await;
    let network_errors = kelson_net::cleanup(dir.path()).await;
    println!("cleanup in {:?}: {errors:?} {network_errors:?}", start.elapsed());
    outcome
}

async fn run(dir: &Path) -> Outcome<()> {
    let subnet = "10.203.7.0/24".parse()?;
    let network = Network::new(NetworkConfig::new(dir, vec![subnet], vec!["10.203.0.0/16".parse()?])?);
    let start = Instant::now();
    network.ensure(&std::env::current_exe()?).await?;
    println!("network {} ready in {:?}", network.config().bridge(), start.elapsed());

    std::fs::create_dir_all(dir.join("images"))?;
    std::fs::write(dir.join("images/busybox.tar"), busybox()?)?;
    let start = Instant::now();
    let containerd = Containerd::start(ContainerdConfig::new(dir)?, &kelson_tasks::Tasks::root("node")).await?;
    println!("containerd ready, images loaded in {:?}", start.elapsed());
    let client = CriClient::new(&containerd.endpoint(), Limits::default())?;
    let version = client.version().await?;
    println!("{} {}", version.runtime_name, version.runtime_version);
    for condition in client.status(false).await?.status.unwrap_or_default().conditions {
        println!("{} = {} {}", condition.r#type, condition.status, condition.message);
    }
    for image in client.list_images(None).await? {
        println!("image {:?} {} {} bytes", image.repo_tags, &image.id[..19], image.size);
    }
    let saved = dir.join("saved.tar.gz");
    std::fs::write(&saved, docker_save()?)?;
    println!("docker save imported: {:?}", containerd.import(&saved).await?);
    let again = containerd.import(&saved).await?;
    println!("and again: {}", again.len());
    match client.container_events().await {
        Ok(_) => println!("container events: streamed"),
        Err(e) => println!("container events: {e}"),
    }
    let resident = containerd_pid(dir).map(|pid| std::fs::read_to_string(format!("/proc/{pid}/status")));
    let resident = resident.transpose()?.unwrap_or_default();
    println!("containerd {}", resident.lines().find(|l| l.starts_with("VmRSS")).unwrap_or_default());
    pod(&client, dir).await?;
    adopt(containerd, dir).await
}

async fn pod(client: &CriClient, dir: &Path) -> Outcome<()> {
    let logs = dir.join("pods/one");
    std::fs::create_dir_all(&logs)?;
    let port = PortMapping { container_port: 80, host_port: 28080, ..Default::default() };
    let sandbox_config = PodSandboxConfig {
        metadata: Some(PodSandboxMetadata {
            name: "one".into(),
            uid: "uid-1".into(),
            namespace: "default".into(),
            attempt: 0,
        }),
        hostname: "one".into(),
        log_directory: logs.display().to_string(),
        port_mappings: vec![port],
        linux: Some(LinuxPodSandboxConfig::default()),
        ..Default::default()
    };
    let start = Instant::now();
    let sandbox = client.run_pod_sandbox(sandbox_config.clone(), "").await?;
    println!("sandbox up in {:?}", start.elapsed());
    let status = client.pod_sandbox_status(&sandbox, false).await?.status.unwrap_or_default();
    let ip = status.network.unwrap_or_default().ip;
    println!("pod address {ip}");
    let script = "echo hello; ping -c 2 10.203.7.1; id; cat /proc/1/oom_score_adj; \
                  while true; do echo served | nc -l -p 80; done";
    let config = ContainerConfig {
        metadata: Some(ContainerMetadata { name: "main".into(), attempt: 0 }),
        image: Some(ImageSpec { image: "busybox".into(), ..Default::default() }),
        command: vec!["sh".into(), "-c".into(), script.into()],
        log_path: "main.log".into(),
        linux: Some(LinuxContainerConfig {
            resources: Some(LinuxContainerResources {
                oom_score_adj: -997,
                memory_limit_in_bytes: 64 << 20,
                ..Default::default()
            }),
            ..Default::default()
        }),
        ..Default::default()
    };
    let start = Instant::now();
    let id = client.create_container(&sandbox, config, sandbox_config).await?;
    client.start_container(&id).await?;
    println!("container started in {:?}", start.elapsed());
    let exec = |script: &str| vec!["sh".to_owned(), "-c".to_owned(), script.to_owned()];
    let start = Instant::now();
    let out = client.exec_sync(&id, exec("hostname; ip -4 addr show eth0; ip route; exit 7"), Duration::from_secs(10));
    let out = out.await?;
    println!("exec in {:?}, exit code {}:\n{}", start.elapsed(), out.exit_code, String::from_utf8_lossy(&out.stdout));
    let late = client.exec_sync(&id, exec("sleep 60"), Duration::from_secs(1)).await;
    println!("exec past its limit: {:?}", late.map_err(|e| e.to_string()));
    tokio::time::sleep(Duration::from_millis(1200)).await;
    let host_port = std::net::TcpStream::connect_timeout(&"127.0.0.1:28080".parse()?, Duration::from_secs(3));
    let mut served = String::new();
    std::io::Read::read_to_string(&mut host_port?, &mut served)?;
    println!("host port says {served:?}");
    let stats = client.container_stats(&id).await?.unwrap_or_default();
    println!("memory {:?}", stats.memory.and_then(|m| m.working_set_bytes));
    println!("log:\n{}", std::fs::read_to_string(logs.join("main.log"))?);
    let gone = client.container_status("nope", false).await.expect_err("no such container");
    println!("not found: {} ({})", gone.is_not_found(), gone);
    Ok(())
}

/// What a server does that ends and starts again: the container must not notice.
async fn adopt(containerd: Containerd, dir: &Path) -> Outcome<()> {
    let before = containerd_pid(dir);
    containerd.shutdown().await;
    let start = Instant::now();
    let again = Containerd::start(ContainerdConfig::new(dir)?, &kelson_tasks::Tasks::root("node")).await?;
    println!("adopted in {:?}: {before:?} -> {:?}", start.elapsed(), containerd_pid(dir));
    // containerd itself is killed: it comes back, the container stays.
    let mut restarts = again.restarts();
    if let Some(pid) = containerd_pid(dir).and_then(rustix::process::Pid::from_raw) {
        rustix::process::kill_process(pid, rustix::process::Signal::KILL)?;
    }
    let start = Instant::now();
    restarts.changed().await?;
    let client = CriClient::new(&again.endpoint(), Limits::default())?;
    let containers = client.list_containers(None).await?;
    println!("back after a kill in {:?}, container states {:?}", start.elapsed(), states(&containers));
    for container in containers {
        let start = Instant::now();
        client.stop_container(&container.id, Duration::from_secs(1)).await?;
        let status = client.container_status(&container.id, false).await?.status.unwrap_or_default();
        println!("stopped in {:?}: exit code {} {}", start.elapsed(), status.exit_code, status.reason);
        client.remove_container(&container.id).await?;
    }
    for sandbox in client.list_pod_sandbox(None).await? {
        let start = Instant::now();
        client.stop_pod_sandbox(&sandbox.id).await?;
        client.remove_pod_sandbox(&sandbox.id).await?;
        println!("sandbox removed in {:?}", start.elapsed());
    }
    again.shutdown().await;
    println!("containerd after a shutdown without pods: {:?}", containerd_pid(dir));
    Ok(())
}

fn states(containers: &[Container]) -> Vec<ContainerState> {
    containers.iter().map(Container::state).collect()
}

fn containerd_pid(dir: &Path) -> Option<i32> {
    let config = dir.join("containerd/config.toml");
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut pids = processes.filter_map(|e| e.file_name().to_str().and_then(|n| n.parse::<i32>().ok()));
    pids.find(|pid| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(&format!("{}", config.display()))
    })
}

/// What `docker save web:2 | gzip` makes.
fn docker_save() -> Outcome<Vec<u8>> {
    let mut layer = Writer::new();
    layer.file("hello", 0o644, b"hi");
    let layer = layer.finish();
    let diff = kelson_cri::image::digest(&layer);
    let architecture = kelson_cri::image::architecture();
    let config = format!(
        r#"{{"architecture":"{architecture}","os":"linux","config":{{}},"rootfs":{{"type":"layers","diff_ids":["{diff}"]}}}}"#
    );
    let mut tar = Writer::new();
    tar.file("abc.json", 0o644, config.as_bytes()).file("l/layer.tar", 0o644, &layer);
    tar.file("manifest.json", 0o644, br#"[{"Config":"abc.json","RepoTags":["web:2"],"Layers":["l/layer.tar"]}]"#);
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut packed, &tar.finish())?;
    Ok(packed.finish()?)
}

fn busybox() -> Outcome<Vec<u8>> {
    let binary = std::fs::read("/bin/busybox")?;
    let list = std::process::Command::new("/bin/busybox").arg("--list").output()?;
    let list = String::from_utf8(list.stdout)?;
    let config = ImageConfig { cmd: vec!["sh".into()], env: vec!["PATH=/bin".into()], ..Default::default() };
    let layers = vec![busybox_layer(&binary, &list.lines().collect::<Vec<_>>())];
    Ok(NewImage { name: "busybox".into(), layers, config }.to_archive()?)
}
