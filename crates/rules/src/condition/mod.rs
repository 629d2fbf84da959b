//! The condition language: text to tree and back.

pub mod ast;
mod lexer;
pub mod parser;
mod print;
