//! Files of the machine and of the user that are read without being named on the command line.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use diagnostics::exit::Exit;
use diagnostics::failure::Failure;

/// Folder of the machine's configuration.
pub const FOLDER: &str = "/etc/tollgate";
/// Environment variable that names a folder to read instead of [`FOLDER`] and the user's folder; empty for none.
pub const VARIABLE: &str = "TOLLGATE_CONFIG_DIR";
/// Name of a configuration file in its folder.
const CONFIG: &str = "config.yaml";
/// Name of the folder of rule files.
const RULES: &str = "rules.d";

/// Paths that are read without being named. None of them need exist.
///
/// The default is to read nothing, as the command `falco` does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Places {
    /// Configuration files. A later one goes before an earlier one.
    pub files: Vec<PathBuf>,
    /// Folder of rule files that are loaded after the built-in rules.
    pub rules: Option<PathBuf>,
}

impl Places {
    /// Returns the places for a user's command: those of the machine, then the user's.
    ///
    /// # Errors
    ///
    /// [`Exit::BadInput`] if the environment names a folder and this program has privileges that its caller lacks.
    pub fn of_user() -> Result<Self, Failure> {
        let is_secure = sys::credential::is_secure_execution();
        Self::of(&|name| env::var_os(name), is_secure)
    }

    /// Returns the places of the machine alone, for programs that other programs start.
    ///
    /// # Errors
    ///
    /// As [`Places::of_user`].
    pub fn of_machine() -> Result<Self, Failure> {
        let is_secure = sys::credential::is_secure_execution();
        let variable = |name: &str| (name == VARIABLE).then(|| env::var_os(name)).flatten();
        Self::of(&variable, is_secure)
    }

    fn of(variable: &impl Fn(&str) -> Option<OsString>, is_secure: bool) -> Result<Self, Failure> {
        let Some(folder) = variable(VARIABLE) else {
            let mut places = Self::in_folder(Path::new(FOLDER));
            // The environment is the caller's, whose rights this program exceeds.
            if !is_secure {
                places.files.extend(of_home(variable));
            }
            return Ok(places);
        };
        if is_secure {
            let message =
                format!("cannot use {VARIABLE}: this program has privileges that its caller lacks");
            return Err(Failure::new(Exit::BadInput, message)
                .help(format!("unset it; configuration is read from {FOLDER}")));
        }
        Ok(match folder.is_empty() {
            true => Self::default(),
            false => Self::in_folder(Path::new(&folder)),
        })
    }

    fn in_folder(folder: &Path) -> Self {
        // An agent that takes over runs in another working directory.
        let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
        Self {
            files: vec![folder.join(CONFIG)],
            rules: Some(folder.join(RULES)),
        }
    }
}

/// Returns the user's file, as the XDG Base Directory Specification places it. It has relative paths ignored.
fn of_home(variable: &impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let absolute = |name: &str| {
        let path = variable(name).map(PathBuf::from);
        path.filter(|path| path.is_absolute())
    };
    let in_home = || absolute("HOME").map(|home| home.join(".config"));
    let folder = absolute("XDG_CONFIG_HOME").or_else(in_home)?;
    Some(folder.join("tollgate").join(CONFIG))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(variables: &[(&str, &str)], is_secure: bool) -> Result<Places, Failure> {
        let variable = |name: &str| {
            let mut known = variables.iter();
            let (_, value) = known.find(|(known, _)| *known == name)?;
            Some(OsString::from(value))
        };
        Places::of(&variable, is_secure)
    }

    fn files(variables: &[(&str, &str)], is_secure: bool) -> Vec<String> {
        let places = places(variables, is_secure).expect("they are good");
        let files = places.files.iter().map(|file| file.display().to_string());
        files.collect()
    }

    #[test]
    fn the_users_file_comes_after_the_machines() {
        let home = ("HOME", "/home/u");
        let machine = "/etc/tollgate/config.yaml";
        for (variables, user) in [
            (&[home][..], "/home/u/.config/tollgate/config.yaml"),
            (
                &[home, ("XDG_CONFIG_HOME", "/x")],
                "/x/tollgate/config.yaml",
            ),
            (
                &[home, ("XDG_CONFIG_HOME", "relative")],
                "/home/u/.config/tollgate/config.yaml",
            ),
            (
                &[home, ("XDG_CONFIG_HOME", "")],
                "/home/u/.config/tollgate/config.yaml",
            ),
        ] {
            assert_eq!(files(variables, false), [machine, user]);
        }
        assert_eq!(files(&[], false), [machine]);
    }

    #[test]
    fn a_variable_names_another_folder_or_none() {
        let variables = [("HOME", "/home/u"), (VARIABLE, "/t")];
        assert_eq!(files(&variables, false), ["/t/config.yaml"]);
        let rules = places(&variables, false).expect("it is good").rules;
        assert_eq!(rules, Some(PathBuf::from("/t/rules.d")));
        let none = places(&[("HOME", "/home/u"), (VARIABLE, "")], false);
        assert_eq!(none.expect("it is good"), Places::default());
    }

    #[test]
    fn a_privileged_program_takes_no_folder_from_its_environment() {
        let variables = [("HOME", "/home/u"), ("XDG_CONFIG_HOME", "/x")];
        assert_eq!(files(&variables, true), ["/etc/tollgate/config.yaml"]);
        let failure = places(&[(VARIABLE, "/t")], true).expect_err("it is refused");
        assert!(
            failure
                .render()
                .contains("cannot use TOLLGATE_CONFIG_DIR: this program has privileges"),
            "{}",
            failure.render()
        );
    }
}
