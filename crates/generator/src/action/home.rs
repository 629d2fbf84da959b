//! A home folder of a user that does not exist.

use std::fs;
use std::path::{Path, PathBuf};

use workload::Error;

use super::scene::ClaimedPath;
use super::{ActionEnvironment, Stop};

/// Makes a folder below /home, or below the caller's own home if that is not permitted.
pub(super) fn make(scene: &ActionEnvironment) -> Result<ClaimedPath, Stop> {
    let home = scene.claim_in("/home")?;
    let Err(error) = fs::create_dir(home.path()) else {
        return Ok(home);
    };
    let own = std::env::var_os("HOME").map(PathBuf::from);
    let own = own.filter(|own| own.starts_with("/home") && own != Path::new("/home"));
    let Some(own) = own else {
        return Err(Stop::Skipped(format!(
            "needs a folder below /home: {error}"
        )));
    };
    let home = scene.claim_in(own)?;
    fs::create_dir(home.path()).map_err(Error::file("make", home.path()))?;
    Ok(home)
}
