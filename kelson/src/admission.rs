//! The admission flags of the API server: which plugins run, and their configuration.
use std::path::PathBuf;
use std::sync::LazyLock;

use clap::Args;
use kelson_admission::AdmissionOptions;
use kelson_admission::plugins::tolerations::DefaultTolerationSeconds;

/// The admission flags.
#[derive(Args, Debug, Clone)]
pub struct AdmissionArgs {
    #[arg(long, value_name = "PLUGINS", value_delimiter = ',', help = ENABLE.as_str())]
    pub enable_admission_plugins: Vec<String>,
    #[arg(long, value_name = "PLUGINS", value_delimiter = ',', help = DISABLE.as_str())]
    pub disable_admission_plugins: Vec<String>,
    /// Deprecated: the exact list of admission plugins to run. Cannot be combined with --enable-admission-plugins or
    /// --disable-admission-plugins.
    #[arg(long, value_name = "PLUGINS", value_delimiter = ',')]
    pub admission_control: Option<Vec<String>>,
    /// AdmissionConfiguration file: the configuration of admission plugins, inline or in other files.
    #[arg(long, value_name = "FILE")]
    pub admission_control_config_file: Option<PathBuf>,
    /// Default toleration of the taint node.kubernetes.io/not-ready in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 300, allow_negative_numbers = true)]
    pub default_not_ready_toleration_seconds: i64,
    /// Default toleration of the taint node.kubernetes.io/unreachable in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 300, allow_negative_numbers = true)]
    pub default_unreachable_toleration_seconds: i64,
}

/// Enabled by default though upstream disables it, as upstream's installers do: credentials of nodes may be stolen.
const USUAL_PLUGINS: [&str; 1] = ["NodeRestriction"];

static ENABLE: LazyLock<String> = LazyLock::new(|| plugins("Admission plugins to enable besides the default ones"));
static DISABLE: LazyLock<String> = LazyLock::new(|| plugins("Default admission plugins to disable"));

/// Returns the meaning of a flag, with the plugins that run by default and all plugins.
fn plugins(meaning: &str) -> String {
    let is_default = |n: &&str| kelson_admission::default_plugins().contains(n) || USUAL_PLUGINS.contains(n);
    let all = kelson_admission::known_plugins();
    let default: Vec<&str> = all.iter().copied().filter(|n| is_default(n)).collect();
    format!(
        "{meaning} ({}). All plugins, in the order in which they run regardless of the order here: {}",
        default.join(", "),
        all.join(", ")
    )
}

impl AdmissionArgs {
    /// Returns the options for the API server. Reads the configuration files.
    ///
    /// # Errors
    /// What is wrong with the files, in one line.
    pub fn options(&self) -> Result<AdmissionOptions, String> {
        let file = self.admission_control_config_file.as_deref();
        Ok(AdmissionOptions {
            enable: self.enable_admission_plugins.clone(),
            disable: self.disable_admission_plugins.clone(),
            exactly: self.admission_control.clone(),
            usual: USUAL_PLUGINS.to_vec(),
            configuration: file.map(kelson_admission::configuration::read).transpose()?.unwrap_or_default(),
            toleration_seconds: DefaultTolerationSeconds {
                not_ready_seconds: self.default_not_ready_toleration_seconds,
                unreachable_seconds: self.default_unreachable_toleration_seconds,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        admission: AdmissionArgs,
    }

    fn options(words: &[&str]) -> Result<AdmissionOptions, String> {
        let line = Line::try_parse_from([&["kelson"], words].concat()).map_err(|e| e.to_string())?;
        line.admission.options()
    }

    #[test]
    fn flags_are_read_as_upstream_reads_them() {
        let read = options(&["--enable-admission-plugins=A,B", "--enable-admission-plugins", "C"]).unwrap();
        assert_eq!(read.enable, ["A", "B", "C"]);
        assert_eq!((read.exactly, read.toleration_seconds), (None, DefaultTolerationSeconds::default()));
        assert_eq!(options(&["--admission-control="]).unwrap().exactly, Some(vec![String::new()]));
        let seconds = ["--default-not-ready-toleration-seconds=5", "--default-unreachable-toleration-seconds=-1"];
        let read = options(&seconds).unwrap().toleration_seconds;
        assert_eq!((read.not_ready_seconds, read.unreachable_seconds), (5, -1));
        let why = options(&["--admission-control-config-file=/nowhere"]).unwrap_err();
        assert!(why.starts_with("unable to read admission control configuration from \"/nowhere\""), "{why}");
    }

    #[test]
    fn help_lists_the_plugins_in_their_order() {
        use clap::CommandFactory as _;
        let help = Line::command().render_long_help().to_string();
        let words = help.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains("(NamespaceLifecycle, LimitRanger, ServiceAccount, NodeRestriction, "), "{words}");
        assert!(words.contains("the order here: AlwaysAdmit, NamespaceAutoProvision, NamespaceLifecycle, "), "{words}");
    }
}
