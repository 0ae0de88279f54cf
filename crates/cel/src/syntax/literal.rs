//! Parsing of numbers and strings.
use super::expr::{Expr, Kind, Literal};
use super::parser::{EXPRESSION, Parse, Parser};
use super::text;
use super::token::Token;

impl Parser<'_> {
    pub(super) fn number(&mut self) -> Parse {
        let start = self.peek();
        let minus = self.eat("-").is_some();
        let token = self.next();
        let text = self.text(token);
        let sign = if minus { "-" } else { "" };
        let read = match token.token {
            Token::Int => match text.strip_prefix("0x") {
                Some(hex) => i64::from_str_radix(&format!("{sign}{hex}"), 16).ok(),
                None => format!("{sign}{text}").parse().ok(),
            }
            .map(Literal::Int)
            .ok_or("invalid int literal"),
            Token::Uint => {
                let digits = &text[..text.len() - 1];
                match digits.strip_prefix("0x") {
                    Some(hex) => u64::from_str_radix(hex, 16).ok(),
                    None => digits.parse().ok(),
                }
                .map(Literal::Uint)
                .ok_or("invalid uint literal")
            }
            Token::Float => format!("{sign}{text}")
                .parse()
                .ok()
                .filter(|f: &f64| f.is_finite())
                .map(Literal::Double)
                .ok_or("invalid double literal"),
            _ => {
                self.at -= 1;
                return self.unexpected(EXPRESSION);
            }
        };
        match read {
            Ok(literal) => Ok(self.b.at(start.offset, Kind::Literal(literal))),
            Err(message) => {
                self.fault(start.offset, message.into());
                Ok(self.b.at(start.offset, Kind::Fault))
            }
        }
    }

    pub(super) fn string(&mut self) -> Expr {
        let token = self.next();
        let bytes = token.token == Token::Bytes;
        let literal = &self.text(token)[usize::from(bytes)..];
        let read = text::unquote(literal, bytes).and_then(|b| {
            Ok(if bytes {
                Literal::Bytes(b.into())
            } else {
                Literal::Text(String::from_utf8(b).map_err(|_| "unable to unescape string")?.into())
            })
        });
        match read {
            Ok(literal) => self.b.at(token.offset, Kind::Literal(literal)),
            Err(message) => {
                self.fault(token.offset, message.into());
                self.b.at(token.offset, Kind::Fault)
            }
        }
    }
}
