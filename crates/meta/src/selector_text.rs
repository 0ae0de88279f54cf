//! The string form of label selectors in queries and flags: `a=b,c!=d,e in (f,g),h,!i,j>1`. Syntax and error messages
//! match upstream's (`apimachinery/pkg/labels`).
use crate::names::{is_label_value, is_qualified_name};
use crate::selector::{LabelRequirement, LabelSelector, Operator, SelectorError};

/// The tokens of a selector string: operators, brackets, commas and words. The end is an empty token.
struct Pieces<'a> {
    rest: &'a str,
    next: &'a str,
}

fn is_symbol(c: char) -> bool {
    "=!(),<>".contains(c)
}

fn is_blank(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\r' | '\n')
}

impl<'a> Pieces<'a> {
    fn of(text: &'a str) -> Self {
        let mut pieces = Self { rest: text, next: "" };
        pieces.take();
        pieces
    }
    /// Returns the current token and reads the next one.
    fn take(&mut self) -> &'a str {
        let text = self.rest.trim_start_matches(is_blank);
        let end = match text.chars().next() {
            Some(first) if is_symbol(first) => {
                if text.starts_with("==") || text.starts_with("!=") {
                    2
                } else {
                    first.len_utf8()
                }
            }
            _ => text.find(|c| is_symbol(c) || is_blank(c)).unwrap_or(text.len()),
        };
        let (piece, rest) = text.split_at(end);
        self.rest = rest;
        std::mem::replace(&mut self.next, piece)
    }
    fn ends(&self) -> bool {
        self.next.is_empty()
    }
}

fn is_word(piece: &str) -> bool {
    piece.chars().next().is_some_and(|c| !is_symbol(c))
}

fn found(piece: &str, expected: &str) -> SelectorError {
    SelectorError(format!("found '{piece}', expected: {expected}"))
}

impl LabelSelector {
    /// Parses the query-string form: `a=b,c!=d,e in (f,g),h,!i,j>1`.
    ///
    /// # Errors
    /// Returns upstream's message for an invalid selector.
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        parse(text)
    }
}

fn parse(text: &str) -> Result<LabelSelector, SelectorError> {
    let mut pieces = Pieces::of(text);
    let mut requirements = Vec::new();
    while !pieces.ends() {
        if !is_word(pieces.next) && pieces.next != "!" {
            return Err(found(pieces.next, "!, identifier, or 'end of string'"));
        }
        let read = requirement(&mut pieces);
        requirements.push(read.map_err(|e| SelectorError(format!("unable to parse requirement: {e}")))?);
        match pieces.take() {
            "" => break,
            "," if is_word(pieces.next) || pieces.next == "!" => {}
            "," => return Err(found(pieces.next, "identifier after ','")),
            other => return Err(found(other, "',' or 'end of string'")),
        }
    }
    requirements.sort_by(|a: &LabelRequirement, b| a.key.cmp(&b.key));
    Ok(LabelSelector { requirements, nothing: false })
}

fn requirement(pieces: &mut Pieces<'_>) -> Result<LabelRequirement, SelectorError> {
    let absent = pieces.next == "!";
    if absent {
        pieces.take();
    }
    let key = pieces.take();
    if !is_word(key) {
        return Err(found(key, "identifier"));
    }
    if let Err(e) = is_qualified_name(key) {
        // In upstream's message, the key has no path.
        return Err(SelectorError(format!("<nil>: Invalid value: {key:?}: {}", e.join("; "))));
    }
    let made = |operator, values| LabelRequirement { key: key.to_owned(), operator, values };
    if absent {
        return Ok(made(Operator::DoesNotExist, Vec::new()));
    }
    if pieces.ends() || pieces.next == "," {
        return Ok(made(Operator::Exists, Vec::new()));
    }
    let operator = match pieces.take() {
        "in" => Operator::In,
        "notin" => Operator::NotIn,
        "=" | "==" => return one_value(pieces, made(Operator::In, Vec::new())),
        "!=" => return one_value(pieces, made(Operator::NotIn, Vec::new())),
        ">" => return one_value(pieces, made(Operator::Gt, Vec::new())),
        "<" => return one_value(pieces, made(Operator::Lt, Vec::new())),
        other => return Err(found(other, "in, notin, =, ==, !=, gt, lt")),
    };
    checked(made(operator, values(pieces)?))
}

fn one_value(pieces: &mut Pieces<'_>, mut requirement: LabelRequirement) -> Result<LabelRequirement, SelectorError> {
    let value = if pieces.ends() || pieces.next == "," { "" } else { pieces.take() };
    if !value.is_empty() && !is_word(value) {
        return Err(found(value, "identifier"));
    }
    requirement.values.push(value.to_owned());
    checked(requirement)
}

/// Parses the values in brackets. A value may be empty.
fn values(pieces: &mut Pieces<'_>) -> Result<Vec<String>, SelectorError> {
    let open = pieces.take();
    if open != "(" {
        return Err(SelectorError(format!("found '{open}' expected: '('")));
    }
    let mut values = Vec::new();
    if !is_word(pieces.next) && !matches!(pieces.next, "," | ")") {
        return Err(found(pieces.next, "',', ')' or identifier"));
    }
    // A comma separates two values, each of which may be empty.
    let mut complete = false;
    loop {
        match pieces.take() {
            ")" => {
                if !complete {
                    values.push(String::new());
                }
                break;
            }
            "," => {
                if !complete {
                    values.push(String::new());
                }
                complete = false;
            }
            word if is_word(word) && !complete => {
                values.push(word.to_owned());
                complete = true;
                if !matches!(pieces.next, "," | ")") {
                    return Err(found(pieces.next, "',' or ')'"));
                }
            }
            other => return Err(found(other, "',', or identifier")),
        }
    }
    values.sort();
    values.dedup();
    Ok(values)
}

fn checked(requirement: LabelRequirement) -> Result<LabelRequirement, SelectorError> {
    for (i, value) in requirement.values.iter().enumerate() {
        if matches!(requirement.operator, Operator::Gt | Operator::Lt) && value.parse::<i64>().is_err() {
            let why = "for 'Gt', 'Lt' operators, the value must be an integer";
            return Err(SelectorError(format!("values[{i}]: Invalid value: {value:?}: {why}")));
        }
        if let Err(e) = is_label_value(value) {
            let key = &requirement.key;
            return Err(SelectorError(format!("values[{i}][{key}]: Invalid value: {value:?}: {}", e.join("; "))));
        }
    }
    Ok(requirement)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_said_in_upstreams_words() {
        for (text, why) in [
            ("a===b", "unable to parse requirement: found '=', expected: identifier"),
            ("=b", "found '=', expected: !, identifier, or 'end of string'"),
            ("(", "found '(', expected: !, identifier, or 'end of string'"),
            (",,", "found ',', expected: !, identifier, or 'end of string'"),
            ("a,,b", "found ',', expected: identifier after ','"),
            ("a==b,", "found '', expected: identifier after ','"),
            ("a=b=c", "found '=', expected: ',' or 'end of string'"),
            ("!a=b", "found '=', expected: ',' or 'end of string'"),
            ("!", "unable to parse requirement: found '', expected: identifier"),
            ("a in b", "unable to parse requirement: found 'b' expected: '('"),
            ("a notin", "unable to parse requirement: found '' expected: '('"),
            ("a in (b", "unable to parse requirement: found '', expected: ',' or ')'"),
            ("a in (b,", "unable to parse requirement: found '', expected: ',', or identifier"),
            ("a!b", "unable to parse requirement: found '!', expected: in, notin, =, ==, !=, gt, lt"),
            ("a b", "unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt"),
        ] {
            assert_eq!(parse(text).unwrap_err().0, why, "{text}");
        }
        for (text, part) in
            [("-a=b", "<nil>: Invalid value: \"-a\": "), ("a=-b", "values[0][a]: Invalid value: \"-b\": ")]
        {
            assert!(parse(text).unwrap_err().0.contains(part), "{text}");
        }
    }

    #[test]
    fn words_and_nothing_between_brackets() {
        for (text, values) in [
            ("a in ()", &[""][..]),
            ("a in (,)", &[""]),
            ("a in (b,,in)", &["", "b", "in"]),
            ("a in (,b)", &["", "b"]),
            ("a in (b,)", &["", "b"]),
            ("a=in", &["in"]),
            ("a=", &[""]),
        ] {
            assert_eq!(parse(text).unwrap().requirements[0].values, values, "{text}");
        }
        assert_eq!(parse("in=x, notin").unwrap().to_string(), "in=x,notin");
    }
}
