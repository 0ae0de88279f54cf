//! `kelson status`: what runs here, where it listens, what it keeps, what ends soon, and what to do about it. `facts` is gathered in
//! `gather`, what it means is decided in `warn`, which is pure, and written in `show`.
pub mod facts;
pub mod gather;
pub mod show;
pub mod warn;

use anyhow::bail;
use kelson_check::Level;

use super::args::StatusArgs;

/// Prints the status.
///
/// # Errors
/// There is no data directory, or a warning says that something does not work.
pub async fn run(args: &StatusArgs) -> anyhow::Result<()> {
    let facts = gather::gather(&args.data_dir).await?;
    let warnings = warn::warnings(&facts);
    match args.output.as_str() {
        "json" => outln!("{}", show::json(&facts, &warnings)?),
        _ => out!("{}", show::text(&facts, &warnings)),
    }
    if warnings.iter().any(|warning| warning.level == Level::Error) {
        bail!("there are problems; see the warnings above");
    }
    Ok(())
}
