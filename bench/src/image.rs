//! Creates a small image archive without a registry: a static busybox with its applets and, optionally, more programs.
//! `image NAME OUT.tar [PATH-IN-IMAGE=FILE]...` BUSYBOX names the static busybox (default /bin/busybox, Debian's
//! busybox-static).

use anyhow::Context as _;
use kelson_cri::image::build::busybox_layer;
use kelson_cri::image::tar::Writer;
use kelson_cri::image::{ImageConfig, NewImage};

/// Writes the archive.
pub fn run(args: &[String]) -> anyhow::Result<()> {
    let [name, out, files @ ..] = args else {
        anyhow::bail!("usage: image NAME OUT.tar [PATH-IN-IMAGE=FILE]...");
    };
    let busybox = std::env::var("BUSYBOX").unwrap_or_else(|_| "/bin/busybox".to_owned());
    let list = std::process::Command::new(&busybox).arg("--list").output().context(busybox.clone())?;
    let list = String::from_utf8(list.stdout)?;
    let mut layers = vec![busybox_layer(&std::fs::read(&busybox)?, &list.lines().collect::<Vec<_>>())];
    if !files.is_empty() {
        let mut layer = Writer::new();
        for file in files {
            let (inside, outside) = file.split_once('=').with_context(|| format!("{file}: not PATH-IN-IMAGE=FILE"))?;
            layer.file(inside, 0o755, &std::fs::read(outside)?);
        }
        layers.push(layer.finish());
    }
    let env = vec!["PATH=/usr/local/bin:/usr/bin:/bin:/sbin".to_owned()];
    let config = ImageConfig { cmd: vec!["sh".to_owned()], env, ..Default::default() };
    std::fs::write(out, NewImage { name: name.clone(), layers, config }.to_archive().map_err(anyhow::Error::msg)?)?;
    Ok(())
}
