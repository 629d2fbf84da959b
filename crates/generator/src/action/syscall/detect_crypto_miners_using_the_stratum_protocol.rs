//! Names a mining pool on a command line, as miners do. Nothing is contacted.

use super::super::{Action, ActionEnvironment, Stop};

pub(super) const ACTION: Action = Action::new(
    "syscall.DetectCryptoMinersUsingTheStratumProtocol",
    "start `echo` with the words of a miner",
    play,
)
.optional_rule("Detect crypto miners using the Stratum protocol");

fn play(scene: &ActionEnvironment) -> Result<(), Stop> {
    let mut echo = scene.command("echo")?;
    echo.args([
        "-o",
        "stratum+tcp://pool.invalid:3333",
        "-u",
        "user",
        "-p",
        "x",
    ]);
    scene.run(echo)
}
