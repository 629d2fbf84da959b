//! Boxes that are compared, each configured as its own documents do for a coding agent: read all but
//! credentials, write the project, caches and temporary files, connect to one registry.

use std::path::PathBuf;
use std::process::Command;

use serde_json::json;

use crate::lab::{CACHES, Lab};

/// Where the registry of the lab is.
const REGISTRY: &str = "registry.test:8000";
/// Folders that a program of the system is in.
const PROGRAMS: [&str; 4] = ["/usr", "/bin", "/lib", "/lib64"];

/// A box, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Subject {
    None,
    Guard,
    Bubblewrap,
    BubblewrapNet,
    SandboxRuntime,
    Sandlock,
}

impl Subject {
    pub(crate) const ALL: [Self; 6] = [
        Self::None,
        Self::Guard,
        Self::Bubblewrap,
        Self::BubblewrapNet,
        Self::SandboxRuntime,
        Self::Sandlock,
    ];

    /// Name in results.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Guard => "guard",
            Self::Bubblewrap => "bwrap",
            Self::BubblewrapNet => "bwrap --share-net",
            Self::SandboxRuntime => "srt",
            Self::Sandlock => "sandlock",
        }
    }

    /// The program, or why there is none.
    pub(crate) fn program(self) -> Result<PathBuf, String> {
        let (name, variable) = match self {
            Self::None => return Ok(PathBuf::from("env")),
            Self::Guard => return Ok(e2e::program()),
            Self::Bubblewrap | Self::BubblewrapNet => ("bwrap", "TOLLGATE_TEST_BWRAP"),
            Self::SandboxRuntime => ("srt", "TOLLGATE_TEST_SRT"),
            Self::Sandlock => ("sandlock", "TOLLGATE_TEST_SANDLOCK"),
        };
        match std::env::var_os(variable) {
            Some(path) => Ok(PathBuf::from(path)),
            None if e2e::installed(name) => Ok(e2e::which(name)),
            None => Err(format!(
                "`{name}` is not in PATH, and {variable} is not set"
            )),
        }
    }

    /// What the program says of its version.
    pub(crate) fn version(self) -> String {
        let output = match self.program() {
            Ok(program) => Command::new(program).arg("--version").output(),
            Err(why) => return why,
        };
        let output = output.expect("it is installed");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.lines().next().unwrap_or_default().to_owned()
    }

    /// Puts a command into the box. `lists`: only programs of the system may be executed, if the box can say so.
    pub(crate) fn command(self, lab: &Lab, lists: bool, words: &[&str]) -> Vec<String> {
        let program = self
            .program()
            .expect("it was asked for")
            .display()
            .to_string();
        let mut all = vec![program];
        match self {
            Self::None => all.push("--".to_owned()),
            Self::Guard => all.extend(guard(lab, lists)),
            Self::Bubblewrap => all.extend(bubblewrap(lab, false)),
            Self::BubblewrapNet => all.extend(bubblewrap(lab, true)),
            Self::SandboxRuntime => all.extend(sandbox_runtime(lab)),
            Self::Sandlock => all.extend(sandlock(lab)),
        }
        all.extend(words.iter().map(|word| (*word).to_owned()));
        all
    }
}

fn owned(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn guard(_: &Lab, lists: bool) -> Vec<String> {
    let mut words = owned(&["guard", "--report-fd", "2", "--allow-connect", REGISTRY]);
    if lists {
        words.extend(
            PROGRAMS
                .iter()
                .flat_map(|path| owned(&["--allow-exec", path])),
        );
    }
    words.push("--".to_owned());
    words
}

fn bubblewrap(lab: &Lab, has_net: bool) -> Vec<String> {
    let mut words = owned(&[
        "--ro-bind",
        "/",
        "/",
        "--dev",
        "/dev",
        "--proc",
        "/proc",
        "--tmpfs",
        "/tmp",
        "--unshare-all",
        "--die-with-parent",
        "--new-session",
    ]);
    if has_net {
        words.push("--share-net".to_owned());
    }
    let own = CACHES.map(|name| lab.text(&format!("home/{name}")));
    for path in own.iter().chain([&lab.text("project")]) {
        words.extend(owned(&["--bind", path, path]));
    }
    words.extend(owned(&["--tmpfs", &lab.text("home/.ssh"), "--"]));
    words
}

fn sandbox_runtime(lab: &Lab) -> Vec<String> {
    let caches = CACHES.map(|name| format!("~/{name}"));
    let writes: Vec<String> = owned(&[".", "/tmp"]).into_iter().chain(caches).collect();
    let settings = json!({
        // The address of an allowed name must be allowed, too, if it is one of this host.
        "network": {"allowedDomains": ["registry.test", "192.0.2.10"], "deniedDomains": [], "allowLocalBinding": true},
        "filesystem": {"denyRead": ["~/.ssh"], "allowWrite": writes, "denyWrite": []},
    });
    let file = lab.text("srt-settings.json");
    std::fs::write(&file, settings.to_string()).expect("written");
    owned(&["--settings", &file, "--"])
}

fn sandlock(lab: &Lab) -> Vec<String> {
    let mut words = owned(&[
        "run",
        "--net-allow",
        REGISTRY,
        "--net-allow",
        "127.0.0.1",
        "--net-allow-bind",
        "*",
    ]);
    let system = [
        "/usr", "/bin", "/lib", "/lib64", "/etc", "/proc", "/sys", "/dev",
    ];
    let own = [lab.toolchain(), lab.text("fixtures")];
    for path in system.iter().copied().chain(own.iter().map(String::as_str)) {
        words.extend(owned(&["-r", path]));
    }
    let caches = CACHES.map(|name| lab.text(&format!("home/{name}")));
    let temporary = ["/tmp", "/dev/null", "/dev/shm"].map(str::to_owned);
    for path in caches
        .iter()
        .chain(&temporary)
        .chain([&lab.text("project")])
    {
        words.extend(owned(&["-w", path]));
    }
    words.push("--".to_owned());
    words
}
