//! Moving from k3s: the counterparts of its flags, environment variables and configuration file (`alias`, `table`), the
//! report of `kelson migrate k3s` (`translate`, `migrate`), and the table of `docs/k3s.md` (`page`).
mod alias;
mod migrate;
#[cfg(test)]
mod page;
mod table;
mod translate;

pub use migrate::{MigrateCommand, run};

use alias::Counterpart;
use table::ALIASES;

/// Explains a flag of k3s that a user wrote into Kelson's configuration file.
pub fn hint(name: &str) -> Option<String> {
    let alias = ALIASES.iter().find(|alias| alias.flag == name && !matches!(alias.to, Counterpart::Same))?;
    Some(match alias.to {
        Counterpart::Same => format!("it is a flag of k3s, {}", alias.flag),
        Counterpart::Flag(here) | Counterpart::Converts(here, _) => format!("it is k3s' name for {here}"),
        Counterpart::Arguments => "it is a flag of k3s: write the component's flags as keys".to_owned(),
        Counterpart::Parts => "it is k3s' name for disable".to_owned(),
        Counterpart::Unneeded | Counterpart::Refused => format!("it is a flag of k3s: {}", alias.note),
    })
}
