//! Workload programs in C, compiled on demand.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError, Weak};

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

    /// Returns the program of `compile` that all tests of this process share, as long as one of them holds it.
    ///
    /// # Panics
    /// If it does not compile.
    pub fn shared(name: &str) -> Arc<Self> {
        static SHARED: Mutex<BTreeMap<String, Weak<Fixture>>> = Mutex::new(BTreeMap::new());
        // A test that panicked while it compiled one has left nothing behind.
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(fixture) = shared.get(name).and_then(Weak::upgrade) {
            return fixture;
        }
        let fixture = Arc::new(Self::compile(name));
        shared.insert(name.to_owned(), Arc::downgrade(&fixture));
        fixture
    }

    /// Compiles with other options.
    ///
    /// # Errors
    /// The compiler's messages.
    pub fn try_compile(name: &str, options: &[&str]) -> Result<Self, String> {
        Self::by("gcc", name, options)
    }

    fn by(compiler: &str, name: &str, options: &[&str]) -> Result<Self, String> {
        let source = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("fixtures")
            .join(format!("{name}.c"));
        let folder = Scratch::new();
        let program = folder.path().join(name);
        let compiled = Command::new(compiler)
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
            .unwrap_or_else(|error| panic!("cannot run {compiler}: {error}; run `./x test`"));
        if !compiled.status.success() {
            let text = String::from_utf8_lossy(&compiled.stderr);
            return Err(format!("cannot compile {}: {text}", source.display()));
        }
        Ok(Self { folder, program })
    }

    /// Compiles for another architecture, by clang and lld.
    ///
    /// # Panics
    /// If it does not compile.
    pub fn cross_compile(name: &str, target: &str, options: &[&str]) -> Self {
        let target = format!("--target={target}");
        let cross = [&[&*target, "-fuse-ld=lld", "-static"], options].concat();
        Self::by("clang", name, &cross).unwrap_or_else(|text| panic!("{text}"))
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
