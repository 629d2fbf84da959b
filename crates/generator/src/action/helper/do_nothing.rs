//! Does nothing, for rules that match the start of a program.

use super::super::{Action, ActionEnvironment, Stop};

pub(super) const ACTION: Action = Action::new("helper.DoNothing", "do nothing", play);

fn play(_scene: &ActionEnvironment) -> Result<(), Stop> {
    Ok(())
}
