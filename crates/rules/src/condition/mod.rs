//! The condition language: text to tree and back.

pub mod ast;
mod lexer;
pub mod parser;
mod print;

pub(crate) use lexer::{is_identifier, is_list_name};

#[cfg(test)]
mod tests;
