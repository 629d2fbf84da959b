//! Workload programs in C, compiled on demand.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Scratch;

/// A compiled program.
#[derive(Debug)]
pub struct Fixture {
    folder: Scratch,
    program: PathBuf,
}

impl Fixture {
    /// Compiles `tests/fixtures/NAME.c` without shared libraries, so that it runs in any root.
    ///
    /// # Panics
    /// If it does not compile.
    pub fn compile(name: &str) -> Self {
        Self::try_compile(name, &["-static"]).unwrap_or_else(|text| panic!("{text}"))
    }

    /// Compiles with other options.
    ///
    /// # Errors
    /// The compiler's messages.
    pub fn try_compile(name: &str, options: &[&str]) -> Result<Self, String> {
        let source = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("fixtures")
            .join(format!("{name}.c"));
        let folder = Scratch::new();
        let program = folder.path().join(name);
        let compiler = Command::new("gcc")
            .args([
                "-O1",
                "-Wall",
                "-Wextra",
                "-Werror",
                "-pthread",
                "-D_GNU_SOURCE",
            ])
            .args(options)
            .arg("-o")
            .arg(&program)
            .arg(&source)
            .output()
            .unwrap_or_else(|error| panic!("cannot run gcc: {error}; run `./x test`"));
        if !compiler.status.success() {
            let text = String::from_utf8_lossy(&compiler.stderr);
            return Err(format!("cannot compile {}: {text}", source.display()));
        }
        Ok(Self { folder, program })
    }

    /// Returns the path of the program.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// Returns the program's folder, which every user can reach.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
}
