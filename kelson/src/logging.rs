//! Log output: one line an event on standard error, level by `--log-level`.
use anyhow::Context as _;
use tracing_subscriber::EnvFilter;

/// Sets up logging for the whole process. The error names what is wrong with the filter.
pub fn init(level: &str) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(level).with_context(|| format!("--log-level {level:?}"))?;
    let ansi = std::io::IsTerminal::is_terminal(&std::io::stderr());
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(ansi).init();
    Ok(())
}
