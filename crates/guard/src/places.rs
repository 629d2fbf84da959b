//! Files of a host that a guard knows: credentials, homes, system folders.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use agent::guard::WideFolders;
use diagnostics::exit::Exit;
use diagnostics::failure::Failure;

/// Credentials below a home directory.
const CREDENTIALS: [&str; 38] = [
    ".ssh",
    ".gnupg",
    ".aws",
    ".azure",
    ".kube",
    ".docker",
    ".config/containers/auth.json",
    ".config/gcloud",
    ".config/gh",
    ".config/glab-cli",
    ".config/hub",
    ".config/doctl",
    ".config/op",
    ".config/rclone",
    ".config/sops",
    ".config/git/credentials",
    ".git-credentials",
    ".netrc",
    ".npmrc",
    ".pypirc",
    ".cargo/credentials",
    ".cargo/credentials.toml",
    ".gem/credentials",
    ".terraform.d/credentials.tfrc.json",
    ".vault-token",
    ".pgpass",
    ".my.cnf",
    ".password-store",
    ".local/share/keyrings",
    ".local/share/kwalletd",
    ".mozilla",
    ".thunderbird",
    ".config/google-chrome",
    ".config/chromium",
    ".config/BraveSoftware",
    ".config/microsoft-edge",
    ".bash_history",
    ".zsh_history",
];

/// Credentials of the system, which root could read.
const SYSTEM_CREDENTIALS: [&str; 6] = [
    "/etc/shadow",
    "/etc/gshadow",
    "/etc/ssl/private",
    "/etc/sudoers",
    "/etc/sudoers.d",
    "/etc/NetworkManager/system-connections",
];

/// Folders of programs and their data, as far as they exist.
pub(super) const SYSTEM: [&str; 16] = [
    "/bin",
    "/etc",
    "/lib",
    "/lib32",
    "/lib64",
    "/nix",
    "/opt",
    "/proc",
    "/run/systemd/resolve",
    "/run/NetworkManager",
    "/sbin",
    "/snap",
    "/sys",
    "/usr",
    "/var/cache",
    "/var/lib",
];

/// Folders whose programs, settings and devices others use: who writes them is not in the box.
const PROGRAMS: [&str; 12] = [
    "/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/proc", "/run", "/sbin", "/sys",
    "/usr",
];

/// Tools below the home directory that builds read and execute.
pub(super) const HOME_TOOLS: [&str; 14] = [
    ".cargo",
    ".rustup",
    ".nvm",
    ".volta",
    ".pyenv",
    ".rbenv",
    ".sdkman",
    ".local/bin",
    ".local/lib",
    ".local/share/uv",
    ".gitconfig",
    ".config/git",
    ".npm",
    "go",
];

/// Devices that every program may use.
pub(super) const DEVICES: [&str; 9] = [
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/random",
    "/dev/urandom",
    "/dev/tty",
    "/dev/ptmx",
    "/dev/pts/**",
    "/dev/fd",
];

/// Folders for temporary files.
pub(super) const TEMPORARY: [&str; 3] = ["/tmp", "/var/tmp", "/dev/shm"];

/// Resolves a path as far as it exists; the rest stays as it is written.
pub(super) fn resolved(path: &Path) -> PathBuf {
    for folder in path.ancestors() {
        if let Ok(real) = folder.canonicalize() {
            let rest = path.strip_prefix(folder).unwrap_or(Path::new(""));
            return match rest.as_os_str().is_empty() {
                true => real,
                false => real.join(rest),
            };
        }
    }
    path.to_owned()
}

/// The path that an option names, without `~`; links stay.
pub(super) fn whole(path: &Path) -> Result<PathBuf, Failure> {
    let path = match path.strip_prefix("~") {
        Ok(rest) => std::env::var_os("HOME")
            .map_or_else(|| path.to_owned(), |home| Path::new(&home).join(rest)),
        Err(_) => path.to_owned(),
    };
    std::path::absolute(&path).map_err(|error| {
        Failure::new(
            Exit::BadInput,
            format!("cannot use the path {}: {error}", path.display()),
        )
        .help("name a file or folder")
    })
}

/// The path that an option names, resolved.
pub(super) fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    Ok(resolved(&whole(path)?))
}

/// The path as a policy can say it.
pub(super) fn text(path: &Path) -> Result<String, Failure> {
    let text = path.to_str().filter(|text| !text.contains(['*', '\n']));
    text.map(str::to_owned).ok_or_else(|| {
        let message = format!(
            "cannot name {} in a policy: it has `*`, a line end, or is no UTF-8",
            path.display()
        );
        Failure::new(Exit::BadInput, message).help("name the folder above it")
    })
}

/// The user's home directories: that of the environment, and that of the user database.
pub(super) fn homes(users: &str, uid: u32, variable: Option<PathBuf>) -> Vec<PathBuf> {
    let listed = entries(users)
        .find(|(own, _)| *own == uid)
        .map(|(_, home)| home);
    let all = variable.into_iter().chain(listed);
    let real = all.filter(|home| home.is_absolute() && home.is_dir() && home != Path::new("/"));
    let distinct: BTreeSet<PathBuf> = real.map(|home| resolved(&home)).collect();
    distinct.into_iter().collect()
}

/// Home directories of others.
pub(super) fn other_homes(users: &str, own: &[PathBuf]) -> Vec<PathBuf> {
    let below_home = std::fs::read_dir("/home").into_iter().flatten().flatten();
    let below_home = below_home.map(|entry| entry.path());
    let listed = entries(users).map(|(_, home)| home);
    // System users have a folder of the system as their home.
    let listed = listed.filter(|home| home.starts_with("/home") || home == Path::new("/root"));
    let all: BTreeSet<PathBuf> = below_home
        .chain(listed)
        .filter(|home| home.is_dir() && home != Path::new("/home"))
        .map(|home| resolved(&home))
        .collect();
    let is_own = |home: &PathBuf| {
        own.iter()
            .any(|own| own.starts_with(home) || home.starts_with(own))
    };
    all.into_iter().filter(|home| !is_own(home)).collect()
}

/// User ids and home directories of a passwd(5) file.
fn entries(users: &str) -> impl Iterator<Item = (u32, PathBuf)> {
    users.lines().filter_map(|line| {
        let mut fields = line.split(':').skip(2);
        let uid = fields.next()?.parse().ok()?;
        Some((uid, PathBuf::from(fields.nth(2)?)))
    })
}

/// Folders that no advice opens as a whole: homes, and folders of the system.
pub(super) fn wide(homes: &[PathBuf], users: &str) -> WideFolders {
    let others = other_homes(users, homes);
    let paths = |list: &[&str]| list.iter().map(PathBuf::from).collect();
    WideFolders {
        homes: homes.iter().cloned().chain(others).collect(),
        system: paths(&SYSTEM),
        programs: paths(&PROGRAMS),
    }
}

/// Existing credentials of a user, and those of the system if the user could read them.
pub(super) fn credentials(homes: &[PathBuf], is_root: bool) -> Vec<PathBuf> {
    let own = homes
        .iter()
        .flat_map(|home| CREDENTIALS.iter().map(move |name| home.join(name)));
    let system = SYSTEM_CREDENTIALS
        .iter()
        .filter(|_| is_root)
        .map(PathBuf::from);
    let keys = std::fs::read_dir("/etc/ssh")
        .into_iter()
        .flatten()
        .flatten();
    let keys = keys
        .map(|entry| entry.path())
        .filter(|path| is_root && path.to_string_lossy().ends_with("_key"));
    let all = own.chain(system).chain(keys);
    let existing = all.filter(|path| path.symlink_metadata().is_ok());
    existing.map(|path| resolved(&path)).collect()
}

/// Takes `wanted` out of a denied folder: the parts of the folder that stay denied.
pub(super) fn without(denied: &Path, wanted: &[PathBuf]) -> Vec<PathBuf> {
    if wanted.iter().any(|path| path == denied) {
        return Vec::new();
    }
    if !wanted.iter().any(|path| path.starts_with(denied)) {
        return vec![denied.to_owned()];
    }
    let entries = std::fs::read_dir(denied).into_iter().flatten().flatten();
    entries
        .flat_map(|entry| without(&entry.path(), wanted))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_one_home_and_the_others_are_not_its() {
        let folder = tempfile::tempdir().expect("a folder");
        let home = folder.path().join("me");
        std::fs::create_dir(&home).expect("made");
        let users = format!(
            "root:x:0:0:root:/root:/bin/sh\nme:x:7:7::{}:/bin/sh\n",
            home.display()
        );
        let real = resolved(&home);
        let own = std::slice::from_ref(&real);
        assert_eq!(homes(&users, 7, Some(home.clone())), own);
        assert_eq!(homes(&users, 7, None), own);
        assert!(homes(&users, 8, Some(PathBuf::from("/"))).is_empty());
        let others = other_homes(&users, own);
        assert!(others.contains(&PathBuf::from("/root")), "{others:?}");
        assert!(!other_homes(&users, &[PathBuf::from("/root")]).contains(&PathBuf::from("/root")));
    }

    #[test]
    fn what_is_allowed_is_taken_out_of_what_is_denied() {
        let folder = tempfile::tempdir().expect("a folder");
        let keys = folder.path().join("keys");
        std::fs::create_dir_all(keys.join("deep")).expect("made");
        for name in ["a", "b", "deep/c"] {
            std::fs::write(keys.join(name), "").expect("written");
        }
        let rest = |wanted: &[&str]| {
            let wanted: Vec<_> = wanted.iter().map(|name| keys.join(name)).collect();
            let mut rest = without(&keys, &wanted);
            rest.sort();
            rest
        };
        assert_eq!(rest(&["a"]), [keys.join("b"), keys.join("deep")]);
        assert_eq!(rest(&["deep/c"]), [keys.join("a"), keys.join("b")]);
        let all = std::slice::from_ref(&keys);
        assert_eq!(without(&keys, &[folder.path().to_owned()]), all);
        assert!(without(&keys, all).is_empty());
    }

    #[test]
    fn a_path_is_resolved_as_far_as_it_exists() {
        let folder = tempfile::tempdir().expect("a folder");
        let real = folder.path().canonicalize().expect("it exists");
        std::os::unix::fs::symlink(&real, real.join("link")).expect("made");
        assert_eq!(resolved(&real.join("link/new/x")), real.join("new/x"));
    }
}
