//! Makes a small image archive without a registry: a static busybox with its applets and, if wanted, more programs.
//! `cargo run -p kelson-cri --example make_image -- NAME OUT.tar [PATH-IN-IMAGE=FILE]...`
//! BUSYBOX names the static busybox (default /bin/busybox, Debian's busybox-static).

use kelson_cri::image::build::busybox_layer;
use kelson_cri::image::tar::Writer;
use kelson_cri::image::{ImageConfig, NewImage};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [name, out, files @ ..] = args.as_slice() else {
        return Err("usage: make_image NAME OUT.tar [PATH-IN-IMAGE=FILE]...".into());
    };
    let busybox = std::env::var("BUSYBOX").unwrap_or_else(|_| "/bin/busybox".to_owned());
    let list = std::process::Command::new(&busybox).arg("--list").output()?;
    let list = String::from_utf8(list.stdout)?;
    let mut layers = vec![busybox_layer(&std::fs::read(&busybox)?, &list.lines().collect::<Vec<_>>())];
    if !files.is_empty() {
        let mut layer = Writer::new();
        for file in files {
            let (inside, outside) = file.split_once('=').ok_or_else(|| format!("{file}: not PATH-IN-IMAGE=FILE"))?;
            layer.file(inside, 0o755, &std::fs::read(outside)?);
        }
        layers.push(layer.finish());
    }
    let env = vec!["PATH=/usr/local/bin:/usr/bin:/bin:/sbin".to_owned()];
    let config = ImageConfig { cmd: vec!["sh".to_owned()], env, ..Default::default() };
    std::fs::write(out, NewImage { name: name.clone(), layers, config }.to_archive()?)?;
    Ok(())
}
