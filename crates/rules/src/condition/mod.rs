//! The condition language: lexer, parser, syntax tree and printer.

pub mod ast;
pub(crate) mod compiled;
mod lexer;
pub mod parser;
mod print;

pub(crate) use lexer::{is_identifier, is_list_name};

#[cfg(test)]
mod tests;
