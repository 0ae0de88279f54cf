//! The CNI executable: the protocol of the specification (versions 0.3.0 to 1.1.0) around the network's operations. The
//! kelson binary acts as this plugin when a runtime starts it with `CNI_COMMAND` set; with the name `loopback` it
//! brings `lo` up. It uses no thread pool, no TLS and no configuration file, since a pod's start waits for it.
//! (https://www.cni.dev/docs/spec/)

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr};
use std::process::ExitCode;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::config::NetworkConfig;
use crate::error::NetError;
use crate::netlink::Links;
use crate::netns::{Netns, block_on};
use crate::network::{Attachment, attach, check, collect, detach, status};
use crate::ports::{PortMapping, Protocol};

/// Supported versions, oldest first.
const VERSIONS: [&str; 5] = ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];
/// The version of an answer when the configuration has none.
const VERSION_DEFAULT: &str = "0.3.0";
/// The maximum size of a configuration from standard input.
const STDIN_BYTES_MAX: u64 = 4 << 20;
/// The maximum length of an interface name in the kernel.
const IFNAME_BYTES_MAX: usize = 15;

/// Acts as a CNI plugin if the environment requests it, and returns the exit code; `None` when this is not a CNI call.
/// Must be called first in `main`, before anything is set up.
pub fn run_if_invoked() -> Option<ExitCode> {
    let command = std::env::var("CNI_COMMAND").ok()?;
    let program = std::env::args_os().next().unwrap_or_default();
    let program = std::path::Path::new(&program).file_name().unwrap_or_default().to_string_lossy().into_owned();
    let plugin = if program == "loopback" { Plugin::Loopback } else { Plugin::Kelson };
    let env = |name: &str| std::env::var(name).unwrap_or_default();
    let mut stdin = Vec::new();
    // Only a runtime with an ancient protocol keeps our input open for VERSION, and none of those is left.
    let read = std::io::stdin().take(STDIN_BYTES_MAX).read_to_end(&mut stdin);
    let call = Call {
        plugin,
        command,
        container: env("CNI_CONTAINERID"),
        netns: env("CNI_NETNS"),
        ifname: env("CNI_IFNAME"),
        stdin,
    };
    let answer = match read {
        Ok(_) => call.run(),
        Err(e) => Err(Failure::new(VERSION_DEFAULT, 5, "failed to read the configuration", e.to_string())),
    };
    let (text, code) = match answer {
        Ok(None) => return Some(ExitCode::SUCCESS),
        Ok(Some(value)) => (value.to_string(), ExitCode::SUCCESS),
        Err(failure) => (failure.to_json().to_string(), ExitCode::FAILURE),
    };
    // A runtime that closed its end gets the result from the exit code.
    let _ = std::io::stdout().write_all(text.as_bytes());
    Some(code)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Plugin {
    Kelson,
    Loopback,
}

struct Call {
    plugin: Plugin,
    command: String,
    container: String,
    netns: String,
    ifname: String,
    stdin: Vec<u8>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PluginConfig {
    #[serde(default)]
    cni_version: String,
    kelson: Option<NetworkConfig>,
    /// Read by ADD only: an invalid value must not prevent DEL.
    #[serde(default)]
    runtime_config: Value,
    prev_result: Option<Value>,
    #[serde(rename = "cni.dev/valid-attachments", default)]
    valid_attachments: Vec<ValidAttachment>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RuntimeConfig {
    #[serde(default)]
    port_mappings: Option<Vec<ConfiguredPort>>,
}

/// The convention is camel case; containerd's library writes Go's field names, relying on readers that ignore case.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ConfiguredPort {
    #[serde(alias = "HostPort")]
    host_port: i64,
    #[serde(alias = "ContainerPort")]
    container_port: i64,
    #[serde(alias = "Protocol", default)]
    protocol: String,
    #[serde(rename = "hostIP", alias = "HostIP", default)]
    host_ip: String,
}

#[derive(Debug, PartialEq, Eq, Deserialize)]
struct ValidAttachment {
    #[serde(rename = "containerID")]
    container_id: String,
    ifname: String,
}

/// An error in CNI's format.
#[derive(Debug, PartialEq, Eq)]
struct Failure {
    version: String,
    code: u32,
    msg: String,
    details: String,
}

impl Failure {
    fn new(version: &str, code: u32, msg: impl Into<String>, details: impl Into<String>) -> Self {
        Self { version: version.to_owned(), code, msg: msg.into(), details: details.into() }
    }

    fn to_json(&self) -> Value {
        json!({ "cniVersion": self.version, "code": self.code, "msg": self.msg, "details": self.details })
    }
}

/// Reports whether a call is valid and would be carried out, without doing anything. Takes the command, the container's
/// ID, the interface's name, and the configuration.
pub fn is_sound(command: &str, container: &str, ifname: &str, configuration: &[u8]) -> bool {
    let own = |text: &str| text.to_owned();
    let call = Call {
        plugin: Plugin::Kelson,
        command: own(command),
        container: own(container),
        netns: own("/proc/self/ns/net"),
        ifname: own(ifname),
        stdin: configuration.to_vec(),
    };
    call.read().is_ok_and(|(config, _)| config.kelson.is_some() && ports_of(&config.runtime_config).is_ok())
}

impl Call {
    /// Returns the configuration and its version, if the call is valid.
    fn read(&self) -> Result<(PluginConfig, String), Failure> {
        let config: PluginConfig = serde_json::from_slice(&self.stdin)
            .map_err(|e| Failure::new(VERSION_DEFAULT, 6, "failed to decode the configuration", e.to_string()))?;
        let version =
            if config.cni_version.is_empty() { VERSION_DEFAULT.to_owned() } else { config.cni_version.clone() };
        if !VERSIONS.contains(&version.as_str()) {
            let details = format!("config is {version:?}, plugin supports {VERSIONS:?}");
            return Err(Failure::new(VERSION_DEFAULT, 1, "incompatible CNI versions", details));
        }
        self.check_environment(&version)?;
        Ok((config, version))
    }

    fn run(&self) -> Result<Option<Value>, Failure> {
        if self.command == "VERSION" {
            let version = version_of(&self.stdin);
            return Ok(Some(json!({ "cniVersion": version, "supportedVersions": VERSIONS })));
        }
        let (config, version) = self.read()?;
        let done = match self.plugin {
            Plugin::Loopback => self.loopback(&config, &version),
            Plugin::Kelson => {
                let Some(network) = &config.kelson else {
                    return Err(Failure::new(&version, 7, "the configuration has no \"kelson\" object", ""));
                };
                self.kelson(&config, network, &version)
            }
        };
        done.map_err(|e| match e {
            CallError::Net(e) => Failure::new(&version, e.cni_code(), e.to_string(), ""),
            CallError::Failure(f) => f,
        })
    }

    fn check_environment(&self, version: &str) -> Result<(), Failure> {
        let needed: &[(&str, &str)] = match self.command.as_str() {
            "ADD" | "CHECK" => {
                &[("CNI_CONTAINERID", &self.container), ("CNI_NETNS", &self.netns), ("CNI_IFNAME", &self.ifname)]
            }
            // Without a namespace DEL still releases the address.
            "DEL" => &[("CNI_CONTAINERID", &self.container), ("CNI_IFNAME", &self.ifname)],
            "GC" | "STATUS" => &[],
            other => return Err(Failure::new(version, 4, format!("unknown CNI_COMMAND: {other}"), "")),
        };
        let missing: Vec<&str> = needed.iter().filter(|(_, v)| v.is_empty()).map(|(name, _)| *name).collect();
        if !missing.is_empty() {
            let msg = format!("required env variables [{}] missing", missing.join(","));
            return Err(Failure::new(version, 4, msg, ""));
        }
        let bad_ifname = self.ifname.len() > IFNAME_BYTES_MAX
            || matches!(self.ifname.as_str(), "." | "..")
            || self.ifname.bytes().any(|b| b == b'/' || b == b':' || b.is_ascii_whitespace());
        if bad_ifname {
            return Err(Failure::new(version, 4, format!("invalid interface name: {:?}", self.ifname), ""));
        }
        let bad_id = |c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-'));
        if self.container.contains(bad_id) || self.container.starts_with(['_', '.', '-']) {
            return Err(Failure::new(version, 4, format!("invalid container ID: {:?}", self.container), ""));
        }
        Ok(())
    }

    fn kelson(
        &self,
        config: &PluginConfig,
        network: &NetworkConfig,
        version: &str,
    ) -> Result<Option<Value>, CallError> {
        match self.command.as_str() {
            "ADD" => {
                let ports = ports_of(&config.runtime_config)?;
                let made = attach(network, &self.container, &self.ifname, &self.netns, ports)?;
                Ok(Some(result_json(version, &made, &self.ifname, &self.netns)))
            }
            "DEL" => detach(network, &self.container, &self.ifname).map(|()| None).map_err(Into::into),
            "CHECK" => check(network, &self.container, &self.ifname, &self.netns).map(|()| None).map_err(Into::into),
            "GC" => {
                let valid = |container: &str, ifname: &str| {
                    config.valid_attachments.iter().any(|v| v.container_id == container && v.ifname == ifname)
                };
                collect(network, valid).map(|_| None).map_err(Into::into)
            }
            // Code 50: "the plugin is not available, it cannot service ADD requests".
            _ => status(network)
                .map(|()| None)
                .map_err(|e| CallError::Failure(Failure::new(version, 50, e.to_string(), ""))),
        }
    }

    fn loopback(&self, config: &PluginConfig, version: &str) -> Result<Option<Value>, CallError> {
        match self.command.as_str() {
            "ADD" => {
                Netns::open(&self.netns)?.run(|| block_on(loopback_up()))?;
                // The result of an earlier plugin in the chain is returned unchanged.
                Ok(Some(config.prev_result.clone().unwrap_or_else(|| loopback_json(version, &self.netns))))
            }
            "CHECK" => {
                let up = Netns::open(&self.netns)?
                    .run(|| block_on(async { Ok(Links::open()?.by_name("lo").await?.is_some_and(|lo| lo.up)) }))?;
                if up { Ok(None) } else { Err(NetError::Check("loopback interface is down".to_owned()).into()) }
            }
            // The interface is deleted with its namespace.
            _ => Ok(None),
        }
    }
}

enum CallError {
    Net(NetError),
    Failure(Failure),
}

impl From<NetError> for CallError {
    fn from(error: NetError) -> Self {
        CallError::Net(error)
    }
}

async fn loopback_up() -> Result<(), NetError> {
    let links = Links::open()?;
    match links.by_name("lo").await? {
        Some(lo) => links.set_up(lo.index).await,
        None => Err(NetError::Check("the namespace has no loopback interface".to_owned())),
    }
}

fn version_of(stdin: &[u8]) -> String {
    let config: Value = serde_json::from_slice(stdin).unwrap_or_default();
    config["cniVersion"].as_str().unwrap_or(VERSION_DEFAULT).to_owned()
}

fn ports_of(runtime: &Value) -> Result<Vec<PortMapping>, NetError> {
    let mut ports = Vec::new();
    let runtime = Option::<RuntimeConfig>::deserialize(runtime)
        .map_err(|e| NetError::Config(format!("runtimeConfig: {e}")))?
        .unwrap_or_default();
    for port in runtime.port_mappings.iter().flatten().filter(|p| p.host_port > 0) {
        let number = |name: &str, value: i64| match u16::try_from(value) {
            Ok(n) if n > 0 => Ok(n),
            _ => Err(NetError::Config(format!("invalid {name} port number: {value}"))),
        };
        let protocol = match port.protocol.to_ascii_lowercase().as_str() {
            "" | "tcp" => Protocol::Tcp,
            "udp" => Protocol::Udp,
            "sctp" => Protocol::Sctp,
            other => return Err(NetError::Config(format!("unknown port protocol {other:?}"))),
        };
        let host_ip = match port.host_ip.as_str() {
            "" => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            text => text.parse().map_err(|_| NetError::Config(format!("invalid hostIP {text:?}")))?,
        };
        if host_ip.is_ipv6() && !host_ip.is_unspecified() {
            // Pods have no IPv6 address to map it to.
            continue;
        }
        ports.push(PortMapping {
            host_port: number("host", port.host_port)?,
            container_port: number("container", port.container_port)?,
            protocol,
            host_ip: if host_ip.is_ipv6() { IpAddr::V4(Ipv4Addr::UNSPECIFIED) } else { host_ip },
        });
    }
    Ok(ports)
}

fn result_json(version: &str, made: &Attachment, ifname: &str, netns: &str) -> Value {
    let mut ip = json!({
        "address": format!("{}/{}", made.ip, if made.ip.is_ipv4() { 32 } else { 128 }),
        "gateway": made.gateway,
        "interface": 1,
    });
    if version.starts_with("0.") {
        ip["version"] = json!(if made.ip.is_ipv4() { "4" } else { "6" });
    }
    json!({
        "cniVersion": version,
        "interfaces": [
            { "name": made.host_name, "mac": made.host_mac },
            { "name": ifname, "mac": made.pod_mac, "sandbox": netns },
        ],
        "ips": [ip],
        "routes": [{ "dst": "0.0.0.0/0", "gw": made.gateway }],
        "dns": {},
    })
}

fn loopback_json(version: &str, netns: &str) -> Value {
    let mut ip = json!({ "address": "127.0.0.1/8", "interface": 0 });
    if version.starts_with("0.") {
        ip["version"] = json!("4");
    }
    json!({
        "cniVersion": version,
        "interfaces": [{ "name": "lo", "mac": "00:00:00:00:00:00", "sandbox": netns }],
        "ips": [ip],
        "dns": {},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(command: &str, stdin: &str) -> Result<Option<Value>, Failure> {
        Call {
            plugin: Plugin::Kelson,
            command: command.into(),
            container: "abc".into(),
            netns: String::new(),
            ifname: "eth0".into(),
            stdin: stdin.as_bytes().to_vec(),
        }
        .run()
    }

    #[test]
    fn what_becomes_a_path_or_a_name_is_checked() {
        let configuration = json!({"cniVersion": "1.1.0",
            "kelson": {"id": "x", "dataDir": "/x", "subnets": ["10.42.0.0/24"], "clusterCidrs": ["10.42.0.0/16"]}});
        let is_sound = |id: &str, ifname: &str| is_sound("ADD", id, ifname, configuration.to_string().as_bytes());
        assert!(is_sound("abc", "eth0"));
        for (id, ifname) in
            [("..", "eth0"), (".hidden", "eth0"), ("a/b", "eth0"), ("a b", "eth0"), ("abc", "a/b"), ("abc", "..")]
        {
            assert!(!is_sound(id, ifname), "{id} {ifname}");
        }
    }

    #[test]
    fn version_lists_what_is_spoken() {
        let answer = call("VERSION", r#"{"cniVersion":"1.0.0"}"#).unwrap().unwrap();
        assert_eq!(answer["cniVersion"], "1.0.0");
        assert_eq!(answer["supportedVersions"][4], "1.1.0");
    }

    #[test]
    fn refusals_have_the_specified_codes() {
        let cases = [
            ("ADD", "not json", 6, "failed to decode the configuration"),
            ("ADD", r#"{"cniVersion":"9.0.0"}"#, 1, "incompatible CNI versions"),
            ("ADD", r#"{"cniVersion":"1.0.0"}"#, 4, "required env variables [CNI_NETNS] missing"),
            ("DEL", r#"{"cniVersion":"1.0.0"}"#, 7, "the configuration has no \"kelson\" object"),
            ("FLY", r#"{"cniVersion":"1.0.0"}"#, 4, "unknown CNI_COMMAND: FLY"),
        ];
        for (command, stdin, code, msg) in cases {
            let failure = call(command, stdin).expect_err(command);
            assert_eq!((failure.code, failure.msg.as_str()), (code, msg), "{command} {stdin}");
            assert_eq!(failure.to_json()["code"], code);
        }
    }

    #[test]
    fn host_ports_are_read_as_containerd_writes_them() {
        let runtime: Value = serde_json::from_str(
            r#"{"portMappings":[{"HostPort":8080,"ContainerPort":80,"Protocol":"tcp","HostIP":""},
                {"hostPort":53,"containerPort":5353,"protocol":"UDP","hostIP":"192.0.2.2"},
                {"hostPort":0,"containerPort":1,"protocol":"tcp"}]}"#,
        )
        .unwrap();
        let ports = ports_of(&runtime).unwrap();
        assert_eq!(ports.len(), 2);
        assert_eq!((ports[0].host_port, ports[0].host_ip.is_unspecified()), (8080, true));
        assert_eq!((ports[1].protocol, ports[1].host_ip.to_string()), (Protocol::Udp, "192.0.2.2".to_owned()));
        assert!(ports_of(&Value::Null).unwrap().is_empty());
        let bad: Value = serde_json::from_str(r#"{"portMappings":[{"hostPort":70000,"containerPort":80}]}"#).unwrap();
        assert!(ports_of(&bad).is_err());
    }

    #[test]
    fn old_results_name_the_ip_version() {
        let made = Attachment {
            ip: "10.42.0.5".parse().unwrap(),
            gateway: "10.42.0.1".parse().unwrap(),
            host_name: "kv".into(),
            host_mac: "m".into(),
            pod_mac: "n".into(),
        };
        assert_eq!(result_json("0.4.0", &made, "eth0", "/n")["ips"][0]["version"], "4");
        let new = result_json("1.0.0", &made, "eth0", "/n");
        assert!(new["ips"][0].get("version").is_none());
        assert_eq!(new["ips"][0]["address"], "10.42.0.5/32");
        assert_eq!(new["interfaces"][1]["sandbox"], "/n");
    }
}
