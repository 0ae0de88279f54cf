//! `kelson status`: what runs here, where it listens, what it keeps, what ends soon, and what to do about it. `facts` is gathered in
//! `gather`, what it means is decided in `judge`, which is pure, and written in `show`.
mod facts;
mod gather;
mod judge;
mod show;

use anyhow::bail;
use kelson_check::Level;

use super::args::StatusArgs;

/// Prints it.
///
/// # Errors
/// No data directory is there, or a warning says that something does not work.
pub async fn run(args: &StatusArgs) -> anyhow::Result<()> {
    let facts = gather::gather(&args.data_dir).await?;
    let warnings = judge::warnings(&facts);
    match args.output.as_str() {
        "json" => println!("{}", show::json(&facts, &warnings)?),
        _ => print!("{}", show::text(&facts, &warnings)),
    }
    if warnings.iter().any(|warning| warning.level == Level::Error) {
        bail!("something does not work: see the warnings above");
    }
    Ok(())
}
