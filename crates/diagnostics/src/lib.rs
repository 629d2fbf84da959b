//! Errors that end a command: an exit code, a message and the next step. Also what most commands need to
//! make such errors: printing, bounded reading of text files, and the lookup of programs.
//!
//! ```
//! use diagnostics::exit::Exit;
//! use diagnostics::failure::Failure;
//!
//! let failure = Failure::new(Exit::BadInput, "cannot read rules.yaml: no such file")
//!     .help("name an existing file with --rules");
//! assert_eq!(
//!     failure.render(),
//!     "tollgate: cannot read rules.yaml: no such file\nhelp: name an existing file with --rules\n"
//! );
//! ```

pub mod exit;
pub mod failure;
pub mod lookup;
pub mod shell;
pub mod terminal;
pub mod text_file;
