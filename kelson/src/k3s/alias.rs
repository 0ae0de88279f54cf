//! What k3s' flags are here: one row for each flag, which is a key of its configuration file as well. The rows are in `table`.

/// The commands that have a flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// `k3s server` and `k3s agent`.
    Both,
    /// `k3s server` alone.
    Server,
    /// `k3s agent` alone.
    Agent,
}

/// A value in Kelson's terms: flags with their values, or why there is none.
pub type Converted = Result<Vec<(&'static str, String)>, String>;

/// The counterpart of a flag in Kelson.
#[derive(Debug, Clone, Copy)]
pub enum Counterpart {
    /// A flag of the same name and meaning.
    Same,
    /// A flag of another name and the same meaning.
    Flag(&'static str),
    /// A flag whose value is written differently.
    Converts(&'static str, fn(&str) -> Converted),
    /// Values that are flags of a component: `NAME=VALUE`, of which those are taken that Kelson's command has.
    Arguments,
    /// Parts to leave out, of which those count that Kelson has.
    Parts,
    /// Nothing needs to be set: Kelson does so anyway.
    Unneeded,
    /// Kelson has no counterpart.
    Refused,
}

/// A row of the table.
#[derive(Debug, Clone, Copy)]
pub struct Alias {
    /// The flag, without dashes.
    pub flag: &'static str,
    /// Its letter, if it has one.
    pub letter: Option<char>,
    /// The environment variable of the same meaning; empty: none.
    pub variable: &'static str,
    /// The commands that have it.
    pub scope: Scope,
    /// The value that changes nothing; empty: none.
    pub default: &'static str,
    /// Whether the value is never printed in reports.
    pub is_secret: bool,
    /// Whether it is true or false, so that a word after it is not its value.
    pub is_truth: bool,
    /// The counterpart in Kelson.
    pub to: Counterpart,
    /// What a reader must know of it: differences, or why it has no counterpart and what to do instead.
    pub note: &'static str,
}

const fn alias(flag: &'static str, to: Counterpart, note: &'static str) -> Alias {
    Alias {
        flag,
        letter: None,
        variable: "",
        scope: Scope::Both,
        default: "",
        is_secret: false,
        is_truth: false,
        to,
        note,
    }
}

/// The same flag.
pub const fn same(flag: &'static str) -> Alias {
    alias(flag, Counterpart::Same, "")
}

/// A flag of another name.
pub const fn named(flag: &'static str, here: &'static str) -> Alias {
    alias(flag, Counterpart::Flag(here), "")
}

/// A flag whose value is converted.
pub const fn converts(flag: &'static str, here: &'static str, convert: fn(&str) -> Converted) -> Alias {
    alias(flag, Counterpart::Converts(here, convert), "")
}

/// A flag whose values are flags of a component.
pub const fn arguments(flag: &'static str) -> Alias {
    alias(flag, Counterpart::Arguments, "flags that Kelson's command has under the same name")
}

/// A flag whose values are parts to leave out.
pub const fn parts(flag: &'static str) -> Alias {
    alias(flag, Counterpart::Parts, "parts that Kelson has; what it does not have needs no mention")
}

/// A flag that is not needed.
pub const fn unneeded(flag: &'static str, why: &'static str) -> Alias {
    alias(flag, Counterpart::Unneeded, why)
}

/// A flag without a counterpart.
pub const fn refused(flag: &'static str, why: &'static str) -> Alias {
    alias(flag, Counterpart::Refused, why)
}

impl Alias {
    /// With the environment variable of the same meaning.
    pub const fn variable(mut self, name: &'static str) -> Self {
        self.variable = name;
        self
    }

    /// With the letter of its short form.
    pub const fn letter(mut self, letter: char) -> Self {
        self.letter = Some(letter);
        self
    }

    /// Of `k3s server` alone.
    pub const fn server(mut self) -> Self {
        self.scope = Scope::Server;
        self
    }

    /// Of `k3s agent` alone.
    pub const fn agent(mut self) -> Self {
        self.scope = Scope::Agent;
        self
    }

    /// With the value that changes nothing.
    pub const fn unless(mut self, default: &'static str) -> Self {
        self.default = default;
        self
    }

    /// With a value that is not printed.
    pub const fn secret(mut self) -> Self {
        self.is_secret = true;
        self
    }

    /// That is true or false.
    pub const fn truth(mut self) -> Self {
        self.is_truth = true;
        self
    }

    /// With what a reader must know.
    pub const fn note(mut self, note: &'static str) -> Self {
        self.note = note;
        self
    }

    /// Whether the command of this name has the flag.
    pub fn is_of(&self, command: &str) -> bool {
        match self.scope {
            Scope::Both => true,
            Scope::Server => command == "server",
            Scope::Agent => command == "agent",
        }
    }
}
