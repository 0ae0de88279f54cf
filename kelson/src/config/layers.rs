//! Merges configuration files: a later file replaces the settings of earlier ones, unless the key ends with `+`, which
//! appends to its list.
#![allow(clippy::disallowed_methods, reason = "blocking: at start, or by a command that does nothing else")]
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::path::{Path, PathBuf};

use kelson_codec::yaml::{SettingValue, settings};

use super::keys::{Key, nearest};
use crate::flags;

/// The default configuration file, which may be missing.
const DEFAULT_FILE: &str = "/etc/kelson/config.yaml";
/// The maximum size of a configuration file in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// A line of a configuration file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    /// The file, as given by the user.
    pub file: PathBuf,
    /// The line number, from 1.
    pub line: usize,
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file.display(), self.line)
    }
}

/// The setting of one flag in files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigSetting {
    /// One value, or those of a list.
    pub values: Vec<String>,
    /// The lines that set it.
    pub from: Vec<Location>,
}

/// The settings of all files, by flag.
pub type ConfigSettings = BTreeMap<String, ConfigSetting>;

/// Why a configuration is rejected.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A file or directory cannot be read.
    #[error("read {}: {error}", path.display())]
    Read {
        /// The file of the error.
        path: PathBuf,
        /// The system's error.
        error: std::io::Error,
    },
    /// A file is not a mapping of keys to values.
    #[error("{}: {error}", path.display())]
    Yaml {
        /// The file of the error.
        path: PathBuf,
        /// The error, with its line.
        error: kelson_codec::DecodeError,
    },
    /// An unknown key or an invalid value.
    #[error("{at}: {why}")]
    Setting {
        /// The line of the key.
        at: Location,
        /// The error and how to correct it.
        why: String,
    },
}

/// Reads the configuration files in order: `named`, or else the default one, and those in the directory next to it.
///
/// # Errors
/// One of them cannot be read. The default file and the directory may be missing.
pub fn read(named: Option<&Path>) -> Result<Vec<(PathBuf, Vec<u8>)>, ConfigError> {
    let file = named.unwrap_or(Path::new(DEFAULT_FILE));
    let mut files = Vec::new();
    match contents(file) {
        Ok(data) => files.push((file.to_owned(), data)),
        Err(e) if named.is_none() && e.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(ConfigError::Read { path: file.to_owned(), error }),
    }
    let mut dir = file.as_os_str().to_owned();
    dir.push(".d");
    let dir = PathBuf::from(dir);
    for path in in_order(&dir).map_err(|error| ConfigError::Read { path: dir, error })? {
        let data = contents(&path).map_err(|error| ConfigError::Read { path: path.clone(), error })?;
        files.push((path, data));
    }
    Ok(files)
}

fn contents(file: &Path) -> std::io::Result<Vec<u8>> {
    if std::fs::metadata(file)?.len() > FILE_BYTES_MAX {
        return Err(std::io::Error::other(format!("larger than {FILE_BYTES_MAX} bytes")));
    }
    std::fs::read(file)
}

/// Returns the YAML files of a directory by name, without hidden ones.
fn in_order(dir: &Path) -> std::io::Result<Vec<PathBuf>> {
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(e),
    };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        let is_yaml = name.ends_with(".yaml") || name.ends_with(".yml");
        if is_yaml && !name.starts_with('.') && path.is_file() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Merges the files. `hint` explains an unknown key if it can.
///
/// # Errors
/// The first invalid key or value, with its file and line.
pub fn merge(
    keys: &BTreeMap<String, Key>,
    files: &[(PathBuf, Vec<u8>)],
    hint: impl Fn(&str) -> Option<String>,
) -> Result<ConfigSettings, ConfigError> {
    let mut all = ConfigSettings::new();
    for (path, data) in files {
        let read = settings(data).map_err(|error| ConfigError::Yaml { path: path.clone(), error })?;
        let mut here: BTreeMap<(String, bool), usize> = BTreeMap::new();
        for setting in read {
            let at = Location { file: path.clone(), line: setting.line };
            let wrong = |why: String| ConfigError::Setting { at: at.clone(), why };
            let (name, appends) = match setting.name.strip_suffix('+') {
                Some(name) => (name, true),
                None => (setting.name.as_str(), false),
            };
            let Some(key) = keys.get(name) else {
                return Err(wrong(unknown(name, keys, hint(name))));
            };
            if let Some(line) = here.insert((key.flag.clone(), appends), at.line) {
                return Err(wrong(format!("key {:?} is already set in line {line}", setting.name)));
            }
            if appends && !key.is_list {
                return Err(wrong(format!(
                    "key {name:?} takes one value, so nothing can be added to it; write {name:?} without +"
                )));
            }
            let values = values(key, name, setting.value).map_err(wrong)?;
            match all.entry(key.flag.clone()) {
                Entry::Occupied(mut before) if appends => {
                    before.get_mut().values.extend(values);
                    before.get_mut().from.push(at);
                }
                Entry::Occupied(mut before) => *before.get_mut() = ConfigSetting { values, from: vec![at] },
                Entry::Vacant(none) => drop(none.insert(ConfigSetting { values, from: vec![at] })),
            }
        }
    }
    Ok(all)
}

fn unknown(name: &str, keys: &BTreeMap<String, Key>, hint: Option<String>) -> String {
    let near = || nearest(name, keys.keys().map(String::as_str)).map(|near| format!("did you mean {near:?}?"));
    match hint.or_else(near) {
        Some(more) => format!("unknown key {name:?}; {more}"),
        None => format!("unknown key {name:?}"),
    }
}

/// Returns the values of a key as words of a command line.
fn values(key: &Key, name: &str, value: SettingValue) -> Result<Vec<String>, String> {
    match value {
        SettingValue::Null => Err(format!("key {name:?} requires a value")),
        SettingValue::List(items) if key.is_list => Ok(items),
        SettingValue::List(_) => Err(format!("key {name:?} must be a single value, got a list")),
        SettingValue::Text(text) if key.is_bool => match truth(&text) {
            Some(truth) => Ok(vec![truth.to_string()]),
            None => Err(format!("key {name:?} must be true or false, got {text:?}")),
        },
        SettingValue::Text(text) => Ok(vec![text]),
    }
}

/// Parses a boolean as Go and YAML 1.1 do.
fn truth(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "yes" | "on" | "y" => Some(true),
        "no" | "off" | "n" => Some(false),
        _ => flags::truth(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn test_keys() -> BTreeMap<String, Key> {
        let key = |flag: &str, is_list, is_bool| Key { flag: flag.to_owned(), is_list, is_bool, is_secret: false };
        let mut keys: BTreeMap<String, Key> =
            [key("secure-port", false, false), key("tls-san", true, false), key("disable-agent", false, true)]
                .into_iter()
                .map(|key| (key.flag.clone(), key))
                .collect();
        keys.insert("san".to_owned(), keys["tls-san"].clone());
        keys
    }

    fn merged(texts: &[&str]) -> Result<Vec<String>, String> {
        let files: Vec<(PathBuf, Vec<u8>)> =
            texts.iter().enumerate().map(|(i, text)| (format!("/{i}.yaml").into(), text.as_bytes().into())).collect();
        let hint = |name: &str| (name == "https-listen-port").then(|| "k3s' name".to_owned());
        let all = merge(&test_keys(), &files, hint).map_err(|e| e.to_string())?;
        let shown = |(flag, set): (&String, &ConfigSetting)| {
            let from: Vec<String> = set.from.iter().map(ToString::to_string).collect();
            format!("{flag}={} {}", set.values.join(","), from.join(" "))
        };
        Ok(all.iter().map(shown).collect())
    }

    #[test]
    fn later_files_replace_and_a_plus_adds() {
        assert_eq!(
            merged(&[
                "secure-port: 1\ntls-san:\n- a\n",
                "tls-san+: [b]\nsecure-port: 2\n",
                "tls-san+: c,d\ndisable-agent: yes\n",
            ])
            .unwrap(),
            [
                "disable-agent=true /2.yaml:2",
                "secure-port=2 /1.yaml:2",
                "tls-san=a,b,c,d /0.yaml:2 /1.yaml:1 /2.yaml:1"
            ]
        );
        assert_eq!(merged(&["tls-san: [a]", "tls-san: [b]"]).unwrap(), ["tls-san=b /1.yaml:1"]);
        assert_eq!(merged(&["tls-san: [a]\nsan+: b", "tls-san: []"]).unwrap(), ["tls-san= /1.yaml:1"]);
        assert_eq!(merged(&["", "# none"]).unwrap(), [""; 0]);
    }

    #[test]
    fn a_mistake_is_named_with_its_file_and_line() {
        for (text, want) in [
            ("secure-prot: 1", r#"/0.yaml:1: unknown key "secure-prot"; did you mean "secure-port"?"#),
            ("\nhttps-listen-port: 1", r#"/0.yaml:2: unknown key "https-listen-port"; k3s' name"#),
            ("xyz: 1", r#"/0.yaml:1: unknown key "xyz""#),
            ("secure-port: [1]", r#"/0.yaml:1: key "secure-port" must be a single value, got a list"#),
            ("secure-port:", r#"/0.yaml:1: key "secure-port" requires a value"#),
            ("secure-port: 1\nsecure-port: 2", r#"/0.yaml:2: key "secure-port" is already set in line 1"#),
            ("disable-agent: maybe", r#"/0.yaml:1: key "disable-agent" must be true or false, got "maybe""#),
        ] {
            assert_eq!(merged(&[text]).unwrap_err(), want, "{text}");
        }
        assert!(merged(&["secure-port+: 1"]).unwrap_err().contains("takes one value"));
        assert!(merged(&["secure-port: 1", "a: {}"]).unwrap_err().starts_with("/1.yaml: yaml: "));
    }

    #[test]
    fn files_of_the_directory_come_by_name_and_a_named_file_must_be_there() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("c.yaml");
        assert!(matches!(read(Some(&file)), Err(ConfigError::Read { .. })));
        let beside = dir.path().join("c.yaml.d");
        std::fs::create_dir(&beside).unwrap();
        for name in ["2.yaml", "10.yml", ".hidden.yaml", "note.txt"] {
            std::fs::write(beside.join(name), name).unwrap();
        }
        std::fs::write(&file, "first").unwrap();
        let found = read(Some(&file)).unwrap();
        let names: Vec<String> = found.iter().map(|(_, data)| String::from_utf8_lossy(data).into_owned()).collect();
        assert_eq!(names, ["first", "10.yml", "2.yaml"]);
    }
}
