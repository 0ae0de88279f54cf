//! Loads a configuration from a file, or from all `*.json`, `*.yaml` and `*.yml` files of a directory in order of name,
//! and checks that the plugins it names are there to be run.
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files; at start before pods are")]

use std::collections::HashMap;
use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use kelson_meta::{FieldError, FieldErrorKind};
use sha2::{Digest, Sha256};

use super::read::Reader;
use super::{CONFIG_BYTES_MAX, CONFIG_FILES_MAX, Config, ConfigError, ConfigFault, FaultKind};

/// Loads the configuration at `path` (a file or a directory), with its plugins in `bin_dir`; every fault at once.
pub fn load(path: &Path, bin_dir: &Path) -> Result<Config, ConfigError> {
    let mut faults = Vec::new();
    let other = |why: String| ConfigFault { file: None, kind: FaultKind::Other(why) };
    let mut files = Vec::new();
    match config_files(path) {
        Err(why) => faults.push(other(why)),
        Ok(paths) => {
            for file in paths {
                match read_file(&file) {
                    Ok(data) => files.push((file, data)),
                    Err(e) => faults.push(other(format!("unable to read file {:?}: {e}", file.display().to_string()))),
                }
            }
        }
    }
    let several = path.is_dir();
    let (config, named) = merge(files, several, &mut faults);
    faults.extend(check_bin_dir(&named, bin_dir));
    if faults.is_empty() { Ok(config) } else { Err(ConfigError(faults)) }
}

/// Parses a configuration without checking any bin directory.
pub fn load_text(data: &[u8]) -> Result<Config, ConfigError> {
    let mut faults = Vec::new();
    let (config, _) = merge(vec![(PathBuf::new(), data.to_vec())], false, &mut faults);
    if faults.is_empty() { Ok(config) } else { Err(ConfigError(faults)) }
}

fn config_files(path: &Path) -> Result<Vec<PathBuf>, String> {
    let shown = path.display().to_string();
    if shown.is_empty() {
        return Err("credential provider config path is empty".to_owned());
    }
    let about = fs::metadata(path).map_err(|e| format!("unable to access path {shown:?}: {e}"))?;
    if !about.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let entries = fs::read_dir(path).map_err(|e| format!("unable to read directory {shown:?}: {e}"))?;
    let mut files: Vec<PathBuf> = entries
        .filter_map(|e| e.ok())
        .map(|e| e.path())
        .filter(|p| p.extension().is_some_and(|x| x == "json" || x == "yaml" || x == "yml") && !p.is_dir())
        .take(CONFIG_FILES_MAX + 1)
        .collect();
    if files.is_empty() {
        return Err(format!("no configuration files found in directory {shown:?}"));
    }
    if files.len() > CONFIG_FILES_MAX {
        return Err(format!("more than {CONFIG_FILES_MAX} configuration files in directory {shown:?}"));
    }
    files.sort();
    Ok(files)
}

fn read_file(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut data = Vec::new();
    fs::File::open(path)?.take(CONFIG_BYTES_MAX as u64 + 1).read_to_end(&mut data)?;
    if data.len() > CONFIG_BYTES_MAX {
        return Err(std::io::Error::other(format!("larger than {CONFIG_BYTES_MAX} bytes")));
    }
    Ok(data)
}

/// A provider's name, and its position in the configuration.
struct Named {
    file: Option<PathBuf>,
    index: usize,
    name: String,
}

fn merge(files: Vec<(PathBuf, Vec<u8>)>, several: bool, faults: &mut Vec<ConfigFault>) -> (Config, Vec<Named>) {
    let mut named = Vec::new();
    let mut hasher = Sha256::new();
    let mut config = Config::default();
    let mut seen: HashMap<String, ()> = HashMap::new();
    for (path, data) in files {
        // The length keeps two splits of the same bytes apart.
        hasher.update((data.len() as u64).to_be_bytes());
        hasher.update(&data);
        let file = several.then_some(path);
        let fault = |kind| ConfigFault { file: file.clone(), kind };
        let (document, duplicates) = match kelson_codec::yaml::to_value(&data) {
            Ok(d) => d,
            Err(e) => {
                faults.push(fault(FaultKind::Other(format!("error decoding config: {e}"))));
                continue;
            }
        };
        faults.extend(duplicates.into_iter().map(|d| fault(FaultKind::Other(d))));
        let mut reader = Reader::default();
        let mut providers = reader.config(&document);
        // Names are looked at in the tree: a provider with another fault still holds its name.
        let listed = document.get("providers").and_then(|p| p.as_array());
        for (i, name) in listed.into_iter().flatten().enumerate().map(|(i, p)| (i, p.get("name"))) {
            let Some(name) = name.and_then(|n| n.as_str()).filter(|n| !n.is_empty()) else { continue };
            named.push(Named { file: file.clone(), index: i, name: name.to_owned() });
            if seen.insert(name.to_owned(), ()).is_some() {
                let value = Some(format!("{name:?}"));
                let path = format!("providers[{i}].name");
                reader.faults.0.push(FieldError {
                    kind: FieldErrorKind::Duplicate,
                    path,
                    value,
                    detail: String::new(),
                });
            }
        }
        faults.extend(reader.faults.0.into_iter().map(|e| fault(FaultKind::Field(e))));
        config.providers.append(&mut providers);
    }
    config.hash = format!("sha256:{:x}", hasher.finalize());
    (config, named)
}

/// Returns what is wrong with the executables of these providers.
fn check_bin_dir(named: &[Named], bin_dir: &Path) -> Vec<ConfigFault> {
    let other = |why: String| ConfigFault { file: None, kind: FaultKind::Other(why) };
    match fs::metadata(bin_dir) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            return vec![other(format!("plugin binary directory {} did not exist", bin_dir.display()))];
        }
        Err(e) => return vec![other(format!("error inspecting binary directory {}: {e}", bin_dir.display()))],
        Ok(m) if !m.is_dir() => {
            return vec![other(format!("plugin binary directory {} is not a directory", bin_dir.display()))];
        }
        Ok(_) => {}
    }
    let mut faults = Vec::new();
    for p in named.iter().filter(|p| !p.name.contains(['/', '\0'])) {
        let path = bin_dir.join(&p.name);
        let shown = path.display();
        let why = match fs::metadata(&path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                format!("plugin binary executable {shown} did not exist")
            }
            Err(e) => format!("error inspecting binary executable {shown}: {e}"),
            Ok(m) if m.is_dir() => format!("error inspecting binary executable {shown}: is a directory"),
            Ok(m) if m.permissions().mode() & 0o111 == 0 => {
                format!("error inspecting binary executable {shown}: permission denied")
            }
            Ok(_) => continue,
        };
        let path = format!("providers[{}].name", p.index);
        let error =
            FieldError { kind: FieldErrorKind::Invalid, path, value: Some(format!("{:?}", p.name)), detail: why };
        faults.push(ConfigFault { file: p.file.clone(), kind: FaultKind::Field(error) });
    }
    faults
}
